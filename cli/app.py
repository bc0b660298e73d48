"""The command line put together: verbs, their help, and one funnel for everything that goes wrong.

Starting and steering runs needs ``workflows/`` and a Temporal server only; the verbs that read the
ledger or the tools import ``activities/`` when they are called.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from surehand.cli.approvals import verbs as approvals
from surehand.cli.approvals_server import verbs as approvals_server
from surehand.cli.codec_server import verbs as codec_server
from surehand.cli.control import resolve
from surehand.cli.control import verbs as control
from surehand.cli.mcp_server import verbs as mcp_server
from surehand.cli.operate import (
    audit,
    demo,
    dev,
    doctor,
    erase,
    init,
    keys,
    ledger,
    maintenance,
    mcp,
    quota,
    restored,
    retention,
    settings,
    stats,
    tenant,
    versions,
)
from surehand.cli.people import principal, standing
from surehand.cli.plans import verbs as plan_verbs
from surehand.cli.runs import artifacts, checkpoints, rerun, show, simulate, start
from surehand.cli.verb import options
from surehand.cli.verb.printer import Printer
from surehand.drill import verb as drill
from surehand.process import VERSION
from surehand.process.exits import MEANINGS, ExitCode, SurehandError
from surehand.process.program import program


@dataclass
class Flags:
    """Global options, filled while the command line is parsed."""

    debug: bool = False


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"surehand {VERSION}")
        raise typer.Exit


def _options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which version this is.", callback=_say_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Start agent runs, approve their calls, and see what they did."""
    context.obj.debug = debug


def _worker(
    check: Annotated[
        bool, typer.Option("--check", help="Load everything, say so, and exit.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", metavar="N", help="Workers, each in a process of its own: one a core."
        ),
    ] = None,
) -> int:
    """Run a worker in the foreground, as `worker.py` does: it carries runs and calls tools.

    Example: python starter.py worker --check
    """
    from surehand.worker import main  # it loads the other room

    several = [] if processes is None else ["--processes", str(processes)]
    return main([*(["--check"] if check else []), *several])


#: What Python makes of bytes on the command line that are not UTF-8.
_LONE: Final = re.compile("[\\ud800-\\udfff]")

_EXIT_CODES: Final = "\n".join(
    ["Exit codes:", *(f"{code:d}  {meaning}" for code, meaning in MEANINGS.items())]
)

#: Panels of the help, each with its verbs.
_VERBS: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "Runs": {
        "start": start.start,
        "list": show.list_runs,
        "show": show.show,
        "checkpoint": checkpoints.checkpoint,
        "pause": control.pause,
        "resume": control.resume,
        "token": control.token,
        "event": control.event,
        "top-up": control.top_up,
        "amend": control.amend,
        "retry": rerun.retry,
        "fork": rerun.fork,
        "simulate": simulate.simulate_run,
        "cancel": control.cancel,
    },
    "What needs a human": {
        "pending": approvals.pending,
        "approve": approvals.approve,
        "reject": approvals.reject,
        "edit": approvals.edit,
        "sign": approvals.sign,
        "answer": control.answer,
        "resolve": resolve.resolve,
    },
    "Operating (these read the ledger and the tools)": {
        "effects": ledger.effects,
        "artifacts": artifacts.artifacts,
        "events": ledger.events,
        "interventions": ledger.interventions,
        "notifications": ledger.notifications,
        "audit": audit.audit,
        "erase": erase.erase,
        "reconcile": maintenance.reconcile,
        "unwind": maintenance.unwind,
        "retention": retention.retention,
        "stats": stats.stats,
        "settings": settings.settings,
        "tools": ledger.tools,
        "doctor": doctor.doctor,
        "versions": versions.versions,
        "drill": drill.drill,
        "demo": demo.demo,
    },
    "Your own project": {"init": init.init, "dev": dev.dev, "worker": _worker},
}

