"""What has arrived for a run: the same again is no second one, and each sender gets its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

#: Answers that a run remembers for those who wait for them; the ledger keeps all.
MOST_ANSWERS: Final = 200

Told = TypeVar("Told")


@dataclass
class Deliveries(Generic[Told]):
    """Knows deliveries again by their content, and what was answered by their id.

    What is sent again while it counts, or while nobody has judged it yet, gets the id of its first
    delivery: its sender had no answer, or made sure.
    """

    prefix: str = field(compare=False)
    """What ids begin with. It names Temporal's execution: a run that was reset, or continues as
    new, counts anew."""
    answers: dict[str, Told] = field(default_factory=dict)
    _standing: dict[str, str] = field(default_factory=dict)
    """Ids of those that count, or still may, by the digest of their content."""
    _received: int = field(default=0, compare=False)

    def known(self, content: str | None) -> str | None:
        """Return the id of a delivery of this content that counts, or still may."""
        return None if content is None else self._standing.get(_digest(content))

    def number(self, content: str | None) -> str:
        """Return the id of a new delivery; without content it is like no other one."""
        self._received += 1
        id_ = f"{self.prefix}{self._received}"
        if content is not None:
            self._standing[_digest(content)] = id_
        return id_

    def answer(self, id_: str, told: Told, *, counts: bool) -> None:
        """Remember an answer; what does not count may be sent once more, and is judged anew."""
        if not counts:
            self._forget(id_)
        self.answers[id_] = told
        while len(self.answers) > MOST_ANSWERS:
            forgotten = next(iter(self.answers))
            del self.answers[forgotten]
            # Nobody may wait for an answer that is not remembered.
            self._forget(forgotten)

    def _forget(self, id_: str) -> None:
        self._standing = {content: i for content, i in self._standing.items() if i != id_}

    def carry(self) -> dict[str, str]:
        """Return what another execution of this run needs besides the answers."""
        return self._standing

    def restore(self, standing: Mapping[str, str], answers: Mapping[str, Told]) -> None:
        """Take over what another execution has carried."""
        self._standing, self.answers = dict(standing), dict(answers)


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
