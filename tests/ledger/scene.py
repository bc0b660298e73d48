"""A tenant with an open run, and the words in which the tests speak of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from sqlalchemy import Table, select

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.approvals import decisions, requests
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import effects, events
from surehand.activities.ledger.effects import (
    claims,
    compensations,
    outcomes,
    reconcile,
    resource_leases,
    run_tree,
)
from surehand.activities.ledger.effects.compensations import NothingToUndo
from surehand.activities.ledger.history.audit import first_unproven, verify_entries
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import (
    Asked,
    Claimed,
    ClaimRequest,
    ClaimResult,
    Entry,
)
from surehand.verify import verify_chain, verify_story
from surehand.workflows.contracts.approvals import (
    Assurance,
    Decision,
    DecisionOutcome,
    Verdict,
    VerifyDecision,
)
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import Resolution, UndoSpec, UndoTool
from surehand.workflows.contracts.runs import CloseRun, OpenRun, StartRun
from surehand.workflows.contracts.tools import Effect, Recovery, ToolSpec
from surehand.workflows.identity import identity_hash, params_hash
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import AskedProof, Needs, Requirement

NOW: Final = timedelta(0)
#: The shortest settle time there is.
AT_ONCE: Final = timedelta(milliseconds=1)
#: As in production: what a dead attempt keeps others away for.
LEASE: Final = timedelta(seconds=3)
#: Deadline of one call.
TIMEOUT: Final = timedelta(seconds=30)
#: Any time after the lease and before the deadline.
LEASE_OVER: Final = timedelta(seconds=4)
#: As in production: larger values become artifacts.
LARGEST_INLINE: Final = 8 * 1024  # bytes
RECOVERY_LIMIT: Final = timedelta(minutes=5)
SETTLE: Final = timedelta(seconds=10)
SETTLED: Final = TIMEOUT + SETTLE + timedelta(seconds=1)
WINDOW: Final = timedelta(hours=1)
RUN: Final = "run-1"
OTHER_RUN: Final = "run-2"
STEP: Final = "refund"
APPROVER: Final = "alice"
ANYBODY: Final = Requirement()
#: Those of the fixture of this name.
WORKERS: Final = 6

SPEC: Final = ToolSpec(
    name="payments.refund",
    version="1",
    schema_hash="sha256:0",
    effect=Effect.WRITE,
    recovery=Recovery.LOOKUP,
    timeout=TIMEOUT,
)

#: How a refund is undone, as a worker has it loaded.
UNDOABLE: Final = UndoSpec(
    version="1",
    compensate=UndoTool(name="payments.charge", version="1", schema_hash="sha256:0"),
)

_MILLISECOND: Final = timedelta(milliseconds=1)
_numbers = itertools.count(1)


def call(tenant: str, **changes: Any) -> ClaimRequest:
    """A refund's claim; ``changes`` name what differs, hashes follow the params."""
    values: dict[str, Any] = {
        "tenant": tenant,
        "run_id": RUN,
        "step_id": STEP,
        "user": "ada",
        "tool": "payments.refund",
        "tool_version": "1",
        "key": "refund:order-1001",
        "params": {"order": "1001", "amount": "120.00"},
        "attempt": 1,
        "timeout": TIMEOUT,
        "lease": LEASE,
        "recovery_limit": RECOVERY_LIMIT,
        "recovery": Recovery.LOOKUP,
        "settle": SETTLE,
        **changes,
    }
    tool, version, params = values["tool"], values["tool_version"], values["params"]
    activity = f"{values['run_id']}:{values['step_id']}"
    values.setdefault("activity_key", activity)
    values.setdefault("holder", f"{activity}:{values['attempt']}:{next(_numbers)}")
    values.setdefault("identity_hash", identity_hash(tool, params))
    values.setdefault("params_hash", params_hash(tool, version, params))
    return ClaimRequest(**values)


