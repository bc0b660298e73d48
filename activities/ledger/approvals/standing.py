"""Standing approvals as values, and whether one counts: looked at whenever it is used (G3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from surehand.activities.ledger.core.people_tables import standing_approvals, standing_uses
from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.people.proofs import Signed, still_signed
from surehand.activities.ledger.people.signatures import BadSignature
from surehand.workflows.contracts.standing import (
    Scope,
    StandingClaims,
    standing_id_of,
    standing_label,
)


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
        scope = {
            "tool": row["tool"],
            "version": row["tool_version"],
            "schema_hash": row["schema_hash"],
            "when": row["condition"],
            "count": row["most_uses"],
            "total_of": row["total_of"],
            "total": row["most_total"],
            "until": row["until_ms"] // 1000,
        }
        own = [name for name in cls.__dataclass_fields__ if name != "scope"]
        try:
            return cls(scope=Scope.model_validate(scope), **{name: row[name] for name in own})
        except ValidationError:
            return None

    @property
    def signed(self) -> bool:
        """Whether it carries a signature; :func:`worthless` says what that proves."""
        return self.signature is not None

    @property
    def label(self) -> str:
        """How people are told whose vote it is."""
        return standing_label(self.granter, self.standing_id)


def worthless(tx: Transaction, standing: Standing) -> str | None:
    """Return why a standing approval does not count now, as one clause, or ``None``.

    Its signature is verified each time, over the whole scope and with the key as it is now: a row
    that somebody has written without the granter's key, or changed, counts for nothing.
    """
    if standing.revoked_ms is not None:
        return f"it was revoked by {standing.revoked_by}"
    if standing.scope.until * 1000 <= tx.now_ms:
        return "its time is over"
    if standing.standing_id != standing_id_of(standing.nonce):
        return "its id is not that of its nonce"
    if standing.signature is None:
        return None if standing.kid is None else "it names a key, but has no signature"
    return unsigned(tx, standing)


def unsigned(tx: Transaction, standing: Standing, *, in_force: bool = True) -> str | None:
    """Return why nothing proves that its granter has granted exactly this; ``None``: it is proven.

    Args:
        tx: The transaction.
        standing: What was granted.
        in_force: Whether its key has to count now, or had to when it was granted.
    """
    kept = Signed(
        *(standing.signature, standing.granter, standing.kid, standing.nonce, standing.granted_ms)
    )
    try:
        claims = still_signed(tx, kept, StandingClaims, in_force=in_force)
    except BadSignature as error:
        return str(error)
    return None if claims.scope == standing.scope else "its signature is for something else"


def given_by(tx: Transaction, standing_id: str) -> Standing | None:
    """Return a standing approval, revoked and ended ones, too."""
    row = tx.one(rows_of(standing_approvals, standing_id=standing_id))
    return None if row is None else Standing.from_row(row)


def of_tool(tx: Transaction, tool: str) -> list[Standing]:
    """Return what is granted for a tool and not revoked or over, what ends first before the others.

    So that what would be lost soon is used up first.
    """
    columns = standing_approvals.c
    rows = tx.all(
        rows_of(standing_approvals, tool=tool, revoked_ms=None)
        .where(columns.until_ms > tx.now_ms)
        .order_by(columns.until_ms, columns.standing_id)
    )
    return [found for found in map(Standing.from_row, rows) if found is not None]


def voting(tx: Transaction, approval_id: str, standing_ids: Collection[str]) -> dict[str, Standing]:
    """Return those whose vote for an approval counts: in force, and their use not returned."""
    if not standing_ids:
        return {}
    rows = tx.all(
        rows_of(standing_uses, standing_approvals, approval_id=approval_id, returned_ms=None)
        .join(standing_approvals, ours(standing_approvals, standing_id=standing_uses.c.standing_id))
        .where(standing_uses.c.standing_id.in_(standing_ids))
    )
    found = [one for one in map(Standing.from_row, rows) if one is not None]
    return {one.standing_id: one for one in found if worthless(tx, one) is None}
