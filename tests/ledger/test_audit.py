"""G6: an audit holds what happened against the chain, and names the first break."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from surehand.activities.ledger.core.transaction import GENESIS, event_hash
from surehand.activities.ledger.history.audit import (
    from_lines,
    to_lines,
    unverified_approvers,
    verify_chain,
    verify_entries,
    verify_story,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.plan.policy import Requirement
from tests.ledger.scene import RUN, STEP, Scene

pytestmark = pytest.mark.guarantee("G6")

Events = list[dict[str, Any]]


async def told(scene: Scene) -> tuple[Events, Events, ChainHead]:
    """Let a run claim and commit an approved refund, and return what is stored of it."""
    gated = scene.approved(scene.call())
    scene.committed(gated)
    return await scene.ledger.transact(scene.tenant, chain_of, RUN)


def rechained(events: Events) -> Events:
    """Return events with hashes that fit, as a forger would make them."""
    previous = GENESIS
    for seq, event in enumerate(events, start=1):
        event["seq"], event["previous"] = seq, previous
        hashed = {k: event[k] for k in ("run_id", "seq", "type", "step_id", "body", "at_ms")}
        previous = event["hash"] = event_hash(previous, hashed)
    return events


def named(events: Events, type_: str) -> dict[str, Any]:
    return next(event for event in events if event["type"] == type_)


async def test_an_untouched_run_passes_and_so_does_its_export(scene: Scene) -> None:
    events, entries, head = await told(scene)

    assert unverified_approvers(events) == [named(events, "decision.accepted")["body"]["approver"]]
    exported = from_lines(to_lines(events))

    for chain in (events, exported):
        assert verify_chain(chain, [head]) is None
        assert verify_story(chain) is None
        assert verify_entries(chain, entries) is None


@pytest.mark.parametrize("field", ["type", "body", "at_ms", "step_id", "run_id"])
async def test_a_changed_event_is_named(scene: Scene, field: str) -> None:
    events, _, _ = await told(scene)
    forged = copy.deepcopy(events)
    forged[2][field] = {"body": {"x": 1}, "at_ms": 1}.get(field, "forged")

    found = verify_chain(forged)

    assert found is not None
    assert found.seq == 3


async def test_a_removed_event_is_named(scene: Scene) -> None:
    events, _, _ = await told(scene)

    found = verify_chain(events[:1] + events[2:])

    assert found is not None
    assert found.seq == 2


async def test_a_rewritten_chain_shows_against_a_head_recorded_elsewhere(scene: Scene) -> None:
    events, _, head = await told(scene)
    forged = rechained(copy.deepcopy(events[:1] + events[2:]))
    assert verify_chain(forged) is None

    found = verify_chain(forged, [ChainHead(seq=2, hash=events[1]["hash"]), head])

    assert found is not None


async def test_a_chain_that_was_cut_short_shows_against_its_head(scene: Scene) -> None:
    events, _, head = await told(scene)

    found = verify_chain(events[:-1], [head])

    assert found is not None
    assert str(head.seq) in found.reason


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("approval.requested", "never asked for"),
        ("approval.approved", "no decision approved it"),
        ("approval.consumed", "without its approval"),
        ("effect.claimed", "without a claim"),
    ],
)
async def test_a_commit_without_each_thing_it_needs_is_named(
    scene: Scene, missing: str, reason: str
) -> None:
    events, _, _ = await told(scene)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    forged = rechained([event for event in events if event["type"] != missing])

    found = verify_story(forged)

    assert found is not None
    assert reason in found.reason


async def test_params_other_than_the_approved_ones_are_named(scene: Scene) -> None:
    events, _, _ = await told(scene)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    named(events, "effect.claimed")["body"]["params_hash"] = "sha256:other"

    found = verify_story(events)

    assert found is not None
    assert "other params than approved" in found.reason


async def test_an_approval_used_after_its_time_is_named(scene: Scene) -> None:
    events, _, _ = await told(scene)
    named(events, "approval.requested")["body"]["expires_ms"] = 1

    found = verify_story(events)

    assert found is not None
    assert "expired" in found.reason


async def test_an_entry_that_no_event_tells_of_is_named(scene: Scene) -> None:
    events, entries, _ = await told(scene)
    without = [event for event in events if event["type"] != "effect.committed"]

    found = verify_entries(without, entries)

    assert found is not None
    assert entries[0]["entry_id"] in found.reason


async def voted(scene: Scene) -> Events:
    """Let a run commit a refund that two have approved, and return its events."""
    two = Requirement(quorum=2)
    gated = scene.ask_approval(scene.call(), requirement=two)
    for approver in ("ann", "bob"):
        scene.decide(gated, approver=approver)
    scene.committed(gated)
    events, _, _ = await scene.ledger.transact(scene.tenant, chain_of, RUN)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    return events


async def test_an_approval_by_fewer_people_than_were_asked_for_is_named(scene: Scene) -> None:
    events = await voted(scene)
    assert verify_story(events) is None
    votes = [event for event in events if event["type"] == "decision.accepted"]

    same = copy.deepcopy(events)
    for event in same:
        if event["type"] == "decision.accepted":
            event["body"]["approver"] = "ann"
    one = [event for event in events if event != votes[0]]
    of_another = copy.deepcopy(events)
    named(of_another, "decision.accepted")["body"]["approval_id"] = "run-1/refund/9"
    rejected = copy.deepcopy(events)
    named(rejected, "decision.accepted")["body"]["outcome"] = "reject"

    for forged in (same, one, of_another, rejected):
        found = verify_story(forged)
        assert found is not None
        assert "1 of 2" in found.reason


async def test_an_unsigned_vote_where_signatures_were_asked_for_is_named(scene: Scene) -> None:
    events, _, _ = await told(scene)
    named(events, "approval.requested")["body"]["assurance"] = "signed"

    found = verify_story(events)

    assert found is not None
    assert "0 of 1" in found.reason


async def test_a_waiver_from_before_a_human_was_asked_lets_no_claim_through(scene: Scene) -> None:
    events, _, _ = await told(scene)
    named(events, "run.opened")["body"]["gated"] = [STEP]
    claim = named(events, "effect.claimed")
    waiver = copy.deepcopy(claim)
    waiver["type"] = "approval.waived"
    del claim["body"]["approval_id"]
    without = [event for event in events if not event["type"].startswith(("approval", "decision"))]
    at = without.index(claim)

    assert verify_story([*without[:at], waiver, *without[at:]]) is None
    found = verify_story([events[0], waiver, *events[1:]])

    assert found is not None
    assert "without its approval" in found.reason
