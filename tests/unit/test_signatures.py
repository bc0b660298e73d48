"""What somebody who wants a signed decision to count may try, and that it is refused."""

from __future__ import annotations

import hashlib
import hmac
import string
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import assume, example, given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey

from surehand.activities.ledger.people.public_keys import kid_of
from surehand.activities.ledger.people.signatures import (
    LONGEST_TOKEN,
    BadSignature,
    header_kid,
    matches,
    verify,
)
from surehand.process.ciphers import signature_registry
from surehand.workflows.contracts.approvals import Decision, DecisionClaims, DecisionOutcome
from tests.unit.tokens import (
    CLAIMS,
    KEY,
    NOW,
    OTHER_KEY,
    as_json,
    b64,
    header,
    jwk,
    kid,
    raw_public,
    raw_token,
    refused,
    token,
    unpadded,
    with_claims,
)

#: RFC 8037, appendices A.1, A.3 and A.4: key, thumbprint, and a JWS of it.
RFC_D = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"
RFC_KID = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
RFC_JWS = (
    "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc."
    "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
)
#: The order of Ed25519's group: adding it to a signature's S makes another spelling of it.
ORDER = 2**252 + 27742317777372353535851937790883648493


def test_a_token_made_by_hand_is_taken_with_its_claims() -> None:
    assert header_kid(token(), DecisionClaims.typ) == kid(KEY)
    assert verify(token(), jwk(KEY), DecisionClaims, now_s=NOW) == DecisionClaims(
        **{**CLAIMS, "outcome": DecisionOutcome.APPROVE}
    )


def test_the_algorithm_is_that_of_rfc_8037() -> None:
    key = Ed25519PrivateKey.from_private_bytes(unpadded(RFC_D))
    signed, _, signature = RFC_JWS.rpartition(".")

    assert kid_of(jwk(key)) == RFC_KID == kid(key)
    assert b64(key.sign(signed.encode())) == signature
    taken = jws.deserialize_compact(
        RFC_JWS, OKPKey.import_key({**jwk(key)}), registry=signature_registry()
    )
    assert taken.payload == b"Example of Ed25519 signing"
    made = jws.serialize_compact(
        {"alg": "EdDSA"}, taken.payload, OKPKey.import_key(key), registry=signature_registry()
    )
    assert made == RFC_JWS


def test_a_key_on_another_curve_signs_nothing_under_the_same_name() -> None:
    other = OKPKey.import_key(Ed448PrivateKey.generate())
    with pytest.raises(JoseError, match="Ed25519"):
        jws.serialize_compact({"alg": "EdDSA"}, b"", other, registry=signature_registry())


def test_the_thumbprint_here_is_that_of_rfc_7638() -> None:
    assert hashlib.sha256(
        b'{"crv":"Ed25519","kty":"OKP","x":"' + jwk(KEY)["x"].encode() + b'"}'
    ).digest() == unpadded(kid_of(jwk(KEY)))


# The key
def test_the_key_id_of_another_key_is_refused() -> None:
    # Under the name of the key, but made with another one; then the key is also the other one.
    forged = token(head=header(KEY), key=OTHER_KEY)
    assert refused(forged) == "the signature does not fit what it signs"
    assert refused(forged, jwk(OTHER_KEY)) == "the signature is made with another key"


def test_a_good_token_is_refused_under_another_key() -> None:
    assert refused(token(), jwk(OTHER_KEY)) == "the signature is made with another key"


@pytest.mark.parametrize(
    "changed",
    [
        {"kty": "EC"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"crv": "Ed448"},
        {"crv": "X25519"},
        {"x": ""},
        {"x": None},
        {"x": jwk(KEY)["x"] + "="},
        {"x": jwk(KEY)["x"][:-1]},
        {"d": b64(b"a" * 32)},
    ],
)
def test_a_key_on_record_of_another_kind_verifies_nothing(changed: dict[str, Any]) -> None:
    assert "cannot be used" in refused(token(), {**jwk(KEY), **changed})


def test_a_key_on_record_that_is_no_point_of_the_curve_verifies_nothing() -> None:
    off_the_curve = {**jwk(KEY), "x": b64((2).to_bytes(32, "little"))}
    head = {**header(), "kid": kid_of(off_the_curve)}
    assert refused(token(head=head), off_the_curve) == "the signature does not fit what it signs"


def test_what_else_a_key_on_record_says_of_itself_changes_nothing() -> None:
    more = {"alg": "HS256", "use": "enc", "key_ops": ["sign"], "kid": "x"}
    assert verify(token(), {**jwk(KEY), **more}, DecisionClaims, now_s=NOW).sub == "ada"


