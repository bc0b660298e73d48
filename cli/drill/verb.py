"""``drill``: the command line's side of it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform_sync
from cli.exits import ExitCode, WrongUse
from cli.planfile import load_plan
from cli.process import end_by_signal_in_order

if TYPE_CHECKING:
    from cli.drill.report import DrillReport
    from cli.drill.request import DrillRequest
    from cli.drill.state import DrillState

EXAMPLE: Final = (
    "Example: python starter.py drill examples/refund.yaml --report drill.html \\\n"
    "  --world examples.shop.drill:world --fresh examples.shop.drill:fresh"
)

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
        typer.Option(metavar="FILE", help="Write it: .html, .md or .json; may be repeated."),
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
    json_output: options.Json = False,
) -> int:
    """Kill workers at every step, interrupt, reset and stop runs there, and compare what is left.

    Each case is a fresh run with workers of its own: one dies, another one takes over.

    Crash points: before_claim, after_claim, during_call, after_call, after_outcome, before_report.

    Interruptions: pause, approval, ask, permission_loss, expiry.

    With --already: already_true, the world is so before the call, and no write may be skipped.

    Operations: reset, reset_step, reset_killed, terminate, deploy.

    Tools run for real, approved by 'drill-approver': drill a test system.

    Exits with 3 if a world differs, a point was not reached, or something ran that was not approved
    or not allowed; needing a human is no difference.
    """

    def verb(caller: Caller) -> int:
        from cli.drill.files import write, writer_of
        from cli.drill.matrix import show
        from cli.drill.request import DrillRequest
        from cli.drill.state import DrillState
        from cli.drill.world import Function

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
        show(caller.printer, found)
        if json_output:
            caller.printer.document(found)
        return ExitCode.DONE if found.ok else ExitCode.BROKEN

    return perform_sync(verb, json_output=json_output)


def _drilled(
    caller: Caller,
    request: DrillRequest,
    database: str | None,
    state: DrillState,
    *,
    resume: bool,
) -> DrillReport:
    from cli.drill.course import Course
    from cli.drill.ground import prepared, require_tools
    from cli.drill.people import APPROVER
    from cli.drill.progress import make_progress
    from cli.ledger_door import translated

    printer = caller.printer
    require_tools(caller.environment)
    with ExitStack() as running:
        running.enter_context(translated())
        ground = running.enter_context(
            prepared(caller.environment, database=database, say=printer.say)
        )
        where = "an embedded server" if ground.embedded else ground.temporal["TEMPORAL_ADDRESS"]
        printer.say(f"Drilling {request.plan_name} on {where}; {APPROVER!r} approves what waits")
        progress = running.enter_context(make_progress(printer))
        course = Course(
            request,
            ground,
            caller.settings,
            caller.environment,
            progress,
            state=state,
            resume=resume,
        )
        try:
            found = asyncio.run(course.run())
        except KeyboardInterrupt:
            printer.warn(f"ended early; --resume goes on (cases done are kept in {state.file})")
            raise
        if not found.ok:
            ground.keep()
            printer.say(f"Ledgers and logs of all cases are kept in {ground.folder}")
        return found
