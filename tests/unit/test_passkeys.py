"""A passkey's proof that is not for this, or not made as it has to be, proves nothing (G3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, Final

import pytest
import webauthn
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from fido2 import cbor
from fido2.cose import CoseKey
from fido2.server import Fido2Server
from fido2.webauthn import Aaguid, AttestedCredentialData, PublicKeyCredentialRpEntity
from webauthn.helpers.exceptions import WebAuthnException

from surehand.activities.ledger.people.signatures import parse_claims
from surehand.verify import (
    LONGEST_PROOF,
    MOST_DECISIONS,
    BadSignature,
    PublicKey,
    decode_base64url,
    header_kid,
    is_gesture,
    read_gesture,
    read_key_file,
    verify_gesture,
)
from surehand.workflows.contracts.approvals import DecisionClaims
from tests.passkeys import (
    AT,
    BE,
    BS,
    ED,
    ORIGIN,
    RP_ID,
    UP,
    UV,
    Assertion,
    Authenticator,
    as_json,
    b64,
    challenge_over,
    digest_of,
    put_together,
    taken_apart,
)
from tests.unit.tokens import CLAIMS, KEY, token

#: Order of the group that ES256 signs in.
ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
EC: Final = Authenticator(ec.derive_private_key(7, ec.SECP256R1()))
OKP: Final = Authenticator(Ed25519PrivateKey.from_private_bytes(b"p" * 32))
RSA: Final = Authenticator(rsa.generate_private_key(65537, 2048))
BOUND: Final = replace(EC, device_bound=True)
RAW: Final = as_json(CLAIMS)
OTHER: Final = {**CLAIMS, "jti": "another-nonce-of-thirty-two-char"}
EMPTY_MAP: Final = b"\xa0"
each = pytest.mark.parametrize("key", [EC, OKP, RSA], ids=["ES256", "EdDSA", "RS256"])


def public(one: Authenticator) -> PublicKey:
    return read_key_file(json.dumps(one.file))


def judged(
    proof: str, key: Authenticator = EC, origins: tuple[str, ...] | None = (ORIGIN,)
) -> DecisionClaims:
    known = public(key)
    assert known.passkey is not None
    signed = verify_gesture(read_gesture(proof), known.jwk, known.passkey, origins=origins)
    return parse_claims(signed, DecisionClaims)


def refused(proof: str, key: Authenticator = EC, **how: Any) -> str:
    """Return why a proof is refused; it must be, and in no other way."""
    with pytest.raises(BadSignature) as why:
        judged(proof, key, **how)
    return str(why.value)


def with_header(key: Authenticator = EC, **changed: Any) -> str:
    """A good proof with another header; a member that is ``...`` is left out."""
    header, claims, signature = taken_apart(key.proof(CLAIMS))
    header = {name: value for name, value in {**header, **changed}.items() if value is not ...}
    return put_together(header, claims, signature)


# What is good
@each
def test_a_gesture_made_for_a_decision_proves_its_claims(key: Authenticator) -> None:
    proof = key.proof(CLAIMS)

    assert is_gesture(proof)
    assert read_gesture(proof).kid == key.kid == public(key).kid
    assert judged(proof, key).model_dump(mode="json", exclude_none=True) == CLAIMS


@each
def test_one_gesture_proves_each_decision_of_its_list(key: Authenticator) -> None:
    several = [{**CLAIMS, "jti": f"a-nonce-of-its-own-{n}"} for n in range(MOST_DECISIONS)]

    proofs = key.proofs(*several)

    assert [judged(one, key).jti for one in proofs] == [one["jti"] for one in several]
    assert max(map(len, proofs)) < LONGEST_PROOF / 2


@pytest.mark.parametrize("key", [EC, BOUND], ids=["synced", "device-bound"])
def test_what_extensions_add_is_taken_and_not_looked_at(key: Authenticator) -> None:
    for added in (EMPTY_MAP, bytes.fromhex("a16375766d8183020402"), bytes.fromhex("a1617881a0")):
        assert judged(key.proof(CLAIMS, flags=key.flags | ED, added=added), key)


def test_other_members_of_the_client_data_are_not_looked_at() -> None:
    assert judged(EC.proof(CLAIMS, other_keys_can_be_added_here="do not compare"))
    assert judged(EC.proof(CLAIMS, client=SAID))


def test_both_spellings_of_s_are_taken_as_authenticators_make_them() -> None:
    header, claims, signature = taken_apart(EC.proof(CLAIMS))
    r, s = decode_dss_signature(signature)

    for spelling in (s, ORDER - s):
        assert judged(put_together(header, claims, encode_dss_signature(r, spelling)))


def test_an_audit_without_settings_looks_at_all_but_which_pages_count() -> None:
    assert judged(EC.proof(CLAIMS), origins=None)
    assert "another site" in refused(EC.proof(CLAIMS, origin="https://evil.test"), origins=None)


# Another page, another site
def test_a_gesture_made_on_a_page_of_another_site_is_refused() -> None:
    for origin in (
        "https://evil.test", "https://example.com.evil.test", "https://evilexample.com",
        "http://approvals.example.com", "https://approvals.example.com/", "android:apk-key-hash:x",
        "https://approvals.example.com:443", "https://APPROVALS.example.com", "null", "", None,
        "https://approvals.example.com\n", ["https://approvals.example.com"],
    ):  # fmt: skip
        assert "another site" in refused(EC.proof(CLAIMS, origin=origin))
        assert "another site" in refused(EC.proof(CLAIMS, origin=origin), origins=None)


@pytest.mark.parametrize(
    "origin", ["https://example.com", "https://chat.example.com", ORIGIN + ":8"]
)
def test_a_gesture_made_on_another_page_of_the_site_is_refused(origin: str) -> None:
    assert "not among SUREHAND_PASSKEY_ORIGINS" in refused(EC.proof(CLAIMS, origin=origin))
    assert judged(EC.proof(CLAIMS, origin=origin), origins=(ORIGIN, origin))


def test_without_origins_no_passkey_counts() -> None:
    said = refused(EC.proof(CLAIMS), origins=())

    assert said == "no passkey counts here: SUREHAND_PASSKEY_ORIGINS is not set"


def gestures(**how: Any) -> list[str]:
    """Proofs that are made in one way each, as each of the values of that says."""
    return [EC.proof(CLAIMS, **{name: one}) for name, values in how.items() for one in values]


def ended(flags: int, *ends: bytes) -> list[str]:
    return [EC.proof(CLAIMS, flags=EC.flags | flags, added=end) for end in ends]


def cut_off() -> list[str]:
    header, claims, _ = taken_apart(EC.proof(CLAIMS))
    found = EC.get(digest_of(RAW))
    said = [b64(found.authenticator_data[:size]) for size in (0, 32, 36)]
    return [
        put_together({**header, "authenticator_data": data}, claims, found.signature)
        for data in said
    ]


def spelled(*claims: bytes) -> list[str]:
    """A good proof's header and signature, with other claims."""
    header, _, signature = taken_apart(EC.proof(CLAIMS))
    return [put_together(header, one, signature) for one in claims]


