"""A turn brings what its worker does not have yet, and no more."""

from __future__ import annotations

from surehand.workflows.contracts.tools import ModelSaid, ModelTurn
from surehand.workflows.steps.conversations import Conversations


def turn(known: Conversations, *messages: str, setup: str = "{}") -> ModelTurn:
    return known.turn("pydantic-ai", "m", setup, messages, "known by")


def said(asked: ModelTurn, conversation: str | None = None) -> ModelSaid:
    kept = conversation or asked.conversation.sha256
    return ModelSaid(response="", line="", setup=asked.setup, conversation=kept)


def test_a_second_turn_brings_its_own_messages_and_no_settings() -> None:
    known = Conversations()
    first = turn(known, "a", "b")
    known.taken(first, said(first), ["a", "b"])
    second = turn(known, "a", "b", "c")
    assert second.setup_text is None
    assert second.conversation.before == first.conversation.sha256
    assert (second.conversation.keep, second.conversation.messages) == (2, ["c"])


def test_a_history_that_was_rewritten_keeps_what_is_the_same() -> None:
    known = Conversations()
    first = turn(known, "a", "b", "c")
    known.taken(first, said(first), ["a", "b", "c"])
    second = turn(known, "a", "x", "c")
    assert (second.conversation.keep, second.conversation.messages) == (1, ["x", "c"])


def test_what_a_turn_of_before_a_reset_was_told_is_told_anew() -> None:
    """The worker has kept other outputs under its digest than this run has read since."""
    known = Conversations()
    first = turn(known, "a", "read since")
    known.taken(first, said(first, conversation="0" * 64), ["a", "read since"])
    second = turn(known, "a", "read since", "c")
    assert second.conversation.before is None
    assert second.conversation.messages == ["a", "read since", "c"]


def test_of_two_conversations_the_nearer_one_is_gone_on_with() -> None:
    known = Conversations()
    one, other = turn(known, "a", "b"), turn(known, "x", "y", "z")
    known.taken(one, said(one), ["a", "b"])
    known.taken(other, said(other), ["x", "y", "z"])
    assert turn(known, "a", "b", "c").conversation.before == one.conversation.sha256
    assert turn(known, "x", "y", "z", "!").conversation.before == other.conversation.sha256
