"""Requests that wait for a decision, soonest expiry first, page by page.

No query here looks at more rows than it returns: each reads a stretch of an index, from a place on.
Who may vote for a request is in its row (``asked_of``), and there are few different ones.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Select, func, literal_column, null, tuple_

from surehand.activities.ledger.core.sealed import Erased, SealedValue
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    decisions,
    has_expired,
    runs,
    soonest_open,
    steerings,
)
from surehand.activities.ledger.halts import earliest_clock, request_clock
from surehand.activities.ledger.steps.foreign import marked_among
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.identity import approval_id

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
    *("approval_id", "run_id", "step_id", "tool", "description", "undo", "user_id"),
    *("editors", "needs", "assurance", "params_hash", "requested_ms", "expires_ms"),
)


P = TypeVar("P")


class ListPage(NamedTuple, Generic[P]):
    """A page of a list."""

    rows: Sequence[Mapping[str, Any]]
    more: P | None
    """Where the next page begins; ``None``: this is the last one."""


class ListPlace(NamedTuple):
    """Where in a list something is."""

    at_ms: int
    """When a request expires, or when something was said."""
    name: str
    """The id of that."""


class Group(NamedTuple):
    """Requests of one tool for which the same roles are asked."""

    asked_of: str
    """The roles, with blanks between them; empty: everybody."""
    tool: str

    def is_for(self, roles: Collection[str]) -> bool:
        """Return whether the vote of somebody with these roles can count."""
        return not self.asked_of or not set(self.asked_of.split()).isdisjoint(roles)


def list_groups(tx: Transaction) -> list[Group]:
    """Return what is waited for: one look at the index for each group."""
    columns = (approvals.c.asked_of, approvals.c.tool)
    query = rows_of(approvals, *columns).where(_WAITS).order_by(*columns).limit(1)
    found = list[Group]()
    row = tx.one(query)
    while row is not None:
        found.append(Group(row["asked_of"], row["tool"]))
        row = tx.one(query.where(tuple_(*columns) > tuple_(*found[-1])))
    return found


def measure_waiting(tx: Transaction) -> tuple[int, int]:
    """Return how many requests wait, and for how many milliseconds the oldest does."""
    columns = (func.count().label("n"), func.min(approvals.c.requested_ms).label("since"))
    row = tx.one(rows_of(approvals, *columns).where(_WAITS))
    assert row is not None
    return row["n"], 0 if row["since"] is None else max(0, tx.now_ms - row["since"])


def list_waiting(
    tx: Transaction,
    *,
    most: int,
    tool: str | None = None,
    roles: Collection[str] | None = None,
    after: ListPlace | None = None,
) -> ListPage[ListPlace]:
    """Return requests that wait, those first that expire first; none that has expired.

    They are rows of ``approvals``, each with ``voters``: who has said yes in person; ``foreign``:
    whether its run has read content from outside; and ``plan_name``: of its run. With ``roles``,
    only those for which a vote of somebody with these roles can count.
    """
    places, more = _choose_places(tx, tool, roles, after, most)
    shown = [place.name for place in places]
    found = rows_of(approvals, *_SHOWN).where(approvals.c.approval_id.in_(shown))
    rows = tx.all(leave_sealed(tx, found.order_by(*_ORDER)))
    rows = [row for row in rows if not has_expired(row, request_clock(tx, row))]
    voted = tx.all(
        rows_of(decisions, decisions.c.approval_id, decisions.c.approver)
        .where(*_VOTES, decisions.c.approval_id.in_(shown))
        .order_by(decisions.c.approver)
    )
    voters = {one: [v["approver"] for v in voted if v["approval_id"] == one] for one in shown}
    ids = {row["run_id"] for row in rows}
    foreign = marked_among(tx, ids)
    named = tx.all(rows_of(runs, "run_id", "plan_name").where(runs.c.run_id.in_(ids)))
    plans = {run["run_id"]: run["plan_name"] for run in named}
    told = [
        {
            **row,
            "voters": voters[row["approval_id"]],
            "foreign": row["run_id"] in foreign,
            "plan_name": plans[row["run_id"]],
        }
        for row in rows
    ]
    return ListPage(told, more)


def waiting_for_others(tx: Transaction, roles: Collection[str], most: int) -> Counter[str]:
    """Return how many requests wait for roles that somebody does not have, each counted to a most.

    Keys are the roles, as :class:`Group` has them.
    """
    found, first = Counter[str](), _find_first(tx, None)
    for one in list_groups(tx):
        if not one.is_for(roles) and (left := most - found[one.asked_of]) > 0:
            of_group = (approvals.c.asked_of == one.asked_of, approvals.c.tool == one.tool)
            found[one.asked_of] += len(_read_stretch(tx, first, left, *of_group))
    return +found


def leave_sealed(tx: Transaction, query: Select[Any]) -> Select[Any]:
    """Return a query that also a process without keys may ask: what is sealed stays so then."""
    return query.execution_options(sealed="stored" if tx.keys is None else "shown")


def without_sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with nothing in the place of what this process cannot read."""
    return {k: None if isinstance(v, SealedValue | Erased) else v for k, v in row.items()}


def list_readable(tx: Transaction, query: Select[Any]) -> list[dict[str, Any]]:
    """Return rows with nothing in the place of what this process cannot read."""
    return [without_sealed(row) for row in tx.all(leave_sealed(tx, query))]


