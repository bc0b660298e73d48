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
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Final

import typer

from surehand.process import PACKAGE, VERSION
from surehand.process.exits import ExitCode, SurehandError
from surehand.process.program import program

if TYPE_CHECKING:
    from surehand.cli.printer import Printer


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"surehand {VERSION}")
        raise typer.Exit


#: Read before the command line is parsed: what is shown is chosen then.
_HELP_ALL: Final = "--help-all"
#: Also read before that: people write it anywhere.
_DEBUG: Final = "--debug"


def _declare_flags(
    _debug: Annotated[
        bool, typer.Option(_DEBUG, help="Show the traceback of an unexpected error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which version this is.", callback=_say_version, is_eager=True
        ),
    ] = False,
    _help_all: Annotated[
        bool, typer.Option(_HELP_ALL, help="Show all verbs, and what the exit codes mean.")
    ] = False,
) -> None:
    """Start agent runs, approve their calls, and see what they did."""


def _worker(
    check: Annotated[
        bool, typer.Option("--check", help="Load everything, say so, and exit.")
    ] = False,
) -> int:
    """Run a worker in the foreground: it carries runs and calls tools.

    Example: surehand worker --check
    """
    from surehand.worker import main  # it loads the other room

    return main(["--check"] if check else [])


def _run_server(
    db: Annotated[Path, typer.Option("--db", help="Its file; its log lies beside it.")] = Path(
        ".surehand/temporal.db"
    ),
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Default: that of TEMPORAL_ADDRESS, otherwise 7233. 0 takes a free one.",
        ),
    ] = None,
    ui_port: Annotated[
        int, typer.Option("--ui-port", min=0, max=65535, help="0 takes a free one.")
    ] = 8233,
    wait: Annotated[
        bool, typer.Option("--wait", help="Start none: return once the one on the port serves.")
    ] = False,
    print_cli: Annotated[
        bool, typer.Option("--print-cli", help="Start none: print the path of the Temporal CLI.")
    ] = False,
) -> int:
    """Run Temporal's development server in the foreground.

    Example: surehand server
    """
    from surehand.process.dev_server import serve

    return serve(db, port=port, ui_port=ui_port, print_cli=print_cli, wait=wait)


#: What Python makes of bytes on the command line that are not UTF-8.
_LONE: Final = re.compile("[\\ud800-\\udfff]")

_EXIT_CODES: Final = "\n".join(["Exit codes:", *(f"{code:d}  {code.meaning}" for code in ExitCode)])

#: What the paths of verbs are relative to.
_PACKAGE: Final = "surehand"
#: Verbs that have no options in common with the others.
_PROGRAMS: Final = {
    "worker": "cli.app:_worker",
    "migrate": "cli.migrate:main",
    "server": "cli.app:_run_server",
}

#: Panels of the help, each with its verbs. A verb's module is loaded when it is called.
_EVERY_DAY: Final = "Every day"
_VERBS: Final[dict[str, dict[str, str]]] = {
    _EVERY_DAY: {
        "init": "cli.dev:init",
        "dev": "cli.dev:dev",
        "start": "cli.runs:start",
        "list": "cli.runs:list_runs",
        "show": "cli.runs:show",
        "pending": "cli.approvals:pending",
        "approve": "cli.approvals:approve",
        "reject": "cli.approvals:reject",
        "answer": "cli.steering:answer",
        "doctor": "cli.doctor:doctor",
    },
    "Runs": {
        "checkpoint": "cli.records:checkpoint",
        "pause": "cli.steering:pause",
        "resume": "cli.steering:resume",
        "event": "cli.steering:event",
        "top-up": "cli.steering:top_up",
        "amend": "cli.steering:amend",
        "retry": "cli.runs:retry",
        "fork": "cli.runs:fork",
        "simulate": "cli.simulate:simulate_run",
        "cancel": "cli.steering:cancel",
    },
    "What needs a human": {
        "edit": "cli.approvals:edit",
        "sign": "cli.approvals:sign",
        "resolve": "cli.steering:resolve",
    },
    "Operating (these read the ledger and the tools)": {
        "halt": "cli.halt_calls:halt",
        "lift": "cli.halt_calls:lift",
        "halts": "cli.halt_calls:halts",
        "effects": "cli.records:effects",
        "artifacts": "cli.records:artifacts",
        "events": "cli.records:events",
        "interventions": "cli.records:interventions",
        "notifications": "cli.records:notifications",
        "audit": "cli.audit:audit",
        "receipt": "cli.audit:receipt",
        "erase": "cli.retention:erase",
        "reconcile": "cli.maintenance:reconcile",
        "unwind": "cli.maintenance:unwind",
        "retention": "cli.retention:retention",
        "stats": "cli.maintenance:stats",
        "settings": "cli.doctor:settings",
        "tools": "cli.tools:tools",
        "drill": "drill.verb:drill",
        "try": "drill.verb:try_agent",
        "demo": "cli.demo:demo",
    },
    "Programs": dict(_PROGRAMS),
}

