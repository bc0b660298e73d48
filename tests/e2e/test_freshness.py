"""``fresh_for``: what a resumed run rests on is read again, and an approval of what was is void."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from surehand.workflows.contracts.approvals import ApprovalRequest, VerdictCode
from surehand.workflows.contracts.base import RunState, StepState
from surehand.workflows.contracts.steering import AnswerInterrupts, PauseRun, ResumeRun, Verb
from surehand.workflows.plan.plan import Plan
from tests.e2e.messages import told
from tests.e2e.runs import Run, decision_on, step
from tests.e2e.stage import Stage

PRICES: Final = {"tool_modules": "tests.variants.prices"}


@pytest.fixture
def price(tmp_path: Path) -> Path:
    file = tmp_path / "price"
    file.write_text("10.50")
    return file


def times_read(price: Path) -> int:
    return price.with_suffix(".count").stat().st_size


def plan(price: Path, order_id: str, read: str = "prices.read", **refund: Any) -> Plan:
    """A price, the same without cents, and a refund of that."""
    whole = {"amount": "${price.amount}"}
    params = {"order_id": order_id, "amount": "${whole.amount}", "currency": "EUR"}
    return Plan.model_validate(
        [
            {"id": "price", "tool": read, "params": {"file": str(price)}},
            {"id": "whole", "tool": "prices.whole", "params": whole},
            {"id": "refund", "tool": "payments.refund", "params": params, **refund},
        ]
    )


async def paused(stage: Stage, plan: Plan, mode: str | None = None) -> tuple[Run, ApprovalRequest]:
    """Return a run that waits for its approval, and is paused."""
    run = await stage.start(plan, durability=mode)
    request = await run.asks()
    await told(run, Verb.PAUSE, PauseRun(actor="ann"))
    return run, request


async def resumed(run: Run) -> str:
    return await told(run, Verb.RESUME, ResumeRun(actor="ann"))


def refunds(stage: Stage, order_id: str) -> list[str]:
    return [one["amount"] for one in stage.shop.world(order_id)["refunds"]]


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
async def test_an_approval_that_rests_on_what_has_changed_is_void_and_asked_for_again(
    stage: Stage, order_id: str, price: Path, mode: str
) -> None:
    async with stage.worker_here(**PRICES):
        run, old = await paused(stage, plan(price, order_id), mode)
        price.write_text("12.75")
        assert "reading again first: price" in await resumed(run)
        view = await run.until(lambda seen: any(p != old for p in seen.pending))
        [new] = view.pending
        late = await run.decide(decision_on(old))
        await run.decide(decision_on(new))
        result = await run.result()

    assert (old.params["amount"], new.params["amount"]) == ("10.00", "12.00")
    assert late.code is VerdictCode.NOT_WAITING
    assert (result.state, refunds(stage, order_id)) == (RunState.COMPLETED, ["12.00"])
    assert times_read(price) == 2
    assert step(result, "price").attempts == 2
    states = {row["approval_id"]: row["state"] for row in stage.approval_rows(run)}
    assert states == {old.approval_id: "void", new.approval_id: "approved"}
    # Both readings are on record.
    rows = [row for row in stage.step_rows(run) if row["step_id"] == "price"]
    assert sorted(row["output"]["amount"] for row in rows) == ["10.50", "12.75"]


async def test_a_stale_approval_is_not_used(stage: Stage, order_id: str, price: Path) -> None:
    async with stage.worker_here(**PRICES):
        run, old = await paused(stage, plan(price, order_id))
        assert (await run.decide(decision_on(old))).code is VerdictCode.ACCEPTED
        await run.in_state(RunState.PAUSED_USER)
        price.write_text("12.75")
        await resumed(run)
        view = await run.until(lambda seen: bool(seen.pending))
        assert refunds(stage, order_id) == []
        await run.decide(decision_on(view.pending[0]))
        result = await run.result()

    assert (result.state, refunds(stage, order_id)) == (RunState.COMPLETED, ["12.00"])
    states = {row["approval_id"]: row["state"] for row in stage.approval_rows(run)}
    assert states[old.approval_id] == "void"


@pytest.mark.parametrize(("now", "reads_whole"), [("10.50", 1), ("10.99", 2)])
async def test_what_reads_as_before_leaves_its_approval_standing(
    stage: Stage, order_id: str, price: Path, now: str, reads_whole: int
) -> None:
    # The price itself, or what the refund is made of.
    async with stage.worker_here(**PRICES):
        run, old = await paused(stage, plan(price, order_id))
        price.write_text(now)
        await resumed(run)
        await run.until(lambda seen: seen.result.state is RunState.WAITING_APPROVAL)
        await run.decide(decision_on(old))
        result = await run.result()

    assert (result.state, refunds(stage, order_id)) == (RunState.COMPLETED, ["10.00"])
    assert times_read(price) == 2
    assert step(result, "whole").attempts == reads_whole
    [row] = stage.approval_rows(run)
    assert (row["approval_id"], row["state"]) == (old.approval_id, "approved")


async def test_unreadable_values_void_approvals(stage: Stage, order_id: str, price: Path) -> None:
    async with stage.worker_here(**PRICES):
        run, old = await paused(stage, plan(price, order_id))
        await run.decide(decision_on(old))
        price.unlink()
        await resumed(run)
        result = await run.result()

    assert result.state is RunState.FAILED
    assert "price" in (result.error or "")
    assert refunds(stage, order_id) == []


@pytest.mark.parametrize("events", [41, 47, 50])
async def test_a_run_whose_history_is_long_at_its_resume_reads_again_and_goes_on(
    stage: Stage, order_id: str, price: Path, events: int
) -> None:
    async with stage.worker_here(**PRICES):
        run = await stage.start(plan(price, order_id), continue_after=events)
        await run.asks()
        await told(run, Verb.PAUSE, PauseRun(actor="ann"))
        price.write_text("12.75")
        await resumed(run)
        view = await run.until(
            lambda seen: [one.params["amount"] for one in seen.pending] == ["12.00"]
        )
        await run.decide(decision_on(view.pending[0]))
        result = await run.result()

    assert (result.state, refunds(stage, order_id)) == (RunState.COMPLETED, ["12.00"])


async def test_a_conditions_reads_are_made_again(stage: Stage, order_id: str, price: Path) -> None:
    # Given a step whose condition held while the run was paused
    read = {"id": "price", "tool": "prices.read", "params": {"file": str(price)}}
    given = {"order_id": order_id, "amount": "${price.amount}", "currency": "EUR"}
    refund = {"id": "refund", "tool": "payments.refund", "params": given}
    refund["when"] = "price.amount == '10.50'"
    async with stage.worker_here(**PRICES):
        run = await stage.start(Plan.model_validate([read, {"id": "sure", "ask": "?"}, refund]))
        await run.in_state(RunState.WAITING_INPUT)
        await told(run, Verb.PAUSE, PauseRun(actor="ann"))
        await told(run, Verb.ANSWER, AnswerInterrupts(actor="bob", answer="y"))
        await run.until(lambda seen: step(seen.result, "refund").state is StepState.PAUSED_USER)
        price.write_text("12.75")
        await resumed(run)
        result = await run.result()

    assert step(result, "refund").state is StepState.SKIPPED
    assert refunds(stage, order_id) == []


async def test_a_changed_answer_voids_approvals(stage: Stage, order_id: str, price: Path) -> None:
    # Given a human who was asked about the price, and a refund of what they have said
    read = {"id": "price", "tool": "prices.read", "params": {"file": str(price)}}
    asks = {"id": "sum", "ask": "Refund ${price.amount}?"}
    given = {"order_id": order_id, "amount": "${sum}", "currency": "EUR"}
    refund = {"id": "refund", "tool": "payments.refund", "params": given}
    async with stage.worker_here(**PRICES):
        run = await stage.start(Plan.model_validate([read, asks, refund]))
        await run.in_state(RunState.WAITING_INPUT)
        await told(run, Verb.ANSWER, AnswerInterrupts(actor="bob", answer="10.50"))
        old = await run.asks()
        await told(run, Verb.PAUSE, PauseRun(actor="ann"))
        price.write_text("12.75")
        await resumed(run)
        view = await run.until(
            lambda seen: bool(seen.pending) and seen.pending[0].approval_id != old.approval_id
        )
        await run.decide(decision_on(view.pending[0]))
        result = await run.result()

    assert result.state is RunState.COMPLETED
    assert len(refunds(stage, order_id)) == 1
    states = {row["approval_id"]: row["state"] for row in stage.approval_rows(run)}
    assert states[old.approval_id] == "void"
