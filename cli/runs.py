"""``start``, ``retry``, ``fork``, ``list`` and ``show``; and waiting for a run.

Waiting rides through deaths of workers and restarts of the server, as the run itself does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated

import typer
from pydantic import JsonValue
from temporalio.client import WorkflowExecutionDescription
from temporalio.service import RPCError

from surehand.cli import options
from surehand.cli.approvals import approval_lines, find_shown, recorded_view
from surehand.cli.options import Caller, argument, flag, option
from surehand.cli.printer import Printer, Reply, Shape, Styled, shown_time, table_or
from surehand.cli.render import headline, open_items, open_lines, result_lines, view_lines
from surehand.cli.tools import refuse_unfit
from surehand.client import outcome
from surehand.client.client import STATES, ListedRun, list_run
from surehand.client.connection import SAID_AFTER, Connection
from surehand.client.messages import choose_run_id, find_approval, make_run_name
from surehand.client.plan_file import PlanDraft, load_plan
from surehand.client.run import Run
from surehand.process import exits
from surehand.process.program import command
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import (
    ENDED,
    RunState,
    StepState,
    TimelineLine,
    Unreadable,
    WaitKind,
)
from surehand.workflows.contracts.runs import Linked, RunView, is_cut
from surehand.workflows.names import MODEL_RUN, WORKFLOW
from surehand.workflows.plain_text import counted
from surehand.workflows.plan.plan import ITERATION, Durability, Plan
from surehand.workflows.plan.references import ancestors


class ShownRun(RunView):
    """``show``: the run's own view, and what the server adds."""

    state: str
    """As ``list`` has it: differs from the view's when the server ended the run."""
    web_ui: str
    as_it_stood: bool = False
    """True: the server ended the run; ``result`` tells how it stood, and no decision reaches it."""
    recorded: bool = False
    """True: no worker answers. This is what the ledger knows: no pauses, and no open questions."""
    under_way: str | None = None
    """The step that a batch is at (durability ``exit``), as its worker has told last."""
    progress: dict[str, JsonValue] = {}
    """By step whose call is under way: how far it has come, as its tool has told last."""
    bytes_written: dict[str, int] = {}
    """By step whose call is under way: how much of its artifact stands."""


class UnansweredRun(ListedRun):
    """``show`` of a run for which no worker answers, and that no ledger at hand knows."""

    last_known_state: str
    """The one that the run itself has noted last."""
    web_ui: str


class KeptRun(Shape):
    """``show`` and ``--wait`` where what the run says is in a store that this starter has not."""

    run_id: str
    state: str
    payload: Unreadable
    """Where it is, and why it cannot be read here."""
    web_ui: str


class TimelineWatch:
    """Prints a run's timeline, each line once, as it comes."""

    def __init__(
        self, printer: Printer, asks: Connection | None = None, *, only_lines: bool = False
    ) -> None:
        """Watch a run; ``asks``: also print each thing that it waits for, with its commands.

        With ``only_lines`` the output is the timeline: what is no line of it goes beside it.
        """
        self._printer = printer
        self._tell = printer.warn if only_lines else printer.say
        self._asks = asks
        self._asked: set[tuple[str, str, str]] = set()
        self._told: list[TimelineLine] = []
        self._noted = ""
        self.pending: list[ApprovalRequest] = []

    def show(self, view: RunView) -> None:
        """Print the lines that are new."""
        self._noted, self.pending = "", view.pending
        known = _count_known(self._told, view.timeline)
        if self._told and not known:
            self.note("Lines are missing here: the run keeps its newest ones only")
        for line in view.timeline[known:]:
            if self._printer.json_output and self._printer.one_a_line:
                self._printer.document(line)
            else:
                step = f"{line.step_id}: " if line.step_id else ""
                self._printer.say(f"{shown_time(line.at)}  {step}{line.text}")
        self._told = view.timeline
        if self._asks is not None:
            self._show_open_items(self._asks, view)

    def note(self, text: str) -> None:
        if self._noted != text:
            self._noted = text
            self._tell(text)

    def _show_open_items(self, connection: Connection, view: RunView) -> None:
        items = dict(open_items(connection, view.result, view.pending))
        for key, lines in items.items():
            if key not in self._asked:
                self._printer.lines(lines)
        # What has been answered may be asked again.
        self._asked = set(items)


