"""Standing approvals: votes in advance count like their granter's own, as often as was granted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.tables import approvals, decisions, standing_uses
from surehand.activities.ledger.history.audit import unverified_approvers
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, ClaimRequest
from surehand.verify import verify_chain, verify_story
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.policy import Requirement
from tests.ledger import people
from tests.ledger.people import key_of, person
from tests.ledger.scene import OTHER_RUN, RUN, WINDOW, Scene
from tests.ledger.standing import DAY, ask, granted, listed, revoked

MANAGER = Requirement(roles=("manager",))
TWO = Requirement(quorum=2, roles=("manager",))


def state_of(scene: Scene, call: ClaimRequest) -> str:
    return str((scene.row(approvals, approval_id=call.approval_id))["state"])


def states(scene: Scene, *amounts: str | None) -> list[str]:
    """Ask for these refunds one after another, and return the states of their approvals."""
    calls = [ask(scene, amount, step_id=f"s{n}") for n, amount in enumerate(amounts)]
    return [state_of(scene, call) for call in calls]


def told(scene: Scene, type_: str) -> list[dict[str, Any]]:
    return [event["body"] for event in scene.events(type_=f"approval.standing_{type_}")]


# Within the scope


def test_a_call_in_the_scope_is_approved_at_once_and_said_to_be_so_in_advance(scene: Scene) -> None:
    standing = granted(scene, "ann", when="amount <= 150", count=5)

    call = ask(scene)

    row = scene.row(approvals)
    assert (row["state"], row["verified"]) == ("approved", False)
    assert row["decided_by"] == f"ann's standing approval {standing.standing_id}"
    assert isinstance(scene.claim(call), Claimed)
    vote = scene.row(decisions)
    assert (vote["approver"], vote["standing_id"]) == ("ann", standing.standing_id)
    [use] = told(scene, "used")
    assert (use["standing_id"], use["approver"]) == (standing.standing_id, "ann")
    late = scene.decide(call, approver="bob")
    assert late.message == f"already approved by {standing.label} (unverified)"


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("limits", "amount"),
    [({"when": "amount <= 100"}, "120.00"), ({"when": "urgent"}, "1"), ({"total_of": "amount",
      "total": "119.99"}, "120.00"), ({"total_of": "amount", "total": "5"}, None)],
)  # fmt: skip
def test_a_call_outside_the_scope_is_asked_about(
    scene: Scene, limits: dict[str, Any], amount: str | None
) -> None:
    granted(scene, "ann", **limits)

    assert states(scene, amount) == ["pending"]
    assert scene.rows(standing_uses) == []


def test_the_count_is_kept_and_what_comes_after_it_is_asked_about(scene: Scene) -> None:
    standing = granted(scene, "ann", count=2)

    assert states(scene, "1", "2", "3") == ["approved", "approved", "pending"]
    assert (listed(scene, standing)).uses == 2


def test_the_total_is_added_up_exactly(scene: Scene) -> None:
    standing = granted(scene, "ann", total_of="amount", total="0.3")

    found = states(scene, "0.1", "0.2", f"0.{'0' * 29}1", "0")

    assert found == ["approved", "approved", "pending", "approved"]
    assert (listed(scene, standing)).total == Decimal("0.3")


def test_floats_are_added_up_as_they_are_written(scene: Scene) -> None:
    granted(scene, "ann", total_of="share", total="0.3")

    for step, state in [("a", "approved"), ("b", "approved"), ("c", "approved"), ("d", "pending")]:
        call = ask(scene, step_id=step, params={"share": 0.1})
        assert state_of(scene, call) == state


def test_what_ends_first_is_used_first_and_no_more_than_is_needed(scene: Scene) -> None:
    later = granted(scene, "ann", until=2 * DAY)
    sooner = granted(scene, "bob", until=DAY)

    ask(scene)

    uses = [(listed(scene, one)).uses for one in (sooner, later)]
    assert uses == [1, 0]


# Like the granter's own vote


def test_it_is_one_vote_of_two_and_the_other_is_a_persons(scene: Scene) -> None:
    for name in ("ann", "bob"):
        person(scene, name, "manager")
    standing = granted(scene, "ann")
    call = ask(scene, requirement=TWO)
    assert state_of(scene, call) == "pending"
    assert isinstance(scene.claim(call), ApprovalRefused)
    assert (scene.decide(call, approver="ann")).code == "already_voted"

    verdict = scene.decide(call, approver="bob")

    assert (verdict.state, verdict.message) == ("approved", f"approved by {standing.label}, bob")
    assert isinstance(scene.claim(call), Claimed)


def test_of_one_person_one_standing_approval_votes(scene: Scene) -> None:
    person(scene, "ann", "manager")
    both = [granted(scene, "ann"), granted(scene, "ann")]

    call = ask(scene, requirement=TWO)

    assert state_of(scene, call) == "pending"
    assert sum([(listed(scene, one)).uses for one in both]) == 1


def test_two_peoples_standing_approvals_make_a_quorum_of_two(scene: Scene) -> None:
    for name in ("ann", "bob"):
        person(scene, name, "manager")
        granted(scene, name)

    call = ask(scene, requirement=TWO)

    assert state_of(scene, call) == "approved"
    assert isinstance(scene.claim(call), Claimed)


def test_it_votes_for_each_policy_it_satisfies_and_the_others_are_left(scene: Scene) -> None:
    person(scene, "ann", "manager")
    person(scene, "eve", "auditor")
    granted(scene, "ann")

    call = ask(scene, requirement=(MANAGER, Requirement(roles=("auditor",))))

    assert state_of(scene, call) == "pending"
    assert (scene.decide(call, approver="eve")).state == "approved"


def test_a_signed_one_makes_a_verified_approval_where_only_signatures_count(scene: Scene) -> None:
    person(scene, "ann")
    granted(scene, "ann", key_of(scene, "ann"))

    first = ask(scene, assurance=Assurance.SIGNED)
    second = ask(scene, step_id="next", assurance=Assurance.SIGNED)

    for call in (first, second):
        row = scene.row(approvals, approval_id=call.approval_id)
        assert (row["state"], row["verified"]) == ("approved", True)
        assert isinstance(scene.claim(replace(call, assurance=Assurance.SIGNED)), Claimed)
    assert unverified_approvers(scene.events()) == []


def test_a_signature_lasts_as_long_as_what_it_grants_once_it_has_arrived(scene: Scene) -> None:
    person(scene, "ann")
    granted(scene, "ann", key_of(scene, "ann"))
    hours = timedelta(hours=20)

    call = ask(scene, assurance=Assurance.SIGNED, after=hours)

    assert state_of(scene, call) == "approved"
    strict = replace(call, assurance=Assurance.SIGNED)
    assert isinstance(scene.claim(strict, after=hours), Claimed)


# Taken away, between the approval and the claim


def test_a_revocation_takes_back_what_was_approved_and_not_yet_called(scene: Scene) -> None:
    standing = granted(scene, "ann")
    call = ask(scene)

    revoked(scene, standing, "ann")

    refused = scene.claim(call)
    assert isinstance(refused, ApprovalRefused)
    assert "0 of 1 approvals" in refused.reason
    assert states(scene, "1") == ["pending"]


def test_an_approval_is_used_no_later_than_its_standing_approval_lasts(scene: Scene) -> None:
    granted(scene, "ann", until=timedelta(minutes=10))
    call = ask(scene)

    assert isinstance(scene.claim(call, after=timedelta(minutes=11)), ApprovalRefused)
    later = ask(scene, step_id="later", after=timedelta(minutes=11))
    assert state_of(scene, later) == "pending"


def test_a_role_taken_from_the_granter_takes_the_vote_away(scene: Scene) -> None:
    person(scene, "ann", "manager")
    granted(scene, "ann")
    call = ask(scene, requirement=MANAGER)
    assert state_of(scene, call) == "approved"

    people.revoked(scene, "ann", "role", "manager")

    assert isinstance(scene.claim(call), ApprovalRefused)


def test_a_policy_that_has_come_to_refuse_them_takes_the_vote_away(scene: Scene) -> None:
    granted(scene, "ann")
    call = ask(scene)

    assert isinstance(scene.claim(replace(call, standing=False)), ApprovalRefused)
    assert isinstance(scene.claim(call), Claimed)


def test_who_has_revoked_it_may_look_at_the_call_and_approve_it_in_person(scene: Scene) -> None:
    for name in ("ann", "bob"):
        person(scene, name, "manager")
    standing = granted(scene, "ann")
    call = ask(scene, requirement=TWO)
    revoked(scene, standing, "ann")
    assert (scene.decide(call, approver="bob")).state == "pending"

    assert (scene.decide(call, approver="ann")).state == "approved"
    assert (scene.decide(call, approver="ann")).code == "already_decided"
    assert isinstance(scene.claim(call), Claimed)


# Given back


@pytest.mark.parametrize("end", ["reject", "edit", "void", "expired", "the run's"])
def test_a_use_is_given_back_when_its_approval_ends_unused(scene: Scene, end: str) -> None:
    for name in ("ann", "bob"):
        person(scene, name, "manager")
    standing = granted(scene, "ann", count=1, total_of="amount", total="120")
    call = ask(scene, requirement=TWO)
    assert (listed(scene, standing)).uses == 1

    match end:
        case "reject":
            scene.decide(call, "reject", approver="bob")
        case "edit":
            less = Edited({"amount": "1"}, "sha256:less", call.key)
            scene.decide(call, "edit", approver="bob", params=less.params, edited=less)
        case "the run's":
            scene.end(state=RunState.FAILED)
        case _:
            scene.close(call, end, after=2 * WINDOW)

    left = listed(scene, standing)
    assert (left.uses, left.total) == (0, 0)
    assert [one["standing_id"] for one in told(scene, "returned")] == [standing.standing_id]
    again = ask(scene, step_id="another")
    assert state_of(scene, again) == "approved"


def test_a_use_is_given_back_when_its_step_asks_again(scene: Scene) -> None:
    standing = granted(scene, "ann", count=1)
    first = ask(scene)

    second = ask(scene, "60", number=2)

    assert state_of(scene, second) == "approved"
    assert (listed(scene, standing)).uses == 1
    assert isinstance(scene.claim(first), ApprovalRefused)
    assert isinstance(scene.claim(second), Claimed)


def test_what_an_effect_has_used_stays_used(scene: Scene) -> None:
    standing = granted(scene, "ann", count=1)
    call = ask(scene)
    scene.failed(call)

    assert scene.close(call, "void") == "approved"
    ask(scene, number=2)
    scene.end(state=RunState.FAILED)

    assert (listed(scene, standing)).uses == 1
    assert told(scene, "returned") == []


# At once, and again


async def test_of_two_runs_that_race_for_the_last_use_one_gets_it(scene: Scene) -> None:
    standing = granted(scene, "ann", count=2)
    scene.open_run(OTHER_RUN)

    calls = await asyncio.gather(
        *(
            asyncio.to_thread(ask, scene, run_id=run, step_id=f"s{n}")
            for n in range(4)
            for run in (RUN, OTHER_RUN)
        )
    )

    found = sorted([state_of(scene, call) for call in calls])
    assert found == ["approved"] * 2 + ["pending"] * 6
    assert (listed(scene, standing)).uses == 2


async def test_asking_again_after_a_crash_uses_nothing_twice(scene: Scene) -> None:
    standing = granted(scene, "ann", count=2)

    calls = [ask(scene) for _ in range(3)]
    await asyncio.gather(*(asyncio.to_thread(ask, scene) for _ in range(3)))

    assert (listed(scene, standing)).uses == 1
    assert len(scene.rows(decisions)) == len(told(scene, "used")) == 1
    assert isinstance(scene.claim(calls[0]), Claimed)


def test_the_story_of_its_uses_is_audited_like_votes(scene: Scene) -> None:
    standing = granted(scene, "ann", count=1)
    scene.committed(ask(scene))

    found = scene.events()

    assert verify_chain(found) is verify_story(found) is None
    assert unverified_approvers(found) == [standing.label]
    without = [one for one in found if one["type"] != "approval.standing_used"]
    assert "was given by 0 of 1 people" in str(verify_story(without))