def challenged(*challenges: bytes) -> list[str]:
    made = [EC.get(challenge) for challenge in challenges]
    return [put_together(EC.header(found), RAW, found.signature) for found in made]


def other_claims() -> list[bytes]:
    changed = {name: v + 1 if isinstance(v, int) else f"{v}2" for name, v in CLAIMS.items()}
    return [as_json({**CLAIMS, name: value}) for name, value in changed.items()]


def changed_list(change: Callable[[list[str]], Any]) -> str:
    [proof, *_] = EC.proofs(CLAIMS, OTHER, {**OTHER, "outcome": "reject"})
    header, claims, signature = taken_apart(proof)
    return put_together({**header, "digests": change(header["digests"])}, claims, signature)


def _other(one: Any, _: list[str]) -> Any:
    return one


def too_many() -> str:
    several = [{**CLAIMS, "jti": f"a-nonce-of-its-own-{n}"} for n in range(MOST_DECISIONS + 1)]
    return EC.proofs(*several)[0]


NO_ENDS = [EMPTY_MAP + b"\0", EMPTY_MAP * 2, b"\x80", b""] + [
    bytes.fromhex(one)
    for one in (
        "a161", "a16178", "a1617843", "bfff", "bb" + "ff" * 8, "a16178" + "81" * 500 + "00",
        "a161789bffffffffffffffff00",
    )
]  # fmt: skip
SAID = as_json({"type": "webauthn.get", "challenge": b64(digest_of(RAW)), "origin": ORIGIN})
UTF_16 = SAID.decode().encode("utf-16")
NO_CLIENTS = (b" ", b"[]", b"null", b"\xef\xbb\xbf" + SAID, SAID + b"}", UTF_16)
NO_LISTS: list[Any] = ["A" * 43, {"a": 1}, None, 2, ["x", "y"], [1, 2], [["A"], []]]
NOT_OURS = ("crit", "jwk", "jku", "x5c", "b64", "challenge", "user_handle")
WRONG: Final[tuple[Any, ...]] = (None, 1, [], {}, "a b", "A=", "é")