def said(question: str, outcome: str, actor: str = "olga", **more: Any) -> Resolution:
    """Return a human's answer to an intervention, which has proof."""
    values = {"intervention_id": question, "outcome": outcome, "actor": actor}
    return Resolution.model_validate({"evidence": "bank statement", **values, **more})


@dataclass(frozen=True)
class Scene:
    """One tenant's part of a ledger."""

    ledger: Ledger
    tenant: str

    @cached_property
    def artifacts(self) -> ArtifactStore:
        return ArtifactStore("memory:///", self.ledger, largest_inline=LARGEST_INLINE)

    @classmethod
    def begin(cls, ledger: Ledger, tenant: str) -> Scene:
        scene = cls(ledger, tenant)
        scene.open_run(RUN)
        return scene

    @contextmanager
    def tx(self, after: timedelta = NOW) -> Iterator[Transaction]:
        """Open a transaction that takes place ``after`` some time, without waiting for it."""
        with self.ledger.transaction(self.tenant) as tx:
            tx.now_ms += after // _MILLISECOND
            yield tx

    def start(self, run_id: str, **changes: Any) -> StartRun:
        plan = Plan.model_validate([{"id": STEP, "tool": "payments.refund"}])
        values = {"run_id": run_id, "tenant": self.tenant, "user": "ada", "plan": plan, **changes}
        return StartRun(**values)

    def open_run(
        self,
        run_id: str,
        execution: str = "first",
        *,
        start: StartRun | None = None,
        assurance: Assurance = Assurance.OPEN,
        started_at: datetime | None = None,
        above: str | None = "first",
        store: str | None = None,
        spec: ToolSpec = SPEC,
        **more: Any,
    ) -> None:
        opening = OpenRun(
            request=start or self.start(run_id, **more), execution=execution, started_at=started_at
        )
        with self.tx() as tx:
            lifecycle.open_run(tx, opening, {spec.name: spec}, assurance, above=above, store=store)

    def end(self, *run_ids: str, state: RunState = RunState.COMPLETED) -> None:
        for run_id in run_ids or (RUN,):
            with self.tx() as tx:
                lifecycle.close_run(tx, CloseRun(tenant=tx.tenant, run_id=run_id, state=state))

    def call(self, **changes: Any) -> ClaimRequest:
        return call(self.tenant, **changes)

    def claim(self, request: ClaimRequest, after: timedelta = NOW) -> ClaimResult:
        with self.tx(after) as tx:
            return claims.claim_effect(tx, request)

    def claimed(self, request: ClaimRequest, after: timedelta = NOW) -> Entry:
        result = self.claim(request, after)
        assert isinstance(result, Claimed), result
        return result.entry

    def commit(self, request: ClaimRequest, entry: Entry, receipt: Any = "r-1") -> int:
        with self.tx() as tx:
            number = outcomes.commit_effect(tx, request, entry, Kept(receipt))
        assert number is not None
        return number

    def committed(self, request: ClaimRequest, receipt: Any = "r-1") -> Entry:
        """Claim and commit, and return the entry as it stands then."""
        entry = self.claimed(request)
        self.commit(request, entry, receipt)
        return self.entry(entry.entry_id)

    def failed(self, request: ClaimRequest, class_: str = "transient") -> Entry:
        entry = self.claimed(request)
        with self.tx() as tx:
            second = timedelta(seconds=1)
            failed = outcomes.record_failure(tx, request, entry, class_, "no route", delay=second)
        assert failed is not None
        return failed

    def answered_no(self, request: ClaimRequest) -> Entry:
        entry = self.claimed(request)
        with self.tx() as tx:
            assert outcomes.record_no(tx, request, entry, "already shipped", "shipped")
        return self.entry(entry.entry_id)

    def in_doubt(self, request: ClaimRequest, after: timedelta = NOW) -> Entry:
        """A call that ended without saying whether it happened."""
        entry = self.claimed(request, after)
        with self.tx() as tx:
            assert outcomes.leave_in_doubt(tx, request, entry, "cut off") is not None
        return self.entry(entry.entry_id)

    def asked(self, request: ClaimRequest, *, partial: bool = False) -> tuple[Entry, str]:
        """An entry that waits for a human, and its intervention's id."""
        entry = self.claimed(request)
        with self.tx() as tx:
            part = Kept(None) if partial else None
            intervention = outcomes.ask_human(tx, entry, "Did it?", part=part)
        assert intervention is not None
        return self.entry(entry.entry_id), intervention

    def undo(self, entry: Entry, **changes: Any) -> ClaimRequest:
        values: dict[str, Any] = {
            "run_id": entry.run_id,
            "step_id": entry.step_id,
            "tool": "payments.charge",
            "key": f"undo:{entry.entry_id}",
            "params": {"refund": "r-1"},
            "undoes": entry.entry_id,
            **changes,
        }
        return self.call(**values)

    def asked_to_undo(self, entry: Entry, why: str = "the bank says no") -> str:
        """Ask a human about an effect whose undoing has failed; returns the intervention's id."""
        with self.tx() as tx:
            asked = compensations.ask_about_undo(tx, entry, why)
        assert isinstance(asked, Asked)
        return asked.intervention_id

    def undone(self, entry: Entry) -> Entry:
        """Undo an effect, and return it as it stands then."""
        undo = self.undo(entry)
        self.commit(undo, self.claimed(undo))
        return self.entry(entry.entry_id)

    def compensating(self, request: ClaimRequest) -> Entry:
        entry = self.committed(request)
        self.claimed(self.undo(entry))
        return self.entry(entry.entry_id)

    def compensated(self, request: ClaimRequest) -> Entry:
        return self.undone(self.committed(request))

    def begin_undo(
        self, run_id: str = RUN, step_id: str = STEP, after: timedelta = NOW
    ) -> compensations.BeginResult:
        """Bar a step and begin to undo what stands of it, or else what it has made last."""
        with self.tx(after) as tx:
            run_tree.bar_tree(tx, run_id, step_id)
            page = run_tree.list_remaining(tx, run_id, step_id)
            its = (effects.c.run_id == run_id, effects.c.step_id == step_id)
            made = tx.all(
                select(effects.c.entry_id)
                .where(effects.c.tenant_id == self.tenant, *its, effects.c.undoes.is_(None))
                .order_by(effects.c.claimed_ms.desc())
            )
            ids = [one.entry.entry_id for one in page.effects] + [row["entry_id"] for row in made]
            if not ids:
                return NothingToUndo("nothing was claimed")
            return compensations.begin_undo(tx, ids[0], run_id, step_id, lambda _: UNDOABLE)

    def remaining(self, run_id: str = RUN, step_id: str | None = None) -> list[str]:
        """Return the keys of what is to be undone, in that order."""
        with self.tx() as tx:
            page = run_tree.list_remaining(tx, run_id, step_id)
        return [one.entry.key for one in page.effects]

    def settle(
        self,
        resolution: Resolution,
        run_id: str = RUN,
        resolution_id: str = "#r1",
        *,
        can_undo: bool = False,
        after: timedelta = SETTLED,
    ) -> tuple[bool, str]:
        """Deliver a human's answer to an intervention, when no call of it may arrive any more."""
        sent_as = f"{run_id}{resolution_id}"
        with self.tx(after) as tx:
            settled = reconcile.settle_intervention(
                tx, run_id, sent_as, resolution, lambda _: can_undo
            )
        return settled.accepted, settled.message

    def ask_approval(
        self,
        request: ClaimRequest,
        *,
        number: int = 1,
        expires_in: timedelta = WINDOW,
        requirement: Requirement = ANYBODY,
        remind_every: timedelta | None = None,
        proof: AskedProof = "open",
        after: timedelta = NOW,
        description: str = "",
        **changes: Any,
    ) -> ClaimRequest:
        """Ask for an approval and return the call that uses it."""
        needs = Needs(
            requirements=(requirement,),
            expires_in=expires_in,
            remind_every=remind_every,
            proof=proof,
        )
        with self.tx(after) as tx:
            row = requests.request_approval(
                tx, request, number=number, description=description, needs=needs, **changes
            )
        return replace(request, gated=True, approval_id=row["approval_id"])

    def approved(self, request: ClaimRequest, **asked: Any) -> ClaimRequest:
        """Ask, have it approved, and return the call that uses it."""
        gated = self.ask_approval(request, **asked)
        verdict = self.decide(gated)
        assert verdict.code == "accepted", verdict
        return gated

    def hold(self, resource: str) -> resource_leases.Lease:
        """Hold a resource for a call of this tenant's first run."""
        asked = resource_leases.LeaseRequest(
            self.tenant, RUN, STEP, "payments.refund", (resource,), "holder", 1, LEASE
        )
        with self.tx() as tx:
            held = resource_leases.acquire_resources(tx, asked)
        assert not isinstance(held, resource_leases.Busy)
        return held[0]

    def close(self, gated: ClaimRequest, to: str, after: timedelta = NOW) -> str:
        """Expire or void a call's approval and return its state."""
        assert gated.approval_id is not None
        with self.tx(after) as tx:
            return requests.close_approval(tx, gated.run_id, gated.approval_id, to)

    def decide(
        self,
        gated: ClaimRequest,
        outcome: str = "approve",
        *,
        decision_id: str | None = None,
        after: timedelta = NOW,
        assurance: Assurance = Assurance.OPEN,
        edited: Edited | str = "no edits here",
        **changes: Any,
    ) -> Verdict:
        """Deliver a decision on a call's approval and return the verdict."""
        values: dict[str, Any] = {
            "approval_id": gated.approval_id,
            "params_hash": gated.params_hash,
            "outcome": DecisionOutcome(outcome),
            "approver": APPROVER,
            **changes,
        }
        asked = VerifyDecision(
            tenant=self.tenant,
            run_id=gated.run_id,
            decision_id=decision_id or f"{gated.run_id}#{next(_numbers)}",
            decision=Decision(**values),
        )
        with self.tx(after) as tx:
            judged = decisions.verify_decision(
                tx,
                asked,
                assurance=assurance,
                check_edit=lambda _row, _params: edited,
                covers=lambda _row, scope: gated.covers(scope),
            )
        return judged.verdict

    def rows(self, table: Table, **where: Any) -> list[dict[str, Any]]:
        query = select(table).where(table.c.tenant_id == self.tenant)
        for name, value in where.items():
            query = query.where(table.c[name] == value)
        with self.tx() as tx:
            return tx.all(query.order_by(*table.primary_key.columns))

    def row(self, table: Table, **where: Any) -> dict[str, Any]:
        (found,) = self.rows(table, **where)
        return found

    def entry(self, entry_id: str) -> Entry:
        return Entry.from_row(self.row(effects, entry_id=entry_id))

    def events(self, run_id: str = RUN, type_: str | None = None) -> list[dict[str, Any]]:
        """Return a run's events as they are chained."""
        query = rows_of(events, run_id=run_id).order_by(events.c.seq)
        with self.tx() as tx:
            found = tx.all(query.execution_options(sealed="stored"))
        return [event for event in found if type_ in (None, event["type"])]

    async def audited(self, *run_ids: str) -> None:
        """See that a run's events are whole, and tell of each of its entries."""
        for run_id in run_ids or (RUN,):
            events, entries, head = await self.ledger.transact(self.tenant, chain_of, run_id)
            assert verify_chain(events, [head]) is None
            assert verify_story(events) is None
            assert verify_entries(events, entries) is None

    async def broken(self, run_id: str = RUN) -> str | None:
        """Return the first thing that an audit finds wrong with a run."""
        events, _, _ = await self.ledger.transact(self.tenant, chain_of, run_id)
        found = await self.ledger.transact(self.tenant, first_unproven, run_id, events)
        return None if found is None else str(found)