#: Groups of verbs, each with what it is about, and its panel. They stand behind all verbs, so
#: their panels are the last ones.
_GROUPS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "plan": (
        "Check a plan, without a server.",
        "Plans",
        {"check": "cli.tools:check"},
    ),
    "keys": (
        "Make, list and rotate the keys that the keys of runs are wrapped with.",
        "Encryption",
        {"new": "cli.tenants:new", "list": "cli.tenants:list_keys", "rotate": "cli.tenants:rotate"},
    ),
    "codec": (
        "Encrypt and decrypt for the Web UI, and for programs in other languages.",
        "Encryption",
        {"serve": "cli.codec_server.verbs:serve", "token": "cli.codec_server.verbs:token"},
    ),
    "approvals": (
        "Serve the pages on which approvers decide, in a browser.",
        "Approvers' pages",
        {"serve": "cli.approvals_server.verbs:serve", "link": "cli.approvals_server.verbs:link"},
    ),
    "mcp": (
        "Review which tools of MCP servers may be called; serve runs to an assistant.",
        "MCP",
        {
            "list": "cli.tools:list_mcp",
            "pin": "cli.tools:pin",
            "serve": "cli.mcp_server.verbs:serve",
        },
    ),
    "ledger": (
        "Say that the ledger was restored from a backup, and what follows.",
        "Restore",
        {"restored": "cli.maintenance:restored"},
    ),
    "principal": (
        "Say who may decide and act, and which keys they sign with.",
        "Who may decide, and how much (in the ledger)",
        {
            "add": "cli.people:add_principal",
            "grant": "cli.people:grant_principal",
            "revoke": "cli.people:revoke_principal",
            "list": "cli.people:list_principals",
            "name-deputy": "cli.people:name_deputy",
            "revoke-deputy": "cli.people:revoke_deputy",
            "deputies": "cli.people:list_deputies",
            "keygen": "cli.people:make_key_pair",
        },
    ),
    "quota": (
        "Say what a tenant may use, and see what it has used.",
        "Who may decide, and how much (in the ledger)",
        {"set": "cli.tenants:set_quota", "show": "cli.tenants:show_quota"},
    ),
    "limits": (
        "Test limits against past effects.",
        "Who may decide, and how much (in the ledger)",
        {"try": "cli.limit_trial:try_limits"},
    ),
    "tenant": (
        "Say which cell a tenant belongs to.",
        "Who may decide, and how much (in the ledger)",
        {"add": "cli.tenants:add", "show": "cli.tenants:show"},
    ),
    "standing": (
        "Approve calls within a scope in advance.",
        "Who may decide, and how much (in the ledger)",
        {
            "grant": "cli.people:grant_standing",
            "add": "cli.people:add_standing",
            "list": "cli.people:list_standing",
            "revoke": "cli.people:revoke_standing",
        },
    ),
}