def _count_known(told: Sequence[TimelineLine], timeline: Sequence[TimelineLine]) -> int:
    """Return how many lines of a timeline were told before: it may have lost its oldest ones."""
    for lost in range(len(told)):
        rest = list(told[lost:])
        if timeline[: len(rest)] == rest:
            return len(rest)
    return 0


async def unread_reply(
    printer: Printer, connection: Connection, run_id: str, error: exits.OutOfReach
) -> Reply:
    """Return what the server knows of a run, and where the rest is."""
    state, web_ui = outcome.state_of(await connection.describe(run_id)), connection.web_ui(run_id)
    printer.warn(str(error))
    return Reply(
        KeptRun(run_id=run_id, state=state, payload=error.payload, web_ui=web_ui),
        [f"Run {run_id}: {state}", f"  web ui   {web_ui}"],
        outcome.code_of(state, exits.ExitCode.HUMAN_NEEDED),
    )


async def wait_for_run(
    printer: Printer, connection: Connection, run_id: str, *, limit: timedelta | None
) -> Reply:
    """Wait, and return how the run ended or stands.

    On a terminal it goes on waiting while the run waits for a human; otherwise it returns then,
    because whoever reads the output cannot be told any other way.
    """
    watch = TimelineWatch(printer, connection if printer.attended else None)
    try:
        async with asyncio.timeout(None if limit is None else limit.total_seconds()):
            result = await outcome.until_settled(connection, run_id, watch, stay=printer.attended)
    except exits.OutOfReach as error:
        return await unread_reply(printer, connection, run_id, error)
    except TimeoutError as error:
        where = await _find_obstacle(connection, run_id) or _goes_on(connection, run_id)
        raise exits.SurehandError(
            f"--timeout is over; {where}", code=exits.ExitCode.OUT_OF_TIME
        ) from error
    except asyncio.CancelledError:
        printer.warn(_goes_on(connection, run_id))
        raise
    waiting = list(open_lines(connection, result, watch.pending))
    if printer.json_output:
        printer.lines(waiting)
    return Reply(
        result,
        ["", *result_lines(result), *waiting],
        outcome.code_of(result.state, exits.ExitCode.HUMAN_NEEDED),
    )


async def _find_obstacle(connection: Connection, run_id: str) -> str | None:
    """Return why a run does not go on; ``None``: it does, or the server does not say so in time."""
    with contextlib.suppress(exits.SurehandError, RPCError, TimeoutError):
        async with asyncio.timeout(outcome.LOOK_LIMIT.total_seconds()):
            return await connection.stuck(await connection.describe(run_id))
    return None


def _goes_on(connection: Connection, run_id: str) -> str:
    return f"run {run_id} goes on: look with `{connection.settings.command('show', run_id)}`"


async def follow_run(
    printer: Printer, connection: Connection, run_id: str
) -> Reply | exits.ExitCode:
    """Print the run's timeline as it goes on, until it ends; return how it ended."""
    asks = connection if printer.attended and not printer.json_output else None
    watch = TimelineWatch(printer, asks, only_lines=True)
    try:
        result = await outcome.until_settled(connection, run_id, watch, stay=True)
    except asyncio.CancelledError:
        printer.warn(_goes_on(connection, run_id))
        raise
    except exits.OutOfReach as error:
        return await unread_reply(printer, connection, run_id, error)
    except exits.SurehandError:
        await _last_look(connection, run_id, watch)
        raise
    await _last_look(connection, run_id, watch)
    if not printer.json_output:
        printer.say(headline(result))
    return outcome.code_of(result.state, exits.ExitCode.HUMAN_NEEDED)


