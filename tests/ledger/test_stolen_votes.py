"""G3 against people: votes that are counted twice, borrowed, outdated or somebody else's."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from activities.ledger import principals
from activities.ledger.edits import Edited
from activities.ledger.entries import ApprovalRefused, Claimed
from activities.ledger.tables import approvals, decisions, effects
from cli.signing import claims_for, sign
from tests.ledger.people import ADMINISTRATOR, administration, key_of, person, revoked
from tests.ledger.scene import RUN, Scene
from workflows.contracts import Assurance, Decision, DecisionOutcome
from workflows.policy import Requirement

MINUTE = timedelta(minutes=1)
TWO = Requirement(quorum=2)
TWO_MANAGERS = Requirement(quorum=2, roles=("manager",))
#: Of the scene's approval.
ASKED = "run-1/refund/1"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ann", "Ann"),
        ("ann", "ann "),
        ("ann", "\u00a0ann"),
        ("ann", "a\u200bnn"),
        ("jos\u00e9", "jose\u0301"),
        ("ann", "\uff41nn"),
        ("ann lee", "ann  lee"),
        ("strasse", "stra\u00dfe"),
    ],
)
async def test_one_person_is_not_two_by_another_spelling_of_the_name(
    scene: Scene, first: str, second: str
) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=TWO)
    await scene.decide(gated, approver=first)

    verdict = await scene.decide(gated, approver=second)

    assert (verdict.code, verdict.state) == ("already_voted", "pending")
    assert isinstance(await scene.claim(gated), ApprovalRefused)


@pytest.mark.parametrize("spelling", ["Ada", " ada", "ada\u200d", "\uff41da"])
async def test_the_requester_is_no_other_person_by_another_spelling_of_the_name(
    scene: Scene, spelling: str
) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=Requirement(four_eyes=True))

    assert (await scene.decide(gated, approver=spelling)).code == "four_eyes"


async def test_another_spelling_of_a_name_has_none_of_its_roles(scene: Scene) -> None:
    await person(scene, "ann", "manager")
    gated = await scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))

    for spelling in ("Ann", "ann ", "\uff41nn"):
        assert (await scene.decide(gated, approver=spelling)).code == "not_permitted"


async def test_of_one_persons_votes_at_once_one_counts(scene: Scene) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=TWO)

    verdicts = await asyncio.gather(
        *(scene.decide(gated, approver="ann", reason=str(number)) for number in range(6))
    )

    assert sorted(verdict.code for verdict in verdicts) == ["accepted", *["already_voted"] * 5]
    assert (await scene.row(approvals))["state"] == "pending"


async def test_of_two_peoples_votes_at_once_both_count_and_approve_once(scene: Scene) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=TWO)

    verdicts = await asyncio.gather(*(scene.decide(gated, approver=who) for who in ("ann", "bob")))

    assert {verdict.code for verdict in verdicts} == {"accepted"}
    assert sorted(str(verdict.state) for verdict in verdicts) == ["approved", "pending"]
    assert len(await scene.events(type_="approval.approved")) == 1


async def test_of_an_edit_and_an_approval_at_once_one_decides(scene: Scene) -> None:
    gated = await scene.ask_approval(scene.call())
    less = Edited({"amount": "1.00"}, "sha256:less", gated.key)

    edit, approve = await asyncio.gather(
        scene.decide(gated, "edit", approver="bob", params=less.params, edited=less),
        scene.decide(gated, approver="ann"),
    )

    assert sorted([edit.code == "accepted", approve.code == "accepted"]) == [False, True]
    state = (await scene.row(approvals))["state"]
    assert state == ("superseded" if edit.code == "accepted" else "approved")
    claimed = isinstance(await scene.claim(gated), Claimed)
    assert claimed == (state == "approved")


async def test_of_an_approval_and_its_expiry_at_once_one_holds(scene: Scene) -> None:
    gated = await scene.ask_approval(scene.call(), expires_in=MINUTE)

    verdict, _ = await asyncio.gather(
        scene.decide(gated, after=MINUTE), scene.close(gated, "expired", after=MINUTE)
    )

    assert verdict.code == "expired"
    assert isinstance(await scene.claim(gated, after=MINUTE), ApprovalRefused)


async def test_a_role_revoked_at_the_moment_of_the_claim_is_before_it_or_after_it(
    scene: Scene,
) -> None:
    await person(scene, "ann", "manager")
    gated = await scene.ask_approval(scene.call(), requirement=Requirement(roles=("manager",)))
    await scene.decide(gated, approver="ann")

    result, _ = await asyncio.gather(scene.claim(gated), revoked(scene, "ann", "role", "manager"))

    assert isinstance(result, (Claimed, ApprovalRefused))
    used = (await scene.row(approvals))["consumed_entry"] is not None
    assert used == isinstance(result, Claimed) == (len(await scene.rows(effects)) == 1)


async def test_a_vote_whose_role_was_revoked_before_the_last_vote_does_not_make_the_quorum(
    scene: Scene,
) -> None:
    for name in ("ann", "bob"):
        await person(scene, name, "manager")
    gated = await scene.ask_approval(scene.call(), requirement=TWO_MANAGERS)
    await scene.decide(gated, approver="ann")
    await revoked(scene, "ann", "role", "manager")

    verdict = await scene.decide(gated, approver="bob")

    assert (verdict.code, verdict.state) == ("accepted", "pending")
    assert isinstance(await scene.claim(gated), ApprovalRefused)


async def test_votes_for_one_request_count_for_no_other_of_the_same_step(scene: Scene) -> None:
    first = await scene.ask_approval(scene.call(), requirement=TWO)
    await scene.decide(first, approver="ann")
    await scene.close(first, "void")
    second = await scene.ask_approval(scene.call(), requirement=TWO, number=2)

    assert (await scene.decide(second, approver="bob")).state == "pending"


async def signed(
    scene: Scene, key: Ed25519PrivateKey, approver: str, params_hash: str, **changes: Any
) -> dict[str, Any]:
    """Return a decision of the scene's approval with its signature."""
    values: dict[str, Any] = {"outcome": DecisionOutcome.APPROVE, "approval_id": ASKED, **changes}
    edited = values.pop("claimed_edit", None)
    decision = Decision(approver=approver, params_hash=params_hash, **values)
    claims = claims_for(decision, scene.tenant, RUN, int(time.time()), edited=edited)
    return {**values, "approver": approver, "signature": sign(key, claims)}


