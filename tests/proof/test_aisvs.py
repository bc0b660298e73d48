"""Requirements of OWASP AISVS that no other test had; ``aisvs.yaml`` has all."""

from __future__ import annotations

import pytest

from surehand.activities.ledger.core.tables import approvals
from surehand.workflows.identity import params_hash
from tests.ledger.scene import Scene


@pytest.mark.parametrize("outcome", ["approve", "reject"])
def test_a_decision_is_on_record_with_approver_time_params_and_outcome(
    scene: Scene, outcome: str
) -> None:
    gated = scene.ask_approval(scene.call())
    asked = scene.events(type_="approval.requested")[0]
    scene.decide(gated, outcome, approver="ann")

    [told] = scene.events(type_="decision.accepted")
    assert (told["body"]["approver"], told["body"]["outcome"]) == ("ann", outcome)
    assert told["body"]["approval_id"] == asked["body"]["approval_id"] == gated.approval_id
    assert told["at_ms"] >= asked["at_ms"] > 0
    # The chain has the params' digest; the request keeps the params that it is made of.
    params = scene.row(approvals)["params"]
    assert params == gated.params
    kept = params_hash(gated.tool, gated.tool_version, params)
    assert asked["body"]["params_hash"] == kept
