"""G3: policies that apply to a call add up; none weakens another, nor the proof it asks for."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from surehand.activities.ledger.approvals.votes import (
    Vote,
    may_edit,
    missing_votes,
    refuse_vote,
    vote_helps,
)
from surehand.verify import BadKey, Passkey, read_key_file
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.plan.policy import (
    ASKED_PROOFS,
    ApprovalPolicy,
    ApprovalRule,
    AskedProof,
    Needs,
    combine,
)
from surehand.workflows.run.run_views import how_to_decide
from tests.passkeys import Authenticator
from tests.unit.tokens import KEY, jwk

STRICT: dict[str, Any] = {"quorum": 2, "roles": ["cfo"]}
INTERN = Vote("ian", frozenset({"intern"}))
CFOS = [Vote("cleo", frozenset({"cfo"})), Vote("carl", frozenset({"cfo"}))]


def needs_of(*policies: dict[str, Any], holds: bool = False) -> Needs:
    found = combine([ApprovalPolicy.model_validate(one) for one in policies], lambda _: holds)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "own", [{}, {"on_expiry": "ask_again"}, {"on_expiry": {"escalate": "ceo"}}]
)
def test_a_plans_escalation_takes_nothing_from_the_tool(own: dict[str, Any]) -> None:
    lax = {"on_expiry": {"escalate": "intern"}, "expires_in": "1s"}

    asked = needs_of(lax, {**STRICT, **own}).escalated("intern")

    assert missing_votes(asked.requirements, [INTERN], ()) is not None
    assert missing_votes(asked.requirements, CFOS, ()) is not None


def test_the_policy_that_escalates_is_satisfied_by_its_own_role_alone() -> None:
    asked = needs_of({**STRICT, "on_expiry": {"escalate": "ceo"}}).escalated("ceo")

    assert missing_votes(asked.requirements, [Vote("cora", frozenset({"ceo"}))], ()) is None
    assert missing_votes(asked.requirements, CFOS, ()) is not None


def test_a_policy_for_everybody_lets_nobody_else_reject_or_edit_what_another_guards() -> None:
    asked = needs_of({}, STRICT).requirements

    assert refuse_vote(asked, INTERN, ()) is not None
    assert not may_edit(asked, INTERN.roles)
    assert missing_votes(asked, CFOS, ()) is None
    assert missing_votes(asked, CFOS[:1], ()) is not None


def test_a_quorum_without_roles_is_not_lost_beside_a_smaller_one_with_roles() -> None:
    asked = needs_of({"quorum": 3}, STRICT).requirements

    assert missing_votes(asked, CFOS, ()) is not None
    assert missing_votes(asked, [*CFOS, INTERN], ()) is None


def test_the_earliest_end_of_all_policies_counts() -> None:
    assert needs_of({"expires_in": "1h"}, {"expires_in": "1d"}).expires_in == timedelta(hours=1)


def test_no_policy_lets_votes_in_advance_count_where_another_that_asks_refuses_them() -> None:
    assert not needs_of({}, {"standing": False}).standing
    assert not needs_of({"standing": False}).escalated("ceo").standing
    assert needs_of({}, {"roles": ["cfo"]}).standing


def test_a_policy_that_lets_the_call_pass_refuses_it_no_votes_in_advance() -> None:
    small = {"standing": False, "rules": [{"when": "small", "required": False}]}
    policies = [ApprovalPolicy.model_validate(one) for one in (small, {})]

    for is_small in (True, False):
        found = combine(policies, lambda _, is_small=is_small: is_small)
        assert found is not None
        assert found.standing is is_small


@pytest.mark.parametrize(
    ("votes", "one_more", "does"),
    [
        ([], CFOS[0], True),
        ([], INTERN, False),
        (CFOS[:1], CFOS[0], False),
        (CFOS[:1], CFOS[1], True),
        (CFOS, Vote("cara", frozenset({"cfo"})), False),
        ([], Vote("REX", frozenset({"cfo"})), False),
    ],
)
def test_a_vote_helps_where_it_is_missing(votes: list[Vote], one_more: Vote, does: bool) -> None:
    asked = needs_of({**STRICT, "four_eyes": True})

    assert vote_helps(asked.requirements, votes, one_more, ["rex"]) is does


def test_policies_ask_for_the_proofs_that_there_are_in_one_order() -> None:
    assert list(Assurance) == [Assurance(one) for one in ASKED_PROOFS]
    assert get_args(AskedProof) == ASKED_PROOFS


@pytest.mark.parametrize(("low", "high"), [*itertools.combinations(Assurance, 2)])
def test_the_stricter_of_two_proofs_satisfies_both(low: Assurance, high: Assurance) -> None:
    assert low.stricter(high) is high.stricter(low) is high
    assert high.satisfies(low) and not low.satisfies(high)


def test_no_policy_weakens_the_proof_that_another_asks_for() -> None:
    for several in itertools.permutations(({"proof": "passkey"}, {}, {"proof": "signed"})):
        assert needs_of(*several).proof == "passkey"
    escalating = needs_of({"proof": "passkey", "on_expiry": {"escalate": "ceo"}})
    assert escalating.escalated("ceo").proof == "passkey"


def test_a_rule_asks_for_a_proof_of_its_own() -> None:
    large = {"when": "amount > 1000", "proof": "device_passkey"}
    policy = {"proof": "signed", "rules": [large]}

    stricter = {"rules": [{"when": "small", "quorum": 2}], "proof": "passkey"}
    assert needs_of(policy, holds=True).proof == "device_passkey"
    assert needs_of(policy).proof == "signed"
    assert needs_of(stricter, holds=True).proof == "passkey"


def test_a_policy_that_lets_a_call_pass_asks_for_no_proof() -> None:
    free = {"rules": [{"when": "small", "required": False}], "proof": "passkey"}

    assert needs_of(free, {"rules": [], "proof": "signed"}, holds=True).proof == "signed"


def test_a_proof_that_there_is_not_is_no_policy() -> None:
    for wrong in ("passkeys", "PASSKEY", "", True, None):
        with pytest.raises(ValidationError):
            ApprovalPolicy(proof=wrong)
    with pytest.raises(ValidationError):
        ApprovalRule(when="true", proof="open or signed")  # type: ignore[arg-type]


@pytest.mark.parametrize("assurance", [Assurance.PASSKEY, Assurance.DEVICE_PASSKEY])
def test_the_web_ui_pastes_nothing_for_passkeys(assurance: Assurance) -> None:
    request = ApprovalRequest(
        approval_id="r/s/1", step_id="s", tool="t", version="1", params={}, params_hash="sha256:1",
        description="", requested_by="bob", expires_at=datetime(2027, 1, 1, tzinfo=UTC), undo="",
        assurance=assurance,
    )  # fmt: skip

    [line] = how_to_decide("r", request)

    assert "have to be signed by a passkey" in line


# The file of a passkey's key
@pytest.mark.parametrize("kind", ["ES256", "EdDSA"])
def test_a_page_s_file_is_a_passkey_s_key(kind: str) -> None:
    made = Authenticator(device_bound=True) if kind == "ES256" else Authenticator(KEY)

    found = read_key_file(json.dumps(made.file))

    id_ = made.file["credential_id"]
    assert (found.kid, found.jwk) == (made.kid, made.jwk)
    assert found.passkey == Passkey(id_, made.rp_id, made.device_bound)


def test_a_key_in_any_other_file_is_no_passkey_s() -> None:
    assert read_key_file(json.dumps(jwk(KEY))).passkey is None


SPOILT: dict[str, Any] = {
    "kind": ["passkey", None, 1],
    "credential_id": ["", "a b", "A=", "A" * 1366, None, 7],
    "rp_id": ["", "Example.com", "https://example.com", "example.com:8", ".com", "a..b", None,
              "x" * 254, "-a.test", "example.com\n"],
    "device_bound": [None, "true", 0, 1],
    "public_key": [None, [], "x", {}],
}  # fmt: skip


@pytest.mark.parametrize(("member", "wrong"), [(m, w) for m, some in SPOILT.items() for w in some])
def test_a_passkey_s_file_with_a_wrong_member_is_refused(member: str, wrong: Any) -> None:
    with pytest.raises(BadKey) as why:
        read_key_file(json.dumps({**Authenticator().file, member: wrong}))
    assert "\n" not in str(why.value)


@pytest.mark.parametrize("member", Authenticator().file)
def test_a_passkey_s_file_has_exactly_its_members(member: str) -> None:
    file = Authenticator().file
    with pytest.raises(BadKey):
        read_key_file(json.dumps({name: value for name, value in file.items() if name != member}))
    with pytest.raises(BadKey):
        read_key_file(json.dumps({**file, "user": "ana"}))
    again = f'{{"{member}": {json.dumps(file[member])}, ' + json.dumps(file)[1:]
    with pytest.raises(BadKey, match="twice"):
        read_key_file(again)


GOOD = Authenticator().jwk


@pytest.mark.parametrize(
    ("public", "says"),
    [
        ({**GOOD, "d": GOOD["x"]}, "private"),
        ({**GOOD, "crv": "P-384"}, "no P-256, Ed25519 or RSA"),
        ({**GOOD, "crv": "secp256k1"}, "no P-256, Ed25519 or RSA"),
        ({**GOOD, "kty": "oct"}, "no P-256, Ed25519 or RSA"),
        ({**GOOD, "kty": "RSA"}, "no RSA key"),
        ({"kty": "RSA", "e": "AQAB", "n": "_" * 340}, "no RSA key"),  # 255 bytes
        ({"kty": "RSA", "e": "AQAB", "n": "_" * 684}, "no RSA key"),  # 513
        ({"kty": "RSA", "e": "AQAB", "n": "f" + "_" * 343}, "no RSA key"),  # 2047 bits
        ({"kty": "RSA", "e": "AQAB", "n": "_" * 343 + "-"}, "no RSA key"),  # even
        ({"kty": "RSA", "e": "Aw", "n": "_" * 344}, "no RSA key"),
        ({"kty": "RSA", "e": "AQAB", "n": "_" * 344, "d": "_"}, "private"),
        ({**GOOD, "y": GOOD["x"]}, "no point of the curve"),
        ({**GOOD, "x": "A" * 43, "y": "A" * 43}, "no point of the curve"),
        ({**GOOD, "x": "_" * 42 + "8"}, "no point of the curve"),
        ({**GOOD, "x": GOOD["x"][:-2]}, "32 bytes"),
        ({**GOOD, "y": None}, "32 bytes"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "A" * 43}, "anybody can sign for"),
        ({"kty": "OKP", "crv": "X25519", "x": "A" * 43}, "not an Ed25519 key"),
    ],
)
def test_a_passkey_s_key_that_cannot_be_used_is_refused(public: dict[str, Any], says: str) -> None:
    with pytest.raises(BadKey, match=says):
        read_key_file(json.dumps({**Authenticator().file, "public_key": public}))
