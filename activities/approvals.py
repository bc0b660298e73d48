"""The activities of the gate: asking, verifying decisions, closing requests (DESIGN section 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.attempt import Attempt, Resources
from activities.ledger import approvals as approval_rows
from activities.ledger import artifacts as artifact_rows
from activities.ledger import decisions as decision_rows
from activities.ledger.edits import Edited
from activities.ledger.standing_uses import voters
from activities.ledger.starts import marked_starter
from activities.ledger.votes import needs_of
from activities.preconditions import to_ask_with
from activities.requests import (
    PreparedCall,
    claim_request,
    complete,
    needed,
    prepare,
    prepare_params,
)
from activities.standing import covering
from workflows.contracts import (
    ApprovalAsked,
    ApprovalClosed,
    ApprovalRequest,
    ApprovalState,
    Assurance,
    CloseApproval,
    RequestApproval,
    ToolCall,
    VerdictReached,
    VerifyDecision,
)
from workflows.identity import approval_id

log = structlog.get_logger()


class ApprovalActivities:
    """``request_approval``, ``verify_decision`` and ``close_approval``."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    @activity.defn(name="request_approval")
    async def request_approval(self, asked: RequestApproval) -> ApprovalAsked:
        """Write the request for one call and tell whoever listens; idempotent by approval id."""
        attempt, resources = Attempt.current(), self._resources
        call = await complete(resources.artifacts, asked.call)
        prepared = prepare(resources.toolbox, call)
        limit = resources.retries.recovery_limit
        request = claim_request(call, prepared, attempt, resources.lease, limit)
        request = await to_ask_with(request, prepared, attempt.number)
        needs = needed(call, prepared)
        if needs is not None and asked.escalated_to is not None:
            needs = needs.escalated(asked.escalated_to)
        async with resources.ledger.transaction(call.tenant) as tx:
            tx.watch(call.run_id)
            row, decided, standing, started_by = None, None, tuple[str, ...](), ""
            if needs is None:
                approval_rows.waive(tx, request)
            elif not await approval_rows.is_settled(tx, request):
                row = await approval_rows.request(
                    tx,
                    request,
                    approval_id=approval_id(call.run_id, call.step_id, asked.number),
                    description=_description(prepared, call),
                    undo=prepared.tool.undo_text(),
                    needs=needs,
                    assurance=resources.assurance,
                    editors=asked.editors,
                    covers=covering(prepared),
                )
                started_by = await marked_starter(tx, call.run_id)
                standing = await voters(tx, row["approval_id"])
                decided = await decision_rows.decided(tx, row)
        head = tx.heads[call.run_id]
        if row is None:
            return ApprovalAsked(request=None, head=head)
        kept = await self._resources.artifacts.keep(call.tenant, row["params"])
        if kept.artifact is not None:
            async with self._resources.ledger.transaction(call.tenant) as tx:
                await artifact_rows.record(tx, call.run_id, call.step_id, kept)
        view = request_view({**row, "params": kept.value}, standing, started_by)
        if row["params_hash"] == prepared.params_hash:  # a reset run may find another request
            view = view.model_copy(update={"resources": prepared.resources})
        if row["state"] == ApprovalState.PENDING:
            log.info(
                "approval.waiting",
                approval_id=view.approval_id,
                tool=view.tool,
                params_hash=view.params_hash,
                expires_at=view.expires_at.isoformat(),
            )
        return ApprovalAsked(
            request=view,
            state=ApprovalState(row["state"]),
            decided=decided,
            verified=decided is not None and row["verified"],
            standing=standing,
            head=head,
        )

    @activity.defn(name="verify_decision")
    async def verify_decision(self, asked: VerifyDecision) -> VerdictReached:
        """Return the verdict on a decision; verifying the same delivery twice changes nothing."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            judged = await decision_rows.verify(
                tx, asked, assurance=self._resources.assurance, check_edit=self._edited
            )
        head = tx.heads[asked.run_id]
        return VerdictReached(verdict=judged.verdict, params=judged.params, head=head)

    def _edited(self, row: Mapping[str, Any], params: Mapping[str, Any]) -> Edited | str:
        """Validate an edit with the tool's own model; a text says why it cannot be."""
        tool = self._resources.toolbox.get(row["tool"])
        if tool is None or tool.version != row["tool_version"]:
            return f"the tool {row['tool']} has changed since the request"
        try:
            prepared = prepare_params(tool, params, row["run_id"], row["step_id"])
        except ApplicationError as error:
            return error.message
        return Edited(prepared.plain, prepared.params_hash, prepared.key)

    @activity.defn(name="close_approval")
    async def close_approval(self, asked: CloseApproval) -> ApprovalClosed:
        """Expire or void a request; the row decides, a decision may have been quicker."""
        async with self._resources.ledger.transaction(asked.tenant) as tx:
            tx.watch(asked.run_id)
            state = await approval_rows.close(tx, asked.run_id, asked.approval_id, asked.to)
        return ApprovalClosed(state=state, head=tx.heads[asked.run_id])


def _description(prepared: PreparedCall, call: ToolCall) -> str:
    """Return what the call would do, with what humans have answered to its questions."""
    described = prepared.tool.describe_call(prepared.params)
    if not call.answers:
        return described
    return f"{described} (answers: {json.dumps(call.answers, ensure_ascii=False)})"


def request_view(
    row: Mapping[str, Any], votes: tuple[str, ...] = (), started_by: str = ""
) -> ApprovalRequest:
    """Return an approval row as people see it.

    Args:
        row: The row.
        votes: Who has said yes when it was written: standing approvals.
        started_by: Who has started its run in the user's name.
    """
    needs = needs_of(row)
    return ApprovalRequest(
        approval_id=row["approval_id"],
        step_id=row["step_id"],
        tool=row["tool"],
        version=row["tool_version"],
        params=row["params"],
        params_hash=row["params_hash"],
        description=row["description"],
        requested_by=row["user_id"],
        expires_at=datetime.fromtimestamp(row["expires_ms"] / 1000, UTC),
        undo=row["undo"],
        requirements=needs.requirements,
        assurance=Assurance(row["assurance"]),
        editors=tuple(row["editors"]),
        on_expiry=needs.on_expiry,
        remind_every=needs.remind_every,
        votes=votes,
        key=row["key"],
        started_by=started_by,
    )