def bad_heads(*names: str, values: Iterable[Any]) -> list[str]:
    return [with_header(**{name: value}) for name in names for value in values]


def refusals() -> dict[str, tuple[str, list[str]]]:
    """What each has to say, and what must be refused with that."""
    parts = ("authenticator_data", "client_data", "kid", "typ")
    return {
        "for another site": ("relying party", gestures(rp_id=["approvals.example.com"])),
        "in a frame": ("inside another one", gestures(crossOrigin=[True, "false", 0, None])),
        "below another page": ("inside another one", gestures(topOrigin=[ORIGIN])),
        "no assertion": (
            "not webauthn.get",
            gestures(type=["webauthn.create", "payment.get", "", None, 1]),
        ),
        "of nobody": ("(UP)", gestures(flags=[EC.flags & ~UP])),
        "of somebody": ("(UV)", gestures(flags=[EC.flags & ~UV])),
        "of a registration": ("(AT)", ended(AT, b"\0" * 20)),
        "with a wrong end": ("do not end", [*ended(ED, *NO_ENDS), *ended(0, b"\0", EMPTY_MAP)]),
        "cut off": ("too short", cut_off()),
        "for other claims": ("another challenge", spelled(*other_claims())),
        "respelled": ("another challenge", spelled(json.dumps(CLAIMS, indent=1).encode())),
        "with a challenge of the page's": ("challenge", challenged(b"\0" * 32, RAW, b"")),
        "in another order": ("another challenge", [changed_list(lambda listed: listed[::-1])]),
        "for less": ("another challenge", [changed_list(lambda listed: listed[:2])]),
        "for more": ("another challenge", [changed_list(lambda listed: [*listed, "A" * 43])]),
        "for one twice": ("twice", [changed_list(lambda listed: [*listed, listed[0]])]),
        "for too few": ("2 to 50", [changed_list(itemgetter(slice(n))) for n in (0, 1)]),
        "for too many": ("2 to 50", [too_many()]),
        "for no list": ("list", [changed_list(partial(_other, one)) for one in NO_LISTS]),
        "of another passkey": ("another passkey", [OKP.proof(CLAIMS), with_header(kid=OKP.kid)]),
        "of other credentials": (
            "another passkey",
            bad_heads("credential_id", values=[b64(b"credential-2")]),
        ),
        "without a member": (
            "exactly the members",
            bad_heads("alg", "credential_id", *parts, values=[...]),
        ),
        "with a member more": ("exactly the members", bad_heads(*NOT_OURS, values=[[]])),
        "with a wrong member": ("", bad_heads(*parts, values=WRONG)),
        "of no client": ("client data", gestures(client=NO_CLIENTS)),
        "with a claim more": ("'admin'", [EC.proof({**CLAIMS, "admin": True})]),
        "with a wrong claim": ("'jti'", [EC.proof({**CLAIMS, "jti": "short"})]),
        "with no claims": ("JSON", [EC.proof(b"approve")]),
    }


REFUSALS: Final = refusals()


@pytest.mark.parametrize(("says", "proofs"), REFUSALS.values(), ids=REFUSALS)
def test_a_gesture_is_refused_that_is(says: str, proofs: list[str]) -> None:
    for proof in proofs:
        assert says in refused(proof)


@pytest.mark.parametrize(
    ("key", "flags"),
    [(EC, UP | UV), (EC, UP | UV | BS), (BOUND, UP | UV | BE), (BOUND, UP | UV | BS)],
)
def test_a_passkey_not_bound_as_registered_is_refused(key: Authenticator, flags: int) -> None:
    assert "(BE, BS)" in refused(key.proof(CLAIMS, flags=flags), key)


def test_a_gesture_over_a_list_without_this_decision_is_refused() -> None:
    [first, second] = EC.proofs(CLAIMS, {**CLAIMS, "outcome": "reject"})
    header, _, signature = taken_apart(first)

    assert "without this decision" in refused(put_together(header, as_json(OTHER), signature))
    assert judged(second).outcome == "reject"


