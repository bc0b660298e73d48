"""What people send is taken or refused with the first thing wrong with it; nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.unit.values import json_values
from workflows.contracts import CancelRun, Message, Resolution
from workflows.payloads import Malformed, parse

RESOLUTION: dict[str, Any] = {
    "intervention_id": "iv-1",
    "outcome": "happened",
    "actor": "olga",
    "evidence": "bank statement",
}


def test_what_is_right_is_taken_with_what_a_newer_sender_adds() -> None:
    taken = parse(Resolution, {**RESOLUTION, "signature": "x"})

    assert (taken.actor, taken.outcome) == ("olga", "happened")


@pytest.mark.parametrize(
    ("model", "payload", "says"),
    [
        (Resolution, {**RESOLUTION, "outcome": "perhaps"}, "outcome: "),
        (Resolution, {**RESOLUTION, "actor": ""}, "actor: "),
        (Resolution, {**RESOLUTION, "actor": "a" * 201}, "actor: "),
        (Resolution, {**RESOLUTION, "actor": "nul \x00"}, "actor: "),
        (Resolution, {**RESOLUTION, "evidence": "nul \x00"}, "evidence: "),
        (Resolution, {**RESOLUTION, "intervention_id": "nul \x00"}, "intervention_id: "),
        (Resolution, {}, "intervention_id: Field required"),
        (CancelRun, {"actor": "olga", "mode": "stop"}, "mode: "),
        (CancelRun, {}, "actor: Field required"),
        (CancelRun, {"actor": "olga", "reason": "nul \x00"}, "reason: "),
        (CancelRun, "compensate", "cancelrun: "),
        (CancelRun, None, "cancelrun: "),
    ],
)
def test_what_is_wrong_is_named(model: type[Message], payload: Any, says: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse(model, payload)

    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


@given(json_values)
def test_no_payload_does_anything_else(payload: Any) -> None:
    for model in (Resolution, CancelRun):
        try:
            parse(model, payload)
        except Malformed:
            continue
