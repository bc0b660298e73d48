"""An approver's page: what is waited for, shown, signed in the browser, and decided."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import halt_votes
from surehand.activities.ledger.halts import HaltPolicy, LiftPolicy, halt_calls, list_halts
from surehand.process.dev_server import free_ports
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.plan.plan import Plan
from tests.browser.approver import Approver, Served, ann, arriving, served, serving
from tests.e2e.messages import answered
from tests.e2e.plans import NEITHER, mail_step, plan, refund_step
from tests.e2e.runs import Run, example_plan, step
from tests.e2e.stage import Stage
from tests.e2e.test_interrupts import ASKING, asks
from tests.ledger.people import key_of, person

__all__ = ["ann", "served"]


async def test_a_shown_command_registers_a_key(stage: Stage, ann: Approver, served: Served) -> None:
    command = ann.page.locator("#command")
    await ann.signs_in()
    first = json.loads(await ann.makes_a_key())["kid"]
    served.paste(await command.inner_text())  # nobody has added her before
    await ann.page.reload()
    await expect(ann.page.locator("#registered")).to_contain_text("your key is registered")
    await expect(command).to_be_hidden()

    await ann.page.locator("#with-key summary").click()
    await ann.page.get_by_role("button", name="Forget this key").click()
    await ann.page.get_by_role("button", name="Forget this key").click()
    await expect(ann.page.locator("#with-key")).to_be_hidden()  # it is forgotten now
    second = json.loads(await ann.makes_a_key())["kid"]
    served.paste(await command.inner_text())  # of a principal that there is
    listed = served.starter("principal", "list", "ann", "--json").document()
    assert first in str(listed) and second in str(listed)


async def test_an_approver_comes_by_a_link_makes_a_key_and_approves_what_the_page_shows(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), key=umas)
        request = await run.asks()
        await ann.signs_in()
        public = await ann.makes_a_key()
        await expect(ann.page.locator("#registered")).to_contain_text("not registered")
        served.register("ann", public)
        await ann.page.get_by_role("link", name="To decide").click()
        await ann.page.get_by_role("link", name=f"Refund 120.00 EUR for {order_id}").click()

        await ann.sees_the_call()
        assert json.loads(await ann.page.locator("#json").text_content() or "") == request.params
        for value in request.params.values():
            await expect(ann.page.locator("#params")).to_contain_text(str(value))
        await expect(ann.page.locator("#short-hash")).to_have_text(request.params_hash[7:19])
        assert stage.shop.counts(order_id)["refunds"] == 0
        await ann.approves()
        await ann.says("counts: approved by ann")
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    assert (decision["verdict"], decision["verified"]) == ("accepted", True)
    assert decision["kid"] == json.loads(public)["kid"]
    assert decision["signature"].count(".") == 2
    [approval] = stage.approval_rows(run)
    assert (approval["decided_by"], approval["consumed_entry"] is not None) == ("ann", True)


async def changed_on_its_way(page: Page, run: Run, change: dict[str, Any]) -> None:
    """Have the server tell something else of a run's request than it has."""

    async def answer(route: Route) -> None:
        told = await (await route.fetch()).json()
        told["params"] = {**told["params"], **change.get("params", {})}
        await route.fulfill(json={**told, **{k: v for k, v in change.items() if k != "params"}})

    await page.route(re.compile(rf"approval\.json\?id={run.run_id}"), answer)


async def test_a_call_that_cannot_be_fetched_is_not_approved_and_is_rejected_with_a_signature(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), key=umas)
        request = await run.asks()
        await ann.gets_ready()
        await ann.page.route("**/approval.json*", lambda route: route.abort("connectionreset"))
        await ann.opens(request.approval_id)

        await expect(ann.page.locator("#check")).to_contain_text("You cannot approve it here")
        await expect(ann.approve).to_be_disabled()
        await ann.page.get_by_label("Reason", exact=True).fill("nobody sees what it is")
        await ann.reject.click()
        await ann.says("counts: rejected by ann")
        assert (await run.result()).state is RunState.FAILED
    assert stage.shop.counts(order_id)["refunds"] == 0
    [decision] = stage.decision_rows(run)
    assert (decision["outcome"], decision["verified"]) == ("reject", True)


