"""Requests that wait for a decision, soonest expiry first, page by page.

No query here looks at more rows than it returns: each reads a stretch of an index, from a place on.
Who may vote for a request is in its row (``asked_of``), and there are few different ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, literal_column, tuple_

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions

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
    after: Place | None = None,
) -> Waiting:
    """Return requests that wait, those first that expire first; none that has expired.

    Args:
        tx: The transaction.
        most: So many at most.
        tool: Only this tool's.
        roles: Only those for which a vote of somebody with these roles can count.
        after: Only what comes behind this place.
    """
    places = sorted(_places(tx, tool, roles, after, most + 1))[: most + 1]
    shown = [place.approval_id for place in places[:most]]
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
        places[most - 1] if len(places) > most else None,
    )


def readable(tx: Transaction, query: Select[Any]) -> Select[Any]:
    """Return a query that also a process without keys may ask: what is sealed stays so then."""
    return query.execution_options(sealed="stored" if tx.keys is None else "shown")


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
