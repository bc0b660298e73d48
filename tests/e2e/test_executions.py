"""G1, G4 over a run's lives and other runs: the newest acts, and who relies on it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError

from surehand.activities import runs
from surehand.activities.ledger.core.store import LedgerUnavailable, Transaction
from surehand.cli.runs import outputs_before
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Linked
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import inside, reset_before
from tests.e2e.messages import answered
from tests.e2e.papers import FAILS, TOOLS, WAITS, files, paper, told, which
from tests.e2e.plans import child, plan, refund_step
from tests.e2e.runs import Run, decision_on
from tests.e2e.stage import Stage
from tests.e2e.stopped_runs import until_found, unwind
from tests.ledger_databases import DATABASES


async def lived_again(stage: Stage, *then: dict[str, object]) -> Run:
    """Return a run that had completed, was reset, and waits."""
    run = await stage.start(plan(files(stage, "a"), WAITS, *then))
    await run.in_state(RunState.WAITING_INPUT)
    await answered(run, answer="yes")
    await run.completed()
    again = await reset_before(stage, run, "execute_tools", 1)
    await again.in_state(RunState.WAITING_INPUT)
    return again


@pytest.mark.parametrize("database", DATABASES)
async def test_a_reset_and_terminated_run_is_found_and_unwound(stage: Stage) -> None:
    async with stage.worker_here(**TOOLS):
        again = await lived_again(stage)
        await again.handle.terminate("by hand")
        [found] = await until_found(stage, again)
        done = await unwind(stage, again)

    assert [view.tool for view in found.remaining] == ["papers.file"]
    assert (done.undone, done.left) == (["file-a"], [])
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], ["a"])


async def test_a_reset_run_that_fails_is_on_record_so(stage: Stage, tmp_path: Path) -> None:
    meant = tmp_path / "meant"
    meant.write_text("well")
    read, _ = which(meant)
    async with stage.worker_here(**TOOLS):
        again = await lived_again(stage, read, {**FAILS, "when": "which.name == 'badly'"})
        meant.write_text("badly")
        await answered(again, answer="yes")
        assert (await again.result()).state is RunState.FAILED

    [row] = stage.run_rows(again)
    assert (row["state"], row["execution"]) == ("failed", again.handle.run_id)
    ends = ("run.completed", "run.reopened", "run.failed")
    assert [event["type"] for event in await stage.events(again, *ends)] == list(ends)
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], ["a"])


async def test_what_a_cancel_has_kept_stays_when_the_run_is_reset_and_fails(stage: Stage) -> None:
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(files(stage, "a"), WAITS, files(stage, "b")))
        await run.in_state(RunState.WAITING_INPUT)
        await run.cancel(mode="keep")
        assert (await run.result()).state is RunState.CANCELLED
        # Of the cancel, too, this life is not told.
        again = await reset_before(stage, run, "execute_tools", 1, again=False)
        await again.in_state(RunState.WAITING_INPUT)
        await answered(again, answer="yes")
        result = await again.result()

    assert result.state is RunState.FAILED
    assert [view.reason for view in result.uncompensated] == ["kept on cancel"]
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], [])


def refund_then(order_id: str, tool: str, **params: Any) -> Plan:
    """A refund, and a second step that waits for an approval."""
    after = {"id": "after", "tool": tool, "params": {"order_id": order_id, **params}}
    return plan(refund_step(order_id), {**after, "approval": "required"})


async def undone_under(stage: Stage, order_id: str, plan: Plan) -> Run:
    """Return a run that has replayed a refund which its owner has undone since."""
    owner = await stage.start(refund_then(order_id, "orders.read"))
    await owner.decide(decision_on(await owner.asks("refund")))
    last = await owner.asks("after")
    relying = await stage.start(plan)
    await relying.asks("after")
    await owner.decide(decision_on(last, outcome="reject"))
    # Not without asking: somebody relies on it.
    view = await owner.in_state(RunState.NEEDS_INTERVENTION)
    [question] = view.result.waiting_for
    assert f"of run {relying.run_id} used what it returned" in question.question
    assert stage.shop.counts(order_id)["refund_cancellations"] == 0
    await owner.resolve(intervention_id=question.id, outcome="undo")
    assert (await owner.result()).state is RunState.FAILED
    await relying.decide(decision_on(await relying.asks("after")))
    return relying


async def test_a_human_takes_note_before_any_further_effect(stage: Stage, order_id: str) -> None:
    mail = {"kind": "refund_notice", "to": "ada@example.com", "subject": "x", "body": "x"}
    async with stage.worker_here():
        plan = refund_then(order_id, "mail.send", **mail)
        run = await undone_under(stage, order_id, plan)
        question = await run.asks_a_human()
        assert "has undone the effect that this run relies on" in question.question
        assert stage.shop.counts(order_id)["mails"] == 0
        await run.resolve(intervention_id=question.id, outcome="compensated")
        await run.completed()

    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["refund_cancellations"], counts["mails"]) == (1, 1, 1)


async def test_code_that_relies_on_what_was_undone_returns_its_output_once_a_human_has_taken_note(
    stage: Stage, order_id: str
) -> None:
    plan = Plan.model_validate({"code": "Relying", "input": {"order_id": order_id}})
    async with stage.worker_here(workflow_modules="tests.e2e.code"):
        run = await undone_under(stage, order_id, plan)
        question = await run.asks_a_human()
        await run.resolve(intervention_id=question.id, outcome="compensated")
        result = await run.result()

    assert (result.state, result.output) == (RunState.COMPLETED, "all is well")
    assert stage.paid(order_id) == (1, 1)


async def test_a_run_that_is_cancelled_while_it_looks_for_what_was_undone_undoes_its_own(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is away at that moment, so that the run still looks when it is cancelled."""
    looking = asyncio.Event()
    loop = asyncio.get_running_loop()

    def away(tx: Transaction, run_id: str) -> Sequence[Any]:
        loop.call_soon_threadsafe(looking.set)
        raise LedgerUnavailable("away")

    plan = refund_then(order_id, "inventory.restock", lines=[{"sku": "a", "quantity": 1}])
    async with stage.worker_here():
        owner = await stage.start(refund_then(order_id, "orders.read"))
        await owner.decide(decision_on(await owner.asks("refund")))
        await owner.asks("after")
        relying = await stage.start(plan)
        asked = await relying.asks("after")
        with monkeypatch.context() as patched:
            patched.setattr(runs, "find_withdrawn", away)
            await relying.decide(decision_on(asked))
            await looking.wait()
            await relying.handle.cancel()
            await relying.history_has("workflow_execution_cancel_requested")
        with pytest.raises(WorkflowFailureError) as ended:
            await relying.result()
        await owner.cancel(mode="keep")
        await owner.result()

    assert isinstance(ended.value.cause, CancelledError)
    counts = stage.shop.counts(order_id)
    assert (counts["restocks"], counts["restock_undos"]) == (1, 1)
    [row] = stage.run_rows(relying)
    assert row["state"] == "cancelled"


