"""One approval request as a human needs it to decide: what would run, who has to say yes, how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from surehand.cli.verb.caller import Caller
from surehand.cli.verb.params import diff
from surehand.cli.verb.pending import commands_of, held_lines
from surehand.cli.verb.recorded import recorded_view
from surehand.cli.verb.shapes import ShownApproval, ShownHeld
from surehand.cli.verb.text import compact, rough_time, shown_time
from surehand.client.connection import SAID_AFTER, Connection
from surehand.client.outcome import CUT_OFF_BY_SERVER, state_of
from surehand.process.exits import ExitCode, NotFound, NoWorker
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import (
    ApprovalState,
    SettledApproval,
)
from surehand.workflows.contracts.artifacts import as_artifact
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import ENDED
from surehand.workflows.identity import approval_id as approval_id_of
from surehand.workflows.identity import short_hash
from surehand.workflows.plan.policy import Escalate

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
    """Return one approval of a run: by its own view or, if no worker answers, by the ledger.

    Raises:
        NotFound: There is no such run, or it has not asked for this.
        NoWorker: No worker answers for the run.
    """
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
    return _shown(connection, view, approval_id, state, reachable=reachable), code


def _shown(
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
    replaced = known.get(_before(run_id, request.step_id, approval_id))
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
        commands=commands_of(connection, run_id, request) if open_ else {},
    )


def _before(run_id: str, step_id: str, approval_id: str) -> str:
    """Return the id of the step's request before this one; one that cannot be for the first."""
    return approval_id_of(run_id, step_id, int(approval_id.rpartition("/")[2]) - 1)


def approval_lines(
    settings: ClientSettings, one: ShownApproval | ShownHeld, now: datetime | None = None
) -> Iterator[str]:
    """Yield everything about one approval; ``now`` is this machine's time."""
    if isinstance(one, ShownHeld):
        yield from held_lines(one)
        yield f"  run        {one.run_id} ({one.run_state})"
        return
    yield f"{one.approval_id}  {one.description}"
    yield f"  state      {_state(one)}"
    yield f"  run        {one.run_id} ({one.run_state}), step {one.step_id}"
    yield f"  tool       {one.tool} (version {one.version})"
    if one.key:
        yield f"  effect     key {one.key}"
    if one.resources:
        yield f"  resources  {', '.join(one.resources)}"
    yield from _params(settings, one)
    yield f"  hash       {one.params_hash} (short: {short_hash(one.params_hash)})"
    yield f"  undo       {one.undo}"
    yield f"  asked by   {one.askers}"
    if one.editors:
        yield f"  edited by  {', '.join(one.editors)}"
    for requirement in one.requirements:
        yield f"  needs      {requirement.as_text()}"
    if one.excluded:
        yield f"  not by     {', '.join(one.excluded)}"
    yield f"  so far     {', '.join(one.votes) or 'nobody'}"
    yield f"  decisions  {one.assurance.as_text()}"
    yield f"  expires    {_expiry(one, now or datetime.now(UTC))}"
    yield f"  web ui     {one.web_ui}"
    for verb, text in one.commands.items():
        yield f"  {verb:<9}  {text}"


def _state(one: ShownApproval) -> str:
    by = f" by {one.decided_by}" if one.decided_by else ""
    reason = f": {one.reason}" if one.reason else ""
    if one.state is ApprovalState.SUPERSEDED:
        reason += "; another request asks for the new params"
    if one.state is ApprovalState.PENDING and not one.open:
        reason = f"; its run is {one.run_state}, and no decision reaches it any more"
    return f"{_STATES[one.state]}{by}{reason}"


def _params(settings: ClientSettings, one: ShownApproval) -> Iterator[str]:
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


def _expiry(one: ShownApproval, now: datetime) -> str:
    left = one.expires_at - now
    when = f"in {rough_time(left)}" if left > timedelta(0) else f"{rough_time(-left)} ago"
    if one.on_expiry == "ask_again":
        then = "; then it is asked again"
    elif isinstance(one.on_expiry, Escalate):
        then = f"; then {one.on_expiry.escalate} is asked"
    else:
        then = "; then the run ends as if it was rejected"
    return f"{when} ({shown_time(one.expires_at)}){then if one.open else ''}"
