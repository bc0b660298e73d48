"""A key that a browser makes stays in it, and signs what the worker takes."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from playwright.async_api import Browser, CDPSession

from surehand.activities.ledger.people.signatures import parse_claims, verify_in_time
from surehand.client.messages import sign
from surehand.verify import (
    MOST_DECISIONS,
    BadSignature,
    PublicKey,
    is_gesture,
    kid_of,
    read_gesture,
    read_key_file,
    read_public_key,
    verify_gesture,
)
from surehand.workflows.contracts.approvals import DecisionClaims, SteeringClaims
from tests.browser.static_files import ELSEWHERE, Modules, StaticFiles

NOW: Final = int(time.time())
CLAIMS: Final[dict[str, Any]] = {
    "aud": "surehand:acme",
    "sub": "ann \u00c4\U0001f600",
    "approval_id": "acme/refund-1/refund/1",
    "run_id": "acme/refund-1",
    "params_hash": "sha256:" + "0" * 64,
    "outcome": "approve",
    "iat": NOW,
    "exp": NOW + 300,
    "jti": "a-nonce-of-thirty-two-characters",
}
MADE: Final = """
const key = await makeKey("acme", "ann");
const { kid, jwk } = key;
"""


async def test_a_signature_made_in_the_browser_counts_with_each_claim(modules: Modules) -> None:
    edit = {**CLAIMS, "outcome": "edit", "edited": "sha256:" + "1" * 64}
    made = await modules.run(
        "keys",
        "makeKey",
        f"{MADE} return {{jwk, kid, token: await key.sign(given, 'surehand-decision+jws')}}",
        edit,
    )
    jwk = read_public_key(json.dumps(made["jwk"]))
    assert kid_of(jwk) == made["kid"] == made["jwk"]["kid"]
    claims = verify_in_time(made["token"], jwk, DecisionClaims, now_s=NOW)
    assert claims == DecisionClaims.model_validate(edit)
    with pytest.raises(BadSignature, match="type is not"):
        verify_in_time(made["token"], jwk, SteeringClaims, now_s=NOW)


async def test_the_browser_and_the_command_line_make_the_same_token(modules: Modules) -> None:
    key = Ed25519PrivateKey.generate()
    pkcs8 = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    claims = DecisionClaims.model_validate(CLAIMS)
    made = await modules.run(
        "keys",
        "compactJws, thumbprint",
        """
        const bytes = new Uint8Array(given.pkcs8);
        const key = await crypto.subtle.importKey("pkcs8", bytes, "Ed25519", true, ["sign"]);
        const kid = await thumbprint(await crypto.subtle.exportKey("jwk", key));
        return compactJws(key, kid, {...given.claims, edited: null}, "surehand-decision+jws");
        """,
        {"pkcs8": list(pkcs8), "claims": CLAIMS},
    )
    assert made == sign(key, claims)


async def test_a_key_survives_a_reload_and_is_there_in_another_tab(modules: Modules) -> None:
    kid = await modules.run("keys", "makeKey", f"{MADE} return kid")
    found = "const key = await ownKey('acme', 'ann'); return [key.kid, key.jwk]"
    await modules.page.reload()
    [again, jwk] = await modules.run("keys", "ownKey", found)
    other = await Modules.opened(await modules.page.context.new_page(), modules.page.url)
    [there, _] = await other.run("keys", "ownKey", found)
    assert (again, there) == (kid, kid)
    token = await other.run(
        "keys",
        "ownKey",
        "return (await ownKey('acme', 'ann')).sign(given, 'surehand-decision+jws')",
        CLAIMS,
    )
    assert verify_in_time(token, jwk, DecisionClaims, now_s=NOW).sub == CLAIMS["sub"]


async def test_no_script_can_take_the_private_key_out_of_the_browser(modules: Modules) -> None:
    tried = await modules.run(
        "keys",
        "makeKey",
        f"""{MADE}
        const database = await new Promise((resolve) => {{
          const request = indexedDB.open("surehand");
          request.onsuccess = () => resolve(request.result);
        }});
        const [pair] = await new Promise((resolve) => {{
          const request = database.transaction("keys").objectStore("keys").getAll();
          request.onsuccess = () => resolve(request.result);
        }});
        const formats = ["pkcs8", "jwk", "raw"].map((format) =>
          crypto.subtle.exportKey(format, pair.privateKey)
            .then(() => "out", (error) => error.name));
        return [pair.privateKey.extractable, Object.keys(key), ...(await Promise.all(formats))];
        """,
    )
    assert tried[:2] == [False, ["kid", "jwk", "sign"]]
    assert tried[2:] == ["InvalidAccessError"] * 3


async def test_each_principal_has_a_key_of_its_own_and_forgets_only_that(modules: Modules) -> None:
    owners = [["acme", "ann"], ["acme", "bob"], ["beta", "ann"], ['acme","ann', "x"]]
    kids = await modules.run(
        "keys",
        "makeKey",
        "return Promise.all(given.map(async (one) => (await makeKey(...one)).kid))",
        owners,
    )
    assert len(set(kids)) == 4
    left = await modules.run(
        "keys",
        "forgetKey, ownKey",
        """
        await forgetKey(...given[0]);
        return Promise.all(given.map(async (one) => (await ownKey(...one))?.kid ?? null));
        """,
        owners,
    )
    assert left == [None, *kids[1:]]
    await modules.page.reload()
    assert await modules.run("keys", "ownKey", "return ownKey('acme', 'ann')") is None


async def test_a_key_is_never_replaced_not_by_two_tabs_at_once_either(modules: Modules) -> None:
    attempts = await modules.run(
        "keys",
        "makeKey, ownKey",
        """
        const made = await Promise.allSettled([1, 2, 3].map(() => makeKey("acme", "ann")));
        const kid = (await ownKey("acme", "ann")).kid;
        return made.map((one) => one.value ? one.value.kid === kid : one.reason.message);
        """,
    )
    told = "There is a key for this name in this browser already: forget it first."
    assert sorted(attempts, key=str) == [told, told, True]


async def test_a_key_belongs_to_somebody(modules: Modules) -> None:
    for owner in ("", "'acme'", "'acme', ''", "'', 'ann'"):
        for name in ("ownKey", "makeKey", "forgetKey"):
            told = await modules.refused("keys", name, f"await {name}({owner})")
            assert told == "a key needs the tenant and the name of its owner"


async def test_without_tls_one_line_says_why(browser: Browser, static_files: StaticFiles) -> None:
    page = await browser.new_page()
    modules = await Modules.opened(page, static_files.url(ELSEWHERE))
    told = [
        await modules.refused("keys", "makeKey", "await makeKey('acme', 'ann')"),
        await modules.refused("canonical", "digest", "await digest(1)"),
        await modules.refused("keys", "register", "await register({principal: 'ann'})"),
    ]
    await page.close()
    assert told == ["This page cannot sign here: open it by https, or on localhost."] * 3


async def test_without_ed25519_a_browser_says_so_and_keeps_nothing(modules: Modules) -> None:
    # As browsers before Chrome 137, Firefox 129 and Safari 17 answer.
    told = await modules.refused(
        "keys",
        "makeKey",
        """
        SubtleCrypto.prototype.generateKey = async () => {
          throw new DOMException("Algorithm: Unrecognized name", "NotSupportedError");
        };
        await makeKey("acme", "ann");
        """,
    )
    assert told.startswith("This browser cannot make Ed25519 keys: use Chrome 137,")
    assert await modules.run("keys", "ownKey", "return ownKey('acme', 'ann')") is None


# Passkeys in a real browser: the worker takes what they sign, and for nothing else.


REGISTERED: Final = """
const said = await register({rpId: "localhost", rpName: "Test", principal: "ann", ...given});
return JSON.stringify(said);
"""
SIGNED: Final = "return await signByPasskey({rpId: 'localhost', ...given})"


def claims(number: int = 1, **other: Any) -> dict[str, Any]:
    return {
        "aud": "surehand:acme",
        "sub": "ann",
        "approval_id": f"acme/refund-{number}/refund/1",
        "run_id": f"acme/refund-{number}",
        "params_hash": "sha256:" + "0" * 64,
        "outcome": "approve",
        "iat": NOW,
        "exp": NOW + 300,
        "jti": f"a-nonce-of-some-thirty-characters-{number}",
        **other,
    }


class Device:
    """An authenticator of the browser's own, with a person who is there and recognised."""

    def __init__(self, session: CDPSession, id_: str) -> None:
        self._session = session
        self._id = id_

    @classmethod
    async def at(cls, modules: Modules, **options: Any) -> Device:
        session = await modules.page.context.new_cdp_session(modules.page)
        await session.send("WebAuthn.enable")
        given = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
            **options,
        }
        made = await session.send("WebAuthn.addVirtualAuthenticator", {"options": given})
        return cls(session, made["authenticatorId"])

    async def knows_its_person(self, knows: bool) -> None:
        await self._session.send(
            "WebAuthn.setUserVerified", {"authenticatorId": self._id, "isUserVerified": knows}
        )


