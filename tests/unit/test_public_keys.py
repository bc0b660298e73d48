"""Which public keys are taken, and what is said of the others."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from surehand.activities.ledger.people.public_keys import BadKey, checked, kid_of, public_key
from tests.unit.tokens import KEY, OTHER_KEY, as_json, b64, jwk, kid

PRIME = 2**255 - 19
ORDER_8 = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
#: The y coordinates of the points whose order divides 8, with the other halves of the second two.
SMALL = [0, 1, PRIME - 1, int.from_bytes(ORDER_8, "little")]
SMALL.append(PRIME - SMALL[-1])


def pem(key: Any) -> str:
    public = key.public_key() if hasattr(key, "public_key") else key
    text: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def private_pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return text.decode()


@pytest.mark.parametrize(
    "text",
    [
        pem(KEY),
        f"\n{pem(KEY)}\n\n",
        pem(KEY).replace("\n", "\r\n"),
        json.dumps(jwk(KEY)),
        json.dumps({**jwk(KEY), "kid": "mine", "use": "sig", "alg": "EdDSA"}, indent=2),
    ],
)
def test_a_key_is_the_same_one_from_pem_and_from_jwk(text: str) -> None:
    assert public_key(text) == jwk(KEY)
    assert kid_of(public_key(text)) == kid(KEY)


@pytest.mark.parametrize(
    "text",
    [
        private_pem(KEY),
        private_pem(KEY, PrivateFormat.OpenSSH),
        KEY.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        ).decode(),
        private_pem(KEY) + pem(KEY),
        json.dumps({**jwk(KEY), "d": b64(b"a" * 32)}),
    ],
)
def test_a_private_key_is_refused_as_one(text: str) -> None:
    with pytest.raises(BadKey, match="it is a private key"):
        public_key(text)


@pytest.mark.parametrize(
    "text",
    [
        pem(Ed448PrivateKey.generate()),
        pem(x25519.X25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP256R1())),
        json.dumps({"kty": "oct", "k": "c2VjcmV0"}),
        json.dumps({**jwk(KEY), "crv": "X25519"}),
        json.dumps({"keys": [jwk(KEY)]}),
    ],
)
def test_a_key_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(BadKey, match="not an Ed25519 key"):
        public_key(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== ada",
        pem(KEY) + pem(OTHER_KEY),
        pem(KEY)[:60],
        "-----BEGIN PUBLIC KEY-----\nü\ud800\n-----END PUBLIC KEY-----",
        "{",
        '{"a":' * 100_000,
        "[]",
    ],
)
def test_what_is_not_one_public_key_is_refused(text: str) -> None:
    with pytest.raises(BadKey):
        public_key(text)


def test_a_jwk_with_a_member_twice_is_refused() -> None:
    text = as_json(jwk(KEY)).decode()
    with pytest.raises(BadKey, match="twice"):
        public_key(f'{{"x":"{jwk(OTHER_KEY)["x"]}",{text[1:]}')


@pytest.mark.parametrize("x", [None, 7, "", "=", jwk(KEY)["x"] + "=", jwk(KEY)["x"] + "A", "ü"])
def test_a_key_has_one_spelling(x: Any) -> None:
    with pytest.raises(BadKey, match="32 bytes"):
        checked({**jwk(KEY), "x": x})


@pytest.mark.parametrize("sign", [0, 2**255])
@pytest.mark.parametrize("y", SMALL)
def test_a_key_that_anybody_can_sign_for_is_refused(y: int, sign: int) -> None:
    point = (y + sign).to_bytes(32, "little")
    with pytest.raises(BadKey, match="anybody can sign for"):
        checked({**jwk(KEY), "x": b64(point)})


@pytest.mark.parametrize("y", [PRIME, PRIME + 1, PRIME + 18])
def test_a_point_written_in_a_second_way_is_refused(y: int) -> None:
    with pytest.raises(BadKey, match="RFC 8032"):
        checked({**jwk(KEY), "x": b64(y.to_bytes(32, "little"))})


def test_the_bare_primitive_takes_a_forged_signature_under_such_a_key() -> None:
    # Why they are refused: the neutral element as key and as R, and 0 as S, fit any message.
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + b"\0" * 32, b"approve everything")


def test_the_key_id_is_the_digest_of_the_three_members_alone() -> None:
    text = f'{{"crv":"Ed25519","kty":"OKP","x":"{jwk(KEY)["x"]}"}}'
    assert kid_of({**jwk(KEY), "kid": "x", "use": "sig"}) == b64(
        hashlib.sha256(text.encode()).digest()
    )
