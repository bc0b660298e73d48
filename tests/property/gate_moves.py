"""What may happen around the gate: policies, people with their keys, votes, and what is between.

Each is drawn for ``test_gate_machine``.
"""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st
from joserfc.jwk import OKPKey

from surehand.verify import kid_of, read_public_key
from surehand.workflows.plan.policy import ApprovalPolicy, ApprovalRule, Escalate
from tests.property.model_gate import LITTLE, MUCH, REQUEST_MS, Asks

RUN: Final = "run-1"
#: Each step wants an effect under a key of its own.
STEPS: Final = ("a", "b")
AMOUNTS: Final = (10, 20, 60)
REQUESTER: Final = "uma"
PEOPLE: Final = ("ann", "bob", REQUESTER)
ROLES: Final = ("fin", "boss")
POLICIES: Final = (
    Asks(),
    Asks(quorum=2),
    Asks(roles=("fin",)),
    Asks(four_eyes=True),
    Asks(quorum=2, roles=("fin",), four_eyes=True),
    Asks(roles=("fin",), may_edit=("boss",)),
    Asks(quorum=2, roles=("fin",), boss_when_late=True),
    Asks(two_for_much=True),
    Asks(roles=("fin", "boss"), none_for_little=True),
)


def key_of(name: str, number: int) -> Ed25519PrivateKey:
    """Return one of a person's keys: the same one in each run of the tests."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"{name}{number}".encode()).digest())


def public_of(key: Ed25519PrivateKey) -> dict[str, Any]:
    return dict(read_public_key(json.dumps(OKPKey.import_key(key.public_key()).as_dict())))


KEYS: Final = {
    (name, n): (kid_of(public_of(key)), public_of(key), key)
    for name in PEOPLE
    for n in (1, 2)
    for key in [key_of(name, n)]
}


def policy_of(asks: Asks) -> ApprovalPolicy:
    rules = [ApprovalRule(when=f"amount >= {MUCH}", quorum=2)] * asks.two_for_much
    rules += [ApprovalRule(when=f"amount < {LITTLE}", required=False)] * asks.none_for_little
    return ApprovalPolicy(
        expires_in=timedelta(milliseconds=REQUEST_MS),
        quorum=asks.quorum,
        roles=asks.roles,
        four_eyes=asks.four_eyes,
        may_edit=asks.may_edit,
        on_expiry=Escalate(escalate="boss") if asks.boss_when_late else "ask_again",
        rules=tuple(rules),
    )


class Vote(NamedTuple):
    """One decision as somebody makes it."""

    approver: str
    outcome: str = "approve"
    how: str = "signed"
    amount: int = 0
    """Of an edit."""
    right_hash: bool = True
    loses: int = 0
    """The number of the transaction that commits without anybody hearing of it; 0: none."""
    reason: str = ""


VOTES: Final = st.builds(
    Vote,
    approver=st.sampled_from([*PEOPLE, *PEOPLE, "Ann", "eve"]),
    outcome=st.sampled_from([*["approve"] * 3, "reject", "edit"]),
    how=st.sampled_from(
        [
            *["signed", "unsigned"] * 2,
            *("by another's key", "by the other key", "used nonce", "an earlier signature"),
        ]
    ),
    amount=st.sampled_from(AMOUNTS),
    right_hash=st.sampled_from([*[True] * 7, False]),
    loses=st.sampled_from([0, 0, 0, 1]),
    reason=st.sampled_from(["", "", "too much"]),
)
#: What becomes of a call that arrives; one that is proven not to have happened frees its key.
ANSWERS: Final = st.sampled_from(["done", "permanent", "permanent", "answer lost"])
RESTART: Final = st.tuples(st.just("restart"), st.sampled_from(POLICIES), st.booleans())
#: A restart after which those who have said yes may not be enough.
STRICTER: Final = st.tuples(
    st.just("restart"),
    st.sampled_from([Asks(four_eyes=True), Asks(roles=("boss",)), Asks(quorum=2)]),
    st.booleans(),
)
#: What administrators, the clock and operators do.
MEANWHILE: Final = st.one_of(
    st.tuples(st.just("take role"), st.sampled_from(PEOPLE), st.sampled_from(ROLES)),
    st.tuples(st.just("give role"), st.sampled_from(PEOPLE), st.sampled_from(ROLES)),
    st.tuples(st.just("change key"), st.sampled_from(PEOPLE), st.sampled_from([1, 1, 2])),
    st.tuples(st.just("minutes pass"), st.sampled_from([4, 6, 11]), st.none()),
    RESTART,
)
