"""G3: who has started a run is proven when it opens, and counts beside the user it acts for."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from surehand.activities.ledger.core.tables import effects, runs
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.starts import StartRefused, name_starter
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, Forbidden
from surehand.client.messages import sign, sign_start
from surehand.verify import decode_base64url
from surehand.workflows.contracts.approvals import (
    Assurance,
    StartClaims,
    Verdict,
)
from surehand.workflows.contracts.runs import Linked, Parent, StartRun
from surehand.workflows.plan.plan import Durability, Plan
from surehand.workflows.plan.policy import Requirement
from tests.ledger.people import (
    ADMINISTRATOR,
    administration,
    granted,
    key_of,
    person,
    signature,
)
from tests.ledger.rows import change
from tests.ledger.scene import STEP, Scene

STRICT = Assurance.SIGNED
NEW = "run-7"
CHILD = "run-7~refund"
FOUR_EYES = Requirement(four_eyes=True)
#: A plan that does the same step under another goal.
OTHER_PLAN = Plan.model_validate(
    {"name": "other", "goal": "more", "steps": [{"id": STEP, "tool": "payments.refund"}]}
)


@pytest.fixture
def key(scene: Scene) -> Ed25519PrivateKey:
    """Mallory's, who may decide like everybody else."""
    person(scene, "mallory")
    return key_of(scene, "mallory")


def signed(scene: Scene, key: Ed25519PrivateKey, run_id: str = NEW, **changes: Any) -> StartRun:
    """A run that mallory starts in ada's name."""
    start = scene.start(run_id, started_by="mallory", **changes)
    return sign_start(start, key, int(time.time()))


def opened(scene: Scene, start: StartRun, workflow_run_id: str = "first") -> dict[str, Any]:
    """Open it where starts have to be signed, and return its row."""
    scene.open_run(start.run_id, workflow_run_id, start=start, assurance=STRICT)
    return scene.row(runs, run_id=start.run_id)


def refused(scene: Scene, start: StartRun, assurance: Assurance = STRICT) -> str:
    """Why a run is not opened; nothing is left of it."""
    with pytest.raises(StartRefused) as caught:
        scene.open_run(start.run_id, start=start, assurance=assurance)
    assert scene.rows(runs, run_id=start.run_id) == []
    assert scene.events(start.run_id) == []
    return str(caught.value)


def revoke_keys(scene: Scene, name: str) -> None:
    with administration(scene) as tx:
        for kid in principals.find_principal(tx, name).keys:
            assert principals.revoke_key(tx, name, kid, ADMINISTRATOR)


async def test_the_ledger_knows_the_proven_starter(scene: Scene, key: Ed25519PrivateKey) -> None:
    row = opened(scene, signed(scene, key))

    assert (row["user_id"], row["started_by"]) == ("ada", "mallory")
    [event] = scene.events(NEW, "run.opened")
    told = event["body"]
    assert (told["user"], told["started_by"], told["verified"]) == ("ada", "mallory", True)
    assert told["kid"] == row["start_kid"]
    assert await scene.broken(NEW) is None


def test_an_unsigned_start_opens_only_where_nothing_has_to_be_signed(scene: Scene) -> None:
    assert "only signed starts count" in refused(scene, scene.start(NEW))

    scene.open_run(NEW)

    row = scene.row(runs, run_id=NEW)
    assert (row["started_by"], row["start_signature"]) == ("ada", None)
    [event] = scene.events(NEW, "run.opened")
    assert event["body"]["verified"] is False


@pytest.mark.in_turns
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
def test_a_signature_starts_nothing_else_than_was_signed(
    scene: Scene, key: Ed25519PrivateKey, changes: dict[str, Any], assurance: Assurance
) -> None:
    start = signed(scene, key).model_copy(update=changes)

    reason = refused(scene, start, assurance)

    assert "the signature is for another" in reason or "has no key" in reason


def test_a_foreign_or_revoked_key_starts_nothing(
    scene: Scene, other: Scene, key: Ed25519PrivateKey
) -> None:
    elsewhere = signed(other, key).model_copy(update={"tenant": scene.tenant})
    assert "another tenant" in refused(scene, elsewhere)
    foreign = signed(scene, Ed25519PrivateKey.generate())
    assert "mallory has no key" in refused(scene, foreign)

    revoke_keys(scene, "mallory")
    assert "was revoked" in refused(scene, signed(scene, key))


async def test_a_start_counts_from_when_it_is_taken(scene: Scene, key: Ed25519PrivateKey) -> None:
    now = datetime.now(UTC)
    hours_ago = now - timedelta(hours=3)
    old = sign_start(scene.start(NEW, started_by="mallory"), key, int(hours_ago.timestamp()))
    assert "has expired" in refused(scene, old)

    # It was taken in time, and no worker was there until now.
    scene.open_run(NEW, start=old, assurance=STRICT, started_at=hours_ago)

    assert (scene.row(runs, run_id=NEW))["started_by"] == "mallory"
    assert await scene.broken(NEW) is None


def test_a_nonce_starts_one_run(scene: Scene, key: Ed25519PrivateKey) -> None:
    first = signed(scene, key)
    row = opened(scene, first)
    again = scene.start("run-8", started_by="mallory")
    claims = signed(scene, key, "run-8")
    assert claims.signature is not None
    # Signed anew by its owner, with the nonce of before.
    own = json.loads(decode_base64url(claims.signature.split(".")[1]))
    token = sign(key, StartClaims.model_validate({**own, "jti": row["start_nonce"]}))

    reason = refused(scene, again.model_copy(update={"signature": token}))

    assert "has started run run-7 already" in reason


