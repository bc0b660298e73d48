"""`mcp serve`: an assistant starts runs, follows them, answers and cancels, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import steerings
from surehand.workflows.contracts.base import RunState
from tests.cli.starter import Starter, Verbs
from tests.e2e.stage import Stage
from tests.mcp.assistant import Served, kinds


@pytest.fixture
def served(stage: Stage) -> Served:
    return Served.beside(stage)


@pytest.fixture
async def working(stage: Stage) -> AsyncIterator[Stage]:
    async with stage.worker_here():
        yield stage


def name() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


async def test_what_can_be_started_is_listed_with_its_tools(served: Served) -> None:
    async with served.assistant() as assistant:
        listed = await assistant.call("list_tools")
        tools = {tool.name: tool for tool in (await assistant.client.list_tools()).tools}
    plans = {one["plan"]: one for one in listed["plans"]}
    assert plans.keys() == {"refund", "ask", "look"}
    assert plans["refund"]["input"] == {"order_id": "order-1001"}
    assert plans["look"]["input_needed"] == ["order_id"]
    gated = {one["tool"]: one["a_person_approves"] for one in listed["tools"]}
    assert gated["payments.refund"] and not gated["orders.read"]
    assert tools.keys() == {
        "list_tools", "start_run", "show_run", "pending", "answer_question", "cancel_run"
    }  # fmt: skip
    reads = {one for one, tool in tools.items() if tool.annotations.read_only_hint}
    assert reads == {"list_tools", "show_run", "pending"}
    assert all(tools[one].annotations.destructive_hint for one in tools.keys() - reads)


async def test_a_start_is_made_once(served: Served, working: Stage, order_id: str) -> None:
    run_id, input = name(), {"order_id": order_id}
    async with served.assistant() as assistant:
        ask = {"plan": "refund", "input": input, "run_id": run_id}
        both = await asyncio.gather(*(assistant.call("start_run", **ask) for _ in range(2)))
        assert sorted(one["started"] for one in both) == [False, True]
        again = await assistant.call("start_run", **ask, wait=True)
        other = await assistant.refused(
            "start_run", plan="refund", input={"order_id": "another"}, run_id=run_id
        )
        assert "exists already, with another plan or input" in other
        assert again["state"] == "waiting_approval" and kinds(again) == ["approval"]

        run = served.taken(run_id)
        await run.approve()  # by a person, elsewhere
        await run.result()
        ended = await assistant.call("start_run", **ask, wait=True)
    assert (ended["started"], ended["state"]) == (False, "completed")
    assert working.shop.counts(order_id)["refunds"] == 1
    assert [row["user_id"] for row in working.run_rows(run)] == ["uma"]


async def test_a_waiting_run_says_what_to_do(served: Served, working: Stage, order_id: str) -> None:
    run_id, heard = name(), list[str]()

    async def progress(count: float, total: float | None, message: str | None) -> None:
        heard.append(str(message))

    async with served.assistant() as assistant:
        arguments = {
            "plan": "refund",
            "input": {"order_id": order_id},
            "run_id": run_id,
            "wait": True,
        }
        await assistant.client.call_tool("start_run", arguments, progress_callback=progress)
        shown = await assistant.call("show_run", run_id=run_id)
        waits = await assistant.call("pending")
    served.taken(run_id)
    [approval] = shown["waiting_for"]
    assert approval["question"].startswith("Refund 120.00 EUR")
    assert f"starter.py show {run_id}/refund/1" in " ".join(approval["a_person_has_to"])
    assert "answer_with" not in approval
    assert [one["waiting_for"] for one in waits["runs"] if one["run_id"] == run_id] == [[approval]]
    assert any("waiting_approval" in one for one in heard), heard


async def test_an_assistant_answers_in_the_callers_name(served: Served, working: Stage) -> None:
    run_id = name()
    async with served.assistant() as assistant:
        asked = await assistant.call(
            "start_run", plan="ask", input={"order_id": "o-1"}, run_id=run_id, wait=True
        )
        [question] = asked["waiting_for"]
        assert question["answer_with"] == "answer_question"
        assert question["answer_schema"] == {"type": "string"}
        wrong = await assistant.refused(
            "answer_question", run_id=run_id, question_id="reason.1", answer=7
        )
        assert "reason.1: " in wrong and "string" in wrong
        # Text that looks like JSON stays the text that was sent.
        await assistant.call(
            "answer_question", run_id=run_id, question_id="reason.1", answer='["sent twice"]'
        )
        run = served.taken(run_id)
        result = await run.result()
        late = await assistant.refused(
            "answer_question", run_id=run_id, question_id="reason.1", answer="again"
        )
    assert result.steps[0].output == '["sent twice"]'
    answered = await working.events(run, "interrupt.answered")
    assert [one["body"]["actor"] for one in answered] == ["uma"]
    with working.ledger.transaction(working.tenant) as tx:
        sent = tx.all(rows_of(steerings, run_id=run_id, code="accepted"))
    assert [one["content"]["reason"] for one in sent] == ["by an assistant (mcp serve)"]
    assert "reason.1" in late


async def test_a_cancelled_run_did_nothing(served: Served, working: Stage, order_id: str) -> None:
    run_id = name()
    async with served.assistant() as assistant:
        await assistant.call(
            "start_run", plan="refund", input={"order_id": order_id}, run_id=run_id, wait=True
        )
        await assistant.call("cancel_run", run_id=run_id, reason="ordered by mistake")
        shown = await assistant.call(
            "start_run", plan="refund", input={"order_id": order_id}, run_id=run_id, wait=True
        )
    served.taken(run_id)
    assert shown["state"] == RunState.CANCELLED
    assert set(working.shop.counts(order_id).values()) == {0}


async def test_without_a_worker_starts_are_kept_and_cancels_not_sent(served: Served) -> None:
    run_id = name()
    async with served.assistant() as assistant:
        begun = await assistant.call(
            "start_run", plan="ask", input={"order_id": "o-1"}, run_id=run_id
        )
        assert begun["started"] and "no worker has taken it up yet" in begun["note"]
        said = await assistant.refused("cancel_run", run_id=run_id)
        assert "no worker answers" in said and "starter.py worker" in said


async def test_a_temporal_server_that_is_away_is_one_line_with_its_address(served: Served) -> None:
    async with served.assistant(temporal="127.0.0.1:1") as assistant:
        assert (await assistant.call("list_tools"))["plans"]
        for tool, given in (("pending", {}), ("show_run", {"run_id": "refund-1"})):
            assert "127.0.0.1:1 (TEMPORAL_ADDRESS)" in await assistant.refused(tool, **given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plans", "nowhere"], "No such file"),
        (["--key", "nowhere.pem"], "there is no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_served_safely_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    verbs = Verbs({"SUREHAND_USER": "uma"}, tmp_path, monkeypatch)
    ended = verbs("mcp", "serve", *options)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.line()


@pytest.mark.slow
def test_without_the_extra_one_line_says_which_it_is(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n")
    starter = Starter({"SUREHAND_USER": "uma", "PYTHONPATH": str(tmp_path)}, tmp_path)
    ended = starter("mcp", "serve")
    assert ended.code == 2
    assert "pip install 'surehand[mcp]'" in ended.line()


@pytest.mark.slow
def test_nothing_else_is_said_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "broken.yaml").write_text("steps: [{tol: x}]")
    starter = Starter({"SUREHAND_USER": "uma"}, tmp_path)
    ended = starter("mcp", "serve", "--plans", "plans")  # its stdin is at its end
    assert (ended.code, ended.out) == (0, "")
    assert "broken.yaml is left out" in ended.line()
