"""Standing approvals: granted, listed, revoked; and whether one counts whenever it is used (G3)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import BigInteger, BindParameter, bindparam, func, or_

from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    ours,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, standing_approvals, standing_uses
from surehand.activities.ledger.halts import select_longest_still, stood_still
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.people.proofs import StoredSignature, verify_stored
from surehand.activities.ledger.steps.entries import Covered, Covers
from surehand.activities.ledger.steps.foreign import foreign_content
from surehand.verify import BadSignature, header_kid
from surehand.workflows.contracts.approvals import (
    LONGEST_STANDING,
    MOST_USES,
    Assurance,
    Scope,
    StandingClaims,
    StandingGrant,
    standing_id_of,
    standing_label,
)

#: Sums of as many amounts as there can be uses, each with 30 digits before and after the point;
#: nothing is ever rounded.
_EXACT: Final = Context(prec=60 + len(str(MOST_USES)), traps=[Inexact])
#: As workers write it. Less than nothing would make room for others.
_AMOUNT: Final = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
#: What any other text adds to a sum: nothing is within a limit then.
_NO_AMOUNT: Final = Decimal("Infinity")


_NOW: Final[BindParameter[int]] = bindparam("now_ms", type_=BigInteger)
_OF_TOOL: Final = PreparedStatement(
    rows_of(standing_approvals, tool=bindparam("of_tool"), revoked_ms=None)
    # Its time stands still while calls are halted: what may be in force is looked at by itself.
    .where(standing_approvals.c.until_ms > _NOW - select_longest_still(_NOW))
    .order_by(standing_approvals.c.until_ms, standing_approvals.c.standing_id)
)
_USED_FOR: Final = PreparedStatement(
    rows_of(
        standing_uses,
        standing_approvals,
        standing_uses.c.amount,
        approval_id=bindparam("of_approval"),
        returned_ms=None,
    ).join(standing_approvals, ours(standing_approvals, standing_id=standing_uses.c.standing_id))
)


#: The columns of a scope, by its fields; the time until which it holds is beside them.
_OF_SCOPE: Final = {
    "tool": "tool",
    "version": "tool_version",
    "schema_hash": "schema_hash",
    "when": "condition",
    "count": "most_uses",
    "total_of": "total_of",
    "total": "most_total",
    "foreign": "foreign_too",
}


@dataclass(frozen=True)
class Standing:
    """A row of ``standing_approvals``."""

    standing_id: str
    granter: str
    scope: Scope
    reason: str
    nonce: str
    signature: str | None
    kid: str | None
    granted_ms: int
    revoked_ms: int | None = None
    revoked_by: str | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Standing | None:
        """Return the standing approval of a row; ``None`` if nobody can have granted it so."""
        scope = {name: row[column] for name, column in _OF_SCOPE.items()}
        scope["until"] = row["until_ms"] // 1000
        own = [name for name in cls.__dataclass_fields__ if name != "scope"]
        try:
            return cls(scope=Scope.model_validate(scope), **{name: row[name] for name in own})
        except ValidationError:
            return None

    def is_for(self, *, foreign: bool) -> bool:
        """Return whether it covers calls of a run that has, or has not, read foreign content."""
        return self.scope.foreign or not foreign

    @property
    def signed(self) -> bool:
        """Whether it carries a signature; :func:`why_worthless` says what that proves."""
        return self.signature is not None

    @property
    def assurance(self) -> Assurance:
        """How much that proves of its votes: no passkey's gesture was made for any of them."""
        return Assurance.SIGNED if self.signed else Assurance.OPEN

    @property
    def label(self) -> str:
        """How people are told whose vote it is."""
        return standing_label(self.granter, self.standing_id)


def why_worthless(tx: Transaction, standing: Standing) -> str | None:
    """Return why a standing approval does not count now, as one clause, or ``None``.

    Its signature is verified each time, over the whole scope and with the key as it is now: a row
    that somebody has written without the granter's key, or changed, counts for nothing.
    """
    if standing.revoked_ms is not None:
        return f"it was revoked by {standing.revoked_by}"
    if _is_over(tx, standing):
        return "its time is over"
    if standing.standing_id != standing_id_of(standing.nonce):
        return "its id is not that of its nonce"
    if standing.signature is None:
        return None if standing.kid is None else "it names a key, but has no signature"
    return why_unsigned(tx, standing)


def _is_over(tx: Transaction, standing: Standing) -> bool:
    """Return whether its time is over, which stands still while calls of its tool are halted."""
    left_ms = standing.scope.until * 1000 - tx.now_ms
    if left_ms > 0:
        return False
    return left_ms + stood_still(tx, standing.scope.tool, None, standing.granted_ms) <= 0


def why_unsigned(tx: Transaction, standing: Standing) -> str | None:
    """Return why nothing proves that its granter has granted this; ``None``: it is proven."""
    kept = StoredSignature(
        *(standing.signature, standing.granter, standing.kid, standing.nonce, standing.granted_ms)
    )
    try:
        _, claims = verify_stored(tx, kept, StandingClaims)
    except BadSignature as error:
        return str(error)
    return None if claims.scope == standing.scope else "its signature is for something else"


def find_standing(tx: Transaction, standing_id: str) -> Standing | None:
    """Return a standing approval, revoked and ended ones, too."""
    row = tx.one(rows_of(standing_approvals, standing_id=standing_id))
    return None if row is None else Standing.from_row(row)