async def _last_look(connection: Connection, run_id: str, watch: outcome.Watch) -> None:
    """Show what came between the look before and the end; without a worker it stays untold."""
    with contextlib.suppress(exits.SurehandError):
        watch.show(await connection.view(run_id, outcome.LOOK_LIMIT))


async def show(
    caller: Annotated[Caller, options.Shares(("tenant", "ui_url", "json_output"))],
    run: Annotated[
        str,
        argument("RUN|APPROVAL_ID", "A run's name or full id, or an approval: RUN/STEP/NUMBER."),
    ],
    follow: Annotated[
        bool, flag("Print its timeline as it goes on, until it ends; with --json an object a line.")
    ] = False,
) -> Reply | exits.ExitCode:
    """Show a run: steps, effects, decisions, timeline, what it waits for; or one approval.

    Example: surehand show refund-1, or show refund-1/refund/1
    """
    caller.printer.one_a_line = follow
    if run.count("/") > 1:
        if follow:
            raise exits.WrongUse(f"{run}: an approval has no timeline: --follow takes a RUN")
        run_id, approval_id = find_approval(caller.tenant, run)
        one, code = await find_shown(caller, run_id, approval_id)
        return Reply(one, approval_lines(caller.settings, one), code)
    run_id = caller.run_id(run)
    connection = await caller.connection()
    found = await connection.describe(run_id)
    if follow:
        return await follow_run(caller.printer, connection, run_id)
    state, web_ui, code = outcome.state_of(found), connection.web_ui(run_id), exits.ExitCode.DONE
    cut_off, recorded = state in outcome.CUT_OFF_BY_SERVER, False
    before: list[str | Styled] = []
    try:
        # A person sees what is known at once, and looks again; a program gets the whole of it.
        view = await connection.view(run_id, None if caller.printer.json_output else SAID_AFTER)
    except exits.OutOfReach as error:
        return replace(
            await unread_reply(caller.printer, connection, run_id, error), code=exits.ExitCode.DONE
        )
    except (exits.NoWorker, exits.NeverTakenUp) as error:
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
                code = exits.TaskFails.code
    calls = await outcome.call_progress(found)
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
    questions = [item for item in view.result.waiting_for if item.kind is WaitKind.INTERVENTION]
    result = view.result.model_copy(update={"waiting_for": questions})
    return view.model_copy(update={"pending": [], "held": [], "result": result})


async def _by_server(
    connection: Connection, found: WorkflowExecutionDescription, code: exits.ExitCode
) -> Reply:
    run = UnansweredRun(
        **dict(await list_run(found)),
        last_known_state=outcome.last_own_state(found),
        web_ui=connection.web_ui(found.id),
    )
    ended = [] if run.ended_at is None else [f"  ended    {shown_time(run.ended_at)}"]
    after = [f"  waits    {counted(run.open_items, 'thing')} for people"]
    if run.state in outcome.CUT_OFF_BY_SERVER:
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
            f"No worker answers (task queue {run.task_queue}): with one, its steps are shown, too"
            f" (`{command('dev')}` in the project's folder starts one).",
        ],
        code,
    )


class Started(Shape):
    """``start``, ``retry`` and ``fork`` without ``--wait``."""

    run_id: str
    started: bool
    """False: a run of this id and plan was there already, and nothing was started."""
    taken_up: bool
    """False: no worker has validated the plan yet."""
    state: str
    task_queue: str
    web_ui: str
    linked: str | None = None
    """The run that this one begins from."""
    taken_over: list[str] = []
    """Steps that are facts to the new run, and are not done again."""


class RunList(Shape):
    """``list``."""

    runs: list[ListedRun]


