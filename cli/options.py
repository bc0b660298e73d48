"""Options that several verbs share, declared once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from workflows.policy import parse_duration


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


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Tenant to act in; default SUREHAND_TENANT.")
]
Actor = Annotated[
    str | None,
    typer.Option("--as", help="Who you are; default SUREHAND_USER, else the login name."),
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="USER", help="Whom the run acts for; default you."),
]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="Your private key, to sign with; default SUREHAND_KEY."),
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
Timeout = Annotated[
    timedelta | None,
    typer.Option(
        "--timeout", parser=duration, metavar="DURATION", help="Wait at most so long, e.g. 10m."
    ),
]
Ui = Annotated[
    str | None, typer.Option("--ui", help="Address of the Web UI; default TEMPORAL_UI_URL.")
]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=10_000, help="At most so many, those started last.")
]
