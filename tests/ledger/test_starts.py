"""G3: who has started a run is proven when it opens, and counts beside the user it acts for."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import update

from activities.ledger import principals
from activities.ledger.entries import ApprovalRefused, Claimed, Forbidden
from activities.ledger.reads import chain_of
from activities.ledger.signed_rows import first_unproven
from activities.ledger.starts import StartRefused, marked_starter
from activities.ledger.tables import effects, runs
from activities.public_keys import decoded
from cli.signing import claims_for, sign, signed_start
from tests.ledger.people import ADMINISTRATOR, administration, granted, key_of, person
from tests.ledger.scene import STEP, Scene
from workflows.contracts import Assurance, Decision, DecisionOutcome, Parent, StartRun, Verdict
from workflows.contracts.signing import StartClaims
from workflows.contracts.starting import Linked
from workflows.durability import Durability
from workflows.plan import Plan
from workflows.policy import Requirement

STRICT = Assurance.SIGNED
NEW = "run-7"
CHILD = "run-7~refund"
FOUR_EYES = Requirement(four_eyes=True)
#: A plan that does the same step under another goal.
OTHER_PLAN = Plan.model_validate(
    {"name": "other", "goal": "more", "steps": [{"id": STEP, "tool": "payments.refund"}]}
)


@pytest.fixture
async def key(scene: Scene) -> Ed25519PrivateKey:
    """Mallory's, who may decide like everybody else."""
    await person(scene, "mallory")
    return await key_of(scene, "mallory")


def signed(scene: Scene, key: Ed25519PrivateKey, run_id: str = NEW, **changes: Any) -> StartRun:
    """A run that mallory starts in ada's name."""
    start = scene.start(run_id, started_by="mallory", **changes)
    return signed_start(start, key, int(time.time()))


async def opened(scene: Scene, start: StartRun, workflow_run_id: str = "first") -> dict[str, Any]:
    """Open it where starts have to be signed, and return its row."""
    await scene.open_run(start.run_id, workflow_run_id, start=start, assurance=STRICT)
    return await scene.row(runs, run_id=start.run_id)


async def refused(scene: Scene, start: StartRun, assurance: Assurance = STRICT) -> str:
    """Why a run is not opened; nothing is left of it."""
    with pytest.raises(StartRefused) as caught:
        await scene.open_run(start.run_id, start=start, assurance=assurance)
    assert await scene.rows(runs, run_id=start.run_id) == []
    assert await scene.events(start.run_id) == []
    return str(caught.value)


async def broken(scene: Scene, run_id: str = NEW) -> str | None:
    """What an audit finds among what is signed."""
    events, _, _ = await chain_of(scene.ledger, scene.tenant, run_id)
    found = await first_unproven(scene.ledger, scene.tenant, run_id, events)
    return None if found is None else str(found)


async def revoke_keys(scene: Scene, name: str) -> None:
    async with administration(scene) as tx:
        for kid in (await principals.find(tx, [name]))[name].keys:
            assert await principals.revoke_key(tx, name, kid, ADMINISTRATOR)


async def test_the_ledger_knows_who_has_proven_to_have_started_a_run_and_for_whom(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    row = await opened(scene, signed(scene, key))

    assert (row["user_id"], row["started_by"]) == ("ada", "mallory")
    [event] = await scene.events(NEW, "run.opened")
    told = event["body"]
    assert (told["user"], told["started_by"], told["verified"]) == ("ada", "mallory", True)
    assert told["kid"] == row["start_kid"]
    assert await broken(scene) is None


async def test_an_unsigned_start_opens_only_where_nothing_has_to_be_signed(scene: Scene) -> None:
    assert "only signed starts count" in await refused(scene, scene.start(NEW))

    await scene.open_run(NEW)

    row = await scene.row(runs, run_id=NEW)
    assert (row["started_by"], row["start_signature"]) == ("ada", None)
    [event] = await scene.events(NEW, "run.opened")
    assert event["body"]["verified"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "run-8"},
        {"user": "bob"},
        {"started_by": "ada"},
        {"started_by": None},
        {"plan": OTHER_PLAN},
        {"linked": Linked(run_id="run-1", outputs={STEP: "done"})},
        {"continue_after": 7},
        {"durability": Durability.EXIT},
    ],
    ids=lambda changes: str(*changes),
)
@pytest.mark.parametrize("assurance", list(Assurance))
async def test_a_signature_starts_nothing_else_than_was_signed(
    scene: Scene, key: Ed25519PrivateKey, changes: dict[str, Any], assurance: Assurance
) -> None:
    start = signed(scene, key).model_copy(update=changes)

    reason = await refused(scene, start, assurance)

    assert "the signature is for another" in reason or "has no key" in reason


