"""Compensations as data: what a run has to undo, and in which order (guarantee G4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Saga:
    """The writes that a run has started, in the order of their starts."""

    # Ordered, and looked up at each write of a run that may have thousands.
    _started: dict[str, None] = field(default_factory=dict)
    _commit_seq: dict[str, int] = field(default_factory=dict)

    def register(self, step_id: str) -> None:
        """Note a write *before* it starts, so that no end of it can be overlooked."""
        self._started.setdefault(step_id)

    def committed(self, step_id: str, commit_seq: int) -> None:
        """Note the place of a write's commit in the run's chain."""
        self._commit_seq[step_id] = commit_seq

    def drop(self, step_id: str) -> None:
        """Forget a write that is not ours to undo: answered no, or made by another run."""
        self._started.pop(step_id, None)

    def order(self) -> list[str]:
        """Return the steps to undo, last first.

        Writes without a recorded commit come first: if one of them happened, it happened last. The
        ledger knows what each of them did.
        """
        unknown = [step for step in reversed(self._started) if step not in self._commit_seq]
        known = [step for step in self._started if step in self._commit_seq]
        return unknown + sorted(known, key=lambda step: self._commit_seq[step], reverse=True)

    def carry(self) -> list[tuple[str, int | None]]:
        """Return the writes in the order of their starts, each with the place of its commit."""
        return [(step, self._commit_seq.get(step)) for step in self._started]

    def restore(self, started: Iterable[tuple[str, int | None]]) -> None:
        """Take over what another execution of this run has carried."""
        for step, commit_seq in started:
            self._started[step] = None
            if commit_seq is not None:
                self._commit_seq[step] = commit_seq

    def unsettled(self) -> list[str]:
        """Return the writes that have started and have no recorded commit."""
        return [step for step in self._started if step not in self._commit_seq]
