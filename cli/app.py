"""The command line put together: verbs, their help, and one funnel for everything that goes wrong.

Starting and steering runs needs ``workflows/`` and a Temporal server only; the verbs that read the
ledger or the tools import ``activities/`` when they are called.
"""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from cli import (
    VERSION,
    again,
    answering,
    approvals,
    artifacts,
    checkpoints,
    controls,
    demo,
    doctor,
    editing,
    interventions,
    notifications,
    operator,
    plan_verbs,
    principal,
    proof,
    runs,
    setting_list,
    simulate,
    standing,
    start,
    stats,
    steering,
    upkeep,
    versions,
)
from cli.drill import verb as drill
from cli.exits import MEANINGS, ExitCode
from cli.text import plain


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


#: What Python makes of bytes on the command line that are not UTF-8.
_LONE: Final = re.compile("[\\ud800-\\udfff]")

_EXIT_CODES: Final = "\n".join(
    ["Exit codes:", *(f"{code:d}  {meaning}" for code, meaning in MEANINGS.items())]
)

#: Panels of the help, each with its verbs: name, function, and an example.
_VERBS: Final[dict[str, list[tuple[str, Callable[..., int], str]]]] = {
    "Runs": [
        ("start", start.start, start.EXAMPLE),
        ("list", runs.list_runs, runs.LIST_EXAMPLE),
        ("show", runs.show, runs.SHOW_EXAMPLE),
        ("checkpoint", checkpoints.checkpoint, checkpoints.EXAMPLE),
        ("pause", steering.pause, steering.PAUSE_EXAMPLE),
        ("resume", steering.resume, steering.RESUME_EXAMPLE),
        ("token", steering.token, steering.TOKEN_EXAMPLE),
        ("event", controls.event, controls.EVENT_EXAMPLE),
        ("top-up", controls.top_up, controls.TOP_UP_EXAMPLE),
        ("amend", controls.amend, controls.AMEND_EXAMPLE),
        ("retry", again.retry, again.RETRY_EXAMPLE),
        ("fork", again.fork, again.FORK_EXAMPLE),
        ("simulate", simulate.simulate_run, simulate.EXAMPLE),
        ("cancel", steering.cancel, steering.CANCEL_EXAMPLE),
    ],
    "What needs a human": [
        ("pending", approvals.pending, approvals.PENDING_EXAMPLE),
        ("approve", approvals.approve, approvals.APPROVE_EXAMPLE),
        ("reject", approvals.reject, approvals.REJECT_EXAMPLE),
        ("edit", editing.edit, editing.EXAMPLE),
        ("sign", approvals.sign, approvals.SIGN_EXAMPLE),
        ("answer", answering.answer, answering.EXAMPLE),
        ("resolve", interventions.resolve, interventions.EXAMPLE),
    ],
    "Operating (these read the ledger and the tools)": [
        ("effects", operator.effects, operator.EFFECTS_EXAMPLE),
        ("artifacts", artifacts.artifacts, artifacts.ARTIFACTS_EXAMPLE),
        ("events", operator.events, operator.EVENTS_EXAMPLE),
        ("interventions", operator.interventions, operator.INTERVENTIONS_EXAMPLE),
        ("notifications", notifications.notifications, notifications.EXAMPLE),
        ("audit", proof.audit, proof.AUDIT_EXAMPLE),
        ("reconcile", upkeep.reconcile, upkeep.RECONCILE_EXAMPLE),
        ("unwind", upkeep.unwind, upkeep.UNWIND_EXAMPLE),
        ("stats", stats.stats, stats.EXAMPLE),
        ("settings", setting_list.settings, setting_list.EXAMPLE),
        ("tools", operator.tools, operator.TOOLS_EXAMPLE),
        ("doctor", doctor.doctor, doctor.EXAMPLE),
        ("versions", versions.versions, versions.EXAMPLE),
        ("drill", drill.drill, drill.EXAMPLE),
        ("demo", demo.demo, demo.EXAMPLE),
    ],
}