def _choose_places(
    tx: Transaction,
    tool: str | None,
    roles: Collection[str] | None,
    after: ListPlace | None,
    most: int,
) -> tuple[list[ListPlace], ListPlace | None]:
    """Return what a page shows, and where the next one begins."""
    own, first = approvals.c, _find_first(tx, after)
    if tool is None and roles is None:
        found = _read_stretch(tx, first, most + 1)
    else:
        chosen_groups = [
            (own.asked_of == one.asked_of, own.tool == one.tool)
            for one in list_groups(tx)
            if tool in (None, one.tool) and (roles is None or one.is_for(roles))
        ]
        of_each = [_read_stretch(tx, first, most + 1, *one) for one in chosen_groups]
        found = list(heapq.merge(*of_each))[: most + 1]
    return found[:most], found[most - 1] if len(found) > most else None


def _find_first(tx: Transaction, after: ListPlace | None) -> ListPlace:
    """Return where a list begins that goes on behind a place."""
    # What has expired is decided no more, whatever its row says until its run has looked.
    first = ListPlace(soonest_open(earliest_clock(tx, tx.now_ms)), "")
    return first if after is None else max(after, first)


def _read_stretch(
    tx: Transaction, start: ListPlace, most: int, *of_group: ColumnElement[bool]
) -> list[ListPlace]:
    """Return the first places of an index behind a start, or of one group's part of it."""
    query = (
        rows_of(approvals, *_ORDER)
        .where(_WAITS, *of_group, tuple_(*_ORDER) > tuple_(*start))
        .order_by(*_ORDER)
        .limit(most)
    )
    return [ListPlace(row["expires_ms"], row["approval_id"]) for row in tx.all(query)]


#: Requests of one step that are looked through: by their ids, which no index of runs is needed for.
_MOST: Final = 100


def record_read(tx: Transaction, row: Mapping[str, Any], reader: str) -> None:
    """Record that ``reader`` is about to be shown the params of a request: after the commit."""
    body = {"approval_id": row["approval_id"], "actor": reader}
    tx.event(row["run_id"], "approval.read", step_id=row["step_id"], **body)


def record_question_read(tx: Transaction, run_id: str, asked: Interrupt, reader: str) -> None:
    """Record that ``reader`` is about to be shown the params of a question: after the commit."""
    body = {"interrupt_id": asked.interrupt_id, "actor": reader}
    tx.event(run_id, "interrupt.read", step_id=asked.step_id, **body)


def secret_requests(tx: Transaction, run_id: str, step_id: str) -> list[dict[str, Any]]:
    """Return the requests of a step whose params are secret."""
    ids = [approval_id(run_id, step_id, number) for number in range(1, _MOST + 1)]
    of_these = rows_of(approvals, "approval_id", "run_id", "step_id", secret=True)
    of_these = of_these.where(approvals.c.approval_id.in_(ids))
    return tx.all(of_these.order_by(approvals.c.approval_id))


_SAID: Final = (
    *("decision_id", "run_id", "approval_id", "outcome", "verdict", "message", "reason"),
    *("verified", "at_ms"),
)
#: The same of what is no decision: an answer to a question, or to a doubt.
_ANSWERED: Final = (
    *(steerings.c.steering_id.label("decision_id"), steerings.c.run_id),
    *(null().label("approval_id"), steerings.c.verb.label("outcome")),
    *(steerings.c.code.label("verdict"), steerings.c.message, null().label("reason")),
    *(steerings.c.verified, steerings.c.at_ms),
)
_ANSWERS: Final = steerings.c.verb.in_([literal_column("'answer'"), literal_column("'resolve'")])


def list_own_decisions(
    tx: Transaction, approver: str, *, most: int, after: ListPlace | None = None
) -> ListPage[ListPlace]:
    """Return what somebody has decided and answered, counted or not; the newest comes first.

    They are rows of ``decisions``, each with ``tool`` and ``description`` of what it was on, and of
    ``steerings``, without ``approval_id``; what cannot be read here is ``None``. Votes that a
    standing approval has given in their place are not among it.
    """
    decided = rows_of(decisions, *_SAID, approver=approver, standing_id=None)
    answered = rows_of(steerings, *_ANSWERED, actor=approver, forwarded_as=None).where(_ANSWERS)
    rows = list[dict[str, Any]]()
    for query, *order in (
        (decided, decisions.c.at_ms, decisions.c.decision_id),
        (answered, steerings.c.at_ms, steerings.c.steering_id),
    ):
        if after is not None:
            query = query.where(tuple_(*order) < tuple_(*after))
        newest = query.order_by(*(column.desc() for column in order)).limit(most + 1)
        rows += list_readable(tx, newest)
    place = itemgetter("at_ms", "decision_id")
    rows.sort(key=place, reverse=True)
    more = ListPlace(*place(rows[most - 1])) if rows[most:] else None
    return ListPage(_with_calls(tx, rows[:most]), more)


def _with_calls(tx: Transaction, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return decisions with the calls that they were on."""
    query = rows_of(approvals, "approval_id", "run_id", "tool", "description").where(
        approvals.c.approval_id.in_({row["approval_id"] for row in rows})
    )
    none = {"tool": None, "description": None}
    calls = {row["approval_id"]: row for row in list_readable(tx, query)}
    return [calls.get(row["approval_id"], none) | row for row in rows]