def standing_of_tool(tx: Transaction, tool: str) -> list[Standing]:
    """Return what is granted for a tool and not revoked or over, what ends first before the others.

    So that what would be lost soon is used up first.
    """
    rows = tx.all(_OF_TOOL, of_tool=tool, now_ms=tx.now_ms)
    found = [one for one in map(Standing.from_row, rows) if one is not None]
    return [one for one in found if not _is_over(tx, one)]


def find_voting(
    tx: Transaction, approval_id: str, standing_ids: Collection[str], covers: Covers
) -> dict[str, Standing]:
    """Return those whose vote for an approval counts: in force, for this call, and not returned.

    Uses are rows that whoever has the workers' rights can write. So the scope is judged by the call
    itself, and all that stands as used has to be within what was granted.
    """
    if not standing_ids:
        return {}
    rows = [
        row
        for row in tx.all(_USED_FOR, of_approval=approval_id)
        if row["standing_id"] in standing_ids
    ]
    run_id = tx.value(rows_of(approvals, approvals.c.run_id, approval_id=approval_id))
    foreign = run_id is not None and bool(foreign_content(tx, run_id))
    found: dict[str, Standing] = {}
    for row in rows:
        one = Standing.from_row(row)
        if one is None or why_worthless(tx, one) is not None or not one.is_for(foreign=foreign):
            continue
        covered = covers(one.scope)
        if covered is None or not is_within(tx, one):
            continue
        if covered.amount is None or covered.amount == _read_amount(row["amount"]):
            found[one.standing_id] = one
    return found


def sum_uses(tx: Transaction, standing: Standing) -> tuple[int, Decimal]:
    """Return how often a standing approval is used up now, and what its amounts come to.

    What an effect has used is used up, whatever else its row says.
    """
    mine = ours(approvals, approval_id=standing_uses.c.approval_id)
    stands = or_(standing_uses.c.returned_ms.is_(None), approvals.c.consumed_entry.is_not(None))
    of_it = {"standing_id": standing.standing_id}
    if standing.scope.total is None:
        counted = rows_of(standing_uses, func.count(), **of_it)
        return tx.count(counted.join(approvals, mine).where(stands)), Decimal(0)
    # Added up here: SQLite's own sums are floats.
    amounts = rows_of(standing_uses, standing_uses.c.amount, **of_it)
    rows = tx.all(amounts.join(approvals, mine).where(stands))
    total = Decimal(0)
    for row in rows:
        total = _EXACT.add(total, _read_amount(row["amount"]))
    return len(rows), total


def is_within(tx: Transaction, standing: Standing, another: Covered | None = None) -> bool:
    """Return whether what stands as used, and another use, is within what was granted."""
    scope = standing.scope
    if scope.count is None and scope.total is None:
        return True
    uses, total = sum_uses(tx, standing)
    if another is not None:
        uses, total = uses + 1, _EXACT.add(total, another.amount or Decimal(0))
    if uses > (MOST_USES if scope.count is None else scope.count):
        return False
    return scope.total is None or total <= Decimal(scope.total)


def _read_amount(said: str | None) -> Decimal:
    """Return the amount that the row of a use says."""
    return Decimal(said) if said is not None and _AMOUNT.fullmatch(said) else _NO_AMOUNT


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


def grant_standing(tx: Transaction, given: StandingGrant) -> Standing:
    """Write a standing approval; a signature has to be its granter's own, and just made."""
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
    tx.take_turn("standing", standing.standing_id)
    if scope.until * 1000 > tx.now_ms + LONGEST_STANDING.total_seconds() * 1000:
        raise StandingError(f"it would last longer than {LONGEST_STANDING.days} d")
    why = why_worthless(tx, standing)
    if why is not None:
        raise StandingError(f"the standing approval would count for nothing: {why}")
    if _was_granted(tx, standing.standing_id):
        raise StandingError("this signature has counted already")
    own = ("standing_id", "granter", "reason", "nonce", "signature", "kid", "granted_ms")
    values = {name: getattr(standing, name) for name in own}
    values |= {column: getattr(scope, name) for name, column in _OF_SCOPE.items()}
    tx.insert_row(standing_approvals, **values, until_ms=scope.until * 1000)
    return standing


def revoke_standing(tx: Transaction, standing_id: str, actor: str) -> bool:
    """Revoke a standing approval; returns whether that changed anything.

    It counts from then on, also for approvals it has given and that no effect has used.
    """
    live = update_rows(standing_approvals, standing_id=standing_id, revoked_ms=None)
    touched = tx.execute(live.values(revoked_ms=tx.now_ms, revoked_by=actor))
    if not touched and not _was_granted(tx, standing_id):
        raise StandingError(f"there is no standing approval {standing_id!r}")
    return bool(touched)


def _was_granted(tx: Transaction, standing_id: str) -> bool:
    """Return whether there is such a row, whatever can still be read of it."""
    id_ = standing_approvals.c.standing_id
    return tx.has(rows_of(standing_approvals, id_, standing_id=standing_id))


def list_granted(tx: Transaction) -> list[Listed]:
    """Return all that was ever granted, oldest first."""
    given = standing_approvals.c
    rows = tx.all(rows_of(standing_approvals).order_by(given.granted_ms, given.standing_id))
    return [_describe(tx, one) for one in map(Standing.from_row, rows) if one is not None]


def describe_standing(tx: Transaction, standing_id: str) -> Listed | None:
    """Return one of them, and what is left of it."""
    found = find_standing(tx, standing_id)
    return None if found is None else _describe(tx, found)


def _describe(tx: Transaction, one: Standing) -> Listed:
    uses, total = sum_uses(tx, one)
    return Listed(one, uses, total, _is_over(tx, one), why_worthless(tx, one))
