"""Edits: other params in the place of those that an approval asks about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from activities.ledger.store import Transaction
from activities.ledger.tables import effects
from activities.ledger.votes import Refusal, Vote, may_edit, needs_of
from workflows.contracts import Decision, VerdictCode

#: Entries in these states leave their key free for other params.
_FREE = ("failed", "compensated")


@dataclass(frozen=True)
class Edited:
    """Other params for a call, as its tool takes them."""

    params: dict[str, Any]
    params_hash: str
    key: str


#: Validates an edit with the tool of an approval's row; a text says why it cannot be.
CheckEdit = Callable[[Mapping[str, Any], Mapping[str, Any]], Edited | str]


async def checked_edit(
    tx: Transaction,
    decision: Decision,
    row: Mapping[str, Any],
    vote: Vote,
    check_edit: CheckEdit,
) -> Edited | Refusal:
    """Return the params that an edit of an approval's row asks for, or why it cannot be."""
    if not may_edit(needs_of(row).requirements, vote.roles):
        return VerdictCode.NOT_PERMITTED, f"{decision.approver} may decide, but not edit"
    checked = check_edit(row, decision.params or {})
    if isinstance(checked, str):
        return VerdictCode.NOT_EDITABLE, checked
    if checked.params_hash == row["params_hash"]:
        return VerdictCode.NOT_EDITABLE, "the edit changes nothing"
    taken = await tx.one(
        select(effects.c.entry_id, effects.c.state).where(
            effects.c.tenant_id == tx.tenant,
            effects.c.tool == row["tool"],
            effects.c.key.in_([row["key"], checked.key]),
            effects.c.state.not_in(_FREE),
        )
    )
    if taken is not None:
        return VerdictCode.NOT_EDITABLE, f"its key has entry {taken['entry_id']} ({taken['state']})"
    return checked
