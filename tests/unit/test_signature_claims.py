"""Claims that are not a decision's, or not this one's, are refused, whoever has signed them."""

from __future__ import annotations

from typing import Any

import pytest

from surehand.activities.ledger.people.signatures import matches, verify
from surehand.workflows.contracts.approvals import Decision, DecisionClaims, DecisionOutcome
from tests.unit.tokens import (
    CLAIMS,
    KEY,
    NOW,
    as_json,
    header,
    jwk,
    raw_token,
    refused,
    token,
    with_claims,
)


def test_an_unknown_claim_is_refused() -> None:
    assert "'admin'" in refused(with_claims(admin=True))
    assert "'nbf'" in refused(with_claims(nbf=NOW))


@pytest.mark.parametrize("claim", list(CLAIMS))
def test_a_missing_claim_is_refused(claim: str) -> None:
    assert repr(claim) in refused(with_claims(**{claim: ...}))


@pytest.mark.parametrize("claim", list(CLAIMS))
def test_a_claim_that_stands_there_twice_is_refused(claim: str) -> None:
    payload = as_json(CLAIMS)
    again = as_json({claim: CLAIMS[claim]})[1:-1]
    text = raw_token(as_json(header()), b"{" + again + b"," + payload[1:])
    assert "twice" in refused(text)


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("exp", str(NOW + 300)),
        ("exp", NOW + 300.0),
        ("exp", NOW + 0.5),
        ("exp", True),
        ("exp", None),
        ("exp", [NOW + 300]),
        ("exp", float("inf")),
        ("exp", float("nan")),
        ("iat", True),
        ("iat", False),
        ("iat", str(NOW)),
        ("iat", float(NOW)),
        ("aud", ["surehand:acme"]),
        ("aud", None),
        ("sub", ""),
        ("sub", 7),
        ("sub", "a" * 201),
        ("sub", "ada\x00"),
        ("run_id", 1),
        ("approval_id", None),
        ("params_hash", {"sha256": "0"}),
        ("outcome", "APPROVE"),
        ("outcome", "approve "),
        ("outcome", 1),
        ("outcome", True),
        ("outcome", ["approve"]),
        ("edited", 0),
        ("edited", False),
        ("reason", 0),
        ("jti", "short"),
        ("jti", "a" * 101),
        ("jti", 10**32),
    ],
)
def test_a_claim_of_another_type_is_refused(claim: str, value: Any) -> None:
    assert repr(claim) in refused(with_claims(**{claim: value}))


@pytest.mark.parametrize(
    "payload", [b"", b"null", b"[]", b'"x"', b"1", b"{}", b"\xff", b"[" * 2500, b'{"a":' * 500]
)
def test_a_payload_that_is_no_object_of_claims_is_refused(payload: bytes) -> None:
    refused(raw_token(as_json(header()), payload))


@pytest.mark.parametrize("claim", ["sub", "jti", "run_id"])
def test_half_a_character_which_no_database_takes_is_refused(claim: str) -> None:
    assert "not JSON text" in refused(with_claims(**{claim: "a" * 20 + "\ud800"}))


def test_claims_in_another_encoding_are_refused() -> None:
    refused(raw_token(as_json(header()), as_json(CLAIMS).decode().encode("utf-16")))


@pytest.mark.parametrize("later", [300, 301, 10**9])
def test_an_expired_token_is_refused(later: int) -> None:
    assert refused(token(), now=NOW + later) == "the signature has expired"


def test_a_token_is_taken_until_the_second_before_it_expires() -> None:
    assert verify(token(), jwk(KEY), DecisionClaims, now_s=NOW + 299).exp == NOW + 300


@pytest.mark.parametrize("lasts", [601, 660, 10**9, 10**400])
def test_a_token_that_lasts_longer_than_ten_minutes_is_refused(lasts: int) -> None:
    assert "1 to 600 s" in refused(with_claims(exp=NOW + lasts))


def test_a_token_may_last_ten_minutes() -> None:
    assert verify(with_claims(exp=NOW + 600), jwk(KEY), DecisionClaims, now_s=NOW)


@pytest.mark.parametrize("lasts", [0, -1, -600])
def test_a_token_that_expires_before_it_was_made_is_refused(lasts: int) -> None:
    made = NOW + 1000
    assert "1 to 600 s" in refused(with_claims(iat=made, exp=made + lasts))


def test_a_token_of_the_future_is_refused_beyond_a_minute() -> None:
    assert verify(with_claims(iat=NOW + 60), jwk(KEY), DecisionClaims, now_s=NOW)
    assert "future" in refused(with_claims(iat=NOW + 61))
    # Stored up for later: a valid one of ten minutes that begin tomorrow.
    assert "future" in refused(with_claims(iat=NOW + 86_400, exp=NOW + 87_000))


# The decision that carries it

DECISION = Decision(
    approval_id=CLAIMS["approval_id"],
    params_hash=CLAIMS["params_hash"],
    outcome=DecisionOutcome.APPROVE,
    approver="ada",
)


def signed(**changed: Any) -> DecisionClaims:
    return verify(with_claims(**changed), jwk(KEY), DecisionClaims, now_s=NOW)


def test_claims_fit_the_decision_they_are_made_for() -> None:
    assert matches(signed(), DECISION, "acme/refund-1", "acme") is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "surehand:beta"}, "tenant"),
        ({"aud": "acme"}, "tenant"),
        ({"aud": "surehand:acme "}, "tenant"),
        ({"run_id": "acme/refund-2"}, "run"),
        ({"run_id": "refund-1"}, "run"),
        ({"approval_id": "acme/refund-1/refund/2"}, "approval"),
        ({"params_hash": "sha256:" + "1" * 64}, "params"),
        ({"params_hash": "SHA256:" + "0" * 64}, "params"),
        ({"outcome": "reject"}, "outcome"),
        ({"sub": "bob"}, "approver"),
        ({"sub": "Ada"}, "approver"),
        ({"edited": "sha256:" + "2" * 64}, "new params"),
        ({"edited": ""}, "new params"),
    ],
)
def test_claims_for_anything_else_do_not_fit_the_decision(
    changed: dict[str, Any], reason: str
) -> None:
    why = matches(signed(**changed), DECISION, "acme/refund-1", "acme")
    assert why is not None and reason in why


def test_a_decision_sent_on_to_another_run_or_tenant_does_not_fit() -> None:
    assert matches(signed(), DECISION, "acme/refund-2", "acme") == (
        "the signature is for another run"
    )
    assert matches(signed(), DECISION, "acme/refund-1", "default") == (
        "the signature is for another tenant"
    )
