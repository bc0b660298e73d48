"""Options that several verbs share, declared once; and how a verb becomes a command.

A verb is a function that returns a reply. Its first parameter is who calls: the type of that says
which of the shared options the verb has. The rest are options and arguments of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from surehand.cli.verb.caller import Caller, perform
from surehand.process.exits import WrongUse
from surehand.workflows.plan.policy import parse_duration


def duration(text: str) -> timedelta:
    """Return ``90s``, ``10m`` or ``2h`` as a timedelta.

    Raises:
        typer.BadParameter: If it is not a duration above zero.
    """
    try:
        parsed = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from error
    if not isinstance(parsed, timedelta) or parsed <= timedelta(0):
        raise typer.BadParameter(f"{text!r} is not a duration such as 90s, 10m or 2h")
    return parsed


def refuse_lone_timeout(wait: bool, timeout: timedelta | None) -> None:
    """Refuse a time limit for a wait that was not asked for.

    Raises:
        WrongUse: There is one.
    """
    if timeout is not None and not wait:
        raise WrongUse("--timeout is for --wait")


def lasting(name: str, meaning: str, **more: Any) -> Any:
    """Return an option that takes a duration."""
    return typer.Option(name, parser=duration, metavar="DURATION", help=meaning, **more)


For = Annotated[
    str | None,
    typer.Option("--for", metavar="USER", help="Whom the run acts for; default you."),
]
Reason = Annotated[str, typer.Option("--reason", help="Recorded with it.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or full id.")]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A YAML or JSON file.")]
RunName = Annotated[
    str | None, typer.Option("--run-id", help="Name of the new run; default PLAN-NAME-RANDOM.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Change the plan, e.g. input.order_id=order-7."
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Stay until it ends or, without a terminal, needs a human; the exit code says how.",
    ),
]
Leave = Annotated[
    bool,
    typer.Option(
        "--leave", help="If no worker answers, leave it with the server: it counts once one does."
    ),
]
Timeout = Annotated[timedelta | None, lasting("--timeout", "Wait at most so long, e.g. 10m.")]
OnlyRun = Annotated[str | None, typer.Argument(metavar="RUN", help="Only this run's; default all.")]
Limit = Annotated[
    int,
    typer.Option("--limit", min=1, max=10_000, help="At most so many runs, those started last."),
]

#: The options that say who calls; each verb has them last, in this order. None has to be given.
_SHARED: Final[dict[str, Any]] = {
    "user": Annotated[
        str | None,
        typer.Option("--as", help="Who you are; default SUREHAND_USER, else the login name."),
    ],
    "key": Annotated[
        Path | None,
        typer.Option("--key", help="Your private key, to sign with; default SUREHAND_KEY."),
    ],
    "tenant": Annotated[
        str | None, typer.Option("--tenant", help="Tenant to act in; default SUREHAND_TENANT.")
    ],
    "ui_url": Annotated[
        str | None, typer.Option("--ui", help="Address of the Web UI; default TEMPORAL_UI_URL.")
    ],
    "json_output": Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")
    ],
}


@dataclass(frozen=True)
class Shares:
    """Which of the shared options a verb has."""

    names: tuple[str, ...] = ()
    judged: bool = True
    """Whether wrong settings are refused before it begins."""


#: Who calls a verb that serves until it is ended, and has no document.
Alone = Annotated[Caller, Shares()]
#: Who calls a verb that acts for nobody.
Anybody = Annotated[Caller, Shares(("json_output",))]
#: Who calls a verb of which no setting is asked, or which says itself what is wrong with them.
Unjudged = Annotated[Caller, Shares(("json_output",), judged=False)]
#: Who calls a verb that looks at a tenant.
Onlooker = Annotated[Caller, Shares(("tenant", "json_output"))]
#: Who calls a verb that records who has asked for it.
Actor = Annotated[Caller, Shares(("user", "tenant", "json_output"))]
#: Who calls a verb that sends something, which may be signed.
Sender = Annotated[Caller, Shares(("user", "key", "tenant", "json_output"))]


def command_of(verb: Callable[..., Any]) -> Callable[..., int]:
    """Return a verb as Typer reads it: a function of its own options and those that it shares."""
    caller, *own = inspect.signature(verb, eval_str=True).parameters.values()
    _, shares = get_args(caller.annotation)

    def command(**given: Any) -> int:
        shared = {name: given.pop(name) for name in shares.names}
        return perform(lambda who: verb(who, **given), judged=shares.judged, **shared)

    last = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=option,
            default=False if get_args(option)[0] is bool else None,
        )
        for name, option in _SHARED.items()
        if name in shares.names
    ]
    first = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    command.__signature__ = inspect.Signature([*first, *last])  # type: ignore[attr-defined]
    return command