# The form
@pytest.mark.parametrize(
    "text", ["", ".", "..", "...", "a", "a.b.c", "ü.ü.ü", "\x00", "{}", "null"]
)
def test_what_is_no_token_at_all_is_refused(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("kept", [0, 1, 10, -4, -1])
def test_a_token_cut_off_in_any_part_is_refused(part: int, kept: int) -> None:
    parts = token().split(".")
    parts[part] = parts[part][:kept]
    refused(".".join(parts))


@pytest.mark.parametrize(
    "end", [".", ".AAAA", "A", "AA", "AAAA", "=", "==", " ", "\n", "\x00", "ü"]
)
def test_a_token_with_something_behind_it_is_refused(end: str) -> None:
    refused(token() + end)


@pytest.mark.parametrize("before", [".", "A", " ", "\n", "Bearer ", "\ufeff"])
def test_a_token_with_something_in_front_of_it_is_refused(before: str) -> None:
    refused(before + token())


def test_a_signature_of_another_kind_of_jose_is_refused() -> None:
    for more in (".AAAA", ".AAAA.AAAA"):  # five parts: encrypted
        assert "three parts" in refused(token() + more)
    refused(as_json({"payload": b64(as_json(CLAIMS)), "signatures": []}).decode())


def test_a_huge_token_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadSignature, match="longer than 4096"):
        header_kid("." * (LONGEST_TOKEN + 1), DecisionClaims.typ)
    assert "longer than 4096" in refused(with_claims(approval_id="a" * LONGEST_TOKEN))
    assert "longer than 4096" in refused("A" * 50_000_000)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_base64_in_another_spelling_is_refused(part: int) -> None:
    # No part is a multiple of three bytes, so that bits of each last character do not count.
    head, payload = as_json(header()), as_json(CLAIMS)
    spaced = (text + b" " * (len(text) % 3 == 0) for text in (head, payload))
    parts = raw_token(*spaced).split(".")
    assert verify(".".join(parts), jwk(KEY), DecisionClaims, now_s=NOW)
    assert 0 not in [len(each) % 4 for each in parts]
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    last = alphabet.index(parts[part][-1])
    others = {
        parts[part] + "=" * (-len(parts[part]) % 4),
        parts[part][:-1] + alphabet[last ^ 1],
        parts[part][:8] + "\n" + parts[part][8:],
        parts[part] + "\n",
        " " + parts[part],
        parts[part].replace("-", "+").replace("_", "/"),
    } - {parts[part]}
    for other in others:
        refused(".".join([*parts[:part], other, *parts[part + 1 :]]))


# The signature
@pytest.mark.parametrize(
    "signature",
    [b"", b"\0" * 64, b"\1" + b"\0" * 63, b"\xff" * 64, b"\0" * 32, b"\0" * 65, b"\0" * 700],
)
def test_a_signature_of_nothing_is_refused(signature: bytes) -> None:
    signed = token().rpartition(".")[0]
    assert refused(f"{signed}.{b64(signature)}") == "the signature does not fit what it signs"


def test_a_second_signature_worked_out_from_a_good_one_is_refused() -> None:
    signed, _, signature = token().rpartition(".")
    raw = unpadded(signature)
    more = int.from_bytes(raw[32:], "little") + ORDER
    refused(f"{signed}.{b64(raw[:32] + more.to_bytes(32, 'little'))}")


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=255))
@example(len(token()) - 1, ord("B"))
def test_a_good_token_with_any_one_byte_changed_is_refused(place: int, byte: int) -> None:
    raw = bytearray(token().encode())
    assume(raw[place % len(raw)] != byte)
    raw[place % len(raw)] = byte
    refused(raw.decode("latin-1"))


@given(st.text(max_size=60) | st.binary(max_size=60).map(b64))
def test_any_text_is_refused_as_a_header_a_payload_and_a_signature(text: str) -> None:
    head, payload, signature = token().split(".")
    assume(text not in (head, payload, signature))
    for forged in (
        text,
        f"{text}.{payload}.{signature}",
        f"{head}.{text}.{signature}",
        f"{head}.{payload}.{text}",
    ):
        refused(forged)


@pytest.mark.parametrize("none", ["none", "None", "NONE", ""])
@pytest.mark.parametrize("signature", ["", b64(b"\0" * 64)])
def test_an_algorithm_of_none_is_refused(none: str, signature: str) -> None:
    signed = f"{b64(as_json(header(alg=none)))}.{b64(as_json(CLAIMS))}"
    assert refused(f"{signed}.{signature}") == "the signature's algorithm is not EdDSA"