def test_a_list_cannot_be_passed_off_as_one_decision_nor_one_as_a_list() -> None:
    [proof, _] = EC.proofs(CLAIMS, OTHER)
    header, claims, signature = taken_apart(proof)
    header.pop("digests")
    assert "another challenge" in refused(put_together(header, claims, signature))

    listed = [b64(digest_of(RAW)), b64(digest_of(as_json(OTHER)))]
    assert "another challenge" in refused(with_header(digests=listed))
    assert challenge_over(listed[:1]) != digest_of(RAW)


# Another key, another algorithm


@each
def test_what_a_header_says_never_chooses_the_algorithm(key: Authenticator) -> None:
    for other in ("ES256", "EdDSA", "ES384", "RS256", "HS256", "none", "", None, ["ES256"]):
        if other != key.algorithm:
            assert "algorithm" in refused(with_header(key, alg=other), key)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda der: der + b"\0",
        lambda der: der[:-1],
        lambda der: b"\x30\x81" + der[1:],
        lambda der: b"\x30\x80" + der[2:] + b"\0\0",
        lambda der: der[:1] + bytes([der[1] + 1]) + b"\x02" + bytes([der[3] + 1]) + b"\0" + der[4:],
        lambda der: encode_dss_signature(0, 0),
        lambda der: encode_dss_signature(decode_dss_signature(der)[0], 0),
        lambda der: encode_dss_signature(*(n + ORDER for n in decode_dss_signature(der))),
        lambda der: b"".join(n.to_bytes(32) for n in decode_dss_signature(der)),
        lambda der: b"",
    ],
    ids=[
        "trailing", "cut", "long length", "indefinite", "leading zero", "zeros", "no s",
        "beyond the order", "raw", "empty",
    ],
)  # fmt: skip
def test_a_signature_in_another_spelling_of_der_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    header, claims, signature = taken_apart(EC.proof(CLAIMS))

    assert "does not fit" in refused(put_together(header, claims, spoil(signature)))


def test_a_passkey_s_proof_is_no_compact_jws_and_a_jws_no_passkey_s_proof() -> None:
    with pytest.raises(BadSignature):
        header_kid(OKP.proof(CLAIMS), DecisionClaims.typ)
    assert not is_gesture(token())
    assert "members" in refused(token())
    assert "another passkey" in refused(OKP.proof(CLAIMS), Authenticator(KEY))


# The form
def test_a_name_that_stands_twice_is_refused_wherever_it_stands() -> None:
    header, claims, signature = taken_apart(EC.proof(CLAIMS))
    again = b'{"alg":"ES256",' + as_json(header)[1:]
    assert "twice" in refused(put_together(again, claims, signature))

    for name in (b'"type":"webauthn.get"', b'"challenge":"x"', b'"x":1,"x":1'):
        assert "twice" in refused(EC.proof(CLAIMS, client=b"{" + name + b"," + SAID[1:]))

    assert "twice" in refused(EC.proof(b'{"sub":"ada",' + RAW[1:]))


@pytest.mark.parametrize("text", ["", ".", "..", "...", "a.b.c", "e30.e30.e30", "." * 20_000])
def test_what_is_no_proof_is_refused(text: str) -> None:
    assert not is_gesture(text)
    with pytest.raises(BadSignature):
        read_gesture(text)


def test_a_proof_longer_than_any_is_refused() -> None:
    header, claims, signature = taken_apart(EC.proof(CLAIMS))
    for longer in (
        put_together(header, claims + b" " * LONGEST_PROOF, signature),
        put_together({**header, "client_data": b64(b" " * 2049)}, claims, signature),
        put_together({**header, "authenticator_data": b64(b"\0" * 1025)}, claims, signature),
    ):
        assert refused(longer)


KEYS: Final = {
    "ES256": Authenticator(),
    "EdDSA": Authenticator(Ed25519PrivateKey.generate()),
    "RS256": RSA,
    "device-bound": Authenticator(device_bound=True),
}


def ours(key: Authenticator, found: Assertion) -> bool:
    known = read_key_file(json.dumps(key.file))
    assert known.passkey is not None
    proof = put_together(key.header(found), RAW, found.signature)
    try:
        verify_gesture(read_gesture(proof), known.jwk, known.passkey, origins=(ORIGIN,))
    except BadSignature:
        return False
    return True