async def passkey(modules: Modules, **given: Any) -> tuple[dict[str, Any], PublicKey]:
    """Return what the page offers for download, and what an administrator makes of it."""
    text = await modules.run("keys", "register", REGISTERED, given)
    return json.loads(text), read_key_file(text)


def believed(proof: str, key: PublicKey, modules: Modules) -> DecisionClaims:
    assert key.passkey is not None and is_gesture(proof)
    origin = modules.page.url.rstrip("/")
    signed = verify_gesture(read_gesture(proof), key.jwk, key.passkey, origins={origin})
    return parse_claims(signed, DecisionClaims)


async def gesture(modules: Modules, *asked: dict[str, Any], keys: Any) -> list[str]:
    given = {"claimsList": asked, "keys": keys}
    proofs: list[str] = await modules.run("keys", "signByPasskey", SIGNED, given)
    return proofs


@pytest.mark.parametrize(("algorithm", "kty"), [(-7, "EC"), (-8, "OKP"), (-257, "RSA")])
async def test_each_passkey_claim_counts(modules: Modules, algorithm: int, kty: str) -> None:
    await Device.at(modules)
    file, key = await passkey(modules, algorithms=[algorithm])
    assert (key.jwk["kty"], key.passkey and key.passkey.rp_id) == (kty, "localhost")
    edit = claims(outcome="edit", edited="sha256:" + "1" * 64, sub="ann \u00c4\U0001f600")
    # Of several passkeys, the one that signs is named.
    [proof] = await gesture(modules, edit, keys=[{**file, "credential_id": "AAAA"}, file])
    assert believed(proof, key, modules).model_dump(mode="json", exclude_none=True) == edit
    assert (read_gesture(proof).digests, read_gesture(proof).kid) == (None, key.kid)

    for changed in ({"outcome": "reject"}, {"params_hash": "sha256:" + "f" * 64}):
        [other] = await gesture(modules, {**edit, **changed}, keys=[file])
        head, _, signature = proof.split(".")
        with pytest.raises(BadSignature, match="another challenge"):
            believed(".".join((head, other.split(".")[1], signature)), key, modules)