async def test_a_child_run_has_its_parents_start(scene: Scene, key: Ed25519PrivateKey) -> None:
    parent = opened(scene, signed(scene, key))
    child = scene.start(CHILD, parent=Parent(run_id=NEW, step_id=STEP))

    row = opened(scene, child)

    assert (row["started_by"], row["start_kid"]) == ("mallory", parent["start_kid"])
    assert await scene.broken(CHILD) is None


def test_a_child_run_of_nobody_is_refused(scene: Scene, key: Ed25519PrivateKey) -> None:
    parent = Parent(run_id=NEW, step_id=STEP)
    assert "has not started it" in refused(scene, scene.start(CHILD, parent=parent))
    opened(scene, signed(scene, key))

    reason = refused(scene, scene.start(CHILD, parent=parent, user="bob"))

    assert "has not started it" in reason


@pytest.mark.parametrize("above", ["another workflow of that id", None])
def test_a_child_run_that_another_workflow_of_its_parents_id_has_started_is_refused(
    scene: Scene, key: Ed25519PrivateKey, above: str | None
) -> None:
    opened(scene, signed(scene, key))
    child = scene.start(CHILD, parent=Parent(run_id=NEW, step_id=STEP))

    with pytest.raises(StartRefused, match="has not started it"):
        scene.open_run(CHILD, start=child, assurance=STRICT, above=above)

    assert scene.rows(runs, run_id=CHILD) == []


def decided(scene: Scene, call: Any, key: Ed25519PrivateKey, approver: str) -> Verdict:
    proof = signature(scene, key, call, approver=approver)
    return scene.decide(call, assurance=STRICT, approver=approver, signature=proof)


@pytest.mark.parametrize("run_id", [NEW, CHILD])
def test_starters_approve_no_such_run(scene: Scene, key: Ed25519PrivateKey, run_id: str) -> None:
    person(scene, "bob")
    bobs = key_of(scene, "bob")
    opened(scene, signed(scene, key))
    if run_id == CHILD:
        opened(scene, scene.start(CHILD, parent=Parent(run_id=NEW, step_id=STEP)))
    call = scene.call(run_id=run_id, assurance=STRICT)
    gated = scene.ask_approval(call, requirement=FOUR_EYES, assurance=STRICT)

    assert (decided(scene, gated, key, "mallory")).code == "four_eyes"
    assert isinstance(scene.claim(gated), ApprovalRefused)

    assert (decided(scene, gated, bobs, "bob")).state == "approved"
    assert isinstance(scene.claim(gated), Claimed)


async def test_four_eyes_need_a_proven_start(scene: Scene, key: Ed25519PrivateKey) -> None:
    person(scene, "bob")
    bobs = key_of(scene, "bob")
    opened(scene, signed(scene, key))
    gated = scene.ask_approval(
        scene.call(run_id=NEW, assurance=STRICT), requirement=FOUR_EYES, assurance=STRICT
    )
    assert (decided(scene, gated, bobs, "bob")).state == "approved"

    # Somebody with the workers' rights makes it another's run.
    unsigned = {"start_signature": None, "start_kid": None, "start_nonce": None}
    change(scene, runs, {"run_id": NEW}, started_by="ada", **unsigned)

    found = scene.claim(gated)
    assert isinstance(found, ApprovalRefused) and "nothing proves" in found.reason
    again = scene.ask_approval(replace(gated), number=2, requirement=FOUR_EYES)
    verdict = decided(scene, again, bobs, "bob")
    assert verdict.code == "four_eyes" and "nothing proves" in verdict.message
    assert "another start" in str(await scene.broken(NEW))


@pytest.mark.parametrize("missing", ["ada", "mallory"])
def test_starters_need_permission_too(scene: Scene, key: Ed25519PrivateKey, missing: str) -> None:
    person(scene, "ada")
    opened(scene, signed(scene, key))
    call = scene.call(run_id=NEW, permissions=frozenset({"refunds"}), assurance=STRICT)
    granted(scene, ({"ada", "mallory"} - {missing}).pop(), "refunds")

    found = scene.claim(call)
    assert isinstance(found, Forbidden) and found.reason == f"{missing} has no permission refunds"
    assert scene.rows(effects) == []

    granted(scene, missing, "refunds")
    assert isinstance(scene.claim(call), Claimed)


def test_a_permission_is_nobodys_where_nothing_proves_who_has_started_the_run(scene: Scene) -> None:
    person(scene, "ada", permissions=("refunds",))
    call = scene.call(permissions=frozenset({"refunds"}))

    found = scene.claim(replace(call, assurance=STRICT))

    assert isinstance(found, Forbidden) and "nothing proves" in found.reason
    assert isinstance(scene.claim(call), Claimed)


async def test_a_key_revoked_later_has_started(scene: Scene, key: Ed25519PrivateKey) -> None:
    person(scene, "bob")
    bobs = key_of(scene, "bob")
    opened(scene, signed(scene, key))
    revoke_keys(scene, "mallory")

    gated = scene.ask_approval(
        scene.call(run_id=NEW, assurance=STRICT), requirement=FOUR_EYES, assurance=STRICT
    )
    assert (decided(scene, gated, bobs, "bob")).state == "approved"
    assert isinstance(scene.claim(gated), Claimed)
    assert await scene.broken(NEW) is None


@pytest.mark.in_turns
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
    opened(scene, signed(scene, key))

    change(scene, runs, {"run_id": NEW}, **changes)

    assert what in str(await scene.broken(NEW))


def test_people_are_shown_starter_and_user(scene: Scene, key: Ed25519PrivateKey) -> None:
    opened(scene, signed(scene, key))
    scene.open_run("run-8", start=scene.start("run-8", started_by="eve"))

    with scene.tx() as tx:
        assert name_starter(tx, NEW) == "mallory"
        assert name_starter(tx, "run-8") == "eve (unverified)"
        assert name_starter(tx, "run-1") == ""
