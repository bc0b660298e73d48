"""What approvers find beside their list: their decisions, and what is recorded of a look."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.approvals import requests
from surehand.activities.ledger.approvals.decisions import Edited
from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.core.tables import approvals
from surehand.activities.ledger.halts import (
    Halt,
    HaltPolicy,
    LiftPolicy,
    halt_calls,
    list_halts,
)
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.runs.steering import judge_steering
from surehand.activities.ledger.steps import foreign
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.verify import verify_chain
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import ForeignContent, RunState
from surehand.workflows.contracts.effects import UndoSpec, UndoTool, undo_text
from surehand.workflows.contracts.runs import RunResult, RunView
from surehand.workflows.contracts.steering import Interrupt, InterruptKind, Steer, Verb
from surehand.workflows.plan.plan import Plan
from surehand.workflows.plan.policy import Needs, Requirement
from tests.cli.test_approvals_server import HOSTILE, Site, site
from tests.cli.test_artifacts import kept
from tests.ledger.people import person
from tests.ledger.scene import RUN, Scene

__all__ = ["site"]


def asked(site: Site, number: int, description: str) -> str:
    call = site.scene.call(step_id=f"s{number}", key=f"k{number}")
    gated = site.scene.ask_approval(call, description=description)
    assert gated.approval_id is not None
    return gated.approval_id


NO_PART: Final = "no such part of the list"
NO_PAGE: Final = "no such page of artifacts"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        *((f"/mine?after={one}", NO_PART) for one in ("x", "1:", ":x", "1:%00", "9" * 30 + ":x")),
        (f"/mine?after=1:{'x' * 500}", NO_PART),
        *((f"/artifacts?id={RUN}&after={one}", NO_PAGE) for one in ("x", ":" + "a" * 64, "a:b")),
        (f"/artifacts?id={RUN}&after=%00:{'a' * 64}", NO_PAGE),
    ],
)
async def test_what_no_page_is_for_is_one_line(site: Site, path: str, said: str) -> None:
    await site.sign_in("ann")
    told = await site.get(path)
    assert (told.status_code, said in told.text) == (400, True)


async def test_each_line_warns_of_irreversible_calls_and_foreign_content(site: Site) -> None:
    scene = site.scene
    charge = UndoTool(name="payments.charge", version="1", schema_hash="sha256:0")
    for number, compensate in ((1, None), (2, charge)):
        undo = UndoSpec(version="1", compensate=compensate)
        call = scene.call(step_id=f"s{number}", key=f"k{number}", undo=undo)
        with scene.tx() as tx:
            needs = Needs(requirements=(Requirement(),), expires_in=timedelta(hours=1))
            requests.request_approval(tx, call, number=1, description=undo_text(undo), needs=needs)
    await site.sign_in("ann")

    async def listed() -> list[str]:
        page = (await site.get("/")).text
        return sorted(page.split("<li data-id=")[1:])

    final, undone = await listed()
    assert '<span class="tag danger">cannot be undone</span>' in final
    assert "text from outside" not in final
    assert '<span class="tag ' not in undone
    with scene.tx() as tx:
        foreign.mark_foreign(tx, RUN, [ForeignContent(tool="mail.read", step_id="inbox")])
    assert '<span class="tag warn">text from outside</span>' in (await listed())[1]


async def test_many_calls_of_one_tool_and_plan_are_one_line_that_opens_and_others_stay_apart(
    site: Site,
) -> None:
    await site.sign_in("ann")
    for number in range(6):
        asked(site, number, f"Refund {number}.00 EUR")
    scene = site.scene
    scene.open_run("run-2")
    mail = scene.call(run_id="run-2", step_id="mail", tool="mail.send", key="mail")
    scene.ask_approval(mail, description="Mail to ann")

    page = (await site.get("/")).text
    assert "<bdi>Refund</bdi> …" in page
    assert page.count('<li class="many">') == 1
    assert page.index("</details></li>") < page.index("Mail to ann")
    assert all(f"Refund {number}.00 EUR" in page for number in range(6))
    assert "/several?id=run-1/s0/1&amp;id=run-1/s1/1" in page


async def test_the_list_says_how_many_wait_for_somebody_with_another_role(site: Site) -> None:
    await site.sign_in("ann")
    for number, role in enumerate(("manager", "manager", "lawyer")):
        call = site.scene.call(step_id=f"s{number}", key=f"k{number}")
        site.scene.ask_approval(call, requirement=Requirement(roles=(role,)))

    page = (await site.get("/")).text
    assert "1 more needs another role: lawyer" in page
    assert "2 more need another role: manager" in page
    assert "another role" not in (await site.get("/?of=all")).text


async def test_a_request_that_was_edited_leads_to_the_one_that_has_taken_its_place(
    site: Site,
) -> None:
    await site.sign_in("ann")
    scene = site.scene
    first = scene.ask_approval(scene.call())
    edited = Edited({"order": "1001", "amount": "50.00"}, "sha256:less", first.key)
    scene.decide(first, "edit", approver="bob", params=edited.params, edited=edited)
    assert 'id="next" href="/approval?id=" hidden' in (await site.get(url_of(first))).text
    second = scene.ask_approval(scene.call(params=edited.params), number=2, editors=["bob"])

    page = (await site.get(url_of(first))).text
    assert "Edited by bob" in page
    assert f'id="next" href="/approval?id={second.approval_id}">' in page


def url_of(gated: ClaimRequest) -> str:
    return f"/approval?id={gated.approval_id}"


async def test_my_decisions_show_what_became_of_them(site: Site, ledger: Ledger) -> None:
    scene = site.scene
    mine, eves = asked(site, 1, "Refund 1 EUR"), asked(site, 2, "Refund 2 EUR")
    for one, who in ((mine, "ann"), (eves, "eve")):
        number = one.split("/")[1].removeprefix("s")
        call = scene.call(step_id=f"s{number}", key=f"k{number}")
        said = f"because of {HOSTILE} \u202e"
        scene.decide(replace(call, gated=True, approval_id=one), approver=who, reason=said)
    answered = Steer(
        **{"tenant": scene.tenant, "run_id": "run-1", "steering_id": "s1", "verb": Verb.ANSWER},
        **{"workflow_run_id": "first", "actor": "ann", "content": {"answer": "yes"}},
    )
    with scene.tx() as tx:
        judge_steering(tx, answered, Assurance.OPEN)
    await site.sign_in("ann")

    page = (await site.get("/mine")).text
    assert 'href="/run?id=run-1"><bdi>run-1</bdi>' in page and "Answered" in page
    assert "Refund 1 EUR" in page and "Refund 2 EUR" not in page
    assert "Approved" in page and "approved by ann" in page and "not signed" in page
    assert "does not count" not in page
    assert f'href="/approval?id={mine}"' in page
    assert "<img" not in page and "\u202e" not in page
    other = Scene.begin(ledger, "acme")
    gated = other.ask_approval(other.call(step_id="theirs"), description="of acme")
    other.decide(gated, approver="ann")
    assert "of acme" not in (await site.get("/mine")).text


async def test_a_request_shows_its_precondition_of_then_and_of_now(site: Site) -> None:
    scene, old, new = site.scene, f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
    first = scene.ask_approval(scene.call(precondition=old))
    again = scene.ask_approval(scene.call(precondition=new), number=2)
    same = scene.ask_approval(scene.call(precondition=new), number=3)
    without = scene.ask_approval(scene.call(step_id="other", key="k"))
    await site.sign_in("ann")

    shown = [
        (await site.get(f"/approval?id={one.approval_id}")).text
        for one in (first, again, same, without)
    ]
    assert "a" * 12 in shown[0] and "It was different" not in shown[0]
    assert "b" * 12 in shown[1] and "It was different" in shown[1] and "a" * 12 in shown[1]
    assert "It was the same for the previous request" in shown[2]
    assert all("right before the call" in text for text in shown[:3])
    assert 'id="precondition"' not in shown[3]
    [row] = [one for one in scene.rows(approvals) if one["approval_id"] == first.approval_id]
    assert row["precondition"] == old


async def test_a_request_says_that_its_call_is_halted(site: Site) -> None:
    gated = site.scene.ask_approval(site.scene.call())
    await site.sign_in("ann")
    before = (await site.get(f"/approval?id={gated.approval_id}")).text
    with site.scene.tx() as tx:
        halt_calls(tx, "oscar", "it pays twice", tool=gated.tool)
    after = (await site.get(f"/approval?id={gated.approval_id}")).text

    assert "Calls are halted." not in before
    assert "Calls are halted." in after
    assert "oscar: it pays twice. You can decide" in after
    # Its time stands still: the page does not close with it.
    assert "Its time stands still while calls are halted." in after and "Expires" in before
    assert '"left_ms": null' in after and '"left_ms": null' not in before


def reads(site: Site) -> list[tuple[str, str, str]]:
    """Who was shown the params of which request, by the events of the run."""
    with site.scene.tx() as tx:
        chain, _, head = chain_of(tx, RUN)
    assert verify_chain(chain, [head]) is None
    found = [one for one in chain if one["type"] == "approval.read"]
    assert all(one["at_ms"] > 0 for one in found)
    return [(one["body"]["actor"], one["body"]["approval_id"], one["step_id"]) for one in found]


async def test_showing_secret_params_is_one_event_per_person_and_sign_in(site: Site) -> None:
    secret = site.scene.ask_approval(site.scene.call(), secret=True).approval_id
    assert secret is not None
    await site.sign_in("ann")
    await site.get("/")
    await site.get("/mine")
    assert reads(site) == []  # neither shows params
    for path in ("/approval", "/approval.json", "/several", "/approval"):
        assert (await site.get(f"{path}?id={secret}")).status_code == 200
    assert reads(site) == [("ann", secret, "refund")]
    await site.sign_in("ann")
    await site.get(f"/several?id={secret}")
    await site.sign_in("eve")
    told = (await site.get(f"/approval.json?id={secret}")).json()
    assert told["params"] == {"order": "1001", "amount": "120.00"}
    assert [one[0] for one in reads(site)] == ["ann", "ann", "eve"]


def asks_before(site: Site, *, secret: bool) -> None:
    """Have the run wait before its step, with the params that the step would get."""
    question = Interrupt(
        interrupt_id="refund.1",
        step_id="refund",
        kind=InterruptKind.BEFORE,
        question="refund is about to start: payments.refund",
        value={"amount": "120.00"},
        secret=secret,
    )
    site.runs.views[RUN] = RunView(
        result=RunResult(run_id=RUN, state=RunState.WAITING_INPUT, steps=[]),
        tenant=site.scene.tenant,
        user="ada",
        plan=Plan.model_validate([{"id": "refund", "tool": "payments.refund"}]),
        plan_version=1,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        interrupts=[question],
    )


def question_reads(site: Site) -> list[tuple[str, str, str]]:
    """Who was shown what which question is about, by the events of the run."""
    with site.scene.tx() as tx:
        chain, _, head = chain_of(tx, RUN)
    assert verify_chain(chain, [head]) is None
    found = [one for one in chain if one["type"] == "interrupt.read"]
    return [(one["body"]["actor"], one["body"]["interrupt_id"], one["step_id"]) for one in found]


async def test_showing_a_questions_secret_params_is_one_event_per_sign_in(site: Site) -> None:
    asks_before(site, secret=True)
    await site.sign_in("ann")
    await site.get(f"/run?id={RUN}")
    assert question_reads(site) == []  # its frame shows no params
    for _ in range(2):
        told = (await site.get(f"/run.json?id={RUN}")).json()
        assert json.loads(told["questions"][0]["value"]) == {"amount": "120.00"}
    assert question_reads(site) == [("ann", "refund.1", "refund")]
    await site.sign_in("eve")
    await site.get(f"/run.json?id={RUN}")
    assert [one[0] for one in question_reads(site)] == ["ann", "eve"]


async def test_a_look_at_what_is_no_secret_is_no_event(site: Site) -> None:
    one = site.asked()
    asks_before(site, secret=False)
    await site.sign_in("ann")
    for path in ("/approval", "/approval.json", "/several"):
        assert (await site.get(f"{path}?id={one}")).status_code == 200
    assert (await site.get(f"/run.json?id={RUN}")).status_code == 200
    assert (reads(site), question_reads(site)) == ([], [])


@pytest.mark.parametrize(
    "path",
    [
        *(f"/{one}?id={{asked}}" for one in ("approval", "approval.json", "several")),
        *("/follow/approval?id={asked}", f"/run.json?id={RUN}", f"/artifact?run={RUN}&id={{kept}}"),
    ],
)
async def test_what_cannot_be_recorded_is_not_shown(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def fails(*given: object, **named: object) -> None:
        raise LedgerUnavailable("the ledger takes no events")

    secret = site.scene.ask_approval(site.scene.call(), secret=True).approval_id
    one = await kept(site.scene, b"120.00", "application/json")
    asks_before(site, secret=True)
    await site.sign_in("ann")
    for name in ("record_read", "record_question_read"):
        monkeypatch.setattr(f"surehand.cli.approvals_server.approvals.{name}", fails)
    told = await site.get(path.format(asked=secret, kept=one))
    assert (told.status_code, "120.00" in told.text) == (503, False)
    assert (reads(site), question_reads(site)) == ([], [])


async def test_nobody_takes_back_that_params_are_secret(site: Site) -> None:
    secret = site.scene.ask_approval(site.scene.call(), secret=True).approval_id
    with pytest.raises(DBAPIError), site.scene.tx() as tx:
        tx.execute(update_rows(approvals, approval_id=secret).values(secret=False))
    [row] = site.scene.rows(approvals)
    assert row["secret"] is True


async def test_nobody_lifts_a_halt_in_another_s_name_or_without_being_asked(site: Site) -> None:
    scene = site.scene
    person(scene, "ann", "operator")
    with scene.tx() as tx:
        named = HaltPolicy(lift=LiftPolicy(roles=("operator",), proof="signed"))
        made, bare = halt_calls(tx, "oscar", "x", policy=named), halt_calls(tx, "oscar", "y")

    def yes(of: Halt, **changes: str) -> dict[str, str]:
        said = {"approval_id": of.halt_id, "params_hash": of.params_hash, "outcome": "approve"}
        return {**said, "approver": "ann", **changes}

    assert (await site.post("/lift", yes(made))).status_code == 401
    await site.sign_in("ann")
    for sent, status, why in (
        (yes(made, approver="bob"), 400, "decide in no other name"),
        (yes(made), 409, "decisions have to be signed here"),
        (yes(made, params_hash=bare.params_hash), 409, "another halt than the one that was shown"),
        (yes(bare), 409, "no vote is lacking"),
        (yes(made, approval_id="halt-1"), 409, "there is no halt"),
        ([], 400, "approver"),
    ):
        told = await site.post("/lift", sent)
        assert (told.status_code, why in told.json()["error"]) == (status, True), told.json()
    shown = (await site.get("/halts.json")).json()
    assert [(one["approval_id"], one["lacking"]) for one in shown] == [
        (one.halt_id, "0 of 1 approvals of operator" if one is made else None)
        for one in sorted((made, bare), key=lambda one: (one.halted_ms, one.halt_id))
    ]
    with scene.tx() as tx:
        assert [one.lifted_ms for one in list_halts(tx)] == [None, None]
