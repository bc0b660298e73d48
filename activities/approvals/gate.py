"""The activities of the gate: asking, verifying decisions, closing requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.approvals.standing_scope import covering
from surehand.activities.effects.preconditions import to_ask_with
from surehand.activities.effects.prepare import (
    PreparedCall,
    claim_request,
    complete,
    needed,
    prepare,
    prepare_params,
)
from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.approvals.standing_grants import voters
from surehand.activities.ledger.approvals.votes import needs_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.people.starts import marked_starter
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.process.program import program
from surehand.workflows.contracts.approvals import (
    ApprovalAsked,
    ApprovalClosed,
    ApprovalRequest,
    ApprovalState,
    Assurance,
    CloseApproval,
    Decision,
    RequestApproval,
    VerdictReached,
    VerifyDecision,
)
from surehand.workflows.contracts.tools import ToolCall
from surehand.workflows.identity import approval_id

log = structlog.get_logger()


@dataclass(frozen=True)
class _Requested:
    """A request as the ledger has it."""

    row: Mapping[str, Any]
    decided: Decision | None
    standing: tuple[str, ...]
    started_by: str


class ApprovalActivities:
    """``request_approval``, ``verify_decision`` and ``close_approval``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="request_approval")
    async def request_approval(self, asked: RequestApproval) -> ApprovalAsked:
        """Write the request for one call and tell whoever listens; idempotent by approval id."""
        attempt, worker = Attempt.current(), self._worker
        call = await complete(worker.artifacts, asked.call)
        prepared = prepare(worker.toolbox, call)
        request = claim_request(worker, call, prepared, attempt)
        request = await to_ask_with(request, prepared, attempt.number)
        needs = needed(call, prepared)
        if needs is not None and asked.escalated_to is not None:
            needs = needs.escalated(asked.escalated_to)

        def ask(tx: Transaction) -> _Requested | None:
            if needs is None:
                approval_rows.waive(tx, request)
                return None
            if approval_rows.is_settled(tx, request):
                return None
            row = approval_rows.request(
                tx,
                request,
                approval_id=approval_id(call.run_id, call.step_id, asked.number),
                description=_description(prepared, call),
                undo=prepared.tool.undo_text(),
                needs=needs,
                assurance=worker.assurance,
                editors=asked.editors,
                covers=covering(prepared),
            )
            started_by = marked_starter(tx, call.run_id)
            standing = voters(tx, row["approval_id"])
            return _Requested(row, decision_rows.decided(tx, row), standing, started_by)

        found, head = await worker.ledger.record(call.tenant, call.run_id, ask)
        if found is None:
            return ApprovalAsked(request=None, head=head)
        row = found.row
        kept = await worker.artifacts.keep(call.tenant, row["params"])
        if kept.artifact is not None:
            where = (call.run_id, call.step_id)
            await worker.ledger.transact(call.tenant, artifact_rows.record, *where, kept)
        view = request_view({**row, "params": kept.value}, found.standing, found.started_by)
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
            decided=found.decided,
            verified=found.decided is not None and row["verified"],
            standing=found.standing,
            head=head,
        )

    @activity.defn(name="verify_decision")
    async def verify_decision(self, asked: VerifyDecision) -> VerdictReached:
        """Return the verdict on a decision; verifying the same delivery twice changes nothing."""
        judged, head = await self._worker.ledger.record(
            asked.tenant,
            asked.run_id,
            decision_rows.verify,
            asked,
            assurance=self._worker.assurance,
            check_edit=self._edited,
        )
        return VerdictReached(verdict=judged.verdict, params=judged.params, head=head)

    def _edited(self, row: Mapping[str, Any], params: Mapping[str, Any]) -> Edited | str:
        """Validate an edit with the tool's own model; a text says why it cannot be."""
        tool = self._worker.toolbox.get(row["tool"])
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
        which, ledger = (asked.run_id, asked.approval_id), self._worker.ledger
        state, head = await ledger.record(
            asked.tenant, asked.run_id, approval_rows.close, *which, asked.to
        )
        return ApprovalClosed(state=state, head=head)


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
        program=program(),
    )
