"""What the page signs and sends is what the command line would, for what is shown, or nothing."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
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
from playwright.async_api import Browser, Page, Route, expect

from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.people.signatures import find_mismatch, verify_in_time
from surehand.activities.ledger.steps import foreign
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.client.messages import SeenRequest, compose_decision
from surehand.process.settings import ClientSettings
from surehand.verify import read_public_key
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Decision, DecisionClaims, DecisionOutcome
from surehand.workflows.contracts.base import ForeignContent
from surehand.workflows.contracts.effects import UndoSpec
from surehand.workflows.identity import params_hash
from surehand.workflows.plan.policy import Requirement
from tests.browser.approver import SMALL
from tests.browser.static_files import Modules
from tests.browser.test_page_access import COVERED
from tests.cli.test_approvals_server import ORIGIN, Site, site
from tests.ledger.scene import OTHER_RUN, RUN

__all__ = ["site"]

NOW: Final = int(time.time())
PARAMS: Final[dict[str, Any]] = {"order_id": "order-7", "amount": 4000, "lines": [{"sku": "a"}]}
CALLED: Final[dict[str, Any]] = {"amount": "5000"}
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
    return read_public_key(json.dumps(made[0])), Decision.model_validate(made[1])


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
    claims = verify_in_time(decision.signature, jwk, DecisionClaims, now_s=int(time.time()))

    key_file = tmp_path / "ann.pem"
    key_file.touch(mode=0o600)
    key = Ed25519PrivateKey.generate()
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    run_id, typed = compose_decision(
        ClientSettings(user="ann", tenant="acme", task_queue="", ui_url="", key=key_file),
        SeenRequest(asked["approval_id"], asked["params_hash"]),
        DecisionOutcome(outcome),
        reason=reason,
        params=params,
    )
    assert typed.signature is not None
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    registered, now_s = read_public_key(public.decode()), int(time.time())
    theirs = verify_in_time(typed.signature, registered, DecisionClaims, now_s=now_s)
    assert decision.model_copy(update={"signature": typed.signature}) == typed
    now = {"iat": claims.iat, "exp": claims.exp, "jti": claims.jti}
    assert claims == theirs.model_copy(update=now)
    assert claims.exp - claims.iat == theirs.exp - theirs.iat
    assert len(claims.jti) == len(theirs.jti) and claims.jti != theirs.jti
    assert find_mismatch(claims, decision, run_id, "acme") is None
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
async def test_nothing_is_signed_for_params_not_shown(modules: Modules, outcome: str) -> None:
    for shown in OTHERS:
        given = {"outcome": outcome, "request": request(**shown), "params": NEW}
        told = await modules.refused("signing", "signed", SIGNED, given)
        assert told.startswith("What is shown is not what the server asks you to sign")


async def test_what_cannot_be_trusted_can_be_rejected(modules: Modules) -> None:
    for shown in OTHERS:
        _, decision = await signed(modules, outcome="reject", request=request(**shown))
        assert (decision.outcome, decision.params) == (DecisionOutcome.REJECT, None)


async def test_params_that_would_lose_digits_are_not_signed(modules: Modules) -> None:
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
        assert told == "Nothing is changed."


async def test_nothing_is_signed_for_another_tenants_approval(modules: Modules) -> None:
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


# One request's page by itself, from a server that no run answers: warnings, buttons, the form.


SCHEMA: Final = {
    "type": "object",
    "properties": {
        "amount": {"type": "string", "minLength": 1},
        # More than a browser can hold: the form is made by it, and nothing is signed for it.
        "most": {"type": "number", "maximum": 2**60},
        "note": {"type": "string", "default": "hello"},
    },
    "required": ["amount"],
}


@dataclass(frozen=True)
class Opened:
    """A page, and what it has sent."""

    page: Page
    sent: list[Any]

    async def reads(self) -> None:
        """Come to the end of the call."""
        await self.page.locator("#check").scroll_into_view_if_needed()
        await expect(self.page.locator("#onward")).to_be_hidden()


async def opened(site: Site, browser: Browser, gated: ClaimRequest, me: str = "ann") -> Opened:
    """Open the page of a request, on a phone."""
    await site.sign_in(me)
    page, sent = await browser.new_page(viewport=SMALL), list[Any]()

    async def answer(route: Route) -> None:
        asked = route.request
        path = asked.url.removeprefix(ORIGIN)
        if path.startswith("/follow/"):
            await route.fulfill(status=204)  # as if too many followed
            return
        if path == "/decide":
            sent.append(json.loads(asked.post_data or ""))
        headers = {"content-type": "application/json", "origin": ORIGIN}
        content = asked.post_data
        got = await site.browser.request(asked.method, path, headers=headers, content=content)
        told = {k: v for k, v in got.headers.items() if k.startswith("content-")}
        await route.fulfill(status=got.status_code, body=got.content, headers=told)

    await page.route("**/*", answer)
    await page.goto(f"{ORIGIN}/approval?id={gated.approval_id}")
    await expect(page.locator("#edit")).to_be_enabled()
    return Opened(page, sent)


async def test_nobody_approves_the_old_params_while_the_form_shows_others(
    site: Site, browser: Browser
) -> None:
    site.schemas["payments.refund"] = SCHEMA
    on = await opened(site, browser, site.scene.ask_approval(site.scene.call(params=CALLED)))
    approve, edit = on.page.locator("#approve"), on.page.locator("#edit")
    await on.reads()
    await expect(approve).to_be_enabled()
    await edit.click()
    await on.page.get_by_label("Amount", exact=True).fill("5")
    await expect(approve).to_be_disabled()
    # Not even by what the button is told by hand: what is sent next is only the edit.
    await approve.evaluate("button => { button.disabled = false; button.click(); }")
    await on.page.locator("#send-edit").click()
    await expect(on.page.locator("#said")).to_be_focused()
    assert [(one["outcome"], one["params"]) for one in on.sent] == [("edit", {"amount": "5"})]
    await on.page.locator("#reject").click()
    await expect(on.page.locator("#said")).to_have_text("Say why you reject it.")
    await on.page.get_by_role("button", name="Cancel").click()
    await expect(on.page.locator("#said")).to_be_empty()
    await expect(approve).to_be_enabled()
    await on.page.close()


async def test_an_edit_changes_what_its_form_has_now(site: Site, browser: Browser) -> None:
    site.schemas["payments.refund"] = SCHEMA
    on = await opened(site, browser, site.scene.ask_approval(site.scene.call(params=CALLED)))
    edited = on.page.locator("#edited")
    await on.page.locator("#edit").click()
    await expect(edited).to_have_text("Nothing is changed.")
    await on.page.get_by_label("Note", exact=True).fill("hello")
    assert await edited.inner_text() == 'note: "hello"'
    await on.page.get_by_label("Most", exact=True).fill("many")
    assert await edited.inner_text() == ""
    await on.page.locator("#send-edit").click()
    await expect(on.page.locator("#said")).to_contain_text("Most: Write a number")
    assert on.sent == []
    await on.page.close()


async def test_nobody_approves_a_call_before_they_have_come_to_its_end(
    site: Site, browser: Browser
) -> None:
    long = {"body": "Dear Ann,\n\nthank you.\n" * 40, "amount": "5000"}
    on = await opened(site, browser, site.scene.ask_approval(site.scene.call(params=long)))
    approve = on.page.locator("#approve")
    await expect(approve).to_be_in_viewport(ratio=1)
    onward = on.page.locator("#onward")
    await expect(approve).to_be_disabled()
    # Whoever presses twice has approved nothing: the second press meets no other button.
    await onward.dblclick()
    await expect(approve).to_be_enabled()
    await expect(onward).to_be_hidden()
    await expect(on.page.locator("#check")).to_be_in_viewport(ratio=1)
    assert on.sent == []
    await on.page.close()


async def test_the_bar_never_covers_the_focus(site: Site, browser: Browser) -> None:
    on = await opened(site, browser, site.scene.ask_approval(site.scene.call(params=CALLED)))
    await expect(on.page.locator("#hindrance")).to_be_visible()
    await on.page.locator("#edit").click()
    await on.page.locator("#call summary").click()
    await on.page.set_viewport_size({"width": 360, "height": 500})
    for name in ("reason", "json", "reason", "send-edit"):
        await on.page.evaluate("scrollTo(0, 0)")
        await on.page.locator(f"#{name}").focus()
        assert not await on.page.evaluate(COVERED), f"something lies over {name}"
    bar = await on.page.locator(".decide").bounding_box()
    assert bar is not None and bar["height"] <= 9 * 16  # what `scroll-padding-bottom` keeps free
    await on.page.close()


async def test_what_warns_of_a_call_is_read_before_it_and_its_buttons(
    site: Site, browser: Browser
) -> None:
    scene, four_eyes = site.scene, Requirement(four_eyes=True)
    before = scene.ask_approval(scene.call(params=CALLED, precondition="sha256:a"))
    edited = Edited({"amount": "5001\u200b"}, "sha256:edited", before.key)
    scene.decide(before, "edit", params=edited.params, edited=edited)
    call = scene.call(params=edited.params, precondition="sha256:b", undo=UndoSpec(version="1"))
    gated = scene.ask_approval(call, number=2, editors=["alice"], requirement=four_eyes)
    scene.open_run(OTHER_RUN)
    other = scene.committed(scene.call(run_id=OTHER_RUN, key=before.key))
    with scene.tx() as tx:
        foreign.mark_foreign(tx, RUN, [ForeignContent(tool="mail.read", step_id="inbox")])

    on = await opened(site, browser, gated, me="ada")

    flags = on.page.locator(".flag:visible")
    await expect(flags).to_contain_text(
        [
            "Another run has done this already.",
            "Cannot be undone.",
            "Edited by alice.",
            "mail.read (step inbox)",
            "The situation has changed",
            "Your approval does not count here.",
            "characters that cannot be seen",
        ]
    )
    await expect(flags.first.get_by_role("link")).to_have_attribute(
        "href", f"/run?id={other.run_id}"
    )
    await expect(flags.nth(2).locator("ins")).to_have_text("5001\\u200b")
    await expect(on.page.locator("#params .unseen")).to_have_text("\\u200b")
    last, call_ = await flags.last.bounding_box(), await on.page.locator("#call").bounding_box()
    assert last is not None and call_ is not None
    assert last["y"] + last["height"] <= call_["y"]
    await on.page.close()
