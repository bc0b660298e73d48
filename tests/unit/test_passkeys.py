"""A passkey's proof that is not for this, or not made as it has to be, proves nothing (G3)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import webauthn
from cryptography.hazmat.primitives.asymmetric import ec
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

from surehand.activities.ledger.people.passkeys import (
    LONGEST_PROOF,
    authentic,
    challenge_of,
    is_gesture,
    read,
)
from surehand.activities.ledger.people.public_keys import PublicKey, decoded, registered
from surehand.activities.ledger.people.signatures import BadSignature, header_kid
from surehand.workflows.contracts.approvals import MOST_DECISIONS, DecisionClaims
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
BOUND: Final = replace(EC, device_bound=True)
RAW: Final = as_json(CLAIMS)
OTHER: Final = {**CLAIMS, "jti": "another-nonce-of-thirty-two-char"}
EMPTY_MAP: Final = b"\xa0"
both = pytest.mark.parametrize("key", [EC, OKP], ids=["ES256", "EdDSA"])


def public(one: Authenticator) -> PublicKey:
    return registered(json.dumps(one.file))


def judged(
    proof: str, key: Authenticator = EC, origins: tuple[str, ...] | None = (ORIGIN,)
) -> DecisionClaims:
    known = public(key)
    assert known.passkey is not None
    return authentic(read(proof), known.jwk, known.passkey, DecisionClaims, origins=origins)


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
@both
def test_a_gesture_made_for_a_decision_proves_its_claims(key: Authenticator) -> None:
    proof = key.proof(CLAIMS)

    assert is_gesture(proof)
    assert read(proof).kid == key.kid == public(key).kid
    assert judged(proof, key).model_dump(mode="json", exclude_none=True) == CLAIMS


@both
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
    said = {"type": "webauthn.get", "challenge": b64(digest_of(RAW)), "origin": ORIGIN}
    assert judged(EC.proof(CLAIMS, client=said))


def test_both_spellings_of_s_are_taken_as_authenticators_make_them() -> None:
    header, claims, signature = taken_apart(EC.proof(CLAIMS))
    r, s = decode_dss_signature(signature)

    for spelling in (s, ORDER - s):
        assert judged(put_together(header, claims, encode_dss_signature(r, spelling)))


def test_the_sign_counter_is_not_judged() -> None:
    assert judged(EC.proof(CLAIMS, counter=7)) == judged(EC.proof(CLAIMS, counter=0))


def test_an_audit_without_settings_looks_at_all_but_which_pages_count() -> None:
    assert judged(EC.proof(CLAIMS), origins=None)
    assert "another site" in refused(EC.proof(CLAIMS, origin="https://evil.test"), origins=None)


# Another page, another site
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.test",
        "https://example.com.evil.test",
        "https://evilexample.com",
        "http://approvals.example.com",
        "https://approvals.example.com/",
        "https://approvals.example.com:443",
        "https://APPROVALS.example.com",
        "https://approvals.example.com\n",
        "android:apk-key-hash:x",
        "null",
        "",
        None,
        ["https://approvals.example.com"],
    ],
)
def test_a_gesture_made_on_a_page_of_another_site_is_refused(origin: Any) -> None:
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


def test_a_gesture_for_another_relying_party_is_refused() -> None:
    assert "another relying party" in refused(EC.proof(CLAIMS, rp_id="approvals.example.com"))


def test_a_gesture_made_in_a_frame_of_another_page_is_refused() -> None:
    for members in (
        {"crossOrigin": True}, {"crossOrigin": "false"}, {"crossOrigin": 0}, {"crossOrigin": None},
        {"topOrigin": ORIGIN},
    ):  # fmt: skip
        assert "inside another one" in refused(EC.proof(CLAIMS, **members))


# Another ceremony, nobody there
@pytest.mark.parametrize("type_", ["webauthn.create", "payment.get", "", None, 1])
def test_a_gesture_that_is_no_assertion_is_refused(type_: Any) -> None:
    assert "not webauthn.get" in refused(EC.proof(CLAIMS, type=type_))


def test_a_gesture_of_nobody_is_refused() -> None:
    assert "(UP)" in refused(EC.proof(CLAIMS, flags=EC.flags & ~UP))


def test_a_gesture_of_somebody_who_was_not_recognised_is_refused() -> None:
    assert "(UV)" in refused(EC.proof(CLAIMS, flags=EC.flags & ~UV))


def test_authenticator_data_of_a_registration_are_refused() -> None:
    assert "(AT)" in refused(EC.proof(CLAIMS, flags=EC.flags | AT, added=b"\0" * 20))


@pytest.mark.parametrize(
    ("key", "flags"),
    [(EC, UP | UV), (EC, UP | UV | BS), (BOUND, UP | UV | BE), (BOUND, UP | UV | BS)],
)
def test_a_passkey_not_bound_as_registered_is_refused(key: Authenticator, flags: int) -> None:
    assert "(BE, BS)" in refused(key.proof(CLAIMS, flags=flags), key)


@pytest.mark.parametrize(
    ("flags", "added"),
    [
        (0, b"\0"),
        (0, EMPTY_MAP),
        (ED, b""),
        (ED, EMPTY_MAP + b"\0"),
        (ED, EMPTY_MAP * 2),
        (ED, b"\x80"),
        (ED, bytes.fromhex("a161")),
        (ED, bytes.fromhex("a16178")),
        (ED, bytes.fromhex("a1617843")),
        (ED, bytes.fromhex("bfff")),
        (ED, bytes.fromhex("bb" + "ff" * 8)),
        (ED, bytes.fromhex("a16178" + "81" * 500 + "00")),
        (ED, bytes.fromhex("a161789bffffffffffffffff00")),
    ],
)
def test_authenticator_data_with_a_wrong_end_are_refused(flags: int, added: bytes) -> None:
    proof = EC.proof(CLAIMS, flags=EC.flags | flags, added=added)
    assert "do not end where they should" in refused(proof)


def test_authenticator_data_that_are_cut_off_are_refused() -> None:
    header, claims, _ = taken_apart(EC.proof(CLAIMS))
    found = EC.get(digest_of(RAW))
    for size in (0, 32, 36):
        header["authenticator_data"] = b64(found.authenticator_data[:size])
        assert "too short" in refused(put_together(header, claims, found.signature))


# Another decision
@pytest.mark.parametrize("claim", list(CLAIMS))
def test_a_gesture_made_for_other_claims_is_refused(claim: str) -> None:
    header, _, signature = taken_apart(EC.proof(CLAIMS))
    value = CLAIMS[claim]
    other = {**CLAIMS, claim: value + 1 if isinstance(value, int) else f"{value}2"}

    assert "another challenge" in refused(put_together(header, as_json(other), signature))


def test_the_same_claims_in_another_spelling_are_other_claims() -> None:
    header, _, signature = taken_apart(EC.proof(CLAIMS))

    spelled = json.dumps(CLAIMS, indent=1).encode()
    assert "another challenge" in refused(put_together(header, spelled, signature))


def test_a_challenge_that_the_page_has_made_up_is_refused() -> None:
    for challenge in (b"\0" * 32, RAW, b""):
        found = EC.get(challenge)
        proof = put_together(EC.header(found), RAW, found.signature)
        assert "another challenge" in refused(proof)


def test_a_gesture_over_a_list_without_this_decision_is_refused() -> None:
    [first, second] = EC.proofs(CLAIMS, {**CLAIMS, "outcome": "reject"})
    header, _, signature = taken_apart(first)

    assert "without this decision" in refused(put_together(header, as_json(OTHER), signature))
    assert judged(second).outcome == "reject"


def changed_list(change: Callable[[list[str]], list[str]]) -> str:
    [proof, *_] = EC.proofs(CLAIMS, OTHER, {**OTHER, "outcome": "reject"})
    header, claims, signature = taken_apart(proof)
    return put_together({**header, "digests": change(header["digests"])}, claims, signature)


def test_a_list_in_another_order_is_another_gesture() -> None:
    assert "another challenge" in refused(changed_list(lambda listed: listed[::-1]))


def test_a_list_with_more_or_less_than_was_signed_is_another_gesture() -> None:
    assert "another challenge" in refused(changed_list(lambda listed: listed[:2]))
    assert "another challenge" in refused(changed_list(lambda listed: [*listed, "A" * 43]))


def test_a_list_with_a_decision_twice_is_refused() -> None:
    assert "twice" in refused(changed_list(lambda listed: [*listed, listed[0]]))


def test_a_list_has_two_to_fifty_digests() -> None:
    assert "2 to 50" in refused(changed_list(lambda listed: listed[:1]))
    assert "2 to 50" in refused(changed_list(lambda listed: []))
    several = [{**CLAIMS, "jti": f"a-nonce-of-its-own-{n}"} for n in range(MOST_DECISIONS + 1)]
    assert "2 to 50" in refused(EC.proofs(*several)[0])


@pytest.mark.parametrize("listed", ["A" * 43, {"a": 1}, None, 2, ["x", "y"], [1, 2], [["A"], []]])
def test_what_is_no_list_of_digests_is_refused(listed: Any) -> None:
    assert "list" in refused(changed_list(lambda _: listed))


def test_a_list_cannot_be_passed_off_as_one_decision_nor_one_as_a_list() -> None:
    [proof, _] = EC.proofs(CLAIMS, OTHER)
    header, claims, signature = taken_apart(proof)
    header.pop("digests")
    assert "another challenge" in refused(put_together(header, claims, signature))

    listed = [b64(digest_of(RAW)), b64(digest_of(as_json(OTHER)))]
    assert "another challenge" in refused(with_header(digests=listed))
    assert challenge_over(listed[:1]) != digest_of(RAW)


# Another key, another algorithm
@both
def test_a_signature_of_another_passkey_is_refused(key: Authenticator) -> None:
    mine = Authenticator() if key is EC else Authenticator(Ed25519PrivateKey.generate())
    header, claims, _ = taken_apart(key.proof(CLAIMS))
    _, _, forged = taken_apart(mine.proof(CLAIMS))

    assert "does not fit" in refused(put_together(header, claims, forged), key)


def test_a_key_id_or_a_credential_of_another_passkey_is_refused() -> None:
    assert "another passkey" in refused(with_header(kid=OKP.kid))
    assert "another passkey" in refused(with_header(credential_id=b64(b"credential-2")))
    assert "another passkey" in refused(OKP.proof(CLAIMS), EC)


@both
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
@pytest.mark.parametrize(
    "member", ["alg", "kid", "typ", "authenticator_data", "client_data", "credential_id"]
)
def test_a_member_of_the_header_that_is_missing_is_refused(member: str) -> None:
    assert "exactly the members" in refused(with_header(**{member: ...}))


@pytest.mark.parametrize("member", ["crit", "jwk", "jku", "x5c", "b64", "challenge", "user_handle"])
def test_a_member_that_a_header_has_not_is_refused(member: str) -> None:
    assert "exactly the members" in refused(with_header(**{member: []}))


@pytest.mark.parametrize("member", ["authenticator_data", "client_data", "kid", "typ"])
def test_a_member_of_the_header_that_is_wrong_is_refused(member: str) -> None:
    for wrong in (None, 1, [], {}, "a b", "A=", "é"):
        assert refused(with_header(**{member: wrong}))


def test_a_name_that_stands_twice_is_refused_wherever_it_stands() -> None:
    header, claims, signature = taken_apart(EC.proof(CLAIMS))
    again = b'{"alg":"ES256",' + as_json(header)[1:]
    assert "twice" in refused(put_together(again, claims, signature))

    said = as_json({"type": "webauthn.get", "challenge": b64(digest_of(RAW)), "origin": ORIGIN})
    for name in (b'"type":"webauthn.get"', b'"challenge":"x"', b'"x":1,"x":1'):
        assert "twice" in refused(EC.proof(CLAIMS, client=b"{" + name + b"," + said[1:]))

    assert "twice" in refused(EC.proof(b'{"sub":"ada",' + RAW[1:]))


def test_client_data_that_are_no_json_object_are_refused() -> None:
    said = as_json({"type": "webauthn.get", "challenge": b64(digest_of(RAW)), "origin": ORIGIN})
    for client in (
        b"",
        b"[]",
        b"null",
        b"\xef\xbb\xbf" + said,
        said + b"}",
        said.decode().encode("utf-16"),
    ):
        assert "client data" in refused(EC.proof(CLAIMS, client=client or b" "))


def test_claims_that_are_not_a_decision_s_are_refused_whoever_has_signed_them() -> None:
    assert "'admin'" in refused(EC.proof({**CLAIMS, "admin": True}))
    assert "'jti'" in refused(EC.proof({**CLAIMS, "jti": "short"}))
    assert "JSON" in refused(EC.proof(b"approve"))


@pytest.mark.parametrize("text", ["", ".", "..", "...", "a.b.c", "e30.e30.e30", "." * 20_000])
def test_what_is_no_proof_is_refused(text: str) -> None:
    assert not is_gesture(text)
    with pytest.raises(BadSignature):
        read(text)


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
    "device-bound": Authenticator(device_bound=True),
}


def ours(key: Authenticator, found: Assertion) -> bool:
    known = registered(json.dumps(key.file))
    assert known.passkey is not None
    proof = put_together(key.header(found), RAW, found.signature)
    try:
        authentic(read(proof), known.jwk, known.passkey, DecisionClaims, origins=(ORIGIN,))
    except BadSignature:
        return False
    return True


def cose(key: Authenticator) -> dict[int, Any]:
    """The public key as registrations have it (RFC 9052)."""
    jwk = key.jwk
    if key.algorithm == "EdDSA":
        return {1: 1, 3: -8, -1: 6, -2: decoded(jwk["x"])}
    return {1: 2, 3: -7, -1: 1, -2: decoded(jwk["x"]), -3: decoded(jwk["y"])}


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


def test_the_challenge_that_is_recomputed_is_the_one_that_is_written_down() -> None:
    key = KEYS["ES256"]
    found = key.get(digest_of(RAW))

    gesture = read(put_together(key.header(found), RAW, found.signature))

    assert challenge_of(gesture) == digest_of(RAW)
