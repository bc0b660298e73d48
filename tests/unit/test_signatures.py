"""What somebody who wants a decision to count may try, and that it is refused."""

from __future__ import annotations

import hashlib
import string
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, example, given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from surehand.activities.ledger.people.public_keys import kid_of
from surehand.activities.ledger.people.signatures import (
    LONGEST_TOKEN,
    BadSignature,
    header_kid,
    verify,
)
from surehand.process.ciphers import signature_registry
from surehand.workflows.contracts.approvals import DecisionClaims, DecisionOutcome
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


def test_a_good_token_that_names_another_key_is_refused() -> None:
    assert refused(token(head=header(OTHER_KEY), key=KEY)) == (
        "the signature is made with another key"
    )


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
def test_a_key_on_record_that_is_not_a_public_ed25519_key_verifies_nothing(
    changed: dict[str, Any],
) -> None:
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


def test_a_token_without_a_part_is_refused() -> None:
    head, payload, signature = token().split(".")
    for text in (f"{head}.{payload}", f"{payload}.{signature}", f"{head}..{signature}"):
        refused(text)


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


def test_a_payload_changed_in_one_character_is_refused() -> None:
    head, payload, signature = token().split(".")
    changed = as_json(CLAIMS).replace(b'"ada"', b'"adb"')
    refused(f"{head}.{b64(changed)}.{signature}")
    assert b64(changed) != payload


def test_the_signature_of_another_token_is_refused() -> None:
    signed = token().rpartition(".")[0]
    refused(f"{signed}.{with_claims(sub='bob').rpartition('.')[2]}")


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
