"""Deciding: ``pending``, ``approve``, ``reject``, ``sign``, ``edit``, and one approval in full."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final, Literal

from temporalio.client import WorkflowExecution

from surehand.cli import options, render
from surehand.cli.options import Caller, argument, option
from surehand.cli.printer import Lines, Reply, Shape, compact, rough_time, shown_time
from surehand.client.client import Pending, PendingHeld, PendingQuestion, SilentRun
from surehand.client.connection import SAID_AFTER, Connection
from surehand.client.messages import SeenRequest, compose_decision, find_approval
from surehand.client.outcome import CUT_OFF_BY_SERVER, last_own_state, state_of
from surehand.client.plan_file import assign
from surehand.client.run import send_decision
from surehand.process.exits import ExitCode, NoSuchRun, NotFound, NoWorker, SurehandError, WrongUse
from surehand.process.files import BadDocument
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    ApprovalState,
    DecisionOutcome,
    HeldApproval,
    SettledApproval,
    Verdict,
)
from surehand.workflows.contracts.base import ENDED, RunState, Waiting, WaitKind, as_artifact
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.plan.policy import Escalate


class PendingApproval(ApprovalRequest):
    """An approval request with the commands that answer it."""

    run_id: str
    commands: dict[str, str]
    """``approve``, ``reject``, ``edit``, ``sign``, and ``temporal`` if that needs no signature."""


class ShownApproval(ApprovalRequest):
    """``show APPROVAL_ID``: one approval request, and how to answer it while it waits."""

    run_id: str
    run_state: str
    state: ApprovalState
    decided_by: str = ""
    """Who has approved, rejected or edited it, marked if nothing proves the name."""
    reason: str = ""
    replaces: str | None = None
    """The request whose params were edited."""
    diff: list[str] = []
    """How the params differ from those of the replaced request, line by line."""
    open: bool
    """Whether a decision reaches it: it waits, and so does its run."""
    web_ui: str
    commands: dict[str, str] = {}
    """While it is open: ``approve``, ``reject``, ``edit``, ``sign`` and ``temporal``."""


class ShownHeld(HeldApproval):
    """``show APPROVAL_ID`` where that was decided before it was asked for."""

    run_id: str
    run_state: str
    state: Literal["held"] = "held"


class PendingList(Shape):
    """``pending``."""

    approvals: list[PendingApproval]
    held: list[PendingHeld] = []
    """Decided before they were asked for: nothing has come of them yet."""
    questions: list[PendingQuestion] = []
    others: list[Waiting] = []
    """Doubts and pauses that wait for a person; ``run_id`` is the run that takes the answer."""
    silent: list[SilentRun] = []
    """Runs that wait, too, and for which no worker answers. What the ledger knows of them, if one
    is configured, is in the other lists."""


def change_params(params: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    new = copy.deepcopy(params)
    try:
        for change in changes:
            assign(new, change)
    except BadDocument as error:
        raise WrongUse(f"--set {error}") from error
    if new == params:
        raise WrongUse("--set: the params are so already")
    return new


#: Lines of both that are compared each with each.
_MOST_LINES: Final = 1000


def diff(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return how two JSON objects differ, line by line: of many lines, from the first to the last.

    To find all that is the same in between takes the square of the lines.
    """
    before, after = (
        json.dumps(content, indent=2, ensure_ascii=False).splitlines() for content in (old, new)
    )
    if len(before) + len(after) > _MOST_LINES:
        before, after = _from_first_to_last(before, after)
        return [*(f"- {line}" for line in before), *(f"+ {line}" for line in after)]
    # Not `ndiff`: that also compares within lines, which never ends where much differs.
    found = difflib.unified_diff(before, after, n=0, lineterm="")
    return [f"{line[0]} {line[1:]}" for line in islice(found, 2, None) if line[0] in "+-"]


