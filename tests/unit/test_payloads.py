"""What people send is taken or refused with what is wrong with it; nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from surehand.workflows import ports
from surehand.workflows.contracts.approvals import Decision
from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.steering import CancelRun
from surehand.workflows.deliveries import Malformed, parse
from tests.unit.values import json_values

RESOLUTION: dict[str, Any] = {
    "intervention_id": "iv-1",
    "outcome": "happened",
    "actor": "olga",
    "evidence": "bank statement",
}
DECISION: dict[str, Any] = {
    "approval_id": "run/step/1",
    "params_hash": "sha256:0",
    "outcome": "approve",
    "approver": "ana",
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
        (Resolution, {}, "actor: is missing; intervention_id: is missing; outcome: is missing"),
        (CancelRun, {"actor": "olga", "mode": "stop"}, "mode: "),
        (CancelRun, {}, "actor: is missing"),
        (CancelRun, {"actor": "olga", "reason": "nul \x00"}, "reason: "),
        (CancelRun, "compensate", "cancelrun: must be a JSON object with actor"),
        (CancelRun, None, "cancelrun: "),
        (
            Decision,
            "approve",
            "decision: must be a JSON object with approval_id, params_hash, outcome, approver",
        ),
        (
            Decision,
            {**DECISION, "outcome": "yes"},
            "outcome: must be 'approve', 'reject' or 'edit'",
        ),
        (Decision, {**DECISION, "approver": ""}, "approver: must have at least 1 character"),
        (Decision, {**DECISION, "params_hash": 7}, "params_hash: must be text"),
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


def test_every_message_is_whole_when_its_module_is_loaded() -> None:
    # A reference to a class further down is resolved by chance, at whatever uses it first.
    messages = [message for port in ports.ALL for message in (port.takes, port.returns)]

    assert [message for message in messages if not message.__pydantic_complete__] == []


def test_what_is_nested_too_deeply_to_be_handed_on_is_refused() -> None:
    nested: Any = "x"
    for _ in range(190):
        nested = [nested]

    with pytest.raises(Malformed, match="nested too deeply"):
        parse(Decision, {"approval_id": nested})
