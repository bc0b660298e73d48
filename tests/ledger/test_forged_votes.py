"""G3 against whoever may write to the database: a row of decisions is worth what its signature is.

The workers' role may insert decisions: a tool's SQL, or what is injected into it, may, too.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import insert, update

from activities.ledger import principals
from activities.ledger.approvals import refusal
from activities.ledger.entries import ApprovalRefused, Claimed, ClaimRequest
from activities.ledger.reads import chain_of
from activities.ledger.signed_rows import first_unproven
from activities.ledger.tables import approvals, decisions, effects
from cli.signing import claims_for, sign
from tests.ledger.people import ADMINISTRATOR, administration, key_of, person
from tests.ledger.scene import RUN, Scene
from workflows.contracts import Assurance, Decision, DecisionOutcome
from workflows.policy import Requirement

STRICT = Assurance.SIGNED
FINANCE = Requirement(roles=("finance",))
TWO = Requirement(roles=("finance",), quorum=2)
#: What a forger gives for a signature, and whether the row is still called verified.
FORGERIES = ("none", "unsigned", "foreign", "altered", "of_another_call", "of_a_reject")


@pytest.fixture
async def key(scene: Scene) -> Ed25519PrivateKey:
    """Ann's."""
    await person(scene, "ann", "finance")
    return await key_of(scene, "ann")


def signature(scene: Scene, key: Ed25519PrivateKey, gated: ClaimRequest, **changes: Any) -> str:
    values = {
        "approval_id": gated.approval_id,
        "params_hash": gated.params_hash,
        "outcome": DecisionOutcome.APPROVE,
        "approver": "ann",
        **changes,
    }
    claims = claims_for(Decision(**values), scene.tenant, RUN, int(time.time()))
    return sign(key, claims)


def forgery(scene: Scene, key: Ed25519PrivateKey, gated: ClaimRequest, kind: str) -> dict[str, Any]:
    """Return the columns of a vote that ann has not given."""
    mine = Ed25519PrivateKey.generate()
    token = {
        "none": None,
        "unsigned": None,
        "foreign": signature(scene, mine, gated),
        "altered": signature(scene, key, gated)[:-8] + "AAAAAAAA",
        "of_another_call": signature(scene, key, gated, params_hash="sha256:other"),
        "of_a_reject": signature(scene, key, gated, outcome=DecisionOutcome.REJECT),
    }[kind]
    if kind == "unsigned":
        return {"signature": None, "kid": None, "nonce": None, "verified": False}
    return {"signature": token, "nonce": "a-nonce-of-the-forger", "verified": True}


async def forge(scene: Scene, gated: ClaimRequest, **columns: Any) -> None:
    """Write a vote and its approval, as whoever has the workers' rights can."""
    async with scene.tx() as tx:
        kids = (await principals.find(tx, ["ann"]))["ann"].keys
        vote = {
            "tenant_id": tx.tenant,
            "decision_id": "forged",
            "run_id": RUN,
            "approval_id": gated.approval_id,
            "approver": "ann",
            "outcome": "approve",
            "params_hash": gated.params_hash,
            "reason": "",
            "verdict": "accepted",
            "message": "",
            "kid": kids[0],
            "at_ms": tx.now_ms,
            **columns,
        }
        await tx.execute(insert(decisions).values(vote))
        await tx.execute(
            update(approvals)
            .where(approvals.c.tenant_id == tx.tenant)
            .values(state="approved", decided_by="ann", verified=columns["verified"])
        )


async def broken(scene: Scene) -> str | None:
    """What an audit finds among what is signed."""
    events, _, _ = await chain_of(scene.ledger, scene.tenant, RUN)
    found = await first_unproven(scene.ledger, scene.tenant, RUN, events)
    return None if found is None else str(found)


async def may_read(scene: Scene, gated: ClaimRequest) -> bool:
    async with scene.tx() as tx:
        return await refusal(tx, gated) is None


