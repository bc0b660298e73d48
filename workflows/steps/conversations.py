"""What a run's models have been told already: a turn brings what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from surehand.workflows.contracts.tools import Conversation, ModelSaid, ModelTurn, text_digest

#: Conversations that a run goes on from: those of its agents, which hand over to one another.
_MOST: Final = 16


@dataclass(frozen=True)
class _Kept:
    sha256: str
    messages: tuple[str, ...]


class Conversations:
    """The conversations of one execution; the next one tells its models everything once more."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        """Those that the worker has; the newest comes last."""
        self._setups: set[str] = set()

    def turn(
        self, framework: str, model: str, setup: str, messages: Sequence[str], known_by: str
    ) -> ModelTurn:
        """Return a turn that brings what the worker does not have yet.

        Args:
            framework: Whose models and messages they are.
            setup: Settings and tools, in JSON.
            messages: The whole conversation, each message in JSON.
            known_by: What people and the model have said, without what tools have returned.
        """
        known = max(self._kept, key=lambda kept: _shared(kept.messages, messages), default=None)
        keep = 0 if known is None else _shared(known.messages, messages)
        before = known.sha256 if known is not None and keep else None
        sha256 = text_digest(setup)
        return ModelTurn(
            framework=framework,
            model=model,
            setup=sha256,
            setup_text=None if sha256 in self._setups else setup,
            conversation=Conversation(before=before, keep=keep, messages=list(messages[keep:])),
            known_by=text_digest(known_by),
        )

    def taken(self, turn: ModelTurn, said: ModelSaid, messages: Sequence[str]) -> None:
        """Note that a turn was taken: the worker has kept what it brought.

        Only where it has kept just this. A framework may write something else in each replay; and
        a turn that is known from before a reset was told other outputs than this run has read.
        """
        if turn.setup == said.setup:
            self._setups.add(turn.setup)
        if turn.conversation.sha256 != said.conversation:
            return
        kept = _Kept(said.conversation, tuple(messages))
        before = turn.conversation.before
        others = [one for one in self._kept if one.sha256 not in (before, kept.sha256)]
        self._kept = [*others, kept][-_MOST:]


def _shared(known: Sequence[str], messages: Sequence[str]) -> int:
    """Return how many messages two conversations have in common at their beginning."""
    pairs = zip(known, messages, strict=False)
    return next(
        (n for n, (one, other) in enumerate(pairs) if one != other), min(len(known), len(messages))
    )