@pytest.mark.parametrize(
    "other",
    [{"params": {"amount": "5.00"}}, {"params_hash": "sha256:0", "waits": None, "left_ms": None}],
)
async def test_what_is_rejected_is_the_request_of_the_page_whatever_is_told_of_its_call(
    stage: Stage, ann: Approver, order_id: str, other: dict[str, Any]
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        await ann.signs_in()
        await changed_on_its_way(ann.page, run, other)
        await ann.opens(request.approval_id)
        await expect(ann.page.locator("#check")).to_contain_text("You cannot approve it here")
        await expect(ann.approve).to_be_disabled()
        await ann.page.locator("#approve").evaluate("button => { button.disabled = false; }")
        await ann.approves()
        assert stage.decision_rows(run) == []
        await ann.page.get_by_label("Reason", exact=True).fill("it is another one")
        await ann.reject.click()
        await ann.says("counts: rejected by ann")
        assert (await run.result()).state is RunState.FAILED
    [decision] = stage.decision_rows(run)
    told = (decision["approval_id"], decision["params_hash"], decision["verdict"])
    assert told == (request.approval_id, request.params_hash, "accepted")
    assert (decision["outcome"], decision["reason"]) == ("reject", "it is another one")
    assert stage.shop.counts(order_id)["refunds"] == 0


def asks_anew(view: RunView, before: str) -> bool:
    """Return whether a run asks by another request than that one."""
    return bool(view.pending) and view.pending[0].approval_id != before


async def test_an_edit_by_the_form_asks_anew_for_the_new_params_and_nothing_else(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        await ann.signs_in()
        public = await ann.makes_a_key()
        person(stage, "ann")
        served.register("ann", public)
        await ann.opens(request.approval_id)
        await ann.page.get_by_role("button", name="Edit").click()
        amount = ann.page.get_by_label("amount")
        await amount.fill("50.00")
        await expect(ann.page.locator("#edited")).to_contain_text("50.00")
        await ann.page.locator("#reason").fill("one article came back")
        await ann.page.get_by_role("button", name="Send this change").click()
        await expect(ann.page.locator("#said")).to_contain_text("counts: edited by ann")
        await ann.page.get_by_role("link", name="Open the new request").click()
        await expect(ann.page.locator("#params")).to_contain_text("50.00")
        again = (await run.until(lambda view: asks_anew(view, request.approval_id))).pending[0]
        await ann.opens(again.approval_id)
        await expect(ann.page.locator(".changes li")).to_have_text(["amount: 120.0050.00"])
        await expect(ann.page.locator(".changes del")).to_have_text("120.00")
        await expect(ann.page.locator("#check")).to_contain_text("You decide on exactly what")

    assert again.params == {**request.params, "amount": "50.00"}
    assert stage.shop.counts(order_id)["refunds"] == 0
    [edited] = stage.decision_rows(run)
    assert (edited["outcome"], edited["verified"]) == ("edit", True)


async def has_an_authenticator(page: Page) -> None:
    """Give a browser an authenticator whose person is always there."""
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("WebAuthn.enable")
    authenticator = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    await devtools.send("WebAuthn.addVirtualAuthenticator", {"options": authenticator})


async def test_where_a_passkey_is_asked_for_one_gesture_approves_and_no_other_key_does(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    await has_an_authenticator(ann.page)
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    plan = example_plan("refund.yaml", order_id=order_id).model_dump(mode="json")
    plan["steps"][2]["approval"] = {"proof": "passkey"}
    stage.ledger.passkey_origins = (served.url,)
    async with stage.worker_here():
        run = await stage.start(Plan.model_validate(plan), key=umas)
        request = await run.asks()
        await ann.gets_ready()
        await ann.opens(request.approval_id)
        await expect(ann.page.locator("#hindrance")).to_contain_text("needs a passkey")
        await expect(ann.approve).to_be_disabled()

        await ann.page.goto(f"{served.url}/keys")
        await ann.page.get_by_role("button", name="Make a passkey").click()
        await expect(ann.page.locator("#passkey")).to_contain_text("webauthn")
        made = await ann.page.locator("#passkey").text_content() or ""
        setting = f"SUREHAND_PASSKEY_ORIGINS={served.url}"
        await expect(ann.page.locator("#content")).to_contain_text(setting)
        await ann.page.reload()
        await expect(ann.page.locator("#new-passkey")).to_contain_text("not registered yet")
        await expect(ann.page.locator("#passkey")).to_have_text(made)
        await ann.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await ann.page.locator("#new-passkey").get_by_role("button", name="Copy").click()
        await expect(ann.page.get_by_role("button", name="Copied")).to_be_visible()
        served.paste(str(await ann.page.evaluate("navigator.clipboard.readText()")))
        await ann.page.reload()
        await expect(ann.page.locator("#make-passkey")).to_have_text("Make another passkey")
        await expect(ann.page.locator("#has-passkey")).to_be_visible()
        await expect(ann.page.locator("#new-passkey")).to_be_hidden()
        await ann.opens(request.approval_id)
        await ann.approves()
        await ann.says("counts: approved by ann")
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    header = json.loads(urlsafe_b64decode(decision["signature"].split(".")[0] + "=="))
    assert header["typ"] == "surehand-decision+webauthn"
    assert header["credential_id"] == json.loads(made)["credential_id"]


async def test_an_expired_page_approves_nothing(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        await ann.signs_in()
        await ann.opens(request.approval_id)
        await ann.reads()
        stage.expire(request)

        await expect(ann.page.locator("#state")).to_contain_text("Expired")
        await expect(ann.approve).to_be_disabled()
    assert stage.shop.counts(order_id)["refunds"] == 0


async def test_a_form_answers_and_signs(stage: Stage, ann: Approver, served: Served) -> None:
    person(stage, "ann", permissions=("steer:answer",))
    umas = key_of(stage, person(stage, "uma"))
    schema = {"type": "integer", "minimum": 1}
    asking = plan({"id": "many", "ask": {"question": "How many?", "answer": schema}})
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(asking, key=umas)
        await run.in_state(RunState.WAITING_INPUT)
        await ann.gets_ready()
        await ann.page.get_by_role("link", name="Questions").click()
        await ann.page.get_by_role("link", name="How many?").click()
        await expect(ann.page.locator("#waits")).to_contain_text("How many?")
        await ann.page.locator("#waits input").fill("7")
        await ann.page.get_by_role("button", name="Answer").click()
        await ann.says("Your answer counts")
        await expect(ann.page.locator("#state")).to_contain_text("Done.")
        result = await run.result()

    assert step(result, "many").output == 7
    [told] = await stage.events(run, "interrupt.answered")
    assert told["body"]["actor"] == "ann"


async def test_a_begun_answer_stays(stage: Stage, ann: Approver, order_id: str) -> None:
    asking = plan(
        {"id": "why", "ask": {"question": "Why?", "answer": {"type": "string"}}},
        {
            "id": "many",
            "ask": {"question": "How many?", "answer": {"type": "integer"}},
            "after": [],
        },
        {"id": "whom", "ask": "Whom?", "after": ["many"]},
    )
    async with stage.worker_here():
        run = await stage.start(asking)
        await asks(run, "why.1", "many.1")
        await ann.signs_in()
        await ann.page.goto(f"{ann.served.url}/run?id={run.run_id}")
        section = ann.page.locator("#waits section")
        why = section.filter(has_text="Why?").get_by_role("textbox")
        await section.filter(has_text="Why?").get_by_role("button", name="Answer").click()
        await expect(section.filter(has_text="Why?")).to_contain_text("This is needed.")
        await why.fill("it came back, and")
        await answered(run, answers={"many.1": 7})
        await expect(section.filter(has_text="Whom?")).to_be_visible()
        await expect(section.filter(has_text="How many?")).to_have_count(0)

        await expect(why).to_have_value("it came back, and")
        await expect(why).to_be_focused()
        await ann.page.keyboard.type(" nobody wants it")
        await section.filter(has_text="Why?").get_by_role("button", name="Answer").click()
        await ann.says("Your answer counts")
        await answered(run, answers={"whom.1": "ann"})
        result = await run.result()
    assert step(result, "why").output == "it came back, and nobody wants it"


async def test_a_browser_without_storage_answers_unsigned(stage: Stage, ann: Approver) -> None:
    asking = plan({"id": "many", "ask": {"question": "How many?", "answer": {"type": "integer"}}})
    denied = "get() { throw new DOMException('denied', 'SecurityError'); }"
    await ann.page.add_init_script(f"Object.defineProperty(self, 'indexedDB', {{ {denied} }})")
    async with stage.worker_here():
        run = await stage.start(asking)
        await run.in_state(RunState.WAITING_INPUT)
        await ann.signs_in()
        await ann.page.goto(f"{ann.served.url}/run?id={run.run_id}")
        await ann.page.locator("#waits input").fill("7")
        await ann.page.get_by_role("button", name="Answer").press("Enter")
        await ann.says("Your answer counts")
        await expect(ann.page.locator("#said")).to_be_focused()
        result = await run.result()
    assert step(result, "many").output == 7


async def test_one_gesture_answers_a_question(stage: Stage, ann: Approver, served: Served) -> None:
    await has_an_authenticator(ann.page)
    person(stage, "ann", permissions=("steer:answer",))
    umas = key_of(stage, person(stage, "uma"))
    asking = plan({"id": "many", "ask": {"question": "How many?", "answer": {"type": "integer"}}})
    stage.ledger.passkey_origins = (served.url,)
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(asking, key=umas)
        await run.in_state(RunState.WAITING_INPUT)
        await ann.signs_in()
        await ann.page.goto(f"{served.url}/keys")
        await ann.page.get_by_role("button", name="Make a passkey").click()
        await expect(ann.page.locator("#passkey")).to_contain_text("webauthn")
        served.register("ann", await ann.page.locator("#passkey").text_content() or "")
        await ann.page.reload()
        await expect(ann.page.locator("#no-key")).to_contain_text("You are ready to decide")
        await ann.page.goto(f"{served.url}/run?id={run.run_id}")
        await ann.page.locator("#waits input").fill("7")
        await ann.page.get_by_role("button", name="Answer").click()
        await ann.says("Your answer counts")
        result = await run.result()

    assert step(result, "many").output == 7
    [taken] = [one for one in stage.steering_rows(run) if one["verb"] == "answer"]
    assert (taken["code"], taken["verified"], taken["actor"]) == ("accepted", True, "ann")
    header = json.loads(urlsafe_b64decode(taken["signature"].split(".")[0] + "=="))
    assert header["typ"] == "surehand-steering+webauthn"


async def test_doubts_show_evidence_and_answers(stage: Stage, ann: Approver, order_id: str) -> None:
    fault = {"ignore_keys": True, "ignore_lookup": True, "fail": "drop_before", "times": 1}
    stage.shop.fault("refunds", **fault)
    async with stage.worker_here(tool_modules=NEITHER):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        await run.in_state(RunState.NEEDS_INTERVENTION)
        await ann.signs_in()
        await ann.page.goto(f"{ann.served.url}/run?id={run.run_id}")
        called = ann.page.locator("#waits .called dt")
        await expect(called).to_contain_text(["Order id", "Amount", "Tool"])
        known = ann.page.locator("#waits .known")
        [entry] = [row for row in await stage.effects(run) if row["tool"] == "payments.refund"]
        for text in (entry["key"], entry["entry_id"], "in_doubt"):
            await expect(known).to_contain_text(text)
        outcome = ann.page.get_by_label("What happened")
        offered = await outcome.locator("option").evaluate_all("all => all.map((o) => o.value)")
        assert set(offered) == {
            *("happened", "not_happened", "call_off", "compensated", "undo", "give_up")
        }
        await ann.page.get_by_label("How you know").fill("the bank said on the phone")
        await stage.no_call_may_arrive(run)
        # The page finds that out by itself, and leaves what was typed.
        await expect(outcome.locator("option:disabled")).to_have_count(0)
        await outcome.select_option("call_off")
        await ann.page.get_by_role("button", name="Settle it").click()
        await ann.says("It is settled")
        await run.result()
    assert stage.shop.counts(order_id)["refunds"] == 0
    [settled] = stage.intervention_rows(run)
    assert (settled["outcome"], settled["evidence"]) == ("call_off", "the bank said on the phone")


async def test_covered_answers_are_signed_too(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here(tool_modules=ASKING):
        run = await stage.start(plan(refund_step(order_id)))
        first = await run.approve()
        await asks(run, "refund.1")
        await answered(run, answer="sent twice")
        await run.until(lambda view: asks_anew(view, first.approval_id))
        await ann.signs_in()
        await ann.page.get_by_role("link", name=order_id).click()
        await ann.sees_the_call()
        await expect(ann.page.locator("#params")).to_contain_text("sent twice")
        await ann.approves()
        await ann.says("counts: approved by ann")
        await run.result()
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_several_are_approved_at_once_each_by_a_signature_of_its_own(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        runs = [
            await stage.start(example_plan("refund.yaml", order_id=one), key=umas)
            for one in (order_id, stage.shop.new_order())
        ]
        requests = [await run.asks() for run in runs]
        await ann.gets_ready()
        await ann.page.goto(served.url)
        for request in requests:
            await ann.page.get_by_label(f"Choose: {request.description}").check()
        await ann.page.get_by_role("button", name="Look at those chosen").click()
        await expect(ann.page.get_by_text("You decide on exactly what")).to_have_count(2)
        await ann.reads()
        await ann.page.get_by_role("button", name="Approve all of these (2)").press("Enter")
        await expect(ann.page.locator("#said")).to_have_text("2 of 2 decisions count.")
        await expect(ann.page.locator("#said")).to_be_focused()
        for run in runs:
            assert (await run.result()).state is RunState.COMPLETED

    signatures = [row["signature"] for run in runs for row in stage.decision_rows(run)]
    assert len(set(signatures)) == 2 and None not in signatures


async def test_one_call_that_is_not_as_it_is_asked_keeps_all_of_several_from_being_approved(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    async with stage.worker_here():
        runs = [
            await stage.start(example_plan("refund.yaml", order_id=one))
            for one in (order_id, stage.shop.new_order())
        ]
        ids = [(await run.asks()).approval_id for run in runs]
        await ann.signs_in()
        await changed_on_its_way(ann.page, runs[0], {"tool": "payments.charge"})
        await ann.page.goto(f"{served.url}/several?id={quote(ids[0])}&id={quote(ids[1])}")
        await expect(ann.page.get_by_text("You cannot approve it here")).to_have_count(1)
        await expect(ann.page.get_by_text("You decide on exactly what")).to_have_count(1)
        await expect(ann.page.locator("#approve")).to_be_disabled()
    assert [stage.decision_rows(run) for run in runs] == [[], []]


async def posted(page: Page, decision: dict[str, Any]) -> dict[str, Any]:
    """Send a decision as a script of the page would, by the cookie that it has."""
    found: dict[str, Any] = await page.evaluate(
        """async (decision) => (await (await fetch("/decide", {
            method: "POST",
            headers: { "Content-Type": "application/json" },
            body: JSON.stringify(decision),
        })).json())""",
        decision,
    )
    return found


async def test_a_stolen_sign_in_decides_nothing_and_makes_nothing_else_of_a_signature(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    person(stage, "ann")
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        first, second = [
            await stage.start(example_plan("refund.yaml", order_id=one), key=umas)
            for one in (order_id, stage.shop.new_order())
        ]
        asked, other = await first.asks(), await second.asks()
        await ann.gets_ready()
        await ann.opens(asked.approval_id)
        async with ann.page.expect_request("**/decide") as sent:
            await ann.approves()
        await ann.says("counts: approved by ann")
        approval = json.loads((await sent.value).post_data or "")

        there = {"approval_id": other.approval_id, "params_hash": other.params_hash}
        unsigned = {name: value for name, value in approval.items() if name != "signature"}
        edit = {**other.params, "amount": "1.00"}
        for attempt, code in [
            ({**unsigned, **there}, "unsigned"),
            ({**approval, **there}, "bad_signature"),
            ({**approval, **there, "outcome": "reject"}, "bad_signature"),
            ({**approval, **there, "outcome": "edit", "params": edit}, "bad_signature"),
        ]:
            told = await posted(ann.page, attempt)
            assert told["verdict"]["code"] == code, (attempt, told)
        assert (await first.result()).state is RunState.COMPLETED
        await posted(ann.page, approval)
        assert [row["verdict"] for row in stage.decision_rows(first)].count("accepted") == 1
        assert [row["verdict"] for row in stage.decision_rows(second)].count("accepted") == 0
        assert stage.approval_rows(second)[0]["state"] == "pending"


async def test_pages_show_calls_without_worker(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
    await ann.signs_in()
    await ann.page.route("**/story.json*", lambda route: None, times=1)  # as if Temporal were down
    await ann.opens(request.approval_id)
    await ann.sees_the_call()
    await expect(ann.page.locator("#story")).to_contain_text("The run does not answer (it took")
    await ann.approves()
    await expect(ann.page.locator("#said")).to_contain_text("Nothing was sent: no worker answers")
    async with stage.worker_here():
        await ann.approves()
        await ann.says("counts: approved by ann")
        assert (await run.result()).state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    [decision] = stage.decision_rows(run)
    assert decision["verdict"] == "accepted"


async def test_steps_are_listed(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here():
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.asks()
        await ann.signs_in()
        await ann.page.goto(f"{ann.served.url}/run?id={run.run_id}")
        refund = ann.page.locator('#steps li[data-step="refund"]')
        await expect(refund).to_have_attribute("data-state", "waiting_approval")
        await expect(refund).to_contain_text("payments.refund")
        await expect(refund).to_contain_text("waits for approval")
        await expect(refund).to_contain_text("After amount.")
        # Nothing of it is wider than a phone.
        assert await ann.page.evaluate("document.documentElement.scrollWidth") <= 360
        await run.approve()
        assert (await run.result()).state is RunState.COMPLETED
        await expect(refund).to_have_attribute("data-state", "succeeded")
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_opening_secrets_is_on_record(stage: Stage, ann: Approver, order_id: str) -> None:
    async with stage.worker_here(tool_modules="tests.variants.refund_secret"):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        request = await run.asks()
        await ann.signs_in()
        assert await stage.events(run, "approval.read") == []
        await ann.opens(request.approval_id)
        await ann.sees_the_call()
        [read] = await stage.events(run, "approval.read")
        await ann.approves()
        await ann.says("counts: approved by ann")
        assert (await run.result()).state is RunState.COMPLETED
    assert (read["body"]["actor"], read["body"]["approval_id"]) == ("ann", request.approval_id)
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_gesture_on_the_list_lifts_a_halt(
    stage: Stage, profile: BrowserContext, tmp_path: Path, order_id: str
) -> None:
    here = f"localhost:{free_ports(1)[0]}"
    with serving(stage, tmp_path, here, passkey_origins=f"http://{here}") as served:
        async with arriving(profile, served, "ann") as ann:
            await lifts_by_a_gesture(stage, ann, served, order_id)


async def lifts_by_a_gesture(stage: Stage, ann: Approver, served: Served, order_id: str) -> None:
    await has_an_authenticator(ann.page)
    person(stage, "ann", "operator")
    policy = HaltPolicy(lift=LiftPolicy(roles=("operator",), proof="passkey"))
    with stage.ledger.transaction(stage.tenant) as tx:
        halt_calls(tx, "oscar", "<b>it</b> pays twice", tool="mail.send", policy=policy)
        halt_calls(tx, "oscar", "nobody is named", tool="parcels.send")
    halted = ann.page.locator("#halts section")
    async with stage.worker_here():
        run = await stage.start(plan(mail_step(order_id, "one")))
        await run.in_state(RunState.HALTED)
        await ann.gets_ready()
        await ann.page.goto(served.url)
        for text in ("Halted: calls of mail.send", "so far 0 of 1 approvals", "needs a passkey"):
            await expect(halted.filter(has_text="<b>it</b> pays twice")).to_contain_text(text)
        await expect(halted.filter(has_text="nobody is named")).to_contain_text("No page lifts it")
        await expect(ann.page.get_by_role("button", name="Lift it")).to_be_disabled()

        await ann.page.goto(f"{served.url}/keys")
        await ann.page.get_by_role("button", name="Make a passkey").click()
        await expect(ann.page.locator("#passkey")).to_contain_text("webauthn")
        served.register("ann", await ann.page.locator("#passkey").text_content() or "")
        await ann.page.goto(served.url)
        assert stage.shop.counts(order_id).get("mails", 0) == 0
        await ann.page.get_by_role("button", name="Lift it").click()
        said = halted.get_by_role("status")
        await expect(said).to_contain_text("is lifted: what has waited goes on")
        await expect(said).to_be_focused()
        await run.completed()

    assert stage.shop.counts(order_id)["mails"] == 1
    with stage.ledger.transaction(stage.tenant) as tx:
        assert {one.tool: one.lifted_by for one in list_halts(tx)} == {
            "mail.send": "ann",
            "parcels.send": None,
        }
        [vote] = tx.all(rows_of(halt_votes))
    header = json.loads(urlsafe_b64decode(vote["signature"].split(".")[0] + "=="))
    assert header["typ"] == "surehand-decision+webauthn"


async def test_a_halt_that_is_not_what_is_signed_is_not_drawn(
    stage: Stage, ann: Approver, served: Served
) -> None:
    policy = HaltPolicy(lift=LiftPolicy(roles=("operator",)))
    with stage.ledger.transaction(stage.tenant) as tx:
        halt_calls(tx, "oscar", "it pays twice", tool="mail.send", policy=policy)

    async def lie(route: Route) -> None:
        told = await (await route.fetch()).json()
        told[0]["halt"][1] = "harmless.tool"
        await route.fulfill(json=told)

    await ann.page.route("**/halts.json", lie)
    await ann.signs_in()
    shown = ann.page.locator("#halts")
    await expect(shown).to_contain_text("What is shown is not what the server asks you to sign")
    await expect(ann.page.get_by_role("button", name="Lift it")).to_have_count(0)


async def test_a_run_shows_what_an_undo_would_take_back(
    stage: Stage, ann: Approver, served: Served, order_id: str
) -> None:
    steps = [refund_step(order_id), mail_step(order_id, "mail")]
    asks = {"id": "go", "ask": {"question": "Go?"}, "after": ["mail", "refund"]}
    async with stage.worker_here():
        run = await stage.start(plan(*steps, asks))
        await run.approve()
        await run.in_state(RunState.WAITING_INPUT)
        await ann.signs_in()
        await ann.page.goto(f"{served.url}/run?id={run.run_id}")
        await ann.page.get_by_text("What would be undone").click()
        told = ann.page.locator("#undone")
        await expect(told).to_contain_text("Would be undone, in this order")
        lines = await told.locator("li").all_inner_texts()
        asked = ("unwind", run.run_id, "--dry-run", "--json")
        said = (await asyncio.to_thread(served.starter, *asked)).document()
        assert lines == [*said["undone"], *(f"{o['step_id']}: {o['reason']}" for o in said["left"])]
        assert said["undone"] == ["refund"] and len(lines) == 2
    assert stage.shop.counts(order_id) == {**stage.shop.counts(order_id), "refunds": 1, "mails": 1}
