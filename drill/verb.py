"""``drill``: the command line's side of it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.printer import Reply
from surehand.client.plan_file import load_plan
from surehand.process.exits import ExitCode, WrongUse, end_by_signal_in_order

if TYPE_CHECKING:
    from surehand.drill.report import DrillReport
    from surehand.drill.request import DrillRequest
    from surehand.drill.state import DrillState


#: How long one case may take, if nothing else is said: recoveries take seconds.
CASE_LIMIT: Final = timedelta(minutes=2)
STATES: Final = Path(".surehand") / "drill"


def _names(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names that an option lists; all there are go by none."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise WrongUse(f"{option} {text!r} names nothing: leave it out for all")
    return names


def drill(
    caller: options.Anybody,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A YAML or JSON file.")],
    world: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Returns what a run's effects have left."),
    ] = None,
    fresh: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Returns plan input for one more run."),
    ] = None,
    already: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Leaves the world as a step's call would."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(help="What is done to a run, comma separated; default all."),
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Steps, comma separated; default all.")] = None,
    modes: Annotated[
        str | None, typer.Option(help="Durability modes, comma separated; default sync.")
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write it: .html, .md or .json."),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A migrated ledger; default a file a case.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, max=64, help="Cases at a time; default 2, with --fresh.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with one that was ended early; a done one begins anew."
        ),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change the plan, as with start."),
    ] = None,
    timeout: Annotated[
        timedelta,
        typer.Option(
            parser=options.duration,
            metavar="DURATION",
            help="One case's; default 2m.",
            show_default=False,
        ),
    ] = CASE_LIMIT,
) -> Reply:
    r"""Kill workers at every step, interrupt, reset and stop runs there, and compare what is left.

    Each case is a fresh run with workers of its own: one dies, another one takes over.

    Crash points: before_claim, after_claim, during_call, after_call, after_outcome, before_report.

    Forced waits: pause, approval, ask, permission_loss, expiry.

    With --already: already_true, the world is so before the call, and no write may be skipped.

    Operations: reset, reset_step, reset_killed, terminate, deploy, freeze.

    Tools run for real, approved by 'drill-approver': drill a test system.

    Exits with 3 if a world differs, a point was not reached, or something ran that was not approved
    or not allowed; needing a human is no difference where the tool says that one decides.

    Example: python starter.py drill examples/refund.yaml --report drill.html \
      --world surehand.examples.shop.drill:world \
      --fresh surehand.examples.shop.drill:fresh
    """
    from surehand.drill.documents import write, writer_of
    from surehand.drill.report import lines
    from surehand.drill.request import DrillRequest
    from surehand.drill.state import DrillState
    from surehand.drill.world import Function

    writers = [(file, writer_of(file)) for file in report or []]
    request = DrillRequest.checked(
        load_plan(plan, changes or []),
        plan,
        points=_names("--points", points),
        modes=_names("--modes", modes),
        steps=_names("--steps", steps),
        world=Function.load("--world", world) if world else None,
        fresh=Function.load("--fresh", fresh) if fresh else None,
        already=Function.load("--already", already) if already else None,
        parallel=parallel,
        limit=timeout,
        own_ledger=database is None,
    )
    file = writers[0][0] if writers else STATES / request.plan.name
    state = DrillState(file.with_name(f"{file.name}.state"))
    end_by_signal_in_order()
    found = _drilled(caller, request, database, state, resume=resume)
    for target, writer in writers:
        write(target, writer(found))
    caller.printer.lines(lines(found))  # with --json, too: it is what the progress comes to
    return Reply(found, (), ExitCode.DONE if found.ok else ExitCode.BROKEN)


def _drilled(
    caller: Caller,
    request: DrillRequest,
    database: str | None,
    state: DrillState,
    *,
    resume: bool,
) -> DrillReport:
    from surehand.cli.verb.ledger_door import translated
    from surehand.drill.environment import prepared, require_tools
    from surehand.drill.people import APPROVER
    from surehand.drill.progress import make_progress
    from surehand.drill.suite import Suite

    printer = caller.printer
    require_tools(caller.environment)
    with ExitStack() as running:
        running.enter_context(translated())
        environment = running.enter_context(
            prepared(caller.environment, database=database, say=printer.say)
        )
        where = (
            "an embedded server"
            if environment.embedded
            else environment.temporal["TEMPORAL_ADDRESS"]
        )
        printer.say(f"Drilling {request.plan_name} on {where}; {APPROVER!r} approves what waits")
        progress = running.enter_context(make_progress(printer))
        suite = Suite(
            request,
            environment,
            caller.settings,
            caller.environment,
            progress,
            state=state,
            resume=resume,
        )
        try:
            found = asyncio.run(suite.run())
        except KeyboardInterrupt:
            printer.warn(f"ended early; --resume goes on (cases done are kept in {state.file})")
            raise
        if not found.ok:
            environment.keep()
            printer.say(f"Ledgers and logs of all cases are kept in {environment.folder}")
        return found
