"""Halts in whole runs: no call begins, nothing runs out, and all goes on once they are lifted."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.effects import compensation
from surehand.activities.ledger.approvals.decisions import lift_halt
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.halts import Halt, halt_calls, list_under_way
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.interceptors import Pause
from tests.e2e.model_scripts import MODEL, asked, driven, finish
from tests.e2e.plans import mail_step, plan, read, refund_step
from tests.e2e.runs import states, step, until
from tests.e2e.stage import Stage
from tests.ledger.people import ADMINISTRATOR, administration

REASON = "mails go to the wrong people"


def halt(stage: Stage, **scope: Any) -> Halt:
    with stage.ledger.transaction(stage.tenant) as tx:
        return halt_calls(tx, "oscar", REASON, **scope)


def lift(stage: Stage, made: Halt) -> None:
    with administration(stage) as tx:
        lift_halt(tx, made.halt_id, ADMINISTRATOR)


def mails(order_id: str, count: int, **rest: Any) -> Plan:
    return plan(*(mail_step(order_id, f"m{n}") for n in range(count)), **rest)


def mailed(stage: Stage, *orders: str) -> int:
    return sum(stage.shop.counts(one).get("mails", 0) for one in orders)


def claimed(stage: Stage, made: Halt) -> list[Any]:
    with stage.ledger.transaction(stage.tenant) as tx:
        return [one for one in list_under_way(tx, made) if one["state"] == "claimed"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_halted_run_waits_and_goes_on(stage: Stage, order_id: str, durability: str) -> None:
    made = halt(stage, tool="mail.send")
    steps = [read(order_id), mail_step(order_id, "one"), mail_step(order_id, "two")]
    async with stage.worker_here():
        run = await stage.start(plan(*steps), durability=durability)
        view = await run.in_state(RunState.HALTED)
        before = stage.shop.counts(order_id).get("mails", 0)
        lift(stage, made)
        result = await run.result()

    [waiting] = view.result.waiting_for
    assert (waiting.kind, waiting.step_id) == ("halt", "one")
    assert waiting.question == f"halted by oscar (calls of mail.send): {REASON}"
    assert before == 0
    assert result.state is RunState.COMPLETED
    assert step(result, "one").error is None
    assert stage.shop.counts(order_id)["mails"] == 2
    [told] = await stage.events(run, "call.halted")
    assert told["body"]["halt_id"] == made.halt_id


async def test_a_read_is_halted_as_well(stage: Stage, order_id: str) -> None:
    made = halt(stage)
    async with stage.worker_here():
        run = await stage.start(plan(read(order_id)))
        view = await run.in_state(RunState.HALTED)
        assert stage.step_rows(run) == []
        lift(stage, made)
        await run.completed()

    assert states(view.result) == {"order": "halted"}


async def test_a_turn_is_halted_as_well(stage: Stage, tmp_path: Path) -> None:
    made = halt(stage)
    async with stage.worker_here(**MODEL):
        run = await stage.start(driven(tmp_path, finish("done")))
        await run.in_state(RunState.HALTED)
        assert not (tmp_path / "count").exists()  # where the model counts its turns
        lift(stage, made)
        await run.completed()

    assert asked(tmp_path) == 1


@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_runs_at_full_speed_begin_nothing_behind_a_halt(
    stage: Stage, durability: str
) -> None:
    """What the shop has once no call is under way any more, it still has when all runs wait."""
    runs, each, rounds = 8, 6, 3
    orders = [stage.shop.new_order() for _ in range(runs)]
    async with stage.worker_here():
        going = [await stage.start(mails(one, each), durability=durability) for one in orders]
        for number in range(1, rounds + 1):
            some = random.randrange(4 * number, 8 * number)
            await until(lambda: mailed(stage, *orders), lambda n, some=some: n >= some, 60)
            made = halt(stage)
            await until(lambda made=made: claimed(stage, made), lambda found: not found, 60)
            at_halt = mailed(stage, *orders)
            await asyncio.gather(*(run.until(_stands, 60) for run in going))
            assert mailed(stage, *orders) == at_halt
            lift(stage, made)
        for run in going:
            await run.completed()

    assert mailed(stage, *orders) == runs * each
    with stage.ledger.transaction(stage.tenant) as tx:
        assert len(tx.all(rows_of(effects, "entry_id"))) == runs * each


def _stands(view: Any) -> bool:
    return view.result.state in (RunState.HALTED, RunState.COMPLETED)


@pytest.mark.parametrize("undo_too", [False, True])
async def test_a_halted_run_that_is_cancelled_is_undone_as_said(
    stage: Stage, order_id: str, undo_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compensation, "LOOK", timedelta(seconds=1))
    steps = plan(refund_step(order_id), {"id": "go", "ask": {"question": "Go?"}})
    async with stage.worker_here(tool_modules="tests.variants.refund_ungated"):
        run = await stage.start(steps)
        await run.in_state(RunState.WAITING_INPUT)
        made = halt(stage, undo_too=undo_too)
        await run.cancel()
        if undo_too:
            await run.in_state(RunState.COMPENSATING)
            await until(lambda: stage.events(run, "call.halted"), bool, 60)
            assert [one["state"] for one in await stage.effects(run)] == ["committed"]
            lift(stage, made)
        result = await run.result()

    assert result.state is RunState.CANCELLED
    forward, undo = await stage.effects(run)
    assert (forward["state"], undo["state"]) == ("compensated", "committed")


async def test_a_question_does_not_run_out_while_calls_are_halted(
    stage: Stage, order_id: str
) -> None:
    ask = {"question": "Go?", "expires_in": "1s", "otherwise": "no"}
    async with stage.worker_here():
        made = halt(stage)
        run = await stage.start(plan({"id": "go", "ask": ask}))
        await run.in_state(RunState.WAITING_INPUT)
        await run.history_has("timer_fired")
        view = await run.until(lambda found: bool(found.interrupts), 60)
        [asked] = view.interrupts
        answer = {"actor": "oscar", "answers": {asked.interrupt_id: "yes"}}
        await run.handle.execute_update("answer", answer)
        result = await run.result()
        lift(stage, made)
        again = await stage.start(plan({"id": "go", "ask": ask}))
        late = await again.result()

    assert step(result, "go").output == "yes"
    assert step(late, "go").output == "no"


async def test_an_answer_counts_while_a_halted_question_is_found_not_to_be_over(
    stage: Stage, order_id: str
) -> None:
    looking = Pause("record_interrupt", of=lambda asked: asked.what == "expired")
    ask = {"question": "Go?", "expires_in": "1s", "otherwise": "no"}
    async with stage.worker_here(client=looking.client(stage.client)):
        halt(stage)
        run = await stage.start(plan({"id": "go", "ask": ask}))
        await looking.reached()
        sent = {"actor": "oscar", "answers": {"go.1": "yes"}}
        answering = asyncio.create_task(run.handle.execute_update("answer", sent))
        await run.history_has("workflow_execution_update_accepted")
        looking.go_on()
        await answering
        result = await run.result()

    assert step(result, "go").output == "yes"
