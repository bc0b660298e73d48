"""Uses of standing approvals: one vote each, within count and total, given back if unused (G3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from typing import Any, Final

from sqlalchemy import func, insert, select, update

from activities.ledger import principals
from activities.ledger.engine import lock_name
from activities.ledger.standing import Standing, of_tool, worthless
from activities.ledger.standing_tables import standing_uses
from activities.ledger.store import Transaction
from activities.ledger.tables import approvals, decisions
from activities.ledger.votes import Vote, helps, missing, needs_of, requesters, unknown_requester
from workflows.contracts import ApprovalState, Assurance, DecisionOutcome, VerdictCode
from workflows.contracts.standing import MOST_USES, Scope, standing_label
from workflows.identity import digest

#: Sums of as many amounts as there can be uses, each with 30 digits before and after the point;
#: nothing is ever rounded.
_EXACT: Final = Context(prec=60 + len(str(MOST_USES)), traps=[Inexact])
#: As long as the column for who has decided is.
_LONGEST_NAME: Final = 200


@dataclass(frozen=True)
class Covered:
    """That a call lies within a scope, and what it adds to the sum, if that is limited."""

    amount: Decimal | None = None


#: Says whether a scope covers the call that is asked about.
Covers = Callable[[Scope], Covered | None]


async def apply(tx: Transaction, row: Mapping[str, Any], covers: Covers) -> Mapping[str, Any]:
    """Let standing approvals vote for a request that was just written; returns its row then.

    Only those that help, and none once there are votes enough. They are used under one lock for
    all of a tool, taken after the approval's row: workers may not change the rows of standing
    approvals, so they cannot lock them.
    """
    needs = needs_of(row)
    if not needs.standing or not await of_tool(tx, row["tool"]):
        return row
    await lock_name(tx.connection, f"standing:{tx.tenant}:{row['tool']}")
    await tx.tick()
    assurance = Assurance(row["assurance"])
    if await unknown_requester(tx, row["run_id"], needs.requirements, assurance) is not None:
        return row
    waiting, asked_by = await of_tool(tx, row["tool"]), await requesters(tx, row)
    people = await principals.find(tx, [one.granter for one in waiting])
    votes: list[Vote] = []
    verified = True
    for standing in waiting:
        vote = Vote(standing.granter, people[standing.granter].roles, standing.standing_id)
        if not helps(needs.requirements, votes, vote, asked_by):
            continue
        found = covers(standing.scope)
        if found is None or not await _usable(tx, row, standing, found):
            continue
        await _use(tx, row, standing, found)
        votes, verified = [*votes, vote], verified and standing.signed
        if missing(needs.requirements, votes, asked_by) is None:
            return await _approved(tx, row, standing, verified=verified)
    return row


async def voters(tx: Transaction, approval_id: str) -> tuple[str, ...]:
    """Return whose standing approvals have voted for a request, as people are told."""
    rows = await tx.all(
        select(decisions.c.approver, decisions.c.standing_id, decisions.c.verified)
        .where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approval_id == approval_id,
            decisions.c.standing_id.is_not(None),
        )
        .order_by(decisions.c.at_ms, decisions.c.standing_id)
    )
    return tuple(
        standing_label(row["approver"], row["standing_id"])
        + ("" if row["verified"] else " (unverified)")
        for row in rows
    )


async def give_back(
    tx: Transaction, run_id: str, *, step_id: str | None = None, approval_id: str | None = None
) -> None:
    """Give back what a run's approvals have used that no effect has used, and none can any more.

    A vote whose use is given back counts no more, so that a late attempt at the old approval finds
    it missing.

    Args:
        tx: The transaction.
        run_id: The run.
        step_id: Of this step only.
        approval_id: Of this approval only.
    """
    live = standing_uses.c
    waiting = select(live.approval_id).where(
        live.tenant_id == tx.tenant, live.run_id == run_id, live.returned_ms.is_(None)
    )
    if step_id is not None:
        waiting = waiting.where(live.step_id == step_id)
    if approval_id is not None:
        waiting = waiting.where(live.approval_id == approval_id)
    # Locked, in order of their ids: a claim may be about to consume one of them.
    ended = await tx.all(
        select(approvals.c.approval_id, approvals.c.step_id)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.consumed_entry.is_(None),
            approvals.c.approval_id.in_(waiting),
        )
        .order_by(approvals.c.approval_id)
        .with_for_update()
    )
    for row in ended:
        returned = await tx.all(
            update(standing_uses)
            .where(
                standing_uses.c.tenant_id == tx.tenant,
                standing_uses.c.approval_id == row["approval_id"],
                standing_uses.c.returned_ms.is_(None),
            )
            .values(returned_ms=tx.now_ms)
            .returning(standing_uses.c.standing_id)
        )
        for use in sorted(returned, key=lambda use: str(use["standing_id"])):
            tx.event(
                run_id,
                "approval.standing_returned",
                step_id=row["step_id"],
                approval_id=row["approval_id"],
                standing_id=use["standing_id"],
            )


async def used(tx: Transaction, standing: Standing) -> tuple[int, Decimal]:
    """Return how often a standing approval is used up now, and what its amounts come to."""
    live = (
        standing_uses.c.tenant_id == tx.tenant,
        standing_uses.c.standing_id == standing.standing_id,
        standing_uses.c.returned_ms.is_(None),
    )
    if standing.scope.total is None:
        row = await tx.one(select(func.count().label("uses")).where(*live))
        assert row is not None
        return int(row["uses"]), Decimal(0)
    # Added up here: SQLite's own sums are floats.
    rows = await tx.all(select(standing_uses.c.amount).where(*live))
    total = Decimal(0)
    for row in rows:
        total = _EXACT.add(total, Decimal(row["amount"]))
    return len(rows), total


async def _usable(
    tx: Transaction, row: Mapping[str, Any], standing: Standing, found: Covered
) -> bool:
    if Assurance(row["assurance"]) is Assurance.SIGNED and not standing.signed:
        return False
    return await worthless(tx, standing) is None and await _within(tx, standing, found)


async def _within(tx: Transaction, standing: Standing, found: Covered) -> bool:
    """Return whether one more use is within the count and the total."""
    scope = standing.scope
    if scope.count is None and scope.total is None:
        return True
    uses, total = await used(tx, standing)
    if uses >= (MOST_USES if scope.count is None else scope.count):
        return False
    if scope.total is None:
        return True
    assert found.amount is not None, "a scope with a total covers nothing without an amount"
    return _EXACT.add(total, found.amount) <= Decimal(scope.total)


async def _use(tx: Transaction, row: Mapping[str, Any], standing: Standing, found: Covered) -> None:
    approval_id = row["approval_id"]
    await tx.execute(
        insert(standing_uses).values(
            tenant_id=tx.tenant,
            approval_id=approval_id,
            standing_id=standing.standing_id,
            run_id=row["run_id"],
            step_id=row["step_id"],
            amount=None if found.amount is None else f"{found.amount:f}",
            used_ms=tx.now_ms,
        )
    )
    # Its own nonce has counted when it was granted; a use has one of its own, bound to both.
    nonce = digest([standing.nonce, approval_id]) if standing.signed else None
    await tx.execute(
        insert(decisions).values(
            tenant_id=tx.tenant,
            decision_id=f"{approval_id}#{standing.standing_id}",
            run_id=row["run_id"],
            approval_id=approval_id,
            approver=standing.granter,
            outcome=DecisionOutcome.APPROVE.value,
            params_hash=row["params_hash"],
            reason=standing.reason,
            verdict=VerdictCode.ACCEPTED.value,
            message=f"approved by {standing.label}",
            verified=standing.signed,
            signature=standing.signature,
            kid=standing.kid,
            nonce=nonce,
            at_ms=tx.now_ms,
            standing_id=standing.standing_id,
        )
    )
    tx.event(
        row["run_id"],
        "approval.standing_used",
        step_id=row["step_id"],
        approval_id=approval_id,
        standing_id=standing.standing_id,
        approver=standing.granter,
        verified=standing.signed,
        kid=standing.kid,
    )


async def _approved(
    tx: Transaction, row: Mapping[str, Any], standing: Standing, *, verified: bool
) -> Mapping[str, Any]:
    by = standing.label if len(standing.label) <= _LONGEST_NAME else standing.standing_id
    changes = {
        "state": ApprovalState.APPROVED.value,
        "decided_by": by,
        "verified": verified,
    }
    await tx.execute(
        update(approvals)
        .where(
            approvals.c.tenant_id == tx.tenant,
            approvals.c.approval_id == row["approval_id"],
            approvals.c.state == ApprovalState.PENDING.value,
        )
        .values(changes)
    )
    tx.event(
        row["run_id"],
        "approval.approved",
        step_id=row["step_id"],
        approval_id=row["approval_id"],
        params_hash=row["params_hash"],
        verified=verified,
    )
    return {**row, **changes}
