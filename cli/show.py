"""``show``: what a run, or one of its approvals, is; and how it goes on while somebody waits.

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
from surehand.cli.options import Caller
from surehand.cli.printer import Printer, Reply, Shape, Styled, counted, shown_time
from surehand.cli.render import headline, open_items, open_lines, result_lines, view_lines
from surehand.client import outcome
from surehand.client.client import ListedRun, list_run
from surehand.client.connection import SAID_AFTER, Connection
from surehand.client.messages import find_approval
from surehand.process import exits
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.base import RunState, TimelineLine, Unreadable, WaitKind
from surehand.workflows.contracts.runs import RunView


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
            self._ask(self._asks, view)

    def note(self, text: str) -> None:
        if self._noted != text:
            self._noted = text
            self._tell(text)

    def _ask(self, connection: Connection, view: RunView) -> None:
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
        _exit_code(state),
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
        where = await _stuck(connection, run_id) or _goes_on(connection, run_id)
        raise exits.SurehandError(
            f"--timeout is over; {where}", code=exits.ExitCode.OUT_OF_TIME
        ) from error
    except asyncio.CancelledError:
        printer.warn(_goes_on(connection, run_id))
        raise
    waiting = list(open_lines(connection, result, watch.pending))
    if printer.json_output:
        printer.lines(waiting)
    return Reply(result, ["", *result_lines(result), *waiting], _exit_code(result.state))


async def _stuck(connection: Connection, run_id: str) -> str | None:
    """Return why a run does not go on; ``None``: it does, or the server does not say so in time."""
    with contextlib.suppress(exits.SurehandError, RPCError, TimeoutError):
        async with asyncio.timeout(outcome.LOOK_LIMIT.total_seconds()):
            return await connection.stuck(await connection.describe(run_id))
    return None


def _goes_on(connection: Connection, run_id: str) -> str:
    return f"run {run_id} goes on: look with `{connection.settings.command('show', run_id)}`"


def _exit_code(state: str) -> exits.ExitCode:
    if state in outcome.CUT_OFF_BY_SERVER:
        return outcome.code_of(state)
    return outcome.OF_STATE.get(RunState(state), exits.ExitCode.HUMAN_NEEDED)


async def follow_run(
    printer: Printer, connection: Connection, run_id: str
) -> Reply | exits.ExitCode:
    """Print the run's timeline as it goes on, until it ends; return how it ended."""
    watch = TimelineWatch(printer, only_lines=True)
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
    return _exit_code(result.state)


async def _last_look(connection: Connection, run_id: str, watch: outcome.Watch) -> None:
    """Show what came between the look before and the end; without a worker it stays untold."""
    with contextlib.suppress(exits.SurehandError):
        watch.show(await connection.view(run_id, outcome.LOOK_LIMIT))


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
            f"No worker answers (task queue {run.task_queue}): with one, its steps are shown, too.",
        ],
        code,
    )