@pytest.mark.parametrize("who_is_strict", ["request", "worker"])
@pytest.mark.parametrize("kind", FORGERIES)
async def test_a_row_that_its_approver_has_not_signed_is_no_vote(
    scene: Scene, key: Ed25519PrivateKey, kind: str, who_is_strict: str
) -> None:
    asked = STRICT if who_is_strict == "request" else Assurance.OPEN
    gated = await scene.ask_approval(scene.call(), requirement=FINANCE, assurance=asked)
    if who_is_strict == "worker":
        gated = replace(gated, assurance=STRICT)
    await forge(scene, gated, **forgery(scene, key, gated, kind))

    assert isinstance(await scene.claim(gated), ApprovalRefused)
    assert not await may_read(scene, gated)
    assert await scene.rows(effects) == []


@pytest.mark.parametrize("kind", FORGERIES)
async def test_a_forged_vote_is_no_half_of_a_quorum(
    scene: Scene, key: Ed25519PrivateKey, kind: str
) -> None:
    await person(scene, "bob", "finance")
    bobs = await key_of(scene, "bob")
    gated = await scene.ask_approval(scene.call(), requirement=TWO, assurance=STRICT)
    await forge(scene, gated, **forgery(scene, key, gated, kind))
    async with scene.tx() as tx:
        again = {"state": "pending", "decided_by": None, "verified": None}
        await tx.execute(update(approvals).where(approvals.c.tenant_id == tx.tenant).values(again))

    verdict = await scene.decide(
        gated, approver="bob", signature=signature(scene, bobs, gated, approver="bob")
    )

    assert (verdict.code, verdict.state) == ("accepted", "pending")


@pytest.mark.parametrize("kind", FORGERIES)
async def test_an_audit_tells_of_a_vote_that_no_worker_has_written(
    scene: Scene, key: Ed25519PrivateKey, kind: str
) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    assert await broken(scene) is None

    await forge(scene, gated, **forgery(scene, key, gated, kind))

    assert "decision forged of ann counts in the ledger, but no event" in str(await broken(scene))


@pytest.mark.parametrize("kind", FORGERIES)
async def test_an_audit_tells_of_a_vote_whose_forger_has_written_an_event_as_well(
    scene: Scene, key: Ed25519PrivateKey, kind: str
) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    columns = forgery(scene, key, gated, kind)
    await forge(scene, gated, **columns)
    async with scene.tx() as tx:
        body = {"decision_id": "forged", "approval_id": gated.approval_id, "outcome": "approve"}
        verified = columns["verified"]
        tx.event(RUN, "decision.accepted", approver="ann", verified=verified, **body)

    assert "nothing proves decision forged of ann" in str(await broken(scene))


@pytest.mark.parametrize(
    "columns", [{"signature": None}, {"approver": "bob"}, {"params_hash": "sha256:other"}], ids=str
)
async def test_a_signed_vote_whose_row_was_changed_is_none(
    scene: Scene, key: Ed25519PrivateKey, columns: dict[str, Any]
) -> None:
    await person(scene, "bob", "finance")
    gated = await scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    verdict = await scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
    assert verdict.state == "approved"
    assert await may_read(scene, gated) and await broken(scene) is None

    async with scene.tx() as tx:
        await tx.execute(
            update(decisions).where(decisions.c.tenant_id == tx.tenant).values(columns)
        )

    assert isinstance(await scene.claim(gated), ApprovalRefused)
    assert not await may_read(scene, gated)
    assert await broken(scene) is not None


async def test_a_key_that_is_revoked_after_the_call_breaks_no_audit(
    scene: Scene, key: Ed25519PrivateKey
) -> None:
    gated = await scene.ask_approval(scene.call(), requirement=FINANCE, assurance=STRICT)
    await scene.decide(gated, approver="ann", signature=signature(scene, key, gated))
    assert isinstance(await scene.claim(gated), Claimed)

    async with administration(scene) as tx:
        [kid] = (await principals.find(tx, ["ann"]))["ann"].keys
        assert await principals.revoke_key(tx, "ann", kid, ADMINISTRATOR)

    assert await broken(scene) is None
    assert not await may_read(scene, gated)


async def test_an_unsigned_vote_counts_where_nothing_has_to_be_signed(scene: Scene) -> None:
    gated = await scene.approved(scene.call())

    assert isinstance(await scene.claim(gated), Claimed)
    assert await broken(scene) is None