async def start(
    caller: Annotated[Caller, options.Shares(("user", "key", "tenant", "ui_url", "json_output"))],
    plan: options.PlanFile,
    run_id: options.RunName = None,
    changes: options.Changes = None,
    durability: Annotated[
        Durability | None,
        option("When progress is written to history; default the plan's, else sync."),
    ] = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Validate a plan and start a run of it.

    Example: surehand start examples/refund.yaml --run-id refund-1 --wait
    """
    options.refuse_lone_timeout(wait, timeout)
    parsed = load_plan(plan, changes or [])
    chosen = choose_run_id(caller.tenant, run_id or make_run_name(parsed.name))
    client = await caller.client()
    connection = client.connection
    try:
        await connection.describe(chosen)
    except exits.NotFound:
        refuse_unfit(caller, plan, parsed)
    run = await client.start(parsed, run_id=chosen, for_user=for_user, durability=durability)
    if not run.is_new:
        caller.printer.say(f"Run {chosen} exists already; nothing was started")
    try:
        if wait:
            return await wait_for_run(caller.printer, connection, chosen, limit=timeout)
        return await _report_start(caller, run)
    except exits.PlanRefused as error:
        # Found by the run itself, which does not know the file.
        raise exits.PlanRefused(plan, error.problems) from error


async def why_waiting(connection: Connection, found: WorkflowExecutionDescription) -> str:
    """Return what to say of a new run that no worker has taken up."""
    failed = await connection.task_failure(found)
    if failed is not None:
        return f", but its workflow task fails: {failed}"
    queue = connection.settings.task_queue
    silent = f", but no worker has taken it up yet (task queue {queue})"
    with connection.translated(found.id):
        polled = await connection.polling(queue)
    if polled.seen:
        silent += f": workers poll there; `{command('doctor')}` says why they do not take it"
    else:
        silent += f": start one with `{command('dev')}` in the project's folder"
    if found.workflow_type not in (WORKFLOW, MODEL_RUN):
        silent += f"; does their SUREHAND_WORKFLOW_MODULES name {found.workflow_type}'s module?"
    return silent


async def _report_start(caller: Caller, run: Run, linked: Linked | None = None) -> Reply:
    """Say where the run stands now; a run that was there already may have ended."""
    connection, run_id = run.connection, run.run_id
    taken_up = await run.taken_up()  # or it says why it was refused
    found = await connection.describe(run_id)
    state, web_ui = outcome.state_of(found), connection.web_ui(run_id)
    taken_over = [] if linked is None else sorted(linked.outputs)
    look = caller.settings.command("show", run_id)
    lines = [f"It is {state}: {look}"]
    if run.is_new:
        begun = "started" if linked is None else f"begins from {linked.run_id}"
        silent = "" if taken_up else await why_waiting(connection, found)
        over = [f"  taken over  {', '.join(taken_over)}"] if taken_over else []
        lines = [f"Run {run_id} {begun}{silent}", *over, f"  look    {look}", f"  web ui  {web_ui}"]
    shown = Started(
        run_id=run_id,
        started=run.is_new,
        taken_up=taken_up,
        state=state,
        task_queue=caller.settings.task_queue,
        web_ui=web_ui,
        linked=None if linked is None else linked.run_id,
        taken_over=taken_over,
    )
    # How quickly a run ends is not what its start is judged by.
    done = exits.ExitCode.DONE
    return Reply(shown, lines, done if run.is_new else outcome.code_of(state, done))


async def retry(
    caller: options.Sender,
    run: options.Run,
    run_id: options.RunName = None,
    changes: options.Changes = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Start a failed or cancelled run once more, as a new run; what stands is not repeated.

    Example: surehand retry refund-1 --wait
    """
    options.refuse_lone_timeout(wait, timeout)
    source, view = await _look_at_source(caller, run)
    if view.result.state not in ENDED:
        raise exits.WrongUse(
            f"run {source} is {view.result.state}: it goes on by itself, or with `resume`"
        )
    if view.result.state is RunState.COMPLETED:
        raise exits.WrongUse(f"run {source} has completed: `fork` begins from one of its steps")
    plan = PlanDraft.of(view.plan).amending(view.plan, changes or [])
    return await _start_linked(caller, plan, run_id, Linked(run_id=source), for_user, wait, timeout)


async def fork(
    caller: options.Sender,
    run: options.Run,
    step: Annotated[str, option("The first step that is done again.", "--from", metavar="STEP")],
    run_id: options.RunName = None,
    changes: options.Changes = None,
    for_user: options.For = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
) -> Reply:
    """Start a new run at a step of another run, with that run's earlier outputs.

    Example: surehand fork refund-1 --from restock --set input.shelf=B
    """
    options.refuse_lone_timeout(wait, timeout)
    source, view = await _look_at_source(caller, run)
    linked = Linked(run_id=source, outputs=outputs_before(view, step))
    plan = PlanDraft.of(view.plan).amending(view.plan, changes or [])
    return await _start_linked(caller, plan, run_id, linked, for_user, wait, timeout)


def outputs_before(view: RunView, step_id: str) -> dict[str, JsonValue]:
    """Return the outputs of the steps that have succeeded and do not come after a step."""
    if view.plan.code is not None:
        reason = f"the workflow {view.plan.code} makes the steps of {view.result.run_id}"
        raise exits.WrongUse(f"--from {step_id}: {reason}, so none of them is a place to begin at")
    dependencies = view.plan.dependencies
    if step_id not in dependencies:
        raise exits.WrongUse(f"--from {step_id}: the plan's steps are {', '.join(dependencies)}")
    states = {one.id: one for one in view.result.steps}
    done = (StepState.SUCCEEDED, StepState.SKIPPED)
    open_ = [one for one in ancestors(dependencies, step_id) if states[one].state not in done]
    if open_:
        raise exits.WrongUse(
            f"--from {step_id}: before it, {', '.join(sorted(open_))} has not succeeded"
        )
    taken = {
        one: states[one].output
        for one in dependencies
        if one != step_id
        and step_id not in ancestors(dependencies, one)
        and states[one].state is StepState.SUCCEEDED
    }
    # Of a list, its items tell.
    undone = {ITERATION.sub("", view.id) for view in view.result.steps if view.undone}
    gone = [one for one in taken if one in undone]
    if gone:
        raise exits.WrongUse(
            f"--from {step_id}: what {', '.join(gone)} did has been undone, so its output is no"
            f" fact any more: begin with --from {gone[0]}"
        )
    cut = [one for one, output in taken.items() if is_cut(output)]
    if cut:
        raise exits.WrongUse(
            f"--from {step_id}: the output of {', '.join(cut)} is too large to be shown, so nobody"
            f" can take it over: begin with --from {cut[0]}"
        )
    return taken


async def _look_at_source(caller: Caller, run: str) -> tuple[str, RunView]:
    source = caller.run_id(run)
    connection = await caller.connection()
    await connection.describe(source)
    return source, await connection.view(source)


async def _start_linked(
    caller: Caller,
    plan: Plan,
    name: str | None,
    linked: Linked,
    for_user: str | None,
    wait: bool,
    timeout: timedelta | None,
) -> Reply:
    client = await caller.client()
    run = await client.start(plan, run_id=name, for_user=for_user, linked=linked)
    if not run.is_new:
        raise exits.WrongUse(f"run {run.run_id} exists already")
    if wait:
        return await wait_for_run(caller.printer, client.connection, run.run_id, limit=timeout)
    return await _report_start(caller, run, linked)


def _parse_state(text: str) -> str:
    if text not in STATES:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(map(repr, map(str, STATES)))}")
    return text


async def list_runs(
    caller: options.Onlooker,
    state: Annotated[
        str | None,
        option(f"Only these: {', '.join(STATES)}.", parser=_parse_state, metavar="STATE"),
    ] = None,
    limit: options.Limit = 50,
) -> Reply:
    """List runs: those that go on, the newest first, then those that have ended.

    Example: surehand list --state waiting_approval
    """
    runs = await (await caller.client()).list_runs(state=state, limit=limit)
    rows = [[r.run_id, r.state, str(r.open_items), shown_time(r.started_at), r.plan] for r in runs]
    columns = ("run", "state", "open", "started", "plan")
    return Reply(RunList(runs=runs), table_or(columns, rows, "No runs"))
