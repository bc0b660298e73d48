"""Who halts and who lifts: a policy's roles, quorum and proofs, against forged and stale votes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals.decisions import (
    Lifting,
    lift_halt,
    list_lift_voters,
    vote_for_lift,
)
from surehand.activities.ledger.core.statements import insert_row, update_rows
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.core.tables import effects, halt_votes, halts
from surehand.activities.ledger.halts import (
    Halt,
    Halted,
    HaltError,
    HaltPolicy,
    LiftPolicy,
    halt_calls,
    list_halts,
)
from surehand.activities.ledger.people import principals
from surehand.client.messages import claims_for, fresh_claims, sign
from surehand.workflows.contracts.approvals import (
    CHAT,
    Assurance,
    ChatClaims,
    Decision,
    DecisionOutcome,
)
from tests.ledger.databases import Database
from tests.ledger.people import ADMINISTRATOR, administration, key_of, passkey_of, person, revoked
from tests.ledger.scene import Scene
from tests.passkeys import ORIGIN, Authenticator

OPEN = Lifting()
TWO = LiftPolicy(roles=("operator",), quorum=2)
SIGNED = LiftPolicy(roles=("operator",), quorum=2, proof="signed")


def lift_decision(name: str, made: Halt, **changes: Any) -> Decision:
    said = {"approval_id": made.halt_id, "params_hash": made.params_hash, "approver": name}
    return Decision(**said | {"outcome": DecisionOutcome.APPROVE} | changes)


def halt(scene: Scene, policy: LiftPolicy | None = None, **scope: Any) -> Halt:
    with scene.tx() as tx:
        return halt_calls(tx, "oscar", "it pays twice", policy=HaltPolicy(lift=policy), **scope)


def signed(scene: Scene, key: Any, decision: Decision, **of: Any) -> Decision:
    where = {"tenant": scene.tenant, "run_id": decision.approval_id} | of
    claims = claims_for(decision, where["tenant"], where["run_id"], int(time.time()))
    return decision.model_copy(update={"signature": sign(key, claims)})


def vote(scene: Scene, decision: Decision, lifting: Lifting = OPEN) -> str | None:
    with scene.tx() as tx:
        return vote_for_lift(tx, decision, lifting)


def lift(scene: Scene, made: Halt, lifting: Lifting = OPEN) -> Halt:
    with administration(scene) as tx:
        return lift_halt(tx, made.halt_id, ADMINISTRATOR, lifting)


def refused(scene: Scene, made: Halt, why: str, lifting: Lifting = OPEN) -> None:
    """No vote that counts was given: the halt stands, and stops calls."""
    with pytest.raises(HaltError, match=why):
        lift(scene, made, lifting)
    assert isinstance(scene.claim(scene.call()), Halted)


@pytest.fixture
def ann(scene: Scene) -> Iterator[str]:
    scene.ledger.passkey_origins = (ORIGIN,)
    yield person(scene, "ann", "operator")
    scene.ledger.passkey_origins = ()


@pytest.fixture
def bob(scene: Scene) -> str:
    return person(scene, "bob", "operator")


def test_a_halt_is_lifted_once_enough_people_have_said_yes(
    scene: Scene, ann: str, bob: str
) -> None:
    made = halt(scene, TWO)
    refused(scene, made, "so far 0 of 2 approvals of operator")
    assert vote(scene, lift_decision(ann, made)) == "1 of 2 approvals of operator"
    refused(scene, made, "so far 1 of 2")
    assert vote(scene, lift_decision(bob, made)) is None
    lifted = lift(scene, made)

    assert lifted.lifted_by == ADMINISTRATOR
    with scene.tx() as tx:
        assert list_lift_voters(tx, made.halt_id) == ["ann (unverified)", "bob (unverified)"]
    assert scene.claimed(scene.call())
    with pytest.raises(HaltError, match="was lifted already"):
        vote(scene, lift_decision(ann, made))


@pytest.mark.parametrize("proof", ["open", "signed"])
def test_no_button_in_a_chat_lifts_a_halt(scene: Scene, ann: str, proof: Any) -> None:
    made = halt(scene, LiftPolicy(roles=("operator",), proof=proof))
    said = {**fresh_claims(ann, scene.tenant, int(time.time())), "run_id": made.halt_id}
    said |= {"approval_id": made.halt_id, "params_hash": made.params_hash, "account": "slack:T:U"}
    press = ChatClaims(**said, outcome=DecisionOutcome.APPROVE)
    signature = sign(key_of(scene, person(scene, CHAT)), press)

    with pytest.raises(HaltError, match="no button in a chat lifts a halt"):
        vote(scene, lift_decision(ann, made, signature=signature))
    with pytest.raises(ValidationError, match="proof"):
        LiftPolicy(roles=("operator",), proof="chat")  # type: ignore[arg-type]
    refused(scene, made, "so far 0 of 1")


def test_who_has_to_count_lifts_nothing_if_no_vote_is_lacking(scene: Scene, ann: str) -> None:
    made = halt(scene, LiftPolicy(roles=("operator",)))
    assert vote(scene, lift_decision(ann, made)) is None
    person(scene, "eve")

    with scene.tx() as tx, pytest.raises(HaltError, match="whoever owns the ledger does"):
        vote_for_lift(tx, lift_decision("eve", made), OPEN, must_count=True)


def test_nobody_counts_twice_or_without_a_role(scene: Scene, ann: str) -> None:
    person(scene, "ANN ", "operator")
    person(scene, "eve", "finance")
    made = halt(scene, TWO)
    assert vote(scene, lift_decision(ann, made)) is not None
    for name in (ann, "ANN ", "eve", "nobody"):
        with pytest.raises(HaltError, match=f"so far 1 of 2 .*; {name} has halted, has no role"):
            vote(scene, lift_decision(name, made))
    refused(scene, made, "so far 1 of 2")


@pytest.mark.in_turns
@pytest.mark.parametrize("outcome", [DecisionOutcome.REJECT, DecisionOutcome.EDIT])
def test_only_a_yes_counts(scene: Scene, ann: str, outcome: DecisionOutcome) -> None:
    made = halt(scene, LiftPolicy(roles=("operator",)))
    params = {"amount": "1.00"} if outcome is DecisionOutcome.EDIT else None
    with pytest.raises(HaltError, match=f"{outcome.value} is no yes"):
        vote(scene, lift_decision(ann, made, outcome=outcome, params=params))
    assert scene.rows(halt_votes) == []
    refused(scene, made, "so far 0 of 1")


def test_whoever_has_halted_does_not_count_where_four_eyes_are_asked_for(
    scene: Scene, ann: str
) -> None:
    person(scene, "oscar", "operator")
    made = halt(scene, LiftPolicy(roles=("operator",), four_eyes=True))
    with pytest.raises(HaltError, match="oscar has halted"):
        vote(scene, lift_decision("oscar", made))
    assert vote(scene, lift_decision(ann, made)) is None


@pytest.mark.parametrize("here", [True, False])
def test_what_the_halt_says_and_what_the_file_says_here_both_count(
    scene: Scene, ann: str, here: bool
) -> None:
    """A worker or an administrator that has another file, or none, weakens nothing."""
    made = halt(scene, None if here else TWO)
    lifting = Lifting(TWO if here else None)
    refused(scene, made, "so far 0 of 2", lifting)
    assert vote(scene, lift_decision(ann, made), lifting) is not None
    refused(scene, made, "so far 1 of 2", lifting)


def test_needs_that_are_none_bind_nobody_and_stop_no_clock(scene: Scene) -> None:
    made = halt(scene)
    with scene.tx() as tx:
        values = {name: v for name, v in vars(made).items() if not name.startswith("lifted_")}
        tx.execute(insert_row(halts, **values | {"halt_id": "halt-2", "needs": {"quorum": -1}}))
        assert [one.needs for one in list_halts(tx)] == [None, None]


def test_only_signed_votes_count_where_they_have_to_be(scene: Scene, ann: str, bob: str) -> None:
    made, keys = halt(scene, SIGNED), {name: key_of(scene, name) for name in (ann, bob)}
    with pytest.raises(HaltError, match="decisions have to be signed here"):
        vote(scene, lift_decision(ann, made))
    assert vote(scene, signed(scene, keys[ann], lift_decision(ann, made))) is not None
    with pytest.raises(HaltError, match="bob has no key"):
        vote(scene, signed(scene, keys[ann], lift_decision(bob, made)))
    assert vote(scene, signed(scene, keys[bob], lift_decision(bob, made))) is None
    assert lift(scene, made).lifted_ms


def test_a_worker_that_asks_for_signatures_takes_no_others(scene: Scene, ann: str) -> None:
    made, lifting = halt(scene, LiftPolicy(roles=("operator",))), Lifting(None, Assurance.SIGNED)
    assert vote(scene, lift_decision(ann, made)) is None
    refused(scene, made, "so far 0 of 1", lifting)


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "of",
    [
        {"tenant": "other"},
        {"run_id": "halt-000000000000"},
        {"params_hash": "sha256:0"},
        {"outcome": DecisionOutcome.REJECT},
        {"approval_id": "halt-000000000000"},
    ],
)
def test_a_signature_for_something_else_lifts_nothing(
    scene: Scene, ann: str, of: dict[str, Any]
) -> None:
    key, made = key_of(scene, ann), halt(scene, SIGNED)
    where = {name: value for name, value in of.items() if name in ("tenant", "run_id")}
    other = {name: value for name, value in of.items() if name not in where}
    forged = signed(scene, key, lift_decision(ann, made, **other), **where)
    with pytest.raises(HaltError, match=r"the signature is for (another|other params)"):
        vote(scene, lift_decision(ann, made, signature=forged.signature))
    refused(scene, made, "so far 0 of 2")


def test_a_yes_to_a_halt_that_was_shown_otherwise_does_not_count(scene: Scene, ann: str) -> None:
    made, other = halt(scene, TWO), halt(scene, TWO)
    with pytest.raises(HaltError, match="it is another halt than the one that was shown"):
        vote(scene, lift_decision(ann, made, params_hash=other.params_hash))


def test_rows_that_nobody_has_signed_are_no_votes(scene: Scene, ann: str, bob: str) -> None:
    """Workers add the rows: whoever has their rights may write any, and change none."""
    made, other, key = halt(scene, SIGNED), halt(scene, SIGNED), key_of(scene, bob)
    real = signed(scene, key, lift_decision(bob, other)).signature
    row = {"halt_id": made.halt_id, "params_hash": made.params_hash, "at_ms": made.halted_ms}
    proof = {"signature": real, "kid": principals_kid(scene, bob), "nonce": "n" * 20}
    with scene.tx() as tx:
        tx.execute(insert_row(halt_votes, **row, vote_id="v1", approver=ann))
        tx.execute(insert_row(halt_votes, **row, **proof, vote_id="v2", approver=bob))
        tx.execute(insert_row(halt_votes, **row, **proof, vote_id="v3", approver=ann))
    refused(scene, made, "so far 0 of 2")
    with pytest.raises(DBAPIError), administration(scene) as tx:
        tx.execute(update_rows(halt_votes).values(approver="eve"))
    # And none of them keeps the person out that it names.
    assert (
        vote(scene, signed(scene, key, lift_decision(bob, made))) == "1 of 2 approvals of operator"
    )


def principals_kid(scene: Scene, name: str) -> str:
    with scene.tx() as tx:
        return principals.find_principal(tx, name).keys[0]


@pytest.mark.parametrize("kind", ["role", "key"])
def test_a_vote_lapses_with_its_role_and_its_key(
    scene: Scene, ann: str, bob: str, kind: str
) -> None:
    made = halt(scene, SIGNED)
    for name in (ann, bob):
        vote(scene, signed(scene, key_of(scene, name), lift_decision(name, made)))
    if kind == "role":
        revoked(scene, bob, "role", "operator")
    else:
        kid = principals_kid(scene, bob)
        with administration(scene) as tx:
            principals.revoke_key(tx, bob, kid, ADMINISTRATOR)
    refused(scene, made, "so far 1 of 2")


def test_a_passkeys_gesture_is_a_vote_and_a_key_is_none_in_its_place(
    scene: Scene, ann: str
) -> None:
    made = halt(scene, LiftPolicy(roles=("operator",), proof="passkey"))
    decision, passkey = lift_decision(ann, made), passkey_of(scene, ann, Authenticator())
    with pytest.raises(HaltError, match="have to be signed by a passkey here"):
        vote(scene, signed(scene, key_of(scene, ann), decision))
    claims = claims_for(decision, scene.tenant, made.halt_id, int(time.time()))
    proof = passkey.proof(claims.model_dump(mode="json", exclude_none=True))
    assert vote(scene, decision.model_copy(update={"signature": proof})) is None
    with administration(scene) as tx:
        tx.passkey_origins = (ORIGIN,)
        assert lift_halt(tx, made.halt_id, ADMINISTRATOR).lifted_ms


async def test_two_who_vote_at_once_are_two(
    scene: Scene, database: Database, ann: str, bob: str
) -> None:
    async with open_ledger(database.url) as one, open_ledger(database.url) as two:
        for _ in range(5):
            made = halt(scene, TWO)
            places = zip((one, two), (ann, bob), strict=True)
            left = await asyncio.gather(
                *(
                    asyncio.to_thread(vote, Scene(ledger, scene.tenant), lift_decision(name, made))
                    for ledger, name in places
                )
            )
            assert sorted(left, key=str) == ["1 of 2 approvals of operator", None]
            lift(scene, made)


def test_only_those_with_a_role_halt_and_no_key_is_asked_for(scene: Scene, ann: str) -> None:
    key_of(scene, ann)
    policy = HaltPolicy(may_halt=("operator", "support"))
    with scene.tx() as tx:
        assert halt_calls(tx, ann, "it pays twice", policy=policy).halted_by == ann
    with (
        pytest.raises(HaltError, match="eve has no role operator or support, and may not halt"),
        scene.tx() as tx,
    ):
        halt_calls(tx, "eve", "why not", policy=policy)
    assert len(scene.rows(halts)) == 1


async def test_no_claim_is_made_before_the_lift_has_committed(
    scene: Scene, database: Database, ann: str, bob: str
) -> None:
    made, stop = halt(scene, TWO), asyncio.Event()

    async def claim() -> None:
        async with open_ledger(database.url) as ledger:
            while not stop.is_set():
                await asyncio.to_thread(Scene(ledger, scene.tenant).claim, scene.call())

    claiming = asyncio.create_task(claim())
    for name in (ann, bob):
        with pytest.raises(HaltError):
            await asyncio.to_thread(lift, scene, made)
        await asyncio.to_thread(vote, scene, lift_decision(name, made))
    assert scene.rows(effects) == []
    lifted = await asyncio.to_thread(lift, scene, made)
    while not await asyncio.to_thread(scene.rows, effects):
        pass
    stop.set()
    await claiming
    assert scene.row(effects)["claimed_ms"] >= (lifted.lifted_ms or 0)
