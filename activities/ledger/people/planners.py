"""Who has decided what a run calls, and with what: none of them is a second pair of eyes (G3).

Nobody traces which param rests on which value. Whoever has given any to the run counts, and so does
whoever has given one to a run whose plan, output or receipt it may have. An event that nobody
changes names each of them, as ``value_by``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from sqlalchemy import func

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import events, runs

#: The events through which a person's words may come into the params of a call.
GIVES_VALUE: Final = (
    "run.opened",  # the plan and its input
    "run.amended",  # another plan
    "interrupt.answered",  # an answer, another output, the reason of a rejection
    "steering.accepted",  # an event, other params, the reason why a child run was cancelled
    "decision.accepted",  # an edit, the reason of a rejection
    "intervention.settled",  # the receipt of a call that somebody says has happened
)
#: Runs that one statement asks about.
_BATCH: Final = 500
_body: Final = events.c.body
#: What runs were told by people, and which other runs they have something of.
_TOLD: Final = (
    rows_of(
        events,
        func.coalesce(_body["value_by"].as_string(), _body["started_by"].as_string()).label("by"),
        _body["user"].as_string().label("user"),
        _body["parent"].as_string().label("parent"),
        _body["linked"].as_string().label("linked"),
        _body["made_by"].as_string().label("made_by"),
    )
    .where(events.c.type.in_((*GIVES_VALUE, "effect.replayed")))
    .distinct()
)


def planners(tx: Transaction, run_id: str) -> frozenset[str]:
    """Return who has started or amended a run, had it started, or given it a value.

    Or any of the runs that it is in, those that it has started or was forked from, those that have
    made an effect that it replays, and those beside it that had ended when it was opened.

    Raises:
        RunNotFound: There is no such run.
    """
    opened = tx.opening(run_id)
    if opened is None:
        raise RunNotFound(run_id)
    people = set[str]()
    #: Of each run, whether everything below it counts, or only what had ended by then.
    found = dict[str, bool]()
    left = {run_id: True}
    while left:
        found |= left
        named = dict[str | None, bool]()
        for row in _told(tx, left):
            people |= {row["by"], row["user"]} - {None}
            named.setdefault(row["parent"], False)
            named |= {row["linked"]: True, row["made_by"]: True}
        named |= dict.fromkeys(_below(tx, left, opened.at_ms), True)
        left = {
            id_: whole
            for id_, whole in named.items()
            if id_ is not None and (id_ not in found or whole > found[id_])
        }
    return frozenset(people)


def _told(tx: Transaction, run_ids: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for some in _batches(run_ids):
        yield from tx.all(_TOLD.where(events.c.run_id.in_(some)))


def _below(tx: Transaction, left: Mapping[str, bool], opened_ms: int) -> Iterator[str]:
    """Yield the runs that these have started: all of them, or those that had ended by then."""
    child = (runs.c.run_id, runs.c.parent_run_id, runs.c.closed_ms)
    for some in _batches(left):
        for row in tx.all(rows_of(runs, *child).where(runs.c.parent_run_id.in_(some))):
            ended = row["closed_ms"] is not None and row["closed_ms"] <= opened_ms
            if ended or left[row["parent_run_id"]]:
                yield row["run_id"]


def _batches(run_ids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(run_ids)
    while some := list(islice(rest, _BATCH)):
        yield some
