"""What a run knows of its writes, as data: what it has begun, and what that has made (G4).

What is to be undone, and in which order, the ledger says. Against this a run tells what it does not
know of: effects that another life of it has made, before a reset or a crash.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from workflows.contracts import Carried, StandingEffect


@dataclass
class Saga:
    """The writes and the child runs of one run, as far as this life of it knows them."""

    # Ordered, and looked up at each write of a run that may have thousands.
    _started: dict[str, None] = field(default_factory=dict)
    """Steps whose write was begun, and whose outcome is not known."""
    _made: dict[str, str] = field(default_factory=dict)
    """Steps by the entries of what they have made."""
    _found: dict[str, str] = field(default_factory=dict)
    """The same of what the ledger has, and this life has yet to come to."""
    _relied: dict[str, str] = field(default_factory=dict)
    """Entries by the steps that go on with what another step, or another run, has made."""
    _children: dict[str, str | None] = field(default_factory=dict)
    """Child runs that have ended, with their step where they have completed."""

    def register(self, step_id: str) -> None:
        """Note a write, or a child run, *before* it starts, so that none can be overlooked."""
        self._started.setdefault(step_id)
        self._relied.pop(step_id, None)

    def committed(self, step_id: str, entry_id: str) -> None:
        """Note what a write has made."""
        self._started.pop(step_id, None)
        self._found.pop(entry_id, None)
        self._made[entry_id] = step_id

    def relies(self, step_id: str, entry_id: str | None) -> None:
        """Note that a step has made nothing itself, and what it goes on with, if that is a write.

        Its owner may be a step of another life of this run: then it is wanted all the same.
        """
        self.drop(step_id)
        if entry_id is not None:
            self._relied[step_id] = entry_id

    def found(self, step_id: str, entry_id: str) -> None:
        """Note an effect of this run that the ledger knows of, and this life does not."""
        self._found[entry_id] = step_id

    def accept(self, step_id: str) -> None:
        """Take for this life's own what the ledger has of a step that it does not come to."""
        for entry_id in [id_ for id_, step in self._found.items() if step == step_id]:
            self._made[entry_id] = self._found.pop(entry_id)

    def ended(self, step_id: str, child: str, *, completed: bool) -> None:
        """Note the end of a child run; one that has not completed has undone what it had done."""
        self._started.pop(step_id, None)
        self._children[child] = step_id if completed else None

    def drop(self, step_id: str) -> None:
        """Forget a write that is not ours to undo: answered no, or made by another run."""
        self._started.pop(step_id, None)
        self._relied.pop(step_id, None)

    def withdraw(self, step_id: str) -> None:
        """Forget a step that is undone, with its child runs."""
        self.drop(step_id)
        for child, step in self._children.items():
            if step == step_id:
                self._children[child] = None

    def undone(self, entry_id: str) -> None:
        """Forget an effect that does not stand any more."""
        self._made.pop(entry_id, None)
        self._found.pop(entry_id, None)

    def knows(self, standing: StandingEffect) -> bool:
        """Return whether this life has made an effect, has heard of who has, or goes on with it."""
        entry_id, children = standing.effect.entry_id, self._children
        if entry_id in self._made or standing.child in children:
            return True
        used = any(children.get(child) is not None for child in standing.used_in)
        return used or entry_id in self._relied.values()

    def lost(self, stands: Set[str], unwound: Set[str]) -> list[str]:
        """Return the steps of which something is undone that this life takes for done.

        Args:
            stands: The entries that stand.
            unwound: The child runs of which something was undone after their end.
        """
        made = [step for entry_id, step in self._made.items() if entry_id not in stands]
        children = [step for child, step in self._children.items() if child in unwound]
        return list(dict.fromkeys([*made, *(step for step in children if step is not None)]))

    def unsettled(self) -> list[str]:
        """Return the writes that have started and have no recorded outcome."""
        return list(self._started)

    def steps(self) -> list[str]:
        """Return the steps of which something may stand, in the order of their beginnings."""
        children = (step for step in self._children.values() if step is not None)
        all_ = (*self._made.values(), *children, *self._started, *self._found.values())
        return list(dict.fromkeys(all_))

    def carry(self) -> dict[str, Any]:
        """Return what another execution of this run needs, as fields of ``Carried``."""
        return {
            "started": list(self._started),
            "made": self._made,
            "found": self._found,
            "relied": self._relied,
            "children": self._children,
        }

    def restore(self, carried: Carried) -> None:
        """Take over what another execution of this run has carried."""
        self._started = dict.fromkeys(carried.started)
        self._made = dict(carried.made)
        self._found = dict(carried.found)
        self._relied = dict(carried.relied)
        self._children = dict(carried.children)
