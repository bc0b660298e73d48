"""One request's page by itself, with what a server may tell of it: warnings, buttons, the form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from playwright.async_api import Browser, Page, Route, expect

from surehand.cli.approvals_server import pages
from surehand.cli.approvals_server.pages import POLICY
from surehand.workflows.identity import params_hash
from tests.browser.approver import SMALL
from tests.browser.test_page_access import COVERED

ID: Final = "run-1/refund/1"
PARAMS: Final[dict[str, Any]] = {"amount": "5000"}
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
#: What the page's template has of a request that says nothing special.
ONE: Final[dict[str, Any]] = {
    **{"id": ID, "description": "Refund 5000 EUR", "state": "waits", "waits": True, "votes": []},
    **{"run_id": "run-1", "step_id": "refund", "key": "k", "hash": "sha256:x", "undo": "no"},
    **{"asked_by": "gail", "editors": [], "foreign": "", "needs": [], "excluded": [], "said": []},
    **{"decisions": "open", "expires_at": "2026-10-01 09:00:00Z", "left": "in 3 days", "then": ""},
    **{"precondition": None, "replaces": None, "changes": [], "entries": [], "hint": None},
}


@dataclass(frozen=True)
class Opened:
    """A page, and what it has sent."""

    page: Page
    sent: list[Any]


async def opened(browser: Browser, **one: Any) -> Opened:
    """Open the page of a request, on a phone; no server is behind it."""
    page = await browser.new_page(viewport=SMALL)
    sent: list[Any] = []
    hash_ = params_hash(tool="pay", version="1", params=PARAMS)
    asked = {
        **{"tenant": "default", "principal": "ann", "keys": [], "passkeys": [], "waits": True},
        **{"approval_id": ID, "params_hash": hash_, "proof": "open", "left_ms": 10**9},
    }
    call = {"tool": "pay", "version": "1", "params": PARAMS, "answers": [], "salt": None}
    template = pages._ENVIRONMENT.get_template("approval.html")
    drawn = template.render(me="ann", here="", one={**ONE, **one}, asked=asked, web_ui=None)

    async def answer(route: Route) -> None:
        path = route.request.url.split("localhost:9", 1)[1].split("?")[0]
        if path.startswith("/static/"):
            body, type_ = pages.static_files()[path.removeprefix("/static/")]
            await route.fulfill(body=body, content_type=type_)
        elif path == "/approval":
            headers = {"Content-Security-Policy": POLICY}
            await route.fulfill(body=drawn, content_type="text/html", headers=headers)
        elif path == "/approval.json":
            await route.fulfill(json={**asked, **call, "schema": json.dumps(SCHEMA)})
        elif path == "/decide":
            sent.append(json.loads(route.request.post_data or ""))
            await route.fulfill(status=409, json={"error": "none"})
        else:
            await route.fulfill(status=404)

    await page.route("**/*", answer)
    await page.goto(f"http://localhost:9/approval?id={ID}")
    await expect(page.locator("#edit")).to_be_enabled()
    return Opened(page, sent)


async def test_nobody_approves_the_old_params_while_the_form_shows_others(
    browser: Browser,
) -> None:
    on = await opened(browser)
    approve, edit = on.page.locator("#approve"), on.page.locator("#edit")
    await expect(approve).to_be_enabled()
    await edit.click()
    await on.page.get_by_label("amount", exact=True).fill("5")
    await expect(approve).to_be_disabled()
    # Not even by what the button is told by hand: what is sent next is only the edit.
    await approve.evaluate("button => { button.disabled = false; button.click(); }")
    await on.page.locator("#ask-anew").click()
    await expect(on.page.locator("#said")).to_be_focused()
    assert [(one["outcome"], one["params"]) for one in on.sent] == [("edit", {"amount": "5"})]
    await edit.click()
    await expect(approve).to_be_enabled()
    await on.page.close()


async def test_what_an_edit_changes_is_what_the_form_has_now_and_nothing_while_it_is_wrong(
    browser: Browser,
) -> None:
    on = await opened(browser)
    edited = on.page.locator("#edited")
    await on.page.locator("#edit").click()
    await expect(edited).to_have_text("No difference.")
    await on.page.get_by_label("note", exact=True).fill("hello")
    assert await edited.inner_text() == 'added note "hello"'
    await on.page.get_by_label("most", exact=True).fill("many")
    assert await edited.inner_text() == ""
    await on.page.close()


async def test_the_bar_covers_nothing_that_has_the_focus_whatever_there_is_to_say(
    browser: Browser,
) -> None:
    on = await opened(browser, hint="Your own yes does not count. " * 8, excluded=["ann"])
    await expect(on.page.locator("#hindrance")).to_be_visible()
    await on.page.locator("#edit").click()
    await on.page.set_viewport_size({"width": 360, "height": 500})
    for name in ("reason", "params", "reason", "ask-anew"):
        await on.page.evaluate("scrollTo(0, 0)")
        await on.page.locator(f"#{name}").focus()
        assert not await on.page.evaluate(COVERED), f"something lies over {name}"
    bar = await on.page.locator(".bar").bounding_box()
    assert bar is not None and bar["height"] <= 9 * 16  # what `scroll-padding-bottom` keeps free
    await on.page.close()


async def test_what_warns_of_a_call_is_read_before_its_buttons(browser: Browser) -> None:
    changed = {"at": "2026-09-01", "digest": "a", "before": "b", "changed": True}
    on = await opened(browser, foreign="yes: mail.read", precondition=changed)
    approve = await on.page.locator("#approve").bounding_box()
    warnings = on.page.locator("#check ~ .alarm")
    await expect(warnings).to_contain_text(["yes: mail.read", "has changed since"])
    for one in await warnings.all():
        box = await one.bounding_box()
        assert box is not None and approve is not None
        assert box["y"] + box["height"] <= approve["y"]
    await on.page.close()
