"""G3: what runs is what was approved, while the approval was valid, and once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.tables import approvals, effects
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, Committed, Mismatch
from tests.ledger.scene import OTHER_RUN, Scene

pytestmark = pytest.mark.guarantee("G3")

MINUTE = timedelta(minutes=1)


def test_an_approval_is_consumed_by_its_own_entry_and_generation(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    entry = scene.claimed(gated)

    row = scene.row(approvals)
    assert (row["consumed_entry"], row["consumed_generation"]) == (entry.entry_id, 1)
    assert (scene.row(effects))["approval_id"] == gated.approval_id
    (consumed,) = scene.events(type_="approval.consumed")
    assert consumed["body"]["entry_id"] == entry.entry_id
    assert consumed["body"]["params_hash"] == gated.params_hash


def test_an_approval_is_not_consumed_when_the_transaction_of_the_claim_fails(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    before = scene.events()

    with pytest.raises(ZeroDivisionError), scene.tx() as tx:
        assert isinstance(claims.claim(tx, gated), Claimed)
        raise ZeroDivisionError

    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []
    assert scene.events() == before
    scene.claimed(gated)


def test_an_effect_that_is_recorded_already_consumes_nothing(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)
    gated = scene.approved(scene.call(run_id=OTHER_RUN))

    assert scene.claim(gated) == Committed(committed)

    assert (scene.row(approvals))["consumed_entry"] is None


ELSEWHERE: list[dict[str, Any]] = [
    {"run_id": OTHER_RUN},
    {"step_id": "another"},
    {"tool": "payments.charge"},
    {"tool_version": "2"},
    {"key": "refund:order-2002"},
    {"user": "mallory"},
]


@pytest.mark.parametrize("change", ELSEWHERE, ids=lambda change: next(iter(change)))
def test_an_approval_counts_for_its_own_call_only(scene: Scene, change: dict[str, Any]) -> None:
    gated = scene.approved(scene.call())
    scene.open_run(OTHER_RUN)

    # The same params hash: what differs is what the approval is bound to beside it.
    result = scene.claim(replace(gated, **change))

    assert isinstance(result, Mismatch)
    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []


@pytest.mark.parametrize(
    "change",
    [{"params": {"order": "1001", "amount": "999.00"}}, {"tool_version": "2"}],
    ids=["params", "version"],
)
def test_params_not_approved_are_a_mismatch(scene: Scene, change: dict[str, Any]) -> None:
    gated = scene.approved(scene.call())

    changed = scene.call(gated=True, approval_id=gated.approval_id, **change)
    result = scene.claim(changed)

    assert isinstance(result, Mismatch)
    assert gated.params_hash in result.reason
    assert changed.params_hash in result.reason
    assert (scene.row(approvals))["consumed_entry"] is None
    assert scene.rows(effects) == []


def test_the_retries_of_an_entry_find_their_approval_consumed_by_themselves(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    first = scene.failed(gated)

    second = scene.claimed(replace(gated, holder="the next attempt", attempt=2))

    assert second.entry_id == first.entry_id
    assert len(scene.events(type_="approval.consumed")) == 1


def test_a_used_approval_authorises_no_other_entry_or_generation(scene: Scene) -> None:
    gated = scene.approved(scene.call())
    entry = scene.claimed(gated)

    for entry_id, generation in [("ef-other", 1), (entry.entry_id, 2)]:
        with scene.tx() as tx:
            refused = approval_rows.consume(tx, gated, entry_id, generation)
        assert isinstance(refused, ApprovalRefused)
        assert entry.entry_id in refused.reason

    assert (scene.row(approvals))["consumed_entry"] == entry.entry_id


def test_recording_an_outcome_needs_no_approval_any_more(scene: Scene) -> None:
    gated = scene.approved(scene.call(), expires_in=MINUTE)
    entry = scene.claimed(gated)

    with scene.tx(after=2 * MINUTE) as tx:
        assert outcomes.commit(tx, gated, entry, Kept("r-1")) is not None

    assert isinstance(scene.claim(gated, after=2 * MINUTE), Committed)


def test_a_request_is_written_once_and_keeps_its_first_time_limit(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(), expires_in=MINUTE)
    row = scene.row(approvals)

    again = scene.ask_approval(scene.call(), expires_in=MINUTE, after=MINUTE / 2)

    assert again.approval_id == first.approval_id
    assert scene.row(approvals) == row
    assert (row["params"], row["params_hash"]) == (first.params, first.params_hash)
    assert len(scene.events(type_="approval.requested")) == 1


def test_a_call_whose_effect_is_recorded_needs_nobody_to_be_asked(scene: Scene) -> None:
    def settled(**changes: Any) -> bool:
        with scene.tx() as tx:
            return approval_rows.is_settled(tx, scene.call(**changes))

    assert not settled()
    scene.claimed(scene.call())
    assert not settled()
    scene.committed(scene.call(key="done"))
    assert settled(key="done")
    assert not settled(key="done", params={"order": "1001", "amount": "1.00"})


def test_an_approval_that_nothing_has_used_is_void_once_its_run_stops_asking(scene: Scene) -> None:
    gated = scene.approved(scene.call())

    assert scene.close(gated, "void") == "void"
    assert scene.close(replace(gated, run_id="another"), "void") == "void"

    assert len(scene.events(type_="approval.void")) == 1
    assert isinstance(scene.claim(gated), ApprovalRefused)


def test_a_request_with_another_precondition_voids_the_first(scene: Scene) -> None:
    first = scene.ask_approval(scene.call(precondition="sha256:before"))
    second = scene.ask_approval(scene.call(precondition="sha256:after"))

    assert scene.row(approvals, approval_id=first.approval_id)["state"] == "void"
    assert scene.decide(first).code == "not_waiting"
    assert scene.decide(second).code == "accepted"
    assert isinstance(scene.claim(second), Claimed)
