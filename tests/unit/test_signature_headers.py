"""A signed decision whose header somebody has made to his liking is refused."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from joserfc import jws
from joserfc.jwk import ECKey

from surehand.activities.ledger.people.signatures import BadSignature, header_kid
from surehand.workflows.contracts.approvals import DecisionClaims
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
)


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
