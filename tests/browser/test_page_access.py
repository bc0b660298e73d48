"""Each of the approver's pages for those who see little, use no mouse, or hold a phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from playwright.async_api import Page, Request, Route, expect

from docs.pictures import take, wanted
from surehand.activities.ledger.halts import HaltPolicy, LiftPolicy, halt_calls
from surehand.cli.approvals_server import pages as pages_
from surehand.workflows.contracts.base import RunState
from tests.browser.accessibility import violations
from tests.browser.approver import SMALL, Approver, ann, served
from tests.e2e.plans import NEITHER, plan
from tests.e2e.runs import Run, example_plan
from tests.e2e.stage import Stage
from tests.ledger.people import person

__all__ = ["ann", "served"]

TEMPLATES: Final = Path(pages_.__file__).parent / "templates"
WIDTHS: Final = (SMALL["width"], 1280)
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
_WIDER: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: How what has the focus is marked, as the browser draws it.
_MARK: Final = """
(() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  return outlineStyle === "none" ? 0 : parseFloat(outlineWidth);
})()
"""
#: Whether something else lies over what has the focus.
COVERED: Final = """
(() => {
  const focused = document.activeElement, { x, y, width, height } = focused.getBoundingClientRect();
  const top = document.elementFromPoint(x + width / 2, y + height / 2);
  return top !== null && !focused.contains(top) && !top.contains(focused);
})()
"""
#: What a thumb presses and is smaller than it, and dates that are cut in two by the end of a line.
_UNHANDY: Final = """
(() => {
  const wrong = [];
  for (const target of document.querySelectorAll("header a, header button, main button, summary")) {
    const { width, height } = target.getBoundingClientRect();
    if (width > 0 && (width < 44 || height < 44)) {
      wrong.push(`${target.textContent.trim()} is ${width} by ${height} pixels`);
    }
  }
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const date of texts.currentNode.data.matchAll(/\\d{4}-\\d\\d-\\d\\d[ T][\\d:+Z]+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, date.index);
      range.setEnd(texts.currentNode, date.index + date[0].length);
      if (new Set([...range.getClientRects()].map(({ top }) => top)).size > 1) {
        wrong.push(`${date[0]} stands on two lines`);
      }
    }
  }
  return wrong;
})()
"""
_FOCUSED: Final = "document.activeElement.id || document.activeElement.textContent.trim()"


async def looked_at(page: Page) -> list[str]:
    """Return what is wrong with a page as it is now, in each colour scheme and at each width."""
    wrong = []
    # Colours do not depend on the width, nor places on the colours.
    for scheme, width in zip(SCHEMES, WIDTHS, strict=True):
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 740})
        found = [*await violations(page), *await page.evaluate(_UNHANDY)]
        if (wider := await page.evaluate(_WIDER)) > 0:
            found.append(f"it is {wider} pixels wider than its window")
        wrong += [f"{scheme}, {width} px: {one}" for one in found]
    await page.set_viewport_size(SMALL)
    return wrong


async def test_axe_finds_nothing_wrong_anywhere(stage: Stage, ann: Approver, order_id: str) -> None:
    page, url = ann.page, ann.served.url
    wrong: dict[str, list[str]] = {}
    seen: set[str] = set()

    async def look(
        template: str, path: str, ready: str, *more: str, pictured: bool = False
    ) -> None:
        """Open a page, and look at it once it shows something; the docs show some as they are."""
        if path:
            await page.goto(f"{url}{path}")
        await expect(page.get_by_text(ready).first).to_be_visible()
        seen.add(template)
        if pictured and wanted():
            await take(page, template.replace("_", "-"))
        if found := await looked_at(page):
            wrong[" ".join((template, *more))] = found

    async def refund(order: str) -> Run:
        """Start a refund, under names to read if there is a picture of it."""
        name = order.replace("order", "refund") if wanted() else None
        order = order if wanted() else stage.shop.new_order()
        return await stage.start(example_plan("refund.yaml", order_id=order), name=name)

    fault = {"ignore_keys": True, "ignore_lookup": True, "fail": "drop_before", "times": 1}
    vouchers = {"question": "How many vouchers?", "answer": {"type": "integer"}}
    report = {"tool": "report.read", "params": {"stops": False}}
    person(stage, "ann")
    async with stage.worker_here(tool_modules=f"{NEITHER},tests.variants.reports"):
        stage.shop.fault("refunds", **fault)
        doubtful = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await doubtful.approve()
        await doubtful.in_state(RunState.NEEDS_INTERVENTION)
        asking = await stage.start(plan({"id": "gift", "ask": vouchers}))
        await asking.in_state(RunState.WAITING_INPUT)
        written = await stage.start(plan({"id": "report", **report}))
        await written.result()
        waiting = [await refund(f"order-100{number}") for number in (1, 4, 5, 6)]
        ids = [quote((await run.asks()).approval_id) for run in waiting]

        await look("sign_in", "/sign-in", "Ask the administrator for one", pictured=True)
        await page.get_by_text("I am the administrator").click()
        await look("sign_in", "", "approvals link --as NAME", "with the command")
        await page.goto(ann.served.link("ann"))
        await look("sign_in", "", "This link signs you in as", "with a link")
        await ann.signs_in()
        await look("keys", "/keys", "This browser has no key")
        public = await ann.makes_a_key()
        await look("keys", "", "Your key is made, but not registered yet.", "with one")
        waits = "marked so. Your key waits for an administrator to register it. Show the command"
        await look("approval", f"/approval?id={ids[0]}", waits, "with a key that waits")
        ann.served.register("ann", public)
        await look("keys", "/keys", "your key is registered", pictured=True)
        await look("list", "/?of=all&tool=mail.send", "Nothing to decide", "of nothing")
        one = f"/approval?id={ids[0]}"
        await look("approval", one, "You decide on exactly what is shown here.", pictured=True)
        await page.locator("#call summary").click()
        await look("approval", "", "Short hash", "with its details")
        await page.get_by_role("button", name="Edit").click()
        await page.get_by_label("amount").fill("")
        await look("approval", "", "What you change", "with the form")
        await page.get_by_label("amount").fill("7.00")
        await look("approval", "", "7.00", "with a change")
        await page.goto(f"{url}/approval?id={ids[3]}")
        await ann.reject.click()
        await look("approval", "", "Say why you reject it.", "with what is said")
        await page.get_by_label("Reason", exact=True).fill("wrong amount")
        await ann.reject.click()
        await ann.says("counts: rejected by ann")
        await look("list", "/", "Refund 120.00 EUR", pictured=True)
        with stage.ledger.transaction(stage.tenant) as tx:
            lifted = LiftPolicy(roles=("operator",))
            how = {"tool": "parcels.send", "policy": HaltPolicy(lift=lifted)}
            halt_calls(tx, "oscar", "two labels for a parcel", **how)
        await look("list", "/", "Halted: calls of parcels.send", "with a halt")
        several = f"/several?id={ids[0]}&id={ids[1]}"
        await look("several", several, "Approve all of these (2)", pictured=True)
        await look("others", "/others", "How many vouchers?", pictured=True)
        await look("mine", "/mine", "wrong amount", pictured=True)
        await look("artifacts", f"/artifacts?id={doubtful.run_id}", "This run has no files.")
        kept = f"/artifacts?id={written.run_id}"
        await look("artifacts", kept, "text/markdown", "with one", pictured=True)
        await look("run", f"/run?id={asking.run_id}", "How many vouchers?", "that asks")
        await look("run", f"/run?id={doubtful.run_id}", "Settle it", "in doubt")
        await page.get_by_text("What would be undone").click()
        await look("run", "", "Would not be undone", "with what would be undone")
        await look("run", f"/run?id={waiting[0].run_id}", "Waiting for an approval", pictured=True)
        await look("error", "/approval?id=run-404/refund/1", "That did not work", pictured=True)
        await page.goto("about:blank")  # or it goes on to follow

        await stage.no_call_may_arrive(doubtful)
        intervention = stage.intervention_rows(doubtful)[0]["intervention_id"]
        await doubtful.resolve(
            intervention_id=intervention, outcome="give_up", evidence="asked the bank"
        )
        await doubtful.result()
    assert wrong == {}
    # Only an identity provider leads to that one: test_oidc_sign_in.py looks at it.
    apart = {"base", "_flags", "no_principal"}
    assert seen == {file.stem for file in TEMPLATES.glob("*.html")} - apart


async def test_the_keyboard_alone_approves(stage: Stage, ann: Approver, order_id: str) -> None:
    keyboard = ann.page.keyboard

    async def tab_to(reached: Callable[[str], bool]) -> None:
        """Press Tab until something has the focus; each stop has to be seen."""
        # Before that the page may be there and its style not.
        await ann.page.wait_for_load_state()
        for _ in range(60):
            await keyboard.press("Tab")
            focused = str(await ann.page.evaluate(_FOCUSED))
            assert await ann.page.evaluate(_MARK) >= 2, f"nobody sees that {focused} has the focus"
            assert not await ann.page.evaluate(COVERED), f"something lies over {focused}"
            if reached(focused):
                return
        raise AssertionError("the keyboard does not get there")

    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.asks()
        await ann.page.goto(ann.served.link("ann"))
        await tab_to("sign-in".__eq__)
        await keyboard.press("Enter")
        await expect(ann.page.get_by_role("heading", name="To decide")).to_be_visible()
        await ann.page.get_by_text("Filter", exact=True).focus()
        await keyboard.press("Enter")
        await ann.page.get_by_label("Tool").focus()
        await keyboard.type("payments.refund")
        await ann.page.get_by_role("button", name="Show").press("Enter")
        await expect(ann.page).to_have_url(re.compile("tool=payments.refund"))
        await tab_to(lambda focused: order_id in focused)
        await keyboard.press("Enter")
        await ann.reads()
        await tab_to("reason".__eq__)
        await keyboard.type("it came back")
        await tab_to("approve".__eq__)
        await keyboard.press("Space")
        await ann.says("counts: approved by ann")
        await expect(ann.page.locator("#said")).to_be_focused()
        assert await ann.page.locator("#said").get_attribute("role") == "status"
        assert await ann.page.evaluate(_MARK) >= 2
        assert (await run.result()).state is RunState.COMPLETED
        await ann.page.get_by_role("link", name="Done").press("Enter")
        mine = ann.page.locator("#mine li").filter(has_text=order_id)
        await expect(mine).to_contain_text("approved by ann")
        for name in (order_id, "see the whole run", "Files of this run"):
            await ann.page.get_by_role("link", name=name).press("Enter")
        await expect(ann.page.locator("#nothing")).to_contain_text("This run has no files.")

    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    assert (decision["outcome"], decision["reason"]) == ("approve", "it came back")


async def test_a_phone_shows_call_and_buttons(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        await ann.signs_in()
        await ann.opens(request.approval_id)
        await ann.reads()
        shown = ann.page.locator("#params, #check")
        for one in (*await shown.all(), ann.approve, ann.reject):
            await expect(one).to_be_in_viewport(ratio=1)
        # The buttons lie over nothing of the call.
        call, bar = await ann.page.locator("#check").bounding_box(), ann.page.locator(".decide")
        buttons = await bar.bounding_box()
        assert call is not None and buttons is not None
        assert call["y"] + call["height"] <= buttons["y"]

        # Where not all of it is, nobody approves before they have come to its end.
        await ann.page.set_viewport_size({"width": 360, "height": 500})
        await ann.page.reload()
        await expect(ann.page.locator("#onward")).to_be_in_viewport(ratio=1)
        await expect(ann.approve).to_be_disabled()
        await expect(ann.approve).to_be_in_viewport(ratio=1)
        await ann.page.locator("#reason").focus()
        assert not await ann.page.evaluate(COVERED)
        await ann.approves()
        await ann.says("counts: approved by ann")
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_buttons_wait_until_pages_listen(stage: Stage, ann: Approver, order_id: str) -> None:
    page, url = ann.page, ann.served.url
    pressable = page.locator("button[type=button]:enabled:visible")
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        one = quote((await run.asks()).approval_id)
        await ann.signs_in()
        await page.route("**/static/*.js", lambda route: route.abort())
        for path in ("/", f"/approval?id={one}", f"/several?id={one}", "/keys", "/sign-in"):
            await page.goto(f"{url}{path}")
            assert await pressable.all_inner_texts() == [], path
        await page.unroute_all()

        await page.goto(f"{url}/keys")
        await page.locator(".me summary").click()
        for name in ("Sign out", "Make a key"):
            await expect(page.get_by_role("button", name=name, exact=True)).to_be_enabled()
        await page.goto(f"{url}/approval?id={one}")
        await page.get_by_role("button", name="Reject").click()
        await expect(page.locator("#said")).to_have_text("Say why you reject it.")


async def test_where_a_page_is_aimed_at_is_no_link_that_signs_somebody_in(ann: Approver) -> None:
    for path in ("/sign-in#content", "/approval?id=run-1/refund/1#content"):
        await ann.page.goto(f"{ann.served.url}{path}")
        await expect(ann.page.locator("#without-link")).to_be_visible()
        await expect(ann.page.locator("#with-link")).to_be_hidden()
        assert ann.page.url.endswith(path)


async def test_a_page_that_nobody_sees_holds_no_connection(stage: Stage, ann: Approver) -> None:
    seen = """hidden => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""

    def follows(request: Request) -> bool:
        return "/follow/" in request.url

    await ann.signs_in()
    async with ann.page.expect_event("request", follows):
        await ann.page.goto(ann.served.url)
    async with ann.page.expect_event("requestfailed", follows):
        await ann.page.evaluate(seen, True)
    async with ann.page.expect_event("request", follows):
        await ann.page.evaluate(seen, False)


