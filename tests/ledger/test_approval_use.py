"""G3: what runs is what was approved, while the approval was valid, and once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from activities.ledger import approvals as approval_rows
from activities.ledger import claims, outcomes
from activities.ledger.artifacts import Kept
from activities.ledger.entries import ApprovalRefused, Claimed, Committed, Mismatch
from activities.ledger.tables import approvals, effects
from tests.ledger.scene import NOW, OTHER_RUN, WINDOW, Scene

MINUTE = timedelta(minutes=1)


async def test_an_approval_is_consumed_by_the_entry_and_generation_that_it_lets_claim(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call())

    entry = await scene.claimed(gated)

    row = await scene.row(approvals)
    assert (row["consumed_entry"], row["consumed_generation"]) == (entry.entry_id, 1)
    assert (await scene.row(effects))["approval_id"] == gated.approval_id
    (consumed,) = await scene.events(type_="approval.consumed")
    assert consumed["body"]["entry_id"] == entry.entry_id
    assert consumed["body"]["params_hash"] == gated.params_hash


async def test_an_approval_is_not_consumed_when_the_transaction_of_the_claim_fails(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call())
    before = await scene.events()

    with pytest.raises(ZeroDivisionError):
        async with scene.tx() as tx:
            assert isinstance(await claims.claim(tx, gated), Claimed)
            raise ZeroDivisionError

    assert (await scene.row(approvals))["consumed_entry"] is None
    assert await scene.rows(effects) == []
    assert await scene.events() == before
    await scene.claimed(gated)


async def test_an_effect_that_is_recorded_already_consumes_nothing(scene: Scene) -> None:
    committed = await scene.committed(scene.call())
    await scene.open_run(OTHER_RUN)
    gated = await scene.approved(scene.call(run_id=OTHER_RUN))

    assert await scene.claim(gated) == Committed(committed)

    assert (await scene.row(approvals))["consumed_entry"] is None


async def test_a_key_taken_with_other_params_consumes_nothing(scene: Scene) -> None:
    await scene.committed(scene.call(params={"order": "1001", "amount": "1.00"}))
    gated = await scene.approved(scene.call())

    assert isinstance(await scene.claim(gated), Mismatch)

    assert (await scene.row(approvals))["consumed_entry"] is None


async def test_a_call_that_needs_an_approval_and_has_none_claims_nothing(scene: Scene) -> None:
    for approval_id in (None, "run-1/refund/1"):
        result = await scene.claim(scene.call(gated=True, approval_id=approval_id))
        assert isinstance(result, ApprovalRefused)

    assert await scene.rows(effects) == []


@pytest.mark.parametrize("state", ["pending", "rejected", "expired", "void", "over"])
async def test_only_an_approval_that_is_approved_and_in_time_lets_a_call_through(
    scene: Scene, state: str
) -> None:
    gated = await scene.ask_approval(scene.call(), expires_in=MINUTE)
    if state == "rejected":
        assert (await scene.decide(gated, "reject")).code == "accepted"
    elif state == "expired":
        assert await scene.close(gated, "expired", after=MINUTE) == "expired"
    elif state == "void":
        assert await scene.close(gated, "void") == "void"
    elif state == "over":
        assert (await scene.decide(gated)).code == "accepted"
    before = await scene.rows(approvals)

    result = await scene.claim(gated, after=MINUTE if state == "over" else NOW)

    assert isinstance(result, ApprovalRefused)
    assert await scene.rows(approvals) == before
    assert await scene.rows(effects) == []
    (refused,) = await scene.events(type_="effect.refused")
    assert refused["body"]["rule"] == "ApprovalRefused"


ELSEWHERE: list[dict[str, Any]] = [
    {"run_id": OTHER_RUN},
    {"step_id": "another"},
    {"tool": "payments.charge"},
    {"tool_version": "2"},
    {"key": "refund:order-2002"},
    {"user": "mallory"},
]


@pytest.mark.parametrize("change", ELSEWHERE, ids=lambda change: next(iter(change)))
async def test_an_approval_counts_for_its_own_call_only(
    scene: Scene, change: dict[str, Any]
) -> None:
    gated = await scene.approved(scene.call())
    await scene.open_run(OTHER_RUN)

    # The same params hash: what differs is what the approval is bound to beside it.
    result = await scene.claim(replace(gated, **change))

    assert isinstance(result, Mismatch)
    assert (await scene.row(approvals))["consumed_entry"] is None
    assert await scene.rows(effects) == []


@pytest.mark.parametrize(
    "change",
    [{"params": {"order": "1001", "amount": "999.00"}}, {"tool_version": "2"}],
    ids=["params", "version"],
)
async def test_params_other_than_the_approved_ones_are_a_mismatch_and_no_effect(
    scene: Scene, change: dict[str, Any]
) -> None:
    gated = await scene.approved(scene.call())

    changed = scene.call(gated=True, approval_id=gated.approval_id, **change)
    result = await scene.claim(changed)

    assert isinstance(result, Mismatch)
    assert gated.params_hash in result.reason
    assert changed.params_hash in result.reason
    assert (await scene.row(approvals))["consumed_entry"] is None
    assert await scene.rows(effects) == []


async def test_the_retries_of_an_entry_find_their_approval_consumed_by_themselves(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call())
    first = await scene.failed(gated)

    second = await scene.claimed(replace(gated, holder="the next attempt", attempt=2))

    assert second.entry_id == first.entry_id
    assert len(await scene.events(type_="approval.consumed")) == 1


async def test_an_approval_that_was_used_authorises_no_other_entry_and_no_other_generation(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call())
    entry = await scene.claimed(gated)

    for entry_id, generation in [("ef-other", 1), (entry.entry_id, 2)]:
        async with scene.tx() as tx:
            refused = await approval_rows.consume(tx, gated, entry_id, generation)
        assert isinstance(refused, ApprovalRefused)
        assert entry.entry_id in refused.reason

    assert (await scene.row(approvals))["consumed_entry"] == entry.entry_id


async def test_a_next_generation_with_other_params_needs_an_approval_of_its_own(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call())
    await scene.failed(gated)
    other_params = scene.call(params={"order": "1001", "amount": "1.00"})

    refused = await scene.claim(replace(other_params, gated=True, approval_id=gated.approval_id))
    assert isinstance(refused, Mismatch)

    second = await scene.claimed(await scene.approved(other_params, number=2))
    assert second.generation == 2


async def test_an_approval_that_expired_after_its_use_is_refused_at_the_next_forward_call(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call(), expires_in=MINUTE)
    entry = await scene.failed(gated)

    result = await scene.claim(replace(gated, attempt=2), after=MINUTE)

    assert isinstance(result, ApprovalRefused)
    assert (await scene.entry(entry.entry_id)).state == "failed"
    renewed = await scene.approved(gated, number=2)
    assert (await scene.claimed(renewed)).entry_id == entry.entry_id


async def test_recording_an_outcome_needs_no_approval_any_more(scene: Scene) -> None:
    gated = await scene.approved(scene.call(), expires_in=MINUTE)
    entry = await scene.claimed(gated)

    async with scene.tx(after=2 * MINUTE) as tx:
        assert await outcomes.commit(tx, gated, entry, Kept("r-1")) is not None

    assert isinstance(await scene.claim(gated, after=2 * MINUTE), Committed)


async def test_a_request_is_written_once_and_keeps_its_first_time_limit(scene: Scene) -> None:
    first = await scene.ask_approval(scene.call(), expires_in=MINUTE)
    row = await scene.row(approvals)

    await scene.ask_approval(scene.call(), expires_in=WINDOW)

    assert await scene.row(approvals) == row
    assert (row["params"], row["params_hash"]) == (first.params, first.params_hash)
    assert len(await scene.events(type_="approval.requested")) == 1


async def test_a_call_whose_effect_is_recorded_needs_nobody_to_be_asked(scene: Scene) -> None:
    async def settled(**changes: Any) -> bool:
        async with scene.tx() as tx:
            return await approval_rows.is_settled(tx, scene.call(**changes))

    assert not await settled()
    await scene.claimed(scene.call())
    assert not await settled()
    await scene.committed(scene.call(key="done"))
    assert await settled(key="done")
    assert not await settled(key="done", params={"order": "1001", "amount": "1.00"})


@pytest.mark.parametrize("to", ["expired", "void"])
async def test_a_decision_that_was_quicker_than_the_end_of_its_request_wins(
    scene: Scene, to: str
) -> None:
    gated = await scene.approved(scene.call(), expires_in=MINUTE)
    await scene.claimed(gated)

    assert await scene.close(gated, to, after=MINUTE) == "approved"

    assert (await scene.row(approvals))["state"] == "approved"


async def test_a_request_does_not_expire_before_its_time(scene: Scene) -> None:
    gated = await scene.ask_approval(scene.call(), expires_in=MINUTE)

    assert await scene.close(gated, "expired") == "pending"
    assert await scene.close(gated, "expired", after=MINUTE) == "expired"


async def test_an_approval_that_nothing_has_used_is_void_once_its_run_stops_asking(
    scene: Scene,
) -> None:
    gated = await scene.approved(scene.call())

    assert await scene.close(gated, "void") == "void"
    assert await scene.close(replace(gated, run_id="another"), "void") == "void"

    assert len(await scene.events(type_="approval.void")) == 1
    assert isinstance(await scene.claim(gated), ApprovalRefused)