async def test_a_signature_is_not_used_again_after_its_request_is_asked_anew(scene: Scene) -> None:
    await person(scene, "ann")
    key = await key_of(scene, "ann")
    gated = await scene.ask_approval(scene.call(), assurance=Assurance.SIGNED, requirement=TWO)
    yes = await signed(scene, key, "ann", gated.params_hash)
    assert (await scene.decide(gated, **yes)).code == "accepted"

    assert (await scene.decide(gated, **yes)).code == "used_signature"
    again = await scene.ask_approval(scene.call(), assurance=Assurance.SIGNED, number=2)
    stolen = {**yes, "approval_id": again.approval_id}
    assert (await scene.decide(again, **stolen)).code == "bad_signature"


@pytest.mark.parametrize("change", ["approver", "outcome", "params", "tenant"])
async def test_a_signature_is_worth_nothing_with_anything_else_than_was_signed(
    scene: Scene, change: str
) -> None:
    await person(scene, "ann")
    await person(scene, "bob")
    key = await key_of(scene, "ann")
    gated = await scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    signer = Scene(scene.ledger, "elsewhere") if change == "tenant" else scene
    yes = await signed(signer, key, "ann", gated.params_hash)
    swaps: dict[str, dict[str, Any]] = {
        "approver": {"approver": "bob"},
        "outcome": {"outcome": DecisionOutcome.REJECT},
        "params": {"outcome": DecisionOutcome.EDIT, "params": {"amount": "1.00"}},
        "tenant": {},
    }

    verdict = await scene.decide(gated, **{**yes, **swaps[change]})

    assert (verdict.code, verdict.state, verdict.verified) == ("bad_signature", "pending", False)


@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
async def test_params_that_nobody_can_sign_are_refused_and_not_tried_for_ever(
    scene: Scene, amount: float
) -> None:
    await person(scene, "ann")
    key = await key_of(scene, "ann")
    gated = await scene.ask_approval(scene.call(), assurance=Assurance.SIGNED)
    edit = await signed(
        scene,
        key,
        "ann",
        gated.params_hash,
        outcome=DecisionOutcome.EDIT,
        params={"amount": amount},
        claimed_edit="sha256:0",
    )

    assert (await scene.decide(gated, **edit)).code == "bad_signature"


async def test_a_key_revoked_after_the_vote_takes_it_away_also_where_signatures_are_not_asked_for(
    scene: Scene,
) -> None:
    await person(scene, "ann")
    key = await key_of(scene, "ann")
    gated = await scene.ask_approval(scene.call())
    yes = await signed(scene, key, "ann", gated.params_hash)
    assert (await scene.decide(gated, **yes)).state == "approved"
    kid = (await scene.row(decisions))["kid"]

    async with administration(scene) as tx:
        assert await principals.revoke_key(tx, "ann", kid, ADMINISTRATOR)

    assert isinstance(await scene.claim(gated), ApprovalRefused)


async def test_a_key_that_was_revoked_signs_nothing_any_more(scene: Scene) -> None:
    await person(scene, "ann")
    key = await key_of(scene, "ann")
    async with administration(scene) as tx:
        [kid] = (await principals.find(tx, ["ann"]))["ann"].keys
        assert await principals.revoke_key(tx, "ann", kid, ADMINISTRATOR)
    gated = await scene.ask_approval(scene.call())

    verdict = await scene.decide(gated, **await signed(scene, key, "ann", gated.params_hash))

    assert (verdict.code, verdict.state, verdict.verified) == ("bad_signature", "pending", False)


async def test_a_lax_workers_vote_is_no_half_of_a_strict_workers_quorum(scene: Scene) -> None:
    await person(scene, "bob")
    key = await key_of(scene, "bob")
    gated = await scene.ask_approval(scene.call(), requirement=TWO)
    await scene.decide(gated, approver="ann")
    strict = replace(gated, assurance=Assurance.SIGNED)

    yes = await signed(scene, key, "bob", gated.params_hash)
    verdict = await scene.decide(gated, assurance=Assurance.SIGNED, **yes)

    assert (verdict.code, verdict.state) == ("accepted", "pending")
    assert isinstance(await scene.claim(strict), ApprovalRefused)