def _from_first_to_last(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Return two texts without the lines that both begin and end with."""
    least = min(len(before), len(after))
    pairs = zip(before, after, strict=False)
    begin = next((n for n, (one, other) in enumerate(pairs) if one != other), least)
    ends = zip(reversed(before[begin:]), reversed(after[begin:]), strict=False)
    end = next((n for n, (one, other) in enumerate(ends) if one != other), least - begin)
    return before[begin : len(before) - end], after[begin : len(after) - end]


#: What a state means to whoever looks.
_STATES: Final = {
    ApprovalState.PENDING: "waits for a decision",
    ApprovalState.APPROVED: "approved",
    ApprovalState.REJECTED: "rejected",
    ApprovalState.EXPIRED: "expired: nobody has decided in time",
    ApprovalState.SUPERSEDED: "edited",
    ApprovalState.VOID: "void: the run stopped asking",
}


async def find_shown(
    caller: Caller, run_id: str, approval_id: str
) -> tuple[ShownApproval | ShownHeld, ExitCode]:
    """Return one approval of a run: by its own view or, if no worker answers, by the ledger."""
    connection, code = await caller.connection(), ExitCode.DONE
    found = await connection.describe(run_id)
    try:
        view = await connection.view(run_id, None if caller.printer.json_output else SAID_AFTER)
    except NoWorker as error:
        known = await recorded_view(caller, found)
        if known is None:
            raise
        caller.printer.warn(str(error))
        view, code = known, error.code
    state = state_of(found)
    for held in view.held:
        if held.approval_id == approval_id:
            return ShownHeld(**held.model_dump(), run_id=run_id, run_state=state), code
    reachable = state not in CUT_OFF_BY_SERVER and view.result.state not in ENDED
    return _show_approval(connection, view, approval_id, state, reachable=reachable), code


def _show_approval(
    connection: Connection, view: RunView, approval_id: str, run_state: str, *, reachable: bool
) -> ShownApproval:
    run_id = view.result.run_id
    pending = [SettledApproval(request=r, state=ApprovalState.PENDING) for r in view.pending]
    known = {one.request.approval_id: one for one in (*view.settled, *pending)}
    one = known.get(approval_id)
    if one is None:
        asked = f"it has {', '.join(list(known)[-3:])}" if known else "it has asked for none"
        look = connection.settings.command("show", run_id)
        raise NotFound(f"approval not found: {approval_id}; {asked} (`{look}`)")
    request = one.request
    open_ = reachable and one.state is ApprovalState.PENDING
    # The step's request before this one; of the first one there is none.
    before = approval_id_of(run_id, request.step_id, int(approval_id.rpartition("/")[2]) - 1)
    replaced = known.get(before)
    edited = replaced is not None and replaced.state is ApprovalState.SUPERSEDED
    return ShownApproval(
        **request.model_dump(),
        run_id=run_id,
        run_state=run_state,
        state=one.state,
        decided_by=one.decided_by,
        reason=one.reason,
        replaces=replaced.request.approval_id if replaced and edited else None,
        diff=diff(replaced.request.params, request.params) if replaced and edited else [],
        open=open_,
        web_ui=connection.web_ui(run_id),
        commands=render.commands_of(connection, run_id, request) if open_ else {},
    )


def approval_lines(
    settings: ClientSettings, one: ShownApproval | ShownHeld, now: datetime | None = None
) -> Iterator[str]:
    """Yield everything about one approval; ``now`` is this machine's time."""
    if isinstance(one, ShownHeld):
        yield from render.held_lines(one)
        yield f"  run        {one.run_id} ({one.run_state})"
        return
    yield f"{one.approval_id}  {one.description}"
    yield f"  state      {_state_text(one)}"
    yield f"  run        {one.run_id} ({one.run_state}), step {one.step_id}"
    yield f"  tool       {one.tool} (version {one.version})"
    if one.key:
        yield f"  effect     key {one.key}"
    if one.resources:
        yield f"  resources  {', '.join(one.resources)}"
    yield from _params_lines(settings, one)
    yield from render.whose_lines(one)
    yield f"  so far     {', '.join(one.votes) or 'nobody'}"
    yield f"  decisions  {one.assurance.as_text()}"
    yield f"  expires    {_expiry_text(one, now or datetime.now(UTC))}"
    yield f"  web ui     {one.web_ui}"
    for verb, text in one.commands.items():
        yield f"  {verb:<9}  {text}"


def _state_text(one: ShownApproval) -> str:
    by = f" by {one.decided_by}" if one.decided_by else ""
    reason = f": {one.reason}" if one.reason else ""
    if one.state is ApprovalState.SUPERSEDED:
        reason += "; another request asks for the new params"
    if one.state is ApprovalState.PENDING and not one.open:
        reason = f"; its run is {one.run_state}, and no decision reaches it any more"
    return f"{_STATES[one.state]}{by}{reason}"


def _params_lines(settings: ClientSettings, one: ShownApproval) -> Iterator[str]:
    if as_artifact(one.params) is not None:
        listed = settings.command("artifacts", one.run_id)
        yield f"  params     {compact(one.params)}: `{listed}`"
        return
    first, *more = json.dumps(one.params, indent=2, ensure_ascii=False).splitlines()
    yield f"  params     {first}"
    for line in more:
        yield f"             {line}"
    if one.replaces is not None:
        yield f"  changed    from {one.replaces}"
        for line in one.diff:
            yield f"             {line}"


def _expiry_text(one: ShownApproval, now: datetime) -> str:
    left = one.expires_at - now
    when = f"in {rough_time(left)}" if left > timedelta(0) else f"{rough_time(-left)} ago"
    if one.on_expiry == "ask_again":
        then = "; then it is asked again"
    elif isinstance(one.on_expiry, Escalate):
        then = f"; then {one.on_expiry.escalate} is asked"
    else:
        then = "; then the run ends as if it was rejected"
    return f"{when} ({shown_time(one.expires_at)}){then if one.open else ''}"


Approval = Annotated[str, argument("APPROVAL_ID", "As `pending` shows it: RUN/STEP/NUMBER.")]
Hash = Annotated[str, option("The hash of the params you saw, as `show RUN` shows it.")]


async def pending(caller: options.Onlooker, limit: options.Limit = 50) -> Reply:
    """List everything that waits for a person, with the commands that decide, answer and settle.

    Example: surehand pending
    """
    client = await caller.client()
    connection, waiting = client.connection, await client.pending(limit=limit)
    for run in waiting.silent:
        caller.printer.warn(render.silent_line(run))
    others, whole = waiting.others, not waiting.silent
    if caller.has_ledger:
        known = [view.result.run_id for view in waiting.views]
        recorded = [
            await recorded_view(caller, await connection.describe(run.run_id))
            for run in waiting.silent
        ]
        waiting = replace(waiting, views=[*waiting.views, *filter(None, recorded)])
        try:
            others = [*others, *await open_doubts(caller, known)]
        except SurehandError as error:
            # What the runs themselves have said is shown all the same.
            caller.printer.warn(str(error))
            whole = False
    listed = PendingList(
        approvals=_list_approvals(connection, waiting.views),
        held=waiting.held,
        questions=waiting.questions,
        others=others,
        silent=waiting.silent,
    )
    # A list that is not whole is no success: somebody may believe that nothing else waits.
    code = ExitCode.DONE if whole else ExitCode.NOT_REACHABLE
    return Reply(listed, _pending_lines(connection, waiting, others, whole=whole), code)


def _pending_lines(
    connection: Connection, waiting: Pending, others: list[Waiting], *, whole: bool
) -> Lines:
    if whole and not (waiting.approvals or waiting.held or waiting.questions or others):
        yield "Nothing waits for a person"
    for view in waiting.views:
        for request in view.pending:
            yield from render.request_lines(connection, view.result.run_id, request)
            yield ""
        for held in view.held:
            yield from render.held_lines(held)
            yield ""
        for item in view.result.waiting_for:
            if item.kind is WaitKind.QUESTION:
                yield from render.waiting_lines(connection, view.result.run_id, item)
                yield ""
    for item in others:
        yield f"Run {item.run_id}"
        yield from render.waiting_lines(connection, item.run_id or "", item)
        yield ""


def _list_approvals(connection: Connection, views: list[RunView]) -> list[PendingApproval]:
    return [
        PendingApproval(
            **request.model_dump(),
            run_id=view.result.run_id,
            commands=render.commands_of(connection, view.result.run_id, request),
        )
        for view in views
        for request in view.pending
    ]


async def approve(
    caller: options.Sender,
    approval: Approval,
    params_hash: Hash,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    r"""Approve a call with exactly the params you have seen.

    Example: surehand approve refund-1/refund/1 --params-hash sha256:0a1b... \
      --reason 'order was returned'
    """
    seen = SeenRequest(approval, params_hash)
    return await _send_vote(caller, seen, DecisionOutcome.APPROVE, reason, leave)


async def reject(
    caller: options.Sender,
    approval: Approval,
    params_hash: Hash,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    r"""Reject a call: it is not made, and the run undoes what it has done and ends as failed.

    Example: surehand reject refund-1/refund/1 --params-hash sha256:0a1b... \
      --reason 'wrong amount'
    """
    seen = SeenRequest(approval, params_hash)
    return await _send_vote(caller, seen, DecisionOutcome.REJECT, reason, leave)


async def _send_vote(
    caller: Caller, seen: SeenRequest, outcome: DecisionOutcome, reason: str, leave: bool
) -> Reply:
    # Before a server is looked for: an id or a key that cannot be used needs none.
    run_id, decision = compose_decision(caller.settings, seen, outcome, reason=reason)
    run = (await caller.client()).run(run_id)
    return verdict_reply(await send_decision(run, decision, leave=leave))


def verdict_reply(verdict: Verdict) -> Reply:
    return Reply(verdict, f"{verdict.approval_id}: {render.verdict_text(verdict)}")


async def sign(
    caller: options.Sender,
    approval: Approval,
    params_hash: Hash,
    outcome: Annotated[
        DecisionOutcome, option("approve or reject.", metavar="OUTCOME")
    ] = DecisionOutcome.APPROVE,
    reason: options.Reason = "",
) -> ExitCode:
    """Print a signed decision, for the plain Temporal CLI or the signal dialog of the Web UI.

    Example: surehand sign refund-1/refund/1 --params-hash sha256:0a1b... --key ana.pem
    """
    if outcome is DecisionOutcome.EDIT:
        raise WrongUse("--outcome: approve or reject; `edit` signs what it sends")
    if caller.settings.key is None:
        raise WrongUse("sign with which key? Name it with --key or SUREHAND_KEY")
    seen = SeenRequest(approval, params_hash)
    _, decision = compose_decision(caller.settings, seen, outcome, reason=reason)
    print(decision.model_dump_json(exclude_defaults=True))
    return ExitCode.DONE


async def edit(
    caller: options.Sender,
    approval: Approval,
    changes: Annotated[
        list[str], option("Another value of a param.", "--set", metavar="PATH=VALUE")
    ],
    reason: options.Reason = "",
) -> Reply:
    """Change the params of a call that waits: people are asked again.

    Example: surehand edit refund-1/refund/1 --set amount=50 --reason 'one item'
    """
    run_id, approval_id = find_approval(caller.tenant, approval)
    client = await caller.client()
    await client.connection.open_run(run_id)
    view = await client.run(run_id).view()
    request = next((r for r in view.pending if r.approval_id == approval_id), None)
    if request is None:
        raise NotFound(f"{approval_id} does not wait; `pending` lists what does")
    if as_artifact(request.params) is not None:
        raise WrongUse(f"{approval_id}: its params are an artifact, too large to edit here")
    params = change_params(request.params, changes)
    caller.printer.lines(diff(request.params, params))
    return verdict_reply(await client.edit(request, params, reason=reason))


async def recorded_view(caller: Caller, run: WorkflowExecution) -> RunView | None:
    """Return a run as the ledger has it; ``None``: no ledger is named, or it does not have it."""
    if not caller.has_ledger:
        return None
    from surehand.activities.ledger.history import run_display

    try:
        view = await caller.do_transaction(run_display.read_run_view, run.id)
    except SurehandError as error:
        if not isinstance(error, NoSuchRun):
            caller.printer.warn(str(error))
        return None
    if view.result.state in ENDED:
        return view
    # The ledger knows that it is open, the server what it waits for.
    state = RunState(last_own_state(run))
    return view.model_copy(update={"result": view.result.model_copy(update={"state": state})})


async def open_doubts(caller: Caller, seen: Sequence[str]) -> list[Waiting]:
    """Return the interventions that no run shows: mostly those of runs that have ended."""
    from surehand.activities.ledger.history import run_display

    found = await caller.do_transaction(run_display.read_open_doubts)
    return [one for one in found if one.run_id not in seen]
