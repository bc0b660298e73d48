"""``show``: what a run, or one of its approvals, is."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer
from temporalio.client import WorkflowExecutionDescription

from surehand.cli.approvals.one_approval import approval_lines, find_shown
from surehand.cli.runs.follow import kept, tell
from surehand.cli.runs.list import plan_of
from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.printer import Reply, Styled
from surehand.cli.verb.recorded import recorded_view
from surehand.cli.verb.render import view_lines
from surehand.cli.verb.shapes import ShownRun, UnansweredRun
from surehand.cli.verb.text import counted, shown_time
from surehand.client.connection import SAID_AFTER, Connection
from surehand.client.ids import find_approval
from surehand.client.outcome import CUT_OFF_BY_SERVER, call_progress, last_own_state, state_of
from surehand.process.exits import ExitCode, NeverTakenUp, NoWorker, OutOfReach, TaskFails, WrongUse
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.names import OPEN_ITEMS

RunOrApproval = Annotated[
    str,
    typer.Argument(
        metavar="RUN|APPROVAL_ID", help="A run's name or full id, or an approval: RUN/STEP/NUMBER."
    ),
]


async def show(
    caller: Annotated[Caller, options.Shares(("tenant", "ui_url", "json_output"))],
    run: RunOrApproval,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Print its timeline as it goes on, until it ends; with --json an object a line.",
        ),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="With --follow: print what its models say, too, where workers let them stream.",
        ),
    ] = False,
) -> Reply | ExitCode:
    """Show a run: steps, effects, decisions, timeline, what it waits for; or one approval.

    Example: python starter.py show refund-1, or show refund-1/refund/1
    """
    caller.printer.one_a_line = follow
    if tokens and not follow:
        raise WrongUse("--tokens shows what models say while it is said: add --follow")
    if run.count("/") > 1:
        if follow:
            raise WrongUse(f"{run}: an approval has no timeline: --follow takes a RUN")
        run_id, approval_id = find_approval(caller.tenant, run)
        one, code = await find_shown(caller, run_id, approval_id)
        return Reply(one, approval_lines(caller.settings, one), code)
    run_id = caller.run_id(run)
    connection = await caller.connection()
    found = await connection.describe(run_id)
    if follow:
        return await tell(caller.printer, connection, run_id, tokens=tokens)
    state, web_ui, code = state_of(found), connection.web_ui(run_id), ExitCode.DONE
    cut_off, recorded = state in CUT_OFF_BY_SERVER, False
    before: list[str | Styled] = []
    try:
        # A person sees what is known at once, and looks again; a program gets the whole of it.
        view = await connection.view(run_id, None if caller.printer.json_output else SAID_AFTER)
    except OutOfReach as error:
        return replace(await kept(caller.printer, connection, run_id, error), code=ExitCode.DONE)
    except (NoWorker, NeverTakenUp) as error:
        if not cut_off:
            caller.printer.warn(str(error))
            code = error.code
        known = await recorded_view(caller, found)
        if known is None:
            return await _by_server(connection, found, code)
        view, recorded = known, True
        before = ["No worker answers: this is what the ledger knows."]
    else:
        # Between two failures its task opens the run again and answers, as if the run went on.
        if found.raw_description.HasField("pending_workflow_task"):
            stuck = await connection.stuck(found)
            if stuck is not None:
                caller.printer.warn(stuck)
                code = TaskFails.code
    calls = await call_progress(found)
    if cut_off:
        view = _without_requests(view)
        before += [Styled(f"The server has ended this run ({state}).", "red")]
        before += [connection.what_to_do(run_id), "It stood at:"]
    shown = ShownRun(
        **view.model_dump(),
        state=state,
        web_ui=web_ui,
        as_it_stood=cut_off,
        recorded=recorded,
        under_way=calls.under_way,
        progress=calls.by_step,
        bytes_written=calls.bytes_written,
    )
    return Reply(shown, [*before, *view_lines(connection, view, calls)], code)


def _without_requests(view: RunView) -> RunView:
    """Return the view of a run that no decision reaches any more; its interventions stay."""
    questions = [item for item in view.result.waiting_for if item.kind == "intervention"]
    result = view.result.model_copy(update={"waiting_for": questions})
    return view.model_copy(update={"pending": [], "held": [], "result": result})


async def _by_server(
    connection: Connection, found: WorkflowExecutionDescription, code: ExitCode
) -> Reply:
    run = UnansweredRun(
        run_id=found.id,
        state=state_of(found),
        task_queue=found.task_queue,
        started_at=found.start_time,
        ended_at=found.close_time,
        plan=await plan_of(found),
        last_known_state=last_own_state(found),
        open_items=found.typed_search_attributes.get(OPEN_ITEMS, 0),
        web_ui=connection.web_ui(found.id),
    )
    ended = [] if run.ended_at is None else [f"  ended    {shown_time(run.ended_at)}"]
    after = [f"  waits    {counted(run.open_items, 'thing')} for people"]
    if run.state in CUT_OFF_BY_SERVER:
        after = [connection.what_to_do(run.run_id)]
    return Reply(
        run,
        [
            Styled(f"Run {run.run_id}: {run.state}", "bold red"),
            f"  plan     {run.plan}",
            f"  started  {shown_time(run.started_at)}",
            *ended,
            f"  was      {run.last_known_state}, as far as the server knows",
            f"  web ui   {run.web_ui}",
            *after,
            f"No worker answers (task queue {run.task_queue}): with one, its steps are shown, too.",
        ],
        code,
    )