def cose(key: Authenticator) -> dict[int, Any]:
    """The public key as registrations have it (RFC 9052)."""
    jwk = key.jwk
    if key.algorithm == "EdDSA":
        return {1: 1, 3: -8, -1: 6, -2: decode_base64url(jwk["x"])}
    if key.algorithm == "RS256":
        return {1: 3, 3: -257, -1: decode_base64url(jwk["n"]), -2: decode_base64url(jwk["e"])}
    return {1: 2, 3: -7, -1: 1, -2: decode_base64url(jwk["x"]), -3: decode_base64url(jwk["y"])}


def credential(key: Authenticator, found: Assertion) -> dict[str, Any]:
    """The assertion as browsers write it in JSON."""
    return {
        "id": b64(key.credential_id),
        "rawId": b64(key.credential_id),
        "type": "public-key",
        "clientExtensionResults": {},
        "response": {
            "clientDataJSON": b64(found.client_data),
            "authenticatorData": b64(found.authenticator_data),
            "signature": b64(found.signature),
        },
    }


def py_webauthn(key: Authenticator, found: Assertion) -> bool:
    try:
        webauthn.verify_authentication_response(
            credential=credential(key, found),
            expected_challenge=digest_of(RAW),
            expected_rp_id=RP_ID,
            expected_origin=ORIGIN,
            credential_public_key=cbor.encode(cose(key)),
            credential_current_sign_count=0,
            require_user_verification=True,
        )
    except WebAuthnException:
        return False
    return True


def python_fido2(key: Authenticator, found: Assertion) -> bool:
    server = Fido2Server(
        PublicKeyCredentialRpEntity(name="us", id=RP_ID), verify_origin=lambda one: one == ORIGIN
    )
    known = AttestedCredentialData.create(Aaguid.NONE, key.credential_id, CoseKey.parse(cose(key)))
    state = {"challenge": b64(digest_of(RAW)), "user_verification": "required"}
    try:
        server.authenticate_complete(state, [known], credential(key, found))
    except (ValueError, IndexError):  # the latter where extensions are missing
        return False
    return True


LIBRARIES: Final = {"webauthn": py_webauthn, "fido2": python_fido2}


@dataclass(frozen=True)
class Broken:
    """How a gesture is made otherwise than it should be."""

    how: dict[str, Any] = field(default_factory=dict)
    challenge: bytes = digest_of(RAW)
    spoilt: bool = False
    """Whether its signature is."""
    not_seen_by: tuple[str, ...] = ()


NEITHER: Final = ("webauthn", "fido2")
BROKEN: Final = {
    "another origin": Broken({"origin": "https://evil.test"}),
    "another page of the site": Broken({"origin": "https://chat.example.com"}),
    "another relying party": Broken({"rp_id": "evil.test"}),
    "nobody present": Broken({"flags": UV | BE | BS}),
    "nobody recognised": Broken({"flags": UP | BE | BS}),
    "a registration": Broken({"type": "webauthn.create"}),
    "another challenge": Broken(challenge=digest_of(RAW + b" ")),
    "no challenge of 32 bytes": Broken(challenge=b""),
    "bytes behind the data": Broken({"added": b"\0"}),
    "bytes behind the extensions": Broken({"flags": UP | UV | ED, "added": b"\xa0\0"}),
    "extensions missing": Broken({"flags": UP | UV | ED}),
    "data of a registration cut off": Broken({"flags": UP | UV | AT, "added": b"\0"}),
    "another signature": Broken(spoilt=True),
    "in a frame": Broken({"crossOrigin": True}, not_seen_by=NEITHER),
    "in a frame of a page": Broken({"topOrigin": ORIGIN}, not_seen_by=NEITHER),
    "backed up, but not eligible": Broken({"flags": UP | UV | BS}, not_seen_by=("fido2",)),
}


@pytest.mark.parametrize("name", KEYS)
def test_what_both_libraries_take_is_taken(name: str) -> None:
    key = KEYS[name]
    extended = {"flags": key.flags | ED, "added": cbor.encode({"uvm": [[2, 4, 2]]})}
    for how in ({}, {"counter": 7}, extended):
        found = key.get(digest_of(RAW), **how)
        assert ours(key, found)
        assert all(takes(key, found) for takes in LIBRARIES.values())


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("what", BROKEN)
def test_what_a_library_refuses_is_refused(name: str, what: str) -> None:
    key, broken = KEYS[name], BROKEN[what]
    found = key.get(broken.challenge, **broken.how)
    if broken.spoilt:
        found = replace(found, signature=key.sign(b"something else"))

    assert not ours(key, found)
    for library, takes in LIBRARIES.items():
        assert takes(key, found) == (library in broken.not_seen_by), library