# G4: what has been undone is no fact that another run can begin from.
LAST: dict[str, Any] = {**FAILS, "id": "last"}


def steps(stage: Stage, kind: str) -> list[dict[str, Any]]:
    """Return steps of which the first has an effect, itself or through a child run."""
    write = files(stage, "a")
    return [child(write) if kind == "child run" else write, LAST]


@pytest.mark.parametrize("kind", ["step", "child run"])
async def test_no_run_begins_from_an_undone_step(stage: Stage, kind: str) -> None:
    taken = "pay" if kind == "child run" else "file-a"
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(*steps(stage, kind)))
        result = await run.result()
        view = await run.view()
        # What the command line refuses, a client of one's own may still ask for.
        linked = Linked(run_id=run.run_id, outputs={taken: {"filed": paper(stage, "a")}})
        fork = await stage.start(plan(*steps(stage, kind)), linked=linked)
        with pytest.raises(WorkflowFailureError) as refused:
            await fork.handle.result()
        if kind == "child run":
            await inside(stage, run).result()

    assert (result.state, told(stage, "take out")) == (RunState.FAILED, ["a"])
    with pytest.raises(WrongUse, match=f"what {taken} did has been undone.*--from {taken}"):
        outputs_before(view, "last")
    assert outputs_before(view, taken) == {}
    cause = refused.value.cause
    assert isinstance(cause, ApplicationError) and cause.type == ErrorType.PLAN_INVALID
    assert (
        f"what step {taken} of run {run.run_id} has done or taken over has been undone"
        in cause.message
    )
    assert stage.run_rows(fork) == []