#: The group `plan`, as above.
_PLAN: Final[list[tuple[str, Callable[..., int], str]]] = [
    ("check", plan_verbs.check, plan_verbs.CHECK_EXAMPLE),
    ("graph", plan_verbs.graph, plan_verbs.GRAPH_EXAMPLE),
    ("schema", plan_verbs.schema, plan_verbs.SCHEMA_EXAMPLE),
]
#: The group `principal`, as above.
_PRINCIPAL: Final[list[tuple[str, Callable[..., int], str]]] = [
    ("add", principal.add, principal.ADD_EXAMPLE),
    ("grant", principal.grant, principal.GRANT_EXAMPLE),
    ("revoke", principal.revoke, principal.REVOKE_EXAMPLE),
    ("key", principal.key, principal.KEY_EXAMPLE),
    ("list", principal.list_principals, principal.LIST_EXAMPLE),
    ("keygen", principal.keygen, principal.KEYGEN_EXAMPLE),
]
#: The group `standing`, as above.
_STANDING: Final[list[tuple[str, Callable[..., int], str]]] = [
    ("grant", standing.grant, standing.GRANT_EXAMPLE),
    ("add", standing.add, standing.ADD_EXAMPLE),
    ("list", standing.list_standing, standing.LIST_EXAMPLE),
    ("revoke", standing.revoke, standing.REVOKE_EXAMPLE),
]


def build() -> typer.Typer:
    """Return the application with all its verbs."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(epilog=_EXIT_CODES)(_options)
    for panel, verbs in _VERBS.items():
        for name, verb, example in verbs:
            app.command(name, epilog=example, rich_help_panel=panel)(verb)
    # Groups stand behind all verbs, so they have panels of their own, the last ones.
    deciding = "Who may decide (in the ledger)"
    for group, about, panel, verbs in (
        ("plan", "Check and draw plans, without a server.", "Plans", _PLAN),
        (
            "principal",
            "Say who may decide and act, and which keys they sign with.",
            deciding,
            _PRINCIPAL,
        ),
        ("standing", "Approve calls within a scope in advance.", deciding, _STANDING),
    ):
        typed = typer.Typer(help=about)
        for name, verb, example in verbs:
            typed.command(name, epilog=example)(verb)
        app.add_typer(typed, name=group, rich_help_panel=panel)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code; no error leaves as a traceback.

    Args:
        arguments: The command line without the program's name.
    """
    flags = Flags()
    if any(_LONE.search(argument) for argument in arguments):
        _complain("the command line is not UTF-8 text")
        return ExitCode.WRONG_USE
    _prepare_streams()
    try:
        code = build()(
            args=_debug_first(arguments) or ["--help"],
            prog_name="starter.py",
            standalone_mode=False,
            obj=flags,
        )
        return int(code or 0) if arguments else ExitCode.WRONG_USE
    except typer.TyperException as error:
        text = error.format_message().replace("Value error, ", "")
        _complain(f"{text} (`--help` shows how)")
        return ExitCode.WRONG_USE
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except SystemExit:  # so Rich and Typer leave when the reader of the output has gone
        return ExitCode.OUTPUT_CLOSED
    except OSError as error:
        _complain(f"{error.strerror or error} ({error.filename or 'writing the output'})")
        return ExitCode.OUTPUT_LOST
    except Exception as error:
        if flags.debug:
            traceback.print_exc()
        _complain(
            f"unexpected {type(error).__name__}: {error}; this is a mistake of ours: "
            "run it again as `starter.py --debug ...` and report what that prints"
        )
        return ExitCode.UNEXPECTED


def _debug_first(arguments: Sequence[str]) -> list[str]:
    """Put ``--debug`` before the verb, where it is declared: people write it anywhere."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    others = [argument for argument in arguments[:end] if argument != "--debug"]
    debug = ["--debug"] if len(others) < end else []
    return [*debug, *others, *arguments[end:]]


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (`>&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (stays open to the end)
        # What tools and plans wrote must not fail to print because of the terminal's encoding.
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(text: str) -> None:
    print(f"surehand: {plain(text)}", file=sys.stderr)
