"""Which keys are taken, and what somebody may try who wants a signed decision to count."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import string
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import assume, example, given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from surehand.activities.ledger.people.signatures import find_mismatch, verify_in_time
from surehand.client.messages import signature_registry
from surehand.verify import (
    LONGEST_TOKEN,
    BadKey,
    BadSignature,
    check_jwk,
    header_kid,
    kid_of,
    read_public_key,
)
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
    assert verify_in_time(token(), jwk(KEY), DecisionClaims, now_s=NOW) == DecisionClaims(
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


# The key
def test_the_key_id_of_another_key_is_refused() -> None:
    # Under the name of the key, but made with another one; then the key is also the other one.
    forged = token(head=header(KEY), key=OTHER_KEY)
    assert refused(forged) == MISFIT
    assert refused(forged, jwk(OTHER_KEY)) == "the signature is made with another key"


def test_a_key_on_record_of_another_kind_verifies_nothing() -> None:
    x = jwk(KEY)["x"]
    others: list[dict[str, Any]] = [{"x": other} for other in ("", None, x + "=", x[:-1])]
    others += [{"crv": "Ed448"}, {"crv": "X25519"}, {"d": b64(b"a" * 32)}]
    for changed in [*others, {"kty": "EC"}, {"kty": "oct", "k": "c2VjcmV0"}]:
        assert "cannot be used" in refused(token(), {**jwk(KEY), **changed})


def test_a_key_on_record_that_is_no_point_of_the_curve_verifies_nothing() -> None:
    off_the_curve = {**jwk(KEY), "x": b64((2).to_bytes(32, "little"))}
    head = {**header(), "kid": kid_of(off_the_curve)}
    assert refused(token(head=head), off_the_curve) == MISFIT


def test_what_else_a_key_on_record_says_of_itself_changes_nothing() -> None:
    more = {"alg": "HS256", "use": "enc", "key_ops": ["sign"], "kid": "x"}
    assert verify_in_time(token(), {**jwk(KEY), **more}, DecisionClaims, now_s=NOW).sub == "ada"


# The form
def cut_off() -> list[str]:
    parts = token().split(".")
    return [
        ".".join([*parts[:part], parts[part][:kept], *parts[part + 1 :]])
        for part in range(3)
        for kept in (0, 1, 10, -4, -1)
    ]


def bad_heads(name: str, *values: Any) -> list[str]:
    return [token(head=header(**{name: value})) for value in values]


def without(name: str) -> str:
    return token(head={key: value for key, value in header().items() if key != name})


def twice(text: bytes, *members: bytes) -> list[bytes]:
    """Return the text of an object with each of the members in front of its own."""
    return [b"{" + member + b"," + text[1:] for member in members]


def unsigned(signature: str) -> list[str]:
    heads = [b64(as_json(header(alg=none))) for none in ("none", "None", "NONE", "")]
    return [f"{head}.{b64(as_json(CLAIMS))}.{signature}" for head in heads]


HEAD, PAYLOAD = as_json(header()), as_json(CLAIMS)
SIGNED = token().rpartition(".")[0]
MISFIT = "the signature does not fit what it signs"
NOT_EDDSA = "the signature's algorithm is not EdDSA"
BEYOND = "1 to 600 s"
ENDS = (".", ".AAAA", "A", "AA", "AAAA", "=", "==", " ", "\n", "\0", "ü")
NO_SIGNATURES = (
    *(b"\0" * size for size in (0, 32, 64, 65, 700)), b"\1" + b"\0" * 63, b"\xff" * 64
)  # fmt: skip
NO_HEADERS = (
    b"", b"{", b"[]", b'"EdDSA"', b"null", b"\xff\xfe", b"[" * 2900, HEAD + b"x",
    HEAD.decode().encode("utf-16"), b"\xef\xbb\xbf" + HEAD,
)  # fmt: skip
NO_PAYLOADS = (
    b"", b"null", b"[]", b'"x"', b"1", b"{}", b"\xff", b"[" * 2500, b'{"a":' * 500,
    PAYLOAD.decode().encode("utf-16"),
)  # fmt: skip
MEMBERS: dict[str, list[Any]] = {
    "jwk": [jwk(OTHER_KEY)], "jku": ["https://evil.example/keys"], "cty": ["JWT"],
    "x5u": ["https://evil.example/cert"], "x5c": [["MIIB"]], "x5t": ["abc"], "zip": ["DEF"],
    "crit": [["exp"], []], "b64": [False, True], "exp": [NOW + 300],
}  # fmt: skip
AGAIN = (b'"alg":"none"', b'"alg":"EdDSA"', b'"kid":"x"')
CLAIMS_AGAIN = [as_json({claim: value})[1:-1] for claim, value in CLAIMS.items()]
SOON, OTHER_TYPE = NOW + 1000, "Surehand-Decision+JWS"
HALF, TEXTS, LONG = "a" * 20 + "\ud800", ("sub", "jti", "run_id"), (601, 660, 10**9, 10**400)
#: What each has to say, and what must be refused with that.
REFUSED: dict[str, tuple[str, list[str]]] = {
    "no token": ("", ["", ".", "..", "...", "a", "a.b.c", "ü.ü.ü", "\x00", "{}", "null"]),
    "cut off": ("", cut_off()),
    "more behind": ("", [token() + end for end in ENDS]),
    "more in front": ("", [one + token() for one in (".", "A", " ", "\n", "Bearer ", "\ufeff")]),
    "encrypted": ("three parts", [token() + more for more in (".AAAA", ".AAAA.AAAA")]),
    "json": ("", [as_json({"payload": b64(PAYLOAD), "signatures": []}).decode()]),
    "a signature of nothing": (MISFIT, [f"{SIGNED}.{b64(made)}" for made in NO_SIGNATURES]),
    "no algorithm": (NOT_EDDSA, [*unsigned(""), *unsigned(b64(b"\0" * 64))]),
    "another algorithm": ("algorithm", bad_heads("alg", "Ed25519", "eddsa", "EdDSA ", None, True)),
    "several algorithms": ("algorithm", bad_heads("alg", ["EdDSA"], {})),
    "another type": ("type is not", bad_heads("typ", "JWT", "", OTHER_TYPE, None, ["JWT"])),
    "less in the header": ("", [without(name) for name in ("alg", "typ", "kid")]),
    "no header": ("", [raw_token(head, PAYLOAD) for head in NO_HEADERS]),
    "a member twice": ("twice", [raw_token(head, PAYLOAD) for head in twice(HEAD, *AGAIN)]),
    "an unknown claim": ("'admin'", [with_claims(admin=True)]),
    "a claim of others": ("'nbf'", [with_claims(nbf=NOW)]),
    "a claim twice": ("twice", [raw_token(HEAD, one) for one in twice(PAYLOAD, *CLAIMS_AGAIN)]),
    "no claims": ("", [raw_token(HEAD, payload) for payload in NO_PAYLOADS]),
    "half a character": ("not JSON text", [with_claims(**{name: HALF}) for name in TEXTS]),
    "lasting too long": (BEYOND, [with_claims(exp=NOW + lasts) for lasts in LONG]),
    "over at once": (BEYOND, [with_claims(iat=SOON, exp=SOON - less) for less in (0, 1, 600)]),
    # Stored up for later: a valid one of ten minutes that begin tomorrow.
    "of tomorrow": ("future", [with_claims(iat=NOW + 86_400, exp=NOW + 87_000)]),
    "of the future": ("future", [with_claims(iat=NOW + 61)]),
}


@pytest.mark.parametrize(("says", "texts"), REFUSED.values(), ids=REFUSED)
def test_a_token_is_refused_that_is(says: str, texts: list[str]) -> None:
    for text in texts:
        assert says in refused(text)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_header_with_anything_more_is_refused(name: str) -> None:
    for text in bad_heads(name, *MEMBERS[name]):
        with pytest.raises(BadSignature, match="exactly alg, kid and typ"):
            header_kid(text, DecisionClaims.typ)
        refused(text)


#: Values that a claim has not.
WRONG: dict[str, list[Any]] = {
    "exp": [str(NOW + 300), NOW + 300.0, NOW + 0.5, True, None, [NOW + 300], math.inf, math.nan],
    "iat": [True, False, str(NOW), float(NOW)],
    "aud": [["surehand:acme"], None],
    "sub": ["", 7, "a" * 201, "ada\x00"],
    "run_id": [1],
    "approval_id": [None],
    "params_hash": [{"sha256": "0"}],
    "outcome": ["APPROVE", "approve ", 1, True, ["approve"]],
    "edited": [0, False],
    "reason": [0],
    "jti": ["short", "a" * 101, 10**32],
}


@pytest.mark.parametrize("claim", sorted({*WRONG, *CLAIMS}))
def test_a_wrong_or_a_missing_claim_is_named(claim: str) -> None:
    for value in WRONG.get(claim, []) + [...] * (claim in CLAIMS):
        assert repr(claim) in refused(with_claims(**{claim: value}))


def test_a_huge_token_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadSignature, match="longer than 4096"):
        header_kid("." * (LONGEST_TOKEN + 1), DecisionClaims.typ)
    assert "longer than 4096" in refused(with_claims(approval_id="a" * LONGEST_TOKEN))
    assert "longer than 4096" in refused("A" * 50_000_000)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_base64_in_another_spelling_is_refused(part: int) -> None:
    # No part is a multiple of three bytes, so that bits of each last character do not count.
    head, payload = as_json(header()), as_json(CLAIMS)
    head, payload = (text + b" " * (len(text) % 3 == 0) for text in (head, payload))
    parts = raw_token(head, payload).split(".")
    assert verify_in_time(".".join(parts), jwk(KEY), DecisionClaims, now_s=NOW)
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


@pytest.mark.parametrize("secret", [raw_public(KEY), b64(raw_public(KEY)).encode()])
def test_hs256_with_the_public_key_as_its_secret_is_refused(secret: bytes) -> None:
    signed = f"{b64(as_json(header(alg='HS256')))}.{b64(as_json(CLAIMS))}"
    mac = hmac.digest(secret, signed.encode(), "sha256")
    assert refused(f"{signed}.{b64(mac)}") == NOT_EDDSA


@pytest.mark.parametrize(
    "value",
    ["", "ada", "' OR 1=1 --", "../key", "\x00" * 43, "ü" * 43, "a" * 42, "a" * 44, 1, None, ["a"]],
)
def test_a_key_id_that_is_no_thumbprint_is_not_looked_up(value: Any) -> None:
    with pytest.raises(BadSignature, match="key id"):
        header_kid(token(head=header(kid=value)), DecisionClaims.typ)


def test_an_expired_token_is_refused() -> None:
    for later in (300, 301, 10**9):
        assert refused(token(), now=NOW + later) == "the signature has expired"


def test_a_token_is_taken_until_the_second_before_it_expires() -> None:
    assert verify_in_time(token(), jwk(KEY), DecisionClaims, now_s=NOW + 299).exp == NOW + 300


def test_a_token_may_last_ten_minutes() -> None:
    assert verify_in_time(with_claims(exp=NOW + 600), jwk(KEY), DecisionClaims, now_s=NOW)


def test_a_token_may_be_a_minute_ahead() -> None:
    assert verify_in_time(with_claims(iat=NOW + 60), jwk(KEY), DecisionClaims, now_s=NOW)


# The decision that carries it
DECISION = Decision(
    approval_id=CLAIMS["approval_id"],
    params_hash=CLAIMS["params_hash"],
    outcome=DecisionOutcome.APPROVE,
    approver="ada",
)


def signed(**changed: Any) -> DecisionClaims:
    return verify_in_time(with_claims(**changed), jwk(KEY), DecisionClaims, now_s=NOW)


def test_claims_fit_the_decision_they_are_made_for() -> None:
    assert find_mismatch(signed(), DECISION, "acme/refund-1", "acme") is None


OTHERS: dict[str, tuple[str, list[str]]] = {
    "aud": ("tenant", ["surehand:beta", "acme", "surehand:acme "]),
    "run_id": ("run", ["acme/refund-2", "refund-1"]),
    "approval_id": ("approval", ["acme/refund-1/refund/2"]),
    "params_hash": ("params", ["sha256:" + "1" * 64, "SHA256:" + "0" * 64]),
    "outcome": ("outcome", ["reject"]),
    "sub": ("approver", ["bob", "Ada"]),
    "edited": ("new params", ["sha256:" + "2" * 64, ""]),
}


@pytest.mark.parametrize("claim", OTHERS)
def test_other_claims_do_not_fit_the_decision(claim: str) -> None:
    reason, values = OTHERS[claim]
    for value in values:
        why = find_mismatch(signed(**{claim: value}), DECISION, "acme/refund-1", "acme")
        assert why is not None and reason in why


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
    assert read_public_key(text) == jwk(KEY)
    assert kid_of(read_public_key(text)) == kid(KEY)


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
        read_public_key(text)


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
        read_public_key(text)


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
        read_public_key(text)


def test_a_jwk_with_a_member_twice_is_refused() -> None:
    text = as_json(jwk(KEY)).decode()
    with pytest.raises(BadKey, match="twice"):
        read_public_key(f'{{"x":"{jwk(OTHER_KEY)["x"]}",{text[1:]}')


@pytest.mark.parametrize("x", [None, 7, "", "=", jwk(KEY)["x"] + "=", jwk(KEY)["x"] + "A", "ü"])
def test_a_key_has_one_spelling(x: Any) -> None:
    with pytest.raises(BadKey, match="32 bytes"):
        check_jwk({**jwk(KEY), "x": x})


@pytest.mark.parametrize("sign", [0, 2**255])
@pytest.mark.parametrize("y", SMALL)
def test_a_key_that_anybody_can_sign_for_is_refused(y: int, sign: int) -> None:
    point = (y + sign).to_bytes(32, "little")
    with pytest.raises(BadKey, match="anybody can sign for"):
        check_jwk({**jwk(KEY), "x": b64(point)})


@pytest.mark.parametrize("y", [PRIME, PRIME + 1, PRIME + 18])
def test_a_point_written_in_a_second_way_is_refused(y: int) -> None:
    with pytest.raises(BadKey, match="RFC 8032"):
        check_jwk({**jwk(KEY), "x": b64(y.to_bytes(32, "little"))})


def test_the_bare_primitive_takes_a_forged_signature_under_such_a_key() -> None:
    # Why they are refused: the neutral element as key and as R, and 0 as S, fit any message.
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + b"\0" * 32, b"approve everything")


def test_the_key_id_is_the_digest_of_the_three_members_alone() -> None:
    text = f'{{"crv":"Ed25519","kty":"OKP","x":"{jwk(KEY)["x"]}"}}'
    assert kid_of({**jwk(KEY), "kid": "x", "use": "sig"}) == b64(
        hashlib.sha256(text.encode()).digest()
    )
