"""What a stranger sends cannot be carried into places where it would be tried for ever."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.workflows.contracts.base import MOST_LEVELS
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.steering import Verb
from surehand.workflows.deliveries import LARGEST, Inbox, Malformed, parse

DECISION = {
    "approval_id": "run/step/1",
    "params_hash": "sha256:0",
    "outcome": "edit",
    "approver": "ana",
}
HALF = "\ud800"


def nested(levels: int) -> Any:
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


HOSTILE: dict[str, Any] = {
    "too deep": {"a": nested(MOST_LEVELS)},
    "far too deep": {"a": nested(5000)},
    "half a character": {"a": [HALF]},
    "half a character in a name": {"a": {HALF: 1}},
    "half a character in the first name": {HALF: 1},
    "no JSON": {"a": {1}},
    "a number that has lost digits": {"a": [2**53]},
    "a fraction that has lost digits": {"a": 9007199254740993.0},
}


@pytest.mark.parametrize("params", HOSTILE.values(), ids=HOSTILE)
def test_an_edit_that_could_not_be_handed_on_is_malformed(params: Any) -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "params": params})

    assert inbox.queue[-1].decision is None
    assert inbox.queue[-1].refused
    inbox.queue[-1].refused.encode()


@pytest.mark.parametrize("name", ["approval_id", "params_hash", "approver", "reason", "signature"])
def test_half_a_character_in_a_decisions_text_is_malformed(name: str) -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, name: HALF})

    assert inbox.queue[-1].decision is None


@pytest.mark.parametrize("receipt", HOSTILE.values(), ids=HOSTILE)
def test_a_receipt_that_could_not_be_handed_on_is_malformed(receipt: Any) -> None:
    resolution = {"intervention_id": "iv-1", "outcome": "happened", "actor": "olga"}

    with pytest.raises(Malformed):
        parse(Resolution, {**resolution, "receipt": receipt})


def test_params_as_deep_as_any_tool_has_are_taken() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "params": {"a": nested(MOST_LEVELS // 2)}})

    assert inbox.queue[-1].decision is not None


def test_a_reason_for_refusing_is_no_longer_than_somebody_reads() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "params": {"k" * 1_000_000: {1}}})
    inbox.receive(
        Verb.DECIDE, {**DECISION, "params": {str(number): {1} for number in range(20_000)}}
    )

    one, other = (delivery.refused or "" for delivery in inbox.queue)
    assert 0 < len(one) < 5_000
    assert 0 < len(other) < 5_000


def test_a_decision_that_is_too_large_is_refused_and_not_kept() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "reason": "x" * LARGEST})

    [delivery] = inbox.queue
    assert delivery.decision is None
    assert "too large" in (delivery.refused or "")


def test_what_is_kept_to_know_a_decision_again_does_not_grow_with_it() -> None:
    inbox = Inbox(prefix="run#first.")

    inbox.receive(Verb.DECIDE, {**DECISION, "reason": "x" * (LARGEST // 2)})

    assert len(str(inbox.by_content)) < 200
