"""Requests that wait for a decision, soonest expiry first, page by page.

No query here looks at more rows than it returns: each reads a stretch of an index, from a place on.
Who may vote for a request is in its row (``asked_of``), and there are few different ones.

What a call says no index knows: it may be sealed. So a search reads ``LOOKED_AT`` requests at most,
and says from where on the next one goes on.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, literal_column, tuple_

from surehand.activities.ledger.core.sealed import Cell, Erased
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions

#: Requests that one search reads, however many wait.
LOOKED_AT: Final = 200
#: As the partial indexes have it: for a parameter, a database cannot know that one of them fits.
_WAITS: Final = approvals.c.state == literal_column("'pending'")
_VOTES: Final = (
    decisions.c.verdict == literal_column("'accepted'"),
    decisions.c.outcome == literal_column("'approve'"),
    decisions.c.standing_id.is_(None),
)
_ORDER: Final = (approvals.c.expires_ms, approvals.c.approval_id)
#: What a list shows of a request.
_SHOWN: Final = (
    approvals.c.approval_id,
    approvals.c.run_id,
    approvals.c.step_id,
    approvals.c.tool,
    approvals.c.description,
    approvals.c.user_id,
    approvals.c.editors,
    approvals.c.needs,
    approvals.c.assurance,
    approvals.c.params_hash,
    approvals.c.requested_ms,
    approvals.c.expires_ms,
)


class Place(NamedTuple):
    """Where in the list something is."""

    expires_ms: int
    approval_id: str


class Group(NamedTuple):
    """Requests of one tool for which the same roles are asked."""

    asked_of: str
    """The roles, with blanks between them; empty: everybody."""
    tool: str

    def is_for(self, roles: Collection[str]) -> bool:
        """Return whether the vote of somebody with these roles can count."""
        return not self.asked_of or not set(self.asked_of.split()).isdisjoint(roles)


@dataclass(frozen=True)
class Waiting:
    """A page of the list."""

    rows: Sequence[Mapping[str, Any]]
    """Of ``approvals``, each with ``voters``: who has said yes in person."""
    more: Place | None
    """Where the next page begins; ``None``: this is the last one."""
    unread: int = 0
    """Requests that a search could not read: they are sealed, and the keys are not here."""


def groups(tx: Transaction) -> list[Group]:
    """Return what is waited for: one look at the index for each group."""
    columns = (approvals.c.asked_of, approvals.c.tool)
    query = rows_of(approvals, *columns).where(_WAITS).order_by(*columns).limit(1)
    found = list[Group]()
    row = tx.one(query)
    while row is not None:
        found.append(Group(row["asked_of"], row["tool"]))
        row = tx.one(query.where(tuple_(*columns) > tuple_(*found[-1])))
    return found


def waiting(
    tx: Transaction,
    *,
    most: int,
    tool: str | None = None,
    roles: Collection[str] | None = None,
    says: str | None = None,
    after: Place | None = None,
) -> Waiting:
    """Return requests that wait, those first that expire first; none that has expired.

    Args:
        tx: The transaction.
        most: So many at most.
        tool: Only this tool's.
        roles: Only those for which a vote of somebody with these roles can count.
        says: Only those whose call in words has this in it, in capitals or not; of the next
            ``LOOKED_AT``, so a page may have less than ``most`` and not be the last one.
        after: Only what comes behind this place.
    """
    places, more, unread = _chosen(tx, tool, roles, says, after, most)
    shown = [place.approval_id for place in places]
    found = rows_of(approvals, *_SHOWN).where(approvals.c.approval_id.in_(shown))
    rows = tx.all(readable(tx, found.order_by(*_ORDER)))
    voted = tx.all(
        rows_of(decisions, decisions.c.approval_id, decisions.c.approver)
        .where(*_VOTES, decisions.c.approval_id.in_(shown))
        .order_by(decisions.c.approver)
    )
    voters = {one: [v["approver"] for v in voted if v["approval_id"] == one] for one in shown}
    return Waiting(
        [{**row, "voters": voters[row["approval_id"]]} for row in rows],
        more,
        unread,
    )


def readable(tx: Transaction, query: Select[Any]) -> Select[Any]:
    """Return a query that also a process without keys may ask: what is sealed stays so then."""
    return query.execution_options(sealed="stored" if tx.keys is None else "shown")


def _chosen(
    tx: Transaction,
    tool: str | None,
    roles: Collection[str] | None,
    says: str | None,
    after: Place | None,
    most: int,
) -> tuple[list[Place], Place | None, int]:
    """Return what a page shows, where the next one begins, and how much could not be read."""
    reads = most if says is None else LOOKED_AT
    found = sorted(_places(tx, tool, roles, after, reads + 1))[: reads + 1]
    more = found[reads - 1] if len(found) > reads else None
    if says is None:
        return found[:most], more, 0
    ids = [place.approval_id for place in found[:reads]]
    columns = (approvals.c.approval_id, approvals.c.run_id, approvals.c.description)
    query = rows_of(approvals, *columns).where(approvals.c.approval_id.in_(ids))
    words = {row["approval_id"]: row["description"] for row in tx.all(readable(tx, query))}
    chosen, unread = list[Place](), 0
    for place in found[:reads]:
        said = words.get(place.approval_id)
        if isinstance(said, Cell | Erased):
            unread += 1
        elif said is not None and says.casefold() in said.casefold():
            if len(chosen) == most:
                return chosen, chosen[-1], unread
            chosen.append(place)
    return chosen, more, unread


def _places(
    tx: Transaction,
    tool: str | None,
    roles: Collection[str] | None,
    after: Place | None,
    most: int,
) -> Iterator[Place]:
    if tool is None and roles is None:
        yield from _stretch(tx, after, most)
        return
    chosen = [
        one
        for one in groups(tx)
        if tool in (None, one.tool) and (roles is None or one.is_for(roles))
    ]
    of_each = [
        _stretch(
            tx, after, most, approvals.c.asked_of == one.asked_of, approvals.c.tool == one.tool
        )
        for one in chosen
    ]
    yield from heapq.merge(*of_each)


def _stretch(
    tx: Transaction, after: Place | None, most: int, *of_group: ColumnElement[bool]
) -> list[Place]:
    """Return the first places of an index, or of one group's part of it."""
    # What has expired is decided no more, whatever its row says until its run has looked.
    first = Place(tx.now_ms + 1, "")
    start = first if after is None else max(after, first)
    query = (
        rows_of(approvals, *_ORDER)
        .where(_WAITS, *of_group, tuple_(*_ORDER) > tuple_(*start))
        .order_by(*_ORDER)
        .limit(most)
    )
    return [Place(row["expires_ms"], row["approval_id"]) for row in tx.all(query)]