async def test_a_possible_answer_is_not_called_unsent(stage: Stage, ann: Approver) -> None:
    asks = plan({"id": "why", "ask": {"question": "How many?", "answer": {"type": "integer"}}})

    async def answered_into_the_void(route: Route) -> None:
        await route.fetch()
        await route.abort("connectionreset")

    async with stage.worker_here():
        run = await stage.start(asks)
        await run.in_state(RunState.WAITING_INPUT)
        await ann.signs_in()
        await ann.page.goto(f"{ann.served.url}/run?id={run.run_id}")
        await ann.page.route("**/steer", answered_into_the_void)
        await ann.page.locator("#waits input").fill("7")
        await ann.page.get_by_role("button", name="Answer").click()
        await ann.says("No answer came")
        assert (await run.result()).state is RunState.COMPLETED


async def test_a_double_click_does_not_forget_a_key(ann: Approver) -> None:
    await ann.signs_in()
    public = await ann.makes_a_key()
    await ann.page.locator("#with-key summary").click()
    forget = ann.page.get_by_role("button", name="Forget")
    await forget.dblclick()
    await ann.says("Press again to forget it.")
    await ann.page.reload()
    await expect(ann.page.locator("#public")).to_have_text(public)
    await ann.page.locator("#with-key summary").click()
    await forget.click()
    await ann.says("Press again to forget it.")
    await forget.click()
    await expect(ann.page.locator("#without-key")).to_be_visible()
