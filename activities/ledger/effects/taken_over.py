"""Outputs that another run takes over: they are facts only while what made them remains (G4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, literal

from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, replays
from surehand.activities.ledger.effects import run_tree
from surehand.workflows.plan.plan import ITERATION

#: States of an effect that does not remain, or not for long.
_UNDONE = frozenset({"compensated", "compensating"})


class TakesOverUndone(Exception):
    """The effect of a step whose output another run would take over has been undone."""


#: Entries that are locked, and rows that are written, in one statement.
_BATCH: Final = 500

_OWN: Final = rows_of(
    effects,
    effects.c.entry_id,
    func.coalesce(run_tree.TREE.c.inside, effects.c.step_id).label("step_id"),
    literal("intervention").label("told_by"),
    undoes=None,
).join(run_tree.TREE, run_tree.TREE.c.run_id == effects.c.run_id)
_USED: Final = rows_of(
    replays,
    replays.c.entry_id,
    func.coalesce(run_tree.TREE.c.inside, replays.c.step_id).label("step_id"),
    replays.c.told_by,
).join(run_tree.TREE, run_tree.TREE.c.run_id == replays.c.run_id)


@dataclass(frozen=True)
class Fact:
    """An effect that a step has been taken over with."""

    step_id: str
    entry_id: str
    told_by: str


def effects_behind(tx: Transaction, run_id: str, steps: Iterable[str]) -> list[Fact]:
    """Return what remains behind steps of a run, its child runs' effects too, and lock that.

    Nobody begins to undo any of it until the transaction ends: by then ``watch`` has noted who is
    to be told.
    """
    wanted = set(steps)
    rows = [
        *tx.all(_OWN, **run_tree.within(run_id)),
        *tx.all(_USED, **run_tree.within(run_id)),
    ]
    made = {}
    for row in rows:
        step_id = ITERATION.sub("", row["step_id"])
        if step_id in wanted:
            made[step_id, row["entry_id"]] = Fact(step_id, row["entry_id"], row["told_by"])
    remaining = _lock(tx, sorted({fact.entry_id for fact in made.values()}))
    return [fact for fact in made.values() if fact.entry_id in remaining]


def _lock(tx: Transaction, entry_ids: Sequence[str]) -> set[str]:
    """Lock entries, in order, and return those that remain."""
    remaining = set[str]()
    for start in range(0, len(entry_ids), _BATCH):
        rows = tx.all(
            rows_of(effects, effects.c.entry_id, effects.c.state)
            .where(effects.c.entry_id.in_(entry_ids[start : start + _BATCH]))
            .order_by(effects.c.entry_id)
            .with_for_update(read=True)
        )
        remaining |= {row["entry_id"] for row in rows if row["state"] in run_tree.REMAINING}
    return remaining


def watch(tx: Transaction, run_id: str, facts: Sequence[Fact]) -> None:
    """Have a run told when what it has taken over is undone."""
    for start in range(0, len(facts), _BATCH):
        rows = [
            {
                "run_id": run_id,
                "step_id": fact.step_id,
                "entry_id": fact.entry_id,
                "replayed_ms": tx.now_ms,
                "told_by": fact.told_by,
            }
            for fact in facts[start : start + _BATCH]
        ]
        tx.insert_new(replays, *rows)


def must_stand(tx: Transaction, run_id: str, steps: Iterable[str]) -> None:
    """Make sure that nothing of what steps of a run have done has been undone.

    Raises:
        TakesOverUndone: Something has.
    """
    wanted, seen = set(steps), set[str]()
    while wanted and run_id not in seen:
        seen.add(run_id)
        undone = sorted(wanted & _undone(tx, run_id))
        if undone:
            raise TakesOverUndone(
                f"what step {undone[0]} of run {run_id} has done or taken over has been undone: its"
                f" output is no fact any more; begin at {undone[0]}, or before it"
            )
        opened = tx.opening(run_id)
        # What that run has itself taken over, another one has made.
        body = opened.body if opened is not None else {}
        wanted &= set(body.get("taken_over") or ())
        run_id = body.get("linked") or run_id


def _undone(tx: Transaction, run_id: str) -> set[str]:
    """Return the steps of a run whose effects, or whose child runs' effects, have been undone."""
    made = rows_of(effects, effects.c.step_id, effects.c.state, run_id=run_id, undoes=None)
    used = rows_of(replays, replays.c.step_id, effects.c.state, run_id=run_id).join(
        effects, ours(effects, entry_id=replays.c.entry_id)
    )
    states: defaultdict[str, set[str]] = defaultdict(set)
    for row in [*tx.all(made), *tx.all(used)]:
        states[row["step_id"]].add(row["state"])
    # Of a step that has made two, in two lives of its run, the other one is the fact.
    found = {
        ITERATION.sub("", step_id)
        for step_id, its in states.items()
        if its & _UNDONE and not its & {"committed"}
    }
    # What a child run has undone of its own, and has completed without, is no part of its output.
    unwound = run_tree.unwound(tx, run_id)
    return found.union(ITERATION.sub("", step_id) for step_id in unwound.values())
