"""Who has decided what a run calls, and with what: none of them is a second pair of eyes (G3).

Nobody traces which param rests on which value. Whoever has given any to the run counts, and so does
whoever has given one to a run whose plan or output it may have. What people send is kept in rows
that nobody changes.
"""

from __future__ import annotations

from sqlalchemy import CTE, ColumnElement, and_, or_, select

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import events, runs, steerings
from surehand.activities.ledger.core.transaction import Opening
from surehand.workflows.contracts.effects import ResolutionOutcome
from surehand.workflows.contracts.interrupts import ACCEPTED, Gives, InterruptKind
from surehand.workflows.contracts.judging import SteeringCode
from surehand.workflows.contracts.steering import Verb


def planners(tx: Transaction, run_id: str) -> frozenset[str]:
    """Return who is on record to have started or amended a run, or to have given it a value.

    Or any of the runs that it is in, those that it has started or was forked from, and those beside
    it that had ended when it was opened.
    """
    above = _above(tx, run_id)
    sources = [opened.body["linked"] for opened in above.values() if opened.body.get("linked")]
    own = _tree([run_id, *sources], "own")
    tops = [id_ for id_, opened in above.items() if not opened.body.get("parent")]
    whole, opened = _tree(tops, "whole"), above[run_id]
    told_by = or_(
        steerings.c.run_id.in_(above),
        steerings.c.run_id.in_(select(own.c.run_id)),
        steerings.c.run_id.in_(select(whole.c.run_id).where(whole.c.closed_ms <= opened.at_ms)),
    )
    accepted = rows_of(steerings, steerings.c.actor, code=SteeringCode.ACCEPTED.value)
    told = tx.all(accepted.where(told_by, _decides_params()).distinct())
    return frozenset((opened.body["started_by"], *(row["actor"] for row in told)))


def _above(tx: Transaction, run_id: str) -> dict[str, Opening]:
    """Return how and when a run was opened, and each that it is in or was forked from."""
    found: dict[str, Opening] = {}
    left: set[str] = {run_id}
    while left:
        id_ = left.pop()
        opened = tx.opening(id_)
        if opened is not None:  # Whoever starts a run may say that it was forked from none.
            found[id_] = opened
            named = (opened.body.get(how) for how in ("parent", "linked"))
            left |= {by for by in named if by is not None} - found.keys()
    if run_id not in found:
        raise RunNotFound(run_id)
    return found


def _tree(run_ids: list[str], name: str) -> CTE:
    """Return runs and all below them."""
    top = rows_of(runs, runs.c.run_id, runs.c.closed_ms).where(runs.c.run_id.in_(run_ids))
    found = top.cte(name, recursive=True)
    child = runs.alias()
    return found.union(
        rows_of(child, child.c.run_id, child.c.closed_ms, parent_run_id=found.c.run_id)
    )


def _decides_params() -> ColumnElement[bool]:
    """Return the condition that what somebody has sent can have come into the params of a call."""
    verb, content, body = steerings.c.verb, steerings.c.content, events.c.body
    kind, answer = body["kind"].as_string(), body["answer"].as_string()
    answered = or_(
        kind.in_(_giving(Gives.VALUE)),
        and_(kind.in_(_giving(Gives.VALUE_UNLESS_ACCEPTED)), answer != ACCEPTED),
    )
    return or_(
        and_(verb == Verb.AMEND.value, _followed("run.amended")),
        and_(verb == Verb.ANSWER.value, _followed("interrupt.answered", answered)),
        verb == Verb.EVENT.value,
        and_(verb == Verb.RESUME.value, content["params"].as_string().is_not(None)),
        and_(
            verb == Verb.RESOLVE.value,
            content["outcome"].as_string() == ResolutionOutcome.HAPPENED.value,
        ),
    )


def _giving(what: Gives) -> list[str]:
    return [kind.value for kind in InterruptKind if kind.gives is what]


def _followed(type_: str, *where: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that the run has followed what was sent."""
    told_by = events.c.body["steering_id"].as_string() == steerings.c.steering_id
    return rows_of(events, run_id=steerings.c.run_id, type=type_).where(told_by, *where).exists()
