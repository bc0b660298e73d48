"""Outputs that another run takes over: they are facts only while what made them stands (G4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from surehand.activities.ledger.core.statements import ours, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, events, replays
from surehand.activities.ledger.effects import run_tree
from surehand.workflows.plan.plan import ITERATION

#: States of an effect that does not stand any more, or not for long.
_UNDONE = frozenset({"compensated", "compensating"})


class TakesOverUndone(Exception):
    """The effect of a step whose output another run would take over has been undone."""


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
                f"what step {undone[0]} of run {run_id} has done has been undone: its output is no"
                f" fact any more; begin at {undone[0]}, or before it"
            )
        opened = tx.one(rows_of(events, events.c.body, run_id=run_id, seq=1))
        # What that run has itself taken over, another one has made.
        body = opened["body"] if opened is not None else {}
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