#: Groups of verbs, each with what it is about, and its panel. They stand behind all verbs, so
#: their panels are the last ones.
_GROUPS: Final[dict[str, tuple[str, str, dict[str, Callable[..., Any]]]]] = {
    "plan": (
        "Check and draw plans, without a server.",
        "Plans",
        {
            "check": plan_verbs.check,
            "graph": plan_verbs.graph,
            "schema": plan_verbs.schema,
        },
    ),
    "keys": (
        "Make, list and rotate the keys that the keys of runs are wrapped with.",
        "Encryption",
        {"new": keys.new, "list": keys.list_keys, "rotate": keys.rotate},
    ),
    "codec": (
        "Encrypt and decrypt for the Web UI, and for starters without keys.",
        "Encryption",
        {"serve": codec_server.serve, "token": codec_server.token},
    ),
    "approvals": (
        "Serve the pages on which approvers decide, in a browser.",
        "Approvers' pages",
        {"serve": approvals_server.serve, "link": approvals_server.link},
    ),
    "mcp": (
        "Review which tools of MCP servers may be called; serve runs to an assistant.",
        "MCP",
        {
            "list": mcp.list_mcp,
            "pin": mcp.pin,
            "diff": mcp.diff,
            "serve": mcp_server.serve,
        },
    ),
    "ledger": (
        "Say that the ledger was restored from a backup, and what follows.",
        "Restore",
        {"restored": restored.restored},
    ),
    "principal": (
        "Say who may decide and act, and which keys they sign with.",
        "Who may decide, and how much (in the ledger)",
        {
            "add": principal.add,
            "grant": principal.grant,
            "revoke": principal.revoke,
            "key": principal.key,
            "list": principal.list_principals,
            "keygen": principal.keygen,
        },
    ),
    "quota": (
        "Say what a tenant may use, and see what it has used.",
        "Who may decide, and how much (in the ledger)",
        {"set": quota.set_quota, "show": quota.show_quota},
    ),
    "tenant": (
        "Say of which cell a tenant is, and move it to another one.",
        "Who may decide, and how much (in the ledger)",
        {"add": tenant.add, "show": tenant.show, "move": tenant.move},
    ),
    "standing": (
        "Approve calls within a scope in advance.",
        "Who may decide, and how much (in the ledger)",
        {
            "grant": standing.grant,
            "add": standing.add,
            "list": standing.list_standing,
            "revoke": standing.revoke,
        },
    ),
}


def build() -> typer.Typer:
    """Return the application with all its verbs."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(epilog=_EXIT_CODES)(_options)
    for panel, verbs in _VERBS.items():
        _register(app, verbs, panel)
    for group, (about, panel, verbs) in _GROUPS.items():
        typed = typer.Typer(help=about)
        _register(typed, verbs, None)
        app.add_typer(typed, name=group, rich_help_panel=panel)
    return app


def _register(app: typer.Typer, verbs: dict[str, Callable[..., Any]], panel: str | None) -> None:
    for name, verb in verbs.items():
        # A verb's docstring ends with an example, which the help shows at its end.
        about, _, example = (inspect.getdoc(verb) or "").partition("\n\nExample: ")
        shown = f"Example: {example.replace('python starter.py', program())}"
        typed = app.command(name, help=about, epilog=shown, rich_help_panel=panel)
        typed(verb if verb is _worker else options.command_of(verb))


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code; no error leaves as a traceback.

    Args:
        arguments: The command line without the program's name.
    """
    flags = Flags()
    _prepare_streams()
    end = arguments.index("--") if "--" in arguments else len(arguments)
    printer = Printer(json_output="--json" in arguments[:end])
    if any(_LONE.search(argument) for argument in arguments):
        return _complain(printer, "the command line is not UTF-8 text", ExitCode.WRONG_USE)
    try:
        code = build()(
            args=_debug_first(arguments) or ["--help"],
            prog_name=program().removeprefix("python "),
            standalone_mode=False,
            obj=flags,
        )
        return int(code or 0) if arguments else ExitCode.WRONG_USE
    except typer.TyperException as error:
        text = error.format_message().replace("Value error, ", "")
        return _complain(printer, f"{text} (`--help` shows how)", ExitCode.WRONG_USE)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except OSError as error:
        # With --json, too, without a document: the output is what fails.
        printer.warn(f"{error.strerror or error} ({error.filename or 'writing the output'})")
        return ExitCode.OUTPUT_LOST
    except (Exception, SystemExit) as error:
        # So Rich and Typer leave when the reader of the output has gone.
        cause = error.__context__ if isinstance(error, SystemExit) else None
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            return ExitCode.OUTPUT_CLOSED
        if flags.debug:
            traceback.print_exc()
        return _complain(
            printer,
            f"unexpected {type(error).__name__}: {error}; this is a mistake of ours: "
            f"run it again as `{program()} --debug ...` and report what that prints",
            ExitCode.UNEXPECTED,
        )


def _debug_first(arguments: Sequence[str]) -> list[str]:
    """Put ``--debug`` before the verb, where it is declared: people write it anywhere."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    others = [argument for argument in arguments[:end] if argument != "--debug"]
    debug = ["--debug"] if len(others) < end else []
    return [*debug, *others, *arguments[end:]]


def _prepare_streams() -> None:
    if sys.stdin is None:
        sys.stdin = io.StringIO()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (`>&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (stays open to the end)
        # What tools and plans wrote must not fail to print because of the terminal's encoding.
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(printer: Printer, text: str, code: ExitCode) -> ExitCode:
    printer.error(SurehandError(text, code=code))
    return code
