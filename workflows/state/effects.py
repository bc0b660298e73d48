"""What a run knows of its writes, as data: what it has begun, and what that has made (G4).

What is to be undone, and in which order, the ledger says. Against this a run tells what it does not
know of: effects that another life of it has made, before a reset or a crash.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from surehand.workflows.contracts.base import NameSet, Record
from surehand.workflows.contracts.effects import RemainingEffect
from surehand.workflows.identity import standing_digest

#: What is said of a step that is undone where somebody would have it done again.
NO_MORE: Final = "has been undone, and is not called again: give what is to be done a new step id"


class Saga(Record):
    """The writes and the child runs of one run, as far as this life of it knows them."""

    # Ordered, and looked up at each write of a run that may have thousands.
    started: dict[str, None] = {}
    """Steps whose write was begun, and whose outcome is not known."""
    made: dict[str, str] = {}
    """Steps by the entries of what they have made."""
    found: dict[str, str] = {}
    """The same of what the ledger has, and this life has yet to come to."""
    relied: dict[str, str] = {}
    """Entries by the steps that go on with what another run has made."""
    reused: dict[str, str] = {}
    """Entries by the steps that go on with what another step of this run has made."""
    children: dict[str, str | None] = {}
    """Child runs that have ended, with their step where they have completed."""
    barred: NameSet = set()
    """Steps that are undone, or being undone: the ledger refuses their calls ever after."""
    undoing: NameSet = set()
    """Steps that are being undone while the run goes on: it does not continue as new meanwhile."""

    def register(self, step_id: str) -> None:
        """Note a write, or a child run, *before* it starts, so that none can be overlooked."""
        self.started.setdefault(step_id)
        self.relied.pop(step_id, None)
        self.reused.pop(step_id, None)

    def committed(self, step_id: str, entry_id: str) -> None:
        """Note what a write has made."""
        self.started.pop(step_id, None)
        self.found.pop(entry_id, None)
        self.made[entry_id] = step_id

    def relies(self, step_id: str, entry_id: str | None, *, own: bool) -> None:
        """Note that a step has made nothing itself, and what it goes on with, if that is a write.

        Its owner may be a step of another life of this run: then it is wanted all the same.

        Args:
            step_id: The step.
            entry_id: What it goes on with.
            own: Whether this run has made that.
        """
        self.drop(step_id)
        if entry_id is not None:
            (self.reused if own else self.relied)[step_id] = entry_id

    def add_found(self, step_id: str, entry_id: str) -> None:
        """Note an effect of this run that the ledger knows of, and this life does not."""
        self.found[entry_id] = step_id

    def accept(self, step_id: str) -> None:
        """Take for this life's own what the ledger has of a step that it does not come to."""
        for entry_id in [id_ for id_, step in self.found.items() if step == step_id]:
            self.made[entry_id] = self.found.pop(entry_id)

    def ended(self, step_id: str, child: str, *, completed: bool) -> None:
        """Note the end of a child run; one that has not completed has undone what it had done."""
        self.started.pop(step_id, None)
        self.children[child] = step_id if completed else None

    def drop(self, step_id: str) -> None:
        """Forget a write that is not ours to undo: answered no, or made by another run."""
        self.started.pop(step_id, None)
        self.relied.pop(step_id, None)
        self.reused.pop(step_id, None)

    def withdraw(self, step_id: str) -> None:
        """Forget a step that is undone, with its child runs."""
        self.drop(step_id)
        for child, step in self.children.items():
            if step == step_id:
                self.children[child] = None

    def undone(self, entry_id: str) -> None:
        """Forget an effect that does not remain any more."""
        self.made.pop(entry_id, None)
        self.found.pop(entry_id, None)

    def knows(self, remaining: RemainingEffect) -> bool:
        """Return whether this life has made an effect, has heard of who has, or goes on with it."""
        entry_id, children = remaining.effect.entry_id, self.children
        if entry_id in self.made or remaining.child in children:
            return True
        used = any(children.get(child) is not None for child in remaining.used_in)
        return used or entry_id in (*self.relied.values(), *self.reused.values())

    def standing(self) -> str:
        """Return the digest of what stands if no other life of the run has made or undone any."""
        return standing_digest([*self.made, *self.reused.values()], self.children)

    def lost(self, remains: Set[str], unwound: Set[str]) -> list[str]:
        """Return the steps of which something is undone that this life takes for done.

        What was another run's, and is undone, this run is told of (``ledger/effects/undone.py``).

        Args:
            remains: The entries that remain.
            unwound: The child runs of which something was undone after their end.
        """
        made = [step for entry_id, step in self.made.items() if entry_id not in remains]
        made += [step for step, entry_id in self.reused.items() if entry_id not in remains]
        children = [step for child, step in self.children.items() if child in unwound]
        return list(dict.fromkeys([*made, *(step for step in children if step is not None)]))

    def unsettled(self) -> list[str]:
        """Return the writes that have started and have no recorded outcome."""
        return list(self.started)

    def steps(self) -> list[str]:
        """Return the steps of which something may remain, in the order of their beginnings."""
        children = (step for step in self.children.values() if step is not None)
        all_ = (*self.made.values(), *children, *self.started, *self.found.values())
        return list(dict.fromkeys(all_))