@pytest.mark.parametrize("secret", [raw_public(KEY), b64(raw_public(KEY)).encode()])
def test_hs256_with_the_public_key_as_its_secret_is_refused(secret: bytes) -> None:
    signed = f"{b64(as_json(header(alg='HS256')))}.{b64(as_json(CLAIMS))}"
    mac = hmac.digest(secret, signed.encode(), "sha256")
    assert refused(f"{signed}.{b64(mac)}") == "the signature's algorithm is not EdDSA"


def test_es256_is_refused_also_with_its_own_key() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = ECKey.import_key(key.public_key())
    head = {**header(), "alg": "ES256", "kid": public.thumbprint()}
    signed = f"{b64(as_json(head))}.{b64(as_json(CLAIMS))}"
    r, s = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
    whole = f"{signed}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    assert jws.deserialize_compact(whole, public, algorithms=["ES256"])  # the attack is well made
    assert refused(whole, {**public.as_dict()}) == "the signature's algorithm is not EdDSA"


@pytest.mark.parametrize("algorithm", ["Ed25519", "eddsa", "EdDSA ", None, True, ["EdDSA"], {}])
def test_another_name_of_the_algorithm_is_refused(algorithm: Any) -> None:
    assert "algorithm" in refused(token(head=header(alg=algorithm)))


@pytest.mark.parametrize("typ", ["JWT", "", "Surehand-Decision+JWS", None, ["JWT"]])
def test_a_token_made_for_something_else_is_refused(typ: Any) -> None:
    assert "type is not" in refused(token(head=header(typ=typ)))


@pytest.mark.parametrize("left_out", ["alg", "typ", "kid"])
def test_a_header_without_one_of_its_members_is_refused(left_out: str) -> None:
    head = {name: value for name, value in header().items() if name != left_out}
    refused(token(head=head))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jwk", jwk(OTHER_KEY)),
        ("jku", "https://evil.example/keys"),
        ("x5u", "https://evil.example/cert"),
        ("x5c", ["MIIB"]),
        ("x5t", "abc"),
        ("crit", ["exp"]),
        ("crit", []),
        ("b64", False),
        ("b64", True),
        ("cty", "JWT"),
        ("zip", "DEF"),
        ("exp", NOW + 300),
    ],
)
def test_a_header_with_anything_more_is_refused(name: str, value: Any) -> None:
    text = token(head=header(**{name: value}))
    with pytest.raises(BadSignature, match="exactly alg, kid and typ"):
        header_kid(text, DecisionClaims.typ)
    refused(text)


def test_a_payload_that_is_not_encoded_is_refused() -> None:
    # RFC 7797: with b64=false the signature covers the payload as it stands.
    head = b64(as_json(header(b64=False, crit=["b64"])))
    payload = b64(as_json(CLAIMS))
    signature = KEY.sign(f"{head}.{payload}".encode())
    refused(f"{head}.{payload}.{b64(signature)}")


def test_the_attackers_own_key_in_the_header_is_not_used() -> None:
    head = header(OTHER_KEY, jwk=jwk(OTHER_KEY))
    refused(token(head=head, key=OTHER_KEY))
    refused(token(head={**head, "kid": kid(KEY)}, key=OTHER_KEY))


@pytest.mark.parametrize(
    "value",
    ["", "ada", "' OR 1=1 --", "../key", "\x00" * 43, "ü" * 43, "a" * 42, "a" * 44, 1, None, ["a"]],
)
def test_a_key_id_that_is_no_thumbprint_is_not_looked_up(value: Any) -> None:
    with pytest.raises(BadSignature, match="key id"):
        header_kid(token(head=header(kid=value)), DecisionClaims.typ)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"{",
        b"[]",
        b'"EdDSA"',
        b"null",
        b"\xff\xfe",
        b"[" * 2900,
        as_json(header()).decode().encode("utf-16"),
        as_json(header()) + b"x",
        b"\xef\xbb\xbf" + as_json(header()),
    ],
)
def test_a_header_that_is_no_json_object_is_refused(head: bytes) -> None:
    refused(raw_token(head, as_json(CLAIMS)))


def test_a_header_with_a_member_twice_is_refused() -> None:
    head = as_json(header())
    for member in (b'"alg":"none"', b'"alg":"EdDSA"', b'"kid":"x"'):
        assert "twice" in refused(raw_token(b"{" + member + b"," + head[1:], as_json(CLAIMS)))


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
def test_other_claims_do_not_fit_the_decision(changed: dict[str, Any], reason: str) -> None:
    why = matches(signed(**changed), DECISION, "acme/refund-1", "acme")
    assert why is not None and reason in why


def test_a_decision_sent_on_to_another_run_or_tenant_does_not_fit() -> None:
    assert matches(signed(), DECISION, "acme/refund-2", "acme") == (
        "the signature is for another run"
    )
    assert matches(signed(), DECISION, "acme/refund-1", "default") == (
        "the signature is for another tenant"
    )
