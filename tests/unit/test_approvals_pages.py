"""The approvers' pages: what they tell of a run, and what one visitor can take from the others."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response, StreamingResponse

from surehand.activities.ledger.history.run_display import Doubt, EntryEvent
from surehand.cli.approvals import diff
from surehand.cli.approvals_server.pages import MOST_OF_ONE, Followers
from surehand.cli.approvals_server.runs import describe_doubt, list_steps, story
from surehand.cli.approvals_server.sign_in import MOST_OF_ONE as MOST_SIGN_INS
from surehand.cli.approvals_server.sign_in import SignIns
from surehand.workflows.contracts.base import StepState, TimelineLine, Waiting
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
from surehand.workflows.plan.plan import Plan


async def nothing_new() -> str:
    return "as it was"


def stream(followers: Followers, who: str, may_look: Callable[[], bool] = bool) -> Response:
    return followers.answer(nothing_new, may_look, who=who)


async def first(answer: Response) -> AsyncIterator[object]:
    assert isinstance(answer, StreamingResponse)
    lines = aiter(answer.body_iterator)
    await anext(lines)
    return lines


async def test_whoever_follows_much_takes_the_place_of_nobody_else() -> None:
    followers = Followers()
    mine = [await first(stream(followers, "ann", lambda: True)) for _ in range(MOST_OF_ONE)]

    assert stream(followers, "ann", lambda: True).status_code == 204
    others = await first(stream(followers, "bob", lambda: True))

    for lines in (*mine, others):
        await lines.aclose()  # type: ignore[attr-defined]
    assert stream(followers, "ann", lambda: True).status_code == 200


async def test_a_stream_says_nothing_of_what_was_looked_up_before_the_session_ended() -> None:
    signed_in = True

    async def look() -> str:
        nonlocal signed_in
        signed_in = False  # meanwhile
        return "a vote"

    answer = Followers().answer(look, lambda: signed_in, who="ann")
    assert isinstance(answer, StreamingResponse)

    assert [line async for line in answer.body_iterator] == []


def test_whoever_signs_in_again_and_again_signs_only_themselves_out() -> None:
    sign_ins = SignIns()
    bob, first_of_ann = sign_ins.begin("bob"), sign_ins.begin("ann")
    newest = [sign_ins.begin("ann") for _ in range(MOST_SIGN_INS)]

    assert sign_ins.principal(first_of_ann) is None
    assert {sign_ins.principal(cookie) for cookie in newest} == {"ann"}
    assert sign_ins.principal(bob) == "bob"


def test_the_differences_of_long_params_that_are_other_in_every_line_are_told() -> None:
    # A comparison within lines would take hours here.
    digits = random.Random(4)

    def lines() -> list[str]:
        return [f"{digits.randrange(10**12):012d}" for _ in range(3000)]

    told = diff({"lines": lines()}, {"lines": lines()})

    assert len(told) == 6000
    assert {line[:2] for line in told} == {"- ", "+ "}


def test_a_story_names_steps_in_place_of_ids_and_leaves_refused_decisions_out() -> None:
    texts = {
        "run-1/refund/1: approved by ana": ("refund", "approved by ana"),
        "answer by ana: answered tone.1": ("tone", "answered by ana"),
        "decision refused (wrong_hash): it is for other params": None,
        "completed": (None, "completed"),
    }
    lines = [TimelineLine(at=datetime.now(UTC), step_id=None, text=text) for text in texts]
    result = RunResult.model_construct(run_id="run-1")
    told = story(RunView.model_construct(result=result, timeline=lines))
    assert [(line["step"], line["text"]) for line in told] == [*filter(None, texts.values())]


ASKED: Final = Waiting(kind="intervention", id="iv-1", step_id="refund", question="Did it happen?")
KNOWN: Final = Doubt(
    run_id="run-1",
    tool="payments.refund",
    version="1",
    params={"amount": "40.00"},
    key="refund:order-7",
    provider_key="sh-abc",
    entry_id="ef-1",
    generation=2,
    state="in_doubt",
    calls=3,
    called_ms=0,
    error="connection lost",
    part=None,
    told=(EntryEvent("effect.in_doubt", 1000, "its lease ran out"),),
    outcomes=("happened", "call_off"),
    later=("call_off",),
    left_ms=5000,
)


def test_the_evidence_is_told_in_words_with_what_each_of_it_is() -> None:
    told = describe_doubt(ASKED, KNOWN, "run-1")

    evidence = dict(told["evidence"])
    assert evidence["Business key"] == "refund:order-7 (no. 2)"
    assert evidence["Key sent to the outside system"] == "sh-abc"
    assert (evidence["Calls"], evidence["First call"]) == ("3", "1970-01-01 00:00:00Z")
    assert evidence["Last error"] == "connection lost"
    said = evidence["1970-01-01 00:00:01Z"]
    assert said == "Its outcome became unknown: its lease ran out"
    assert (told["text"], told["elsewhere"]) == ("Did it happen?", None)
    assert told["outcomes"] == ("happened", "call_off")
    assert told["later"] == {"outcomes": ("call_off",), "left_ms": 5000}


def test_what_happened_in_part_is_told_as_json_text_whatever_numbers_it_has() -> None:
    told = describe_doubt(ASKED, replace(KNOWN, part={"id": 2**60, "to": "Zoë"}), "run-1")
    assert told["part"] == '{"id": 1152921504606846976, "to": "Zoë"}'


def test_keys_of_secret_params_are_not_told() -> None:
    told = describe_doubt(ASKED, replace(KNOWN, key=None, params=None), "run-1")
    assert told["call"] is None
    assert "Business key" not in dict(told["evidence"])


def test_what_another_run_settles_names_that_run_and_offers_nothing() -> None:
    told = describe_doubt(ASKED, replace(KNOWN, outcomes=(), later=(), left_ms=0), "run-above")
    assert (told["elsewhere"], told["outcomes"], told["later"]) == ("run-1", (), None)


def test_of_what_the_ledger_does_not_know_only_the_text_is_told() -> None:
    told = describe_doubt(ASKED, None, "run-1")
    assert (told["text"], told["evidence"], told["outcomes"]) == ("Did it happen?", [], [])


def plan_of(*steps: dict[str, object]) -> Plan:
    return Plan.model_validate({"name": "p", "steps": [{"tool": "t", **one} for one in steps]})


DIAMOND = plan_of(
    {"id": "order"},
    {"id": "amount", "after": ["order"]},
    {"id": "mail", "after": ["order"]},
    {"id": "refund", "after": ["amount", "mail", "order"], "on_failure": {"goto": "note"}},
    {"id": "note", "after": ["refund"]},
)


def test_each_step_names_its_state_and_what_it_waits_for_but_not_what_that_implies() -> None:
    views = [
        StepView(id="order", tool="t", state=StepState.SUCCEEDED),
        StepView(id="amount", tool="t", state=StepState.WAITING_APPROVAL),
    ]
    steps = {one["id"]: one for one in list_steps(DIAMOND, views)}

    assert [one["state"] for one in steps.values()] == [
        "succeeded", "waiting_approval", "pending", "pending", "pending"
    ]  # fmt: skip
    assert steps["order"]["after"] == []
    assert steps["refund"]["after"] == ["amount", "mail"]
    assert steps["refund"]["jumps"] == [{"to": "note", "on": ["on_failure"]}]


def test_what_a_question_takes_from_other_steps_is_left_open_in_the_list_of_steps() -> None:
    asking = {"id": "why", "ask": {"question": "Refund ${order.amount} to them?"}}
    plan = Plan.model_validate({"steps": [{"id": "order", "tool": "t"}, asking]})

    _, step = list_steps(plan, [])

    assert step["does"] == "Refund … to them?"


def test_steps_that_no_plan_names_are_listed_behind_the_others() -> None:
    views = [StepView(id="turn-1.2", tool="bank.pay", state=StepState.RUNNING)]
    steps = list_steps(plan_of({"id": "a"}), views)

    assert [one["id"] for one in steps] == ["a", "turn-1.2"]
    assert steps[1]["after"] == []