@pytest.mark.parametrize("count", [2, MOST_DECISIONS])
async def test_one_gesture_signs_a_list_decision_by_decision(modules: Modules, count: int) -> None:
    await Device.at(modules)
    file, key = await passkey(modules)
    asked = [claims(number) for number in range(count)]
    proofs = await gesture(modules, *asked, keys=[file])
    found = [believed(proof, key, modules) for proof in proofs]
    assert [one.model_dump(mode="json", exclude_none=True) for one in found] == asked
    assert len({read_gesture(proof).signature for proof in proofs}) == 1

    header, _, signature = proofs[0].split(".")
    [other] = await gesture(modules, claims(99), keys=[file])
    with pytest.raises(BadSignature, match="a list without this decision"):
        believed(".".join((header, other.split(".")[1], signature)), key, modules)


@pytest.mark.parametrize("eligible", [False, True])
async def test_the_file_says_if_the_passkey_is_bound(modules: Modules, eligible: bool) -> None:
    await Device.at(modules, defaultBackupEligibility=eligible, defaultBackupState=eligible)
    file, key = await passkey(modules)
    assert file["device_bound"] is not eligible
    [proof] = await gesture(modules, claims(), keys=[file])
    assert believed(proof, key, modules).sub == "ann"


async def test_no_gesture_is_made_that_would_not_count(modules: Modules) -> None:
    device = await Device.at(modules)
    file, _ = await passkey(modules)
    one, known = [claims()], [file["credential_id"]]

    async def told(**given: Any) -> str:
        return await modules.refused("keys", "signByPasskey", SIGNED, {"keys": [file], **given})

    for numbers in ([], [1, 2, 1], [*range(MOST_DECISIONS + 1)]):
        assert await told(claimsList=[claims(number) for number in numbers]) == (
            "One gesture signs 1 to 50 decisions, each of them once."
        )
    assert await told(claimsList=one, keys=[]) == "No passkey of yours is registered."
    assert "relying party" in (await told(claimsList=one, rpId=ELSEWHERE)).lower()
    second = await modules.refused("keys", "register", REGISTERED, {"known": known})
    assert "already registered" in second
    await device.knows_its_person(False)
    assert "not allowed" in await told(claimsList=one)
