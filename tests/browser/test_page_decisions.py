"""What the page signs and sends is what the command line would, for what is shown, or nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from surehand.activities.ledger.people.public_keys import public_key
from surehand.activities.ledger.people.signatures import matches, verify
from surehand.client.messages import SeenRequest, decided
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import Decision, DecisionClaims, DecisionOutcome
from surehand.workflows.identity import digest, params_hash
from tests.browser.static_files import Modules

NOW: Final = int(time.time())
PARAMS: Final[dict[str, Any]] = {"order_id": "order-7", "amount": 4000, "lines": [{"sku": "a"}]}
NEW: Final[dict[str, Any]] = {**PARAMS, "amount": 50}
SIGNED: Final = """
const { makeKey, ownKey } = await import("/keys.js");
const key = (await ownKey("acme", "ann")) ?? (await makeKey("acme", "ann"));
const request = { tenant: "acme", principal: "ann", ...given.request };
const [decision] = await signed({ key }, [{ ...given, request }]);
return [key.jwk, decision];
"""

PREPARED: Final = """
return (await prepared({ request: given, outcome: "approve" })).claims;
"""


def request(**other: Any) -> dict[str, Any]:
    call = {"tool": "payments.refund", "version": "1", "params": PARAMS}
    id_ = "acme/refund-1~pay.2/refund/1"
    return {"approval_id": id_, "params_hash": params_hash(**call), **call, **other}


async def signed(modules: Modules, **given: Any) -> tuple[dict[str, Any], Decision]:
    """Return the public key, and the decision as it would arrive."""
    made = await modules.run("signing", "signed", SIGNED, given)
    return public_key(json.dumps(made[0])), Decision.model_validate(made[1])


@pytest.mark.parametrize(
    ("outcome", "reason", "params"),
    [("approve", "", None), ("reject", "not \u00fcs", None), ("edit", "less", NEW)],
)
async def test_a_decision_of_the_page_is_the_command_line_s_and_its_signature_counts(
    modules: Modules, tmp_path: Path, outcome: str, reason: str, params: dict[str, Any] | None
) -> None:
    asked = request()
    given = {"outcome": outcome, "reason": reason, "params": params}
    if params is None:
        del given["params"]
    jwk, decision = await signed(modules, request=asked, **given)
    assert decision.signature is not None
    claims = verify(decision.signature, jwk, DecisionClaims, now_s=int(time.time()))

    key_file = tmp_path / "ann.pem"
    key_file.touch(mode=0o600)
    key = Ed25519PrivateKey.generate()
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    run_id, typed = decided(
        ClientSettings(user="ann", tenant="acme", task_queue="", ui_url="", key=key_file),
        SeenRequest(asked["approval_id"], asked["params_hash"]),
        DecisionOutcome(outcome),
        reason=reason,
        params=params,
    )
    assert typed.signature is not None
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    registered, now_s = public_key(public.decode()), int(time.time())
    theirs = verify(typed.signature, registered, DecisionClaims, now_s=now_s)
    assert decision.model_copy(update={"signature": typed.signature}) == typed
    now = {"iat": claims.iat, "exp": claims.exp, "jti": claims.jti}
    assert claims == theirs.model_copy(update=now)
    assert claims.exp - claims.iat == theirs.exp - theirs.iat
    assert len(claims.jti) == len(theirs.jti) and claims.jti != theirs.jti
    assert matches(claims, decision, run_id, "acme") is None
    assert claims.edited == (digest(params) if params else None)


#: What a server may show beside a hash that is not of it.
OTHERS: Final[tuple[dict[str, Any], ...]] = (
    {"params": {**PARAMS, "amount": 5}},
    {"params": {**PARAMS, "amount": "4000"}},
    {"params": {}},
    {"tool": "payments.charge"},
    {"version": "2"},
    {"answers": ["yes"]},
    {"salt": "pepper"},
    {"params_hash": "sha256:" + "0" * 64},
    {"params_hash": ""},
)


@pytest.mark.parametrize("outcome", ["approve", "edit"])
async def test_nothing_is_signed_that_says_yes_to_other_params_than_are_shown(
    modules: Modules, outcome: str
) -> None:
    for shown in OTHERS:
        given = {"outcome": outcome, "request": request(**shown), "params": NEW}
        told = await modules.refused("signing", "signed", SIGNED, given)
        assert told.startswith("The params that are shown are not those that are asked for")


async def test_what_cannot_be_trusted_can_be_rejected(modules: Modules) -> None:
    for shown in OTHERS:
        _, decision = await signed(modules, outcome="reject", request=request(**shown))
        assert (decision.outcome, decision.params) == (DecisionOutcome.REJECT, None)


async def test_params_that_would_lose_digits_are_neither_approved_nor_put_in_place(
    modules: Modules,
) -> None:
    lost = {"amount": 2**53}
    for given in (
        {"outcome": "approve", "request": request(params=lost)},
        {"outcome": "edit", "request": request(), "params": lost},
    ):
        told = await modules.refused("signing", "signed", SIGNED, given)
        assert "lose digits" in told


async def test_an_edit_that_changes_nothing_is_not_signed(modules: Modules) -> None:
    for more in ({}, {"params": PARAMS}, {"params": dict(reversed(PARAMS.items()))}):
        given = {"outcome": "edit", "request": request(), **more}
        told = await modules.refused("signing", "signed", SIGNED, given)
        assert told == "The params are so already."


async def test_nothing_is_signed_for_what_is_no_approval_of_one_s_own_tenant(
    modules: Modules,
) -> None:
    for approval_id, told in {
        "beta/refund-1/refund/1": "This approval belongs to another tenant.",
        "refund-1/refund/1": "This approval belongs to another tenant.",
        "acmes/refund-1/refund/1": "This approval belongs to another tenant.",
        "refund-1": "This is not the id of an approval.",
        "acme/refund-1/refund/one": "This is not the id of an approval.",
        "acme/refund-1//1": "This is not the id of an approval.",
        "": "This is not the id of an approval.",
    }.items():
        for outcome in ("approve", "reject"):
            given = {"outcome": outcome, "request": request(approval_id=approval_id)}
            assert await modules.refused("signing", "signed", SIGNED, given) == told


async def test_the_default_tenant_s_runs_have_no_tenant_in_their_ids(modules: Modules) -> None:
    asked = request(approval_id="refund-1/refund/1", tenant="default", principal="ann")
    claims = await modules.run("signing", "prepared", PREPARED, asked)
    made = DecisionClaims.model_validate(claims)
    assert (made.aud, made.run_id) == ("surehand:default", "refund-1")
    assert NOW <= made.iat <= time.time()


async def test_a_nonce_is_never_used_twice(modules: Modules) -> None:
    asked = request(tenant="acme", principal="ann")
    nonces = await modules.run(
        "signing",
        "prepared",
        f"""
        const one = async () => {{ {PREPARED} }};
        const many = await Promise.all(Array.from({{length: 1000}}, one));
        return many.map(({{ jti }}) => jti);
        """,
        asked,
    )
    assert len(set(nonces)) == 1000