def build(arguments: Sequence[str] | None = None, *, show_all: bool = True) -> typer.Typer:
    """Return the application with the verb that the arguments name, or with all verbs.

    Without ``show_all`` its help lists what people need every day.

    The help of all verbs takes 2.5 s of CPU if it loads them, and 0.5 s if it reads their
    docstrings. So verbs that are not called are not loaded.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    more = f"`{program()} {_HELP_ALL}` shows all verbs, such as pause, cancel, halt and audit."
    app.callback(epilog=_EXIT_CODES if show_all else more)(_declare_flags)
    named = None if arguments is None else [one for one in arguments if not one.startswith("-")]
    for panel, verbs in _VERBS.items():
        _register_verbs(app, verbs, panel, named, hidden=not show_all and panel != _EVERY_DAY)
    for group, (about, panel, verbs) in _GROUPS.items():
        typed = typer.Typer(help=about)
        if named is not None and named[:1] != [group]:
            _register_verbs(typed, verbs, None, ["none of them"])
        else:
            _register_verbs(typed, verbs, None, named and named[1:])
        app.add_typer(typed, name=group, rich_help_panel=panel, hidden=not show_all)
    return app


def _register_verbs(
    app: typer.Typer,
    verbs: Mapping[str, str],
    panel: str | None,
    named: Sequence[str] | None,
    *,
    hidden: bool = False,
) -> None:
    for name, path in verbs.items():
        if named is None or named[:1] == [name]:
            from surehand.cli.options import command_of

            verb = resolve_name(f"{_PACKAGE}.{path}")
            # A verb's docstring ends with an example, which the help shows at its end.
            about, _, example = (inspect.getdoc(verb) or "").partition("\n\nExample: ")
            shown = f"Example: {program()}{example.removeprefix('surehand')}"
            typed = app.command(
                name, help=about, epilog=shown, rich_help_panel=panel, hidden=hidden
            )
            typed(verb if path in _PROGRAMS.values() else command_of(verb))
        else:
            about = "" if named or hidden else _read_docstring(path)
            app.command(name, help=about, rich_help_panel=panel, hidden=hidden)(_not_loaded)


def _not_loaded() -> None:
    raise AssertionError("only the verb that the arguments name is called")


def _read_docstring(path: str) -> str:
    """Return a verb's docstring without loading it."""
    module, _, name = path.partition(":")
    found = re.search(
        rf'^(?:async )?def {name}\(.*?^    r?"""(.*?)"""', _read_module(module), re.M | re.S
    )
    if found is None:
        raise AssertionError(f"there is no verb {path}")
    return inspect.cleandoc(found[1])


@cache
def _read_module(module: str) -> str:
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code; no error leaves as a traceback."""
    _prepare_streams()
    show_all = list(arguments) == [_HELP_ALL]
    if show_all:
        arguments = ["--help"]
    if any(_LONE.search(argument) for argument in arguments):
        return _print_mistake(arguments, "the command line is not UTF-8 text", ExitCode.WRONG_USE)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    debug = _DEBUG in arguments[:end]
    read = [one for one in arguments[:end] if one != _DEBUG]
    try:
        code = build(arguments, show_all=show_all)(
            args=[*read, *arguments[end:]] or ["--help"],
            prog_name=program().removeprefix("python "),
            standalone_mode=False,
        )
        return int(code or 0) if arguments else ExitCode.WRONG_USE
    except typer.TyperException as error:
        text = error.format_message().replace("Value error, ", "")
        if text.startswith("Missing ") and (param := getattr(error, "param", None)) is not None:
            text = f"{text} {param.help or ''}".rstrip()
        return _print_mistake(arguments, f"{text} (`--help` shows how)", ExitCode.WRONG_USE)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except OSError as error:
        # With --json, too, without a document: the output is what fails.
        what = error.filename or "writing the output"
        _make_printer(arguments).warn(f"{error.strerror or error} ({what})")
        return ExitCode.OUTPUT_LOST
    except (Exception, SystemExit) as error:
        # So Rich and Typer leave when the reader of the output has gone.
        cause = error.__context__ if isinstance(error, SystemExit) else None
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            return ExitCode.OUTPUT_CLOSED
        if debug:
            traceback.print_exc()
        return _print_mistake(
            arguments,
            f"unexpected {type(error).__name__}: {error}; this is a mistake of ours: "
            f"run it again as `{program()} --debug ...` and report what that prints",
            ExitCode.UNEXPECTED,
        )


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


def _make_printer(arguments: Sequence[str]) -> Printer:
    from surehand.cli.printer import Printer  # not with the help, which needs no models

    end = arguments.index("--") if "--" in arguments else len(arguments)
    return Printer(json_output="--json" in arguments[:end])


def _print_mistake(arguments: Sequence[str], text: str, code: ExitCode) -> ExitCode:
    _make_printer(arguments).error(SurehandError(text, code=code))
    return code