async def test_a_start_that_is_signed_for_another_tenant_is_refused(
    scene: Scene, other: Scene, key: Ed25519PrivateKey
) -> None:
    elsewhere = signed(other, key)

    reason = await refused(scene, elsewhere.model_copy(update={"tenant": scene.tenant}))

    assert "another tenant" in reason


async def test_a_start_that_is_signed_with_a_foreign_or_a_revoked_key_is_refused(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    foreign = signed(scene, Ed25519PrivateKey.generate())
    assert "mallory has no key" in await refused(scene, foreign)

    await revoke_keys(scene, "mallory")
    assert "was revoked" in await refused(scene, signed(scene, key))


async def test_a_signature_has_to_count_when_the_server_takes_the_start_and_not_when_it_opens(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    now = datetime.now(UTC)
    hours_ago = now - timedelta(hours=3)
    old = signed_start(scene.start(NEW, started_by="mallory"), key, int(hours_ago.timestamp()))
    assert "has expired" in await refused(scene, old)

    # It was taken in time, and no worker was there until now.
    await scene.open_run(NEW, start=old, assurance=STRICT, started_at=hours_ago)

    assert (await scene.row(runs, run_id=NEW))["started_by"] == "mallory"
    assert await broken(scene) is None


async def test_a_nonce_starts_one_run(scene: Scene, key: Ed25519PrivateKey) -> None:
    first = signed(scene, key)
    row = await opened(scene, first)
    again = scene.start("run-8", started_by="mallory")
    claims = signed(scene, key, "run-8")
    assert claims.signature is not None
    # Signed anew by its owner, with the nonce of before.
    own = json.loads(decoded(claims.signature.split(".")[1]))
    token = sign(key, StartClaims.model_validate({**own, "jti": row["start_nonce"]}))

    reason = await refused(scene, again.model_copy(update={"signature": token}))

    assert "has started run run-7 already" in reason


async def test_the_same_execution_opens_its_run_twice_and_is_one(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    start = signed(scene, key)
    await opened(scene, start)

    await opened(scene, start)

    assert len(await scene.events(NEW, "run.opened")) == 1


async def test_a_child_run_goes_back_to_the_start_of_its_parent(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    parent = await opened(scene, signed(scene, key))
    child = scene.start(CHILD, parent=Parent(run_id=NEW, step_id=STEP))

    row = await opened(scene, child)

    assert (row["started_by"], row["start_kid"]) == ("mallory", parent["start_kid"])
    assert await broken(scene, CHILD) is None


async def test_a_child_run_of_nobody_or_for_another_user_is_refused(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    parent = Parent(run_id=NEW, step_id=STEP)
    assert "has not started it" in await refused(scene, scene.start(CHILD, parent=parent))
    await opened(scene, signed(scene, key))

    reason = await refused(scene, scene.start(CHILD, parent=parent, user="bob"))

    assert "has not started it" in reason


async def decided(scene: Scene, call: Any, key: Ed25519PrivateKey, approver: str) -> Verdict:
    """Have somebody approve a call, signed."""
    decision = Decision(
        approval_id=call.approval_id,
        params_hash=call.params_hash,
        outcome=DecisionOutcome.APPROVE,
        approver=approver,
    )
    claims = claims_for(decision, scene.tenant, call.run_id, int(time.time()))
    values = {"approver": approver, "signature": sign(key, claims)}
    return await scene.decide(call, assurance=STRICT, **values)


@pytest.mark.parametrize("run_id", [NEW, CHILD])
async def test_nobody_approves_a_run_that_they_have_started_in_anothers_name(
    scene: Scene, key: Ed25519PrivateKey, run_id: str
) -> None:
    await person(scene, "bob")
    bobs = await key_of(scene, "bob")
    await opened(scene, signed(scene, key))
    if run_id == CHILD:
        await opened(scene, scene.start(CHILD, parent=Parent(run_id=NEW, step_id=STEP)))
    call = scene.call(run_id=run_id, assurance=STRICT)
    gated = await scene.ask_approval(call, requirement=FOUR_EYES, assurance=STRICT)

    assert (await decided(scene, gated, key, "mallory")).code == "four_eyes"
    assert isinstance(await scene.claim(gated), ApprovalRefused)

    assert (await decided(scene, gated, bobs, "bob")).state == "approved"
    assert isinstance(await scene.claim(gated), Claimed)


async def test_a_claimed_starter_is_no_second_pair_of_eyes_either_where_nothing_is_signed(
    scene: Scene,
) -> None:
    await scene.open_run(NEW, start=scene.start(NEW, started_by="mallory"))
    gated = await scene.ask_approval(scene.call(run_id=NEW), requirement=FOUR_EYES)

    assert (await scene.decide(gated, approver="Mallory")).code == "four_eyes"
    assert (await scene.decide(gated, approver="bob")).state == "approved"


async def test_four_eyes_see_nothing_where_nothing_proves_who_has_started_the_run(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    await person(scene, "bob")
    bobs = await key_of(scene, "bob")
    await opened(scene, signed(scene, key))
    gated = await scene.ask_approval(
        scene.call(run_id=NEW, assurance=STRICT), requirement=FOUR_EYES, assurance=STRICT
    )
    assert (await decided(scene, gated, bobs, "bob")).state == "approved"

    # Somebody with the workers' rights makes it another's run.
    async with scene.tx() as tx:
        await tx.execute(
            update(runs)
            .where(runs.c.tenant_id == tx.tenant, runs.c.run_id == NEW)
            .values(started_by="ada", start_signature=None, start_kid=None, start_nonce=None)
        )

    found = await scene.claim(gated)
    assert isinstance(found, ApprovalRefused) and "nothing proves" in found.reason
    again = await scene.ask_approval(replace(gated), number=2, requirement=FOUR_EYES)
    verdict = await decided(scene, again, bobs, "bob")
    assert verdict.code == "four_eyes" and "nothing proves" in verdict.message
    assert "another start" in str(await broken(scene))


@pytest.mark.parametrize("missing", ["ada", "mallory"])
async def test_a_call_needs_the_permission_of_whoever_has_started_its_run_as_well(
    scene: Scene, key: Ed25519PrivateKey, missing: str
) -> None:
    await person(scene, "ada")
    await opened(scene, signed(scene, key))
    call = scene.call(run_id=NEW, permissions=frozenset({"refunds"}), assurance=STRICT)
    await granted(scene, ({"ada", "mallory"} - {missing}).pop(), "refunds")

    found = await scene.claim(call)
    assert isinstance(found, Forbidden) and found.reason == f"{missing} has no permission refunds"
    assert await scene.rows(effects) == []

    await granted(scene, missing, "refunds")
    assert isinstance(await scene.claim(call), Claimed)


async def test_a_permission_is_nobodys_where_nothing_proves_who_has_started_the_run(
    scene: Scene,
) -> None:
    await person(scene, "ada", permissions=("refunds",))
    call = scene.call(permissions=frozenset({"refunds"}))

    found = await scene.claim(replace(call, assurance=STRICT))

    assert isinstance(found, Forbidden) and "nothing proves" in found.reason
    assert isinstance(await scene.claim(call), Claimed)


async def test_a_key_that_is_revoked_later_has_started_what_it_has_started(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    await person(scene, "bob")
    bobs = await key_of(scene, "bob")
    await opened(scene, signed(scene, key))
    await revoke_keys(scene, "mallory")

    gated = await scene.ask_approval(
        scene.call(run_id=NEW, assurance=STRICT), requirement=FOUR_EYES, assurance=STRICT
    )
    assert (await decided(scene, gated, bobs, "bob")).state == "approved"
    assert isinstance(await scene.claim(gated), Claimed)
    assert await broken(scene) is None


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"started_by": "ada"}, "another start"),
        ({"user_id": "bob"}, "another start"),
        ({"start_signature": None, "start_kid": None, "start_nonce": None}, "another start"),
        ({"start_signature": "e30.e30.e30"}, "nothing proves who started it"),
        ({"start_nonce": "another-nonce-of-its-own"}, "nothing proves who started it"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
async def test_an_audit_tells_of_a_start_that_was_changed(
    scene: Scene, key: Ed25519PrivateKey, changes: dict[str, Any], what: str
) -> None:
    await opened(scene, signed(scene, key))

    async with scene.tx() as tx:
        row = (runs.c.tenant_id == tx.tenant) & (runs.c.run_id == NEW)
        await tx.execute(update(runs).where(row).values(changes))

    assert what in str(await broken(scene))


async def test_people_are_shown_who_has_started_a_run_for_whom(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    await opened(scene, signed(scene, key))
    await scene.open_run("run-8", start=scene.start("run-8", started_by="eve"))

    async with scene.tx() as tx:
        assert await marked_starter(tx, NEW) == "mallory"
        assert await marked_starter(tx, "run-8") == "eve (unverified)"
        assert await marked_starter(tx, "run-1") == ""
