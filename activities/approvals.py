"""The activities of the gate: asking, verifying decisions, closing requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from surehand.activities.effects import prepare
from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.approvals import votes
from surehand.activities.ledger.approvals.decisions import DecisionVerdict, Edited
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.history.run_display import show_request
from surehand.activities.ledger.people.starts import name_starter
from surehand.activities.ledger.quotas import OverQuota, QuotaUsedUp
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps import foreign as foreign_rows
from surehand.activities.ledger.steps.entries import Covered
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.process.program import shared_program
from surehand.workflows.contracts import approvals
from surehand.workflows.contracts.base import ForeignContent
from surehand.workflows.contracts.tools import ToolCall

log = structlog.get_logger()


@dataclass(frozen=True)
class _Requested:
    """A request as the ledger has it."""

    row: Mapping[str, Any]
    decided: approvals.Decision | None
    voters: votes.Voters
    started_by: str
    excluded: frozenset[str]
    foreign: tuple[ForeignContent, ...]


class ApprovalActivities:
    """``request_approval``, ``verify_decision`` and ``close_approval``."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    @activity.defn(name="request_approval")
    async def request_approval(self, asked: approvals.RequestApproval) -> approvals.ApprovalAsked:
        """Write the request for one call and tell whoever listens; idempotent by approval id."""
        attempt, worker = Attempt.current(), self._worker
        call = await prepare.complete(worker.artifacts, asked.call)
        prepared = await worker.ledger.with_keys(
            lambda: prepare.prepare_here(worker, call), call.params
        )
        request = await worker.ledger.with_keys(
            lambda: prepare.claim_request(worker, call, prepared, attempt), prepared.plain
        )
        request = await prepare.to_ask_with(worker.watchdog, request, prepared, attempt.number)
        asking = await worker.ledger.with_keys(
            lambda: {
                marked: prepare.needed(call, prepared, foreign=marked) for marked in (False, True)
            },
            prepared.plain,
        )

        def ask(tx: Transaction) -> _Requested | None:
            foreign = foreign_rows.foreign_content(tx, call.run_id)
            needs = asking[bool(foreign)]
            if needs is not None and asked.escalated_to is not None:
                needs = needs.escalated(asked.escalated_to)
            if needs is None:
                approval_rows.waive_approval(tx, request)
                return None
            if approval_rows.is_effect_settled(tx, request):
                return None
            row = approval_rows.request_approval(
                tx,
                request,
                number=asked.number,
                description=_description(prepared, call),
                needs=needs,
                assurance=worker.assurance,
                editors=asked.editors,
                answers=call.answers,
                secret=prepared.tool.secret_params,
                judge_early=partial(self._judge_early, asked),
            )
            started_by = name_starter(tx, call.run_id)
            said_yes = votes.find_voters(tx, row["approval_id"])
            excluded = votes.find_requesters(tx, row, votes.needs_of(row).requirements)
            decided = decision_rows.find_ending_decision(tx, row)
            return _Requested(row, decided, said_yes, started_by, excluded, foreign)

        try:
            found, head = await worker.ledger.record(call.tenant, call.run_id, ask)
        except QuotaUsedUp as used_up:
            return await self._over(call, used_up.found)
        if found is None:
            return approvals.ApprovalAsked(request=None, head=head)
        row = found.row
        kept = await worker.artifacts.keep(call.tenant, call.run_id, row["params"])
        if kept.artifact is not None:
            where = (call.run_id, call.step_id)
            await worker.ledger.transact(call.tenant, artifact_rows.record_artifact, *where, kept)
        view = show_request(
            row,
            votes.needs_of(row),
            params=kept.value,
            description=row["description"],
            votes=found.voters.all,
            excluded=tuple(sorted(found.excluded)),
            resources=prepared.resources,
            salt=prepared.salt,
            started_by=found.started_by,
            foreign=found.foreign,
            program=shared_program(),
        )
        if row["state"] == approvals.ApprovalState.PENDING:
            log.info(
                "approval.waiting",
                approval_id=view.approval_id,
                tool=view.tool,
                params_hash=view.params_hash,
                expires_at=view.expires_at.isoformat(),
            )
        return approvals.ApprovalAsked(
            request=view,
            state=approvals.ApprovalState(row["state"]),
            decided=found.decided,
            verified=found.decided is not None and row["verified"],
            standing=found.voters.standing,
            head=head,
        )

    async def _over(self, call: ToolCall, found: OverQuota) -> approvals.ApprovalAsked:
        """Say what a request waits for that was not made."""
        where = (call.run_id, call.step_id)
        _, head = await self._worker.ledger.record(call.tenant, call.run_id, found.note, *where)
        prepare.require_queue(found, call.tool.name)
        return approvals.ApprovalAsked(request=None, over_quota=found.wait, head=head)

    @activity.defn(name="verify_decision")
    async def verify_decision(self, asked: approvals.VerifyDecision) -> approvals.VerdictReached:
        """Return the verdict on a decision; verifying the same delivery twice changes nothing."""
        judged, head = await self._worker.ledger.record(
            asked.tenant, asked.run_id, self._verify, asked
        )
        return approvals.VerdictReached(verdict=judged.verdict, params=judged.params, head=head)

    def _judge_early(self, asked: approvals.RequestApproval, tx: Transaction) -> bool:
        for one in asked.early:
            self._verify(tx, one)
        return bool(asked.early)

    def _verify(self, tx: Transaction, asked: approvals.VerifyDecision) -> DecisionVerdict:
        return decision_rows.verify_decision(
            tx,
            asked,
            assurance=self._worker.assurance,
            check_edit=self._edited,
            covers=self._covered,
        )

    def _edited(self, row: Mapping[str, Any], params: Mapping[str, Any]) -> Edited | str:
        """Validate an edit with the tool's own model; a text says why it cannot be."""
        try:
            prepared = self._prepared(row, params)
        except ApplicationError as error:
            return error.message
        if prepared is None:
            return f"the tool {row['tool']} has changed since the request"
        return Edited(prepared.plain, prepared.params_hash, prepared.key)

    def _covered(self, row: Mapping[str, Any], scope: approvals.Scope) -> Covered | None:
        """Judge a scope by the tool of an approval's row; the claim judges the call itself."""
        try:
            prepared = self._prepared(row, row["params"])
        except ApplicationError:
            return None
        return None if prepared is None else prepare.covered(scope, prepared.tool, prepared.params)

    def _prepared(
        self, row: Mapping[str, Any], params: Mapping[str, Any]
    ) -> prepare.PreparedCall | None:
        """Return the call of an approval's row with some params; ``None``: its tool has changed."""
        tool = self._worker.toolbox.get(row["tool"])
        if tool is None or tool.version != row["tool_version"]:
            return None
        with prepare.watch_preparing(self._worker, tool.name, row["run_id"]):
            where = (row["run_id"], row["step_id"])
            return prepare.prepare_params(tool, self._worker.hashes, params, *where)

    @activity.defn(name="close_approval")
    async def close_approval(self, asked: approvals.CloseApproval) -> approvals.ApprovalClosed:
        """Expire or void a request; the row decides, a decision may have been quicker."""
        which, ledger = (asked.run_id, asked.approval_id), self._worker.ledger
        state, head = await ledger.record(
            asked.tenant, asked.run_id, approval_rows.close_approval, *which, asked.to
        )
        return approvals.ApprovalClosed(state=state, head=head)


def _description(prepared: prepare.PreparedCall, call: ToolCall) -> str:
    """Return what the call would do, with answers to its questions and the limits that ask."""
    described = prepared.tool.describe_call(prepared.params)
    if call.answers:
        described += f" (answers: {json.dumps(call.answers, ensure_ascii=False)})"
    if call.over_limits:
        described += f" (over limit: {', '.join(call.over_limits)})"
    return described
