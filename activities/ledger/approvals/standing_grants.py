"""Standing approvals, granted, listed and revoked, and their uses: one vote each (G3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final

from sqlalchemy import bindparam

from surehand.activities.ledger.approvals.standing import (
    Standing,
    is_within,
    of_tool,
    used,
    worthless,
)
from surehand.activities.ledger.approvals.votes import (
    Vote,
    helps,
    missing,
    needs_of,
    requesters,
    unknown_requester,
)
from surehand.activities.ledger.core.engine import lock_name
from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    insert_row,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    decisions,
    standing_approvals,
    standing_uses,
)
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.people.signatures import BadSignature, header_kid
from surehand.activities.ledger.steps.entries import Covered, Covers
from surehand.activities.ledger.steps.foreign import content_of
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import (
    LONGEST_STANDING,
    ApprovalState,
    Assurance,
    DecisionOutcome,
    StandingClaims,
    StandingGrant,
    VerdictCode,
    standing_id_of,
    standing_label,
)

#: As long as the column for who has decided is.
_LONGEST_NAME: Final = 200


def apply(tx: Transaction, row: Mapping[str, Any], covers: Covers) -> bool:
    """Let standing approvals vote for a request that was just written; return whether any has.

    Only those that help, and none once there are votes enough. They are used under one lock for
    all of a tool, taken after the approval's row: workers may not change the rows of standing
    approvals, so they cannot lock them.
    """
    needs = needs_of(row)
    if not needs.standing or not of_tool(tx, row["tool"]):
        return False
    lock_name(tx.connection, f"standing:{tx.tenant}:{row['tool']}")
    tx.tick()
    assurance = Assurance(row["assurance"])
    if unknown_requester(tx, row["run_id"], needs.requirements, assurance) is not None:
        return False
    waiting, asked_by = of_tool(tx, row["tool"]), requesters(tx, row, needs.requirements)
    people = principals.find_principals(tx, [one.granter for one in waiting])
    votes: list[Vote] = []
    verified, foreign = True, bool(content_of(tx, row["run_id"]))
    for standing in waiting:
        if not standing.is_for(foreign=foreign):
            continue
        vote = Vote(standing.granter, people[standing.granter].roles, standing.standing_id)
        if not helps(needs.requirements, votes, vote, asked_by):
            continue
        found = covers(standing.scope)
        if found is None or not _usable(tx, row, standing, found):
            continue
        _use(tx, row, standing, found)
        votes, verified = [*votes, vote], verified and standing.signed
        if missing(needs.requirements, votes, asked_by) is None:
            _approved(tx, row, standing, verified=verified)
            break
    return bool(votes)


@dataclass(frozen=True)
class Voters:
    """Who has voted for a request, as people are told."""

    all: tuple[str, ...]
    standing: tuple[str, ...]
    """Whose standing approvals have."""


def voters(tx: Transaction, approval_id: str) -> Voters:
    """Return who has voted for a request, and which of them in advance."""
    rows = tx.all(
        rows_of(
            decisions,
            decisions.c.approver,
            decisions.c.standing_id,
            *(decisions.c.verified, decisions.c.at_ms),
            approval_id=approval_id,
            verdict=VerdictCode.ACCEPTED.value,
            outcome=DecisionOutcome.APPROVE.value,
        )
    )
    rows.sort(key=lambda row: (row["at_ms"], row["standing_id"] or ""))
    told = [
        (standing_label(row["approver"], id_) if (id_ := row["standing_id"]) else row["approver"])
        + ("" if row["verified"] else " (unverified)")
        for row in rows
    ]
    standing = [name for name, row in zip(told, rows, strict=True) if row["standing_id"]]
    return Voters(tuple(told), tuple(standing))


@cache
def _unused(*named: str) -> PreparedStatement:
    """Return the query of a run's approvals that have used something and that no effect has used.

    Args:
        named: What else is given: ``of_step``, ``of_approval``.
    """
    live = standing_uses.c
    waiting = rows_of(standing_uses, live.approval_id, run_id=bindparam("of_run"), returned_ms=None)
    if "of_step" in named:
        waiting = waiting.where(live.step_id == bindparam("of_step"))
    if "of_approval" in named:
        waiting = waiting.where(live.approval_id == bindparam("of_approval"))
    return PreparedStatement(
        rows_of(approvals, approvals.c.approval_id, approvals.c.step_id, consumed_entry=None)
        .where(approvals.c.approval_id.in_(waiting))
        .order_by(approvals.c.approval_id)
        .with_for_update()
    )


def give_back(
    tx: Transaction, run_id: str, *, step_id: str | None = None, approval_id: str | None = None
) -> None:
    """Give back what a run's approvals have used that no effect has used, and none can any more.

    A vote whose use is given back counts no more, so that a late attempt at the old approval finds
    it missing.

    Args:
        step_id: Of this step only.
        approval_id: Of this approval only.
    """
    named = {"of_step": step_id, "of_approval": approval_id}
    given = {name: value for name, value in named.items() if value is not None}
    # Locked, in order of their ids: a claim may be about to consume one of them.
    ended = tx.all(_unused(*given), of_run=run_id, **given)
    for row in ended:
        returned = tx.all(
            update_rows(standing_uses, approval_id=row["approval_id"], returned_ms=None)
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


def _usable(tx: Transaction, row: Mapping[str, Any], standing: Standing, found: Covered) -> bool:
    if not standing.assurance.satisfies(Assurance(row["assurance"])):
        return False
    return worthless(tx, standing) is None and is_within(tx, standing, found)


def _use(tx: Transaction, row: Mapping[str, Any], standing: Standing, found: Covered) -> None:
    approval_id = row["approval_id"]
    tx.execute(
        insert_row(
            standing_uses,
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
    tx.execute(
        insert_row(
            decisions,
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
        proof=standing.assurance.value,
        kid=standing.kid,
    )


def _approved(
    tx: Transaction, row: Mapping[str, Any], standing: Standing, *, verified: bool
) -> None:
    by = standing.label if len(standing.label) <= _LONGEST_NAME else standing.standing_id
    changes = {
        "state": ApprovalState.APPROVED.value,
        "decided_by": by,
        "verified": verified,
    }
    tx.execute(
        update_rows(
            approvals, approval_id=row["approval_id"], state=ApprovalState.PENDING.value
        ).values(changes)
    )
    tx.event(
        row["run_id"],
        "approval.approved",
        step_id=row["step_id"],
        approval_id=row["approval_id"],
        params_hash=row["params_hash"],
        verified=verified,
    )


class StandingError(PrincipalError):
    """A standing approval that cannot be granted or revoked; the message says why."""


@dataclass(frozen=True)
class Listed:
    """A standing approval, and what is left of it."""

    standing: Standing
    uses: int
    total: Decimal
    """What its uses come to, where a total limits them."""
    over: bool
    worthless: str | None
    """Why it does not count now."""


def grant(tx: Transaction, given: StandingGrant) -> Standing:
    """Write a standing approval; a signature has to be its granter's own, and just made.

    Raises:
        StandingError: It would count for nothing, or it was granted before.
    """
    scope, signature = given.scope, given.signature
    try:
        kid = None if signature is None else header_kid(signature, StandingClaims.typ)
    except BadSignature as error:
        raise StandingError(f"the standing approval would count for nothing: {error}") from error
    standing = Standing(
        standing_id=standing_id_of(given.nonce),
        granter=given.granter,
        scope=scope,
        reason=given.reason,
        nonce=given.nonce,
        signature=signature,
        kid=kid,
        granted_ms=tx.now_ms,
    )
    lock_name(tx.connection, f"standing:{tx.tenant}:{standing.standing_id}")
    if scope.until * 1000 > tx.now_ms + LONGEST_STANDING.total_seconds() * 1000:
        raise StandingError(f"it would last longer than {LONGEST_STANDING.days} d")
    why = worthless(tx, standing)
    if why is not None:
        raise StandingError(f"the standing approval would count for nothing: {why}")
    if _row(tx, standing.standing_id) is not None:
        raise StandingError("this signature has counted already")
    tx.execute(
        insert_row(
            standing_approvals,
            standing_id=standing.standing_id,
            granter=given.granter,
            tool=scope.tool,
            tool_version=scope.version,
            schema_hash=scope.schema_hash,
            condition=scope.when,
            most_uses=scope.count,
            total_of=scope.total_of,
            most_total=scope.total,
            foreign_too=scope.foreign,
            until_ms=scope.until * 1000,
            reason=given.reason,
            nonce=given.nonce,
            signature=signature,
            kid=kid,
            granted_ms=standing.granted_ms,
        )
    )
    return standing


def revoke(tx: Transaction, standing_id: str, actor: str) -> bool:
    """Revoke a standing approval for good; returns whether that changed anything.

    It counts from then on, also for approvals it has given and that no effect has used.

    Raises:
        StandingError: There is none of that id.
    """
    touched = tx.execute(
        update_rows(standing_approvals, standing_id=standing_id, revoked_ms=None).values(
            revoked_ms=tx.now_ms, revoked_by=actor
        )
    )
    if not touched and _row(tx, standing_id) is None:
        raise StandingError(f"there is no standing approval {standing_id!r}")
    return bool(touched)


def all_standing(tx: Transaction) -> list[Listed]:
    """Return all that was ever granted, oldest first."""
    rows = tx.all(
        rows_of(standing_approvals).order_by(
            standing_approvals.c.granted_ms, standing_approvals.c.standing_id
        )
    )
    found = [one for one in map(Standing.from_row, rows) if one is not None]
    return [_listed(tx, one) for one in found]


def listed(tx: Transaction, standing_id: str) -> Listed | None:
    """Return one of them, and what is left of it."""
    row = _row(tx, standing_id)
    found = None if row is None else Standing.from_row(row)
    return None if found is None else _listed(tx, found)


def _listed(tx: Transaction, one: Standing) -> Listed:
    uses, total = used(tx, one)
    over = one.scope.until * 1000 <= tx.now_ms
    return Listed(one, uses, total, over, worthless(tx, one))


def _row(tx: Transaction, standing_id: str) -> dict[str, Any] | None:
    return tx.one(rows_of(standing_approvals, standing_id=standing_id))
