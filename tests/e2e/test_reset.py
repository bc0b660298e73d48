"""Guarantee G1 across Temporal's own reset: what the ledger has recorded is not made again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetActivityRequest
from temporalio.client import WorkflowExecutionStatus

from surehand.activities.effects import compensation
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.tables import effects
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.steps.acting import Holding
from surehand.activities.runs import stop_child_runs
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.steering import CancelMode
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import inside, reset_before
from tests.e2e.messages import answered
from tests.e2e.papers import FAILS, TOOLS, WAITS, files, paper, told, which
from tests.e2e.plans import child, mail_step, plan
from tests.e2e.runs import Run, refund_plan, step, until
from tests.e2e.stage import Stage
from tests.e2e.stopped_runs import until_found, unwind
from tests.variants.papers import LOG

pytestmark = pytest.mark.guarantee("G1")


@pytest.mark.parametrize(
    ("activity", "nth", "database"),
    # Reads are calls, too: the third one is the refund, the fifth one the mail.
    [
        pytest.param("request_approval", 1, "sqlite", id="before asking"),
        pytest.param(
            *("execute_tools", 3, "postgresql"), id="before the refund", marks=pytest.mark.postgres
        ),
        pytest.param("execute_tools", 5, "sqlite", id="before the mail"),
    ],
)
async def test_a_run_that_is_reset_repeats_no_effect_and_asks_nobody_again(
    stage: Stage, order_id: str, activity: str, nth: int
) -> None:
    async with stage.worker_here():
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        first = await run.result()
        again = await reset_before(stage, run, activity, nth)
        result = await again.completed()

    assert stage.made(order_id) == (1, 1, 1)
    assert step(result, "refund").output == step(first, "refund").output
    assert step(result, "mail").replayed
    assert len(stage.approval_rows(run)) == 1
    assert result.uncompensated == []


async def attempts(run: Run) -> int:
    """Return at which attempt the call is that is under way."""
    pending = (await run.handle.describe()).raw_description.pending_activities
    return max((one.attempt for one in pending), default=0)


def scheduled(stage: Stage, run: Run) -> int:
    """Return when the attempt was scheduled that holds the run's batch."""
    [row] = stage.run_rows(run)
    return Holding.of(row["batch"]).scheduled_ms


@pytest.mark.parametrize("how", ["the run", "the activity"])
async def test_a_batch_goes_on_after_a_reset(stage: Stage, order_id: str, how: str) -> None:
    stage.shop.fault("mails", fail="before", status=503)
    steps = [mail_step(order_id, kind) for kind in ("first", "second")]
    async with stage.worker_here():
        run = await stage.start(Plan.model_validate(steps), durability="exit")
        await until(lambda: attempts(run), lambda number: number >= 3)
        began = scheduled(stage, run)
        # Of a later attempt: by that, one that is late is known.
        await until(lambda: scheduled(stage, run), lambda at: at > began)
        stage.shop.clear_faults()
        if how == "the run":
            # To where the batch was under way already: what it was given has the old run's id.
            await run.handle.signal("decide", "nonsense")
            await run.until(lambda view: bool(view.refused_signals or view.verdicts))
            run = await reset_before(stage, run, "verify_decision", 1)
        else:
            pending = (await run.handle.describe()).raw_description.pending_activities
            await stage.client.workflow_service.reset_activity(
                ResetActivityRequest(
                    namespace=stage.client.namespace,
                    execution=WorkflowExecution(workflow_id=run.run_id),
                    id=pending[0].activity_id,
                )
            )
        await run.completed()

    assert stage.shop.counts(order_id)["mails"] == 2


# G4 across a reset: what this life of a run goes on with is wanted, and stands.


def either(stage: Stage, meant: Path, first: dict[str, Any], second: dict[str, Any]) -> Any:
    """Return the steps that do one thing if paper `one` is meant, and the other if `two` is."""
    read, _ = which(meant)
    one, two = (f"which.name == '{paper(stage, name)}'" for name in ("one", "two"))
    return plan(read, {**first, "when": one}, {**second, "when": two}, WAITS)


async def decided_anew(stage: Stage, meant: Path, run: Run) -> Run:
    await run.in_state(RunState.WAITING_INPUT)
    meant.write_text(paper(stage, "two"))
    again = await reset_before(stage, run, "execute_tools", 1)
    await again.in_state(RunState.WAITING_INPUT)
    await answered(again, answer="yes")
    return again


@pytest.mark.parametrize(
    "whose", ["its own", "of its child run, by itself", "its own, by its child run"]
)
async def test_an_effect_used_anew_is_not_undone(stage: Stage, tmp_path: Path, whose: str) -> None:
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "one"))
    one, two = files(stage, "a"), {**files(stage, "a"), "id": "anew"}
    if whose == "of its child run, by itself":
        one = child(files(stage, "a"))
    elif whose == "its own, by its child run":
        two = child(files(stage, "a"))
    async with stage.worker_here(**TOOLS):
        run = await stage.start(either(stage, meant, one, two))
        again = await decided_anew(stage, meant, run)
        result = await again.result()
        if whose != "its own":
            await inside(stage, run).result()

    assert result.state is RunState.COMPLETED
    assert (told(stage, "file"), told(stage, "take out")) == (["a"], [])
    assert result.uncompensated == []


# G4 across Temporal's own reset: what an earlier life has done is taken over, or undone.


GO: dict[str, Any] = {"id": "go", "wait": {"event": "go"}}


async def went_on(run: Run) -> None:
    await run.in_state(RunState.WAITING_EVENT)
    event = {"actor": "uma", "event_id": "1", "name": "go", "about": "", "payload": 1}
    await run.handle.signal("event", event)


async def filed(
    stage: Stage, tmp_path: Path, *more: dict[str, Any], **how: Any
) -> tuple[Run, Path]:
    """Return a run that has filed paper `a` and waits, and where it says which paper is meant."""
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "a"))
    run = await stage.start(plan(*which(meant), *more), **how)
    return run, meant


@pytest.mark.parametrize("end", ["terminated and unwound", "cancelled", "failed"])
async def test_both_lives_effects_are_undone(stage: Stage, tmp_path: Path, end: str) -> None:
    async with stage.worker_here(**TOOLS):
        run, meant = await filed(stage, tmp_path, GO, *([FAILS] if end == "failed" else []))
        await run.in_state(RunState.WAITING_EVENT)
        meant.write_text(paper(stage, "b"))
        again = await reset_before(stage, run, "execute_tools", 1)
        await again.in_state(RunState.WAITING_EVENT)
        if end == "failed":
            await went_on(again)
            left: list[Any] = (await again.result()).uncompensated
        elif end == "cancelled":
            await again.cancel()
            left = (await again.result()).uncompensated
        else:
            await again.handle.terminate("by hand")
            [found] = await until_found(stage, run)
            assert len(found.remaining) == 2
            left = list((await unwind(stage, run)).left)

    assert told(stage, "take out") == ["b", "a"]
    assert left == []
    assert {row["state"] for row in await stage.effects(run) if row["undoes"] is None} == {
        "compensated"
    }


@pytest.mark.parametrize(
    ("then", "to"), [("completes", "before its child run"), ("fails", "to its first task")]
)
async def test_a_reset_run_takes_over_its_done_child(stage: Stage, then: str, to: str) -> None:
    meant, last = files(stage, "first"), [] if then == "completes" else [FAILS]
    at = ("execute_tools", 1) if to == "before its child run" else ("open_run", 1)
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(meant, child(files(stage, "a")), WAITS, *last))
        await run.in_state(RunState.WAITING_INPUT)
        again = await reset_before(stage, run, *at)
        await again.in_state(RunState.WAITING_INPUT)
        await answered(again, answer="yes")
        result = await again.result()
        inner = await inside(stage, run).result()

    assert inner.state is RunState.COMPLETED
    assert told(stage, "file") == ["first", "a"]
    if then == "completes":
        assert (result.state, told(stage, "take out")) == (RunState.COMPLETED, [])
        assert step(result, "pay").output == {"file-a": {"filed": paper(stage, "a")}}
    else:
        assert (result.state, told(stage, "take out")) == (RunState.FAILED, ["a", "first"])
        assert result.uncompensated == []


@pytest.mark.parametrize("then", ["completes", "is cancelled"])
async def test_a_reset_run_waits_for_its_child_run_that_is_open(stage: Stage, then: str) -> None:
    inner_wait = {"id": "inner", "ask": "Inside?"}
    async with stage.worker_here(**TOOLS):
        run = await stage.start(
            plan(files(stage, "first"), child(files(stage, "a"), inner_wait, files(stage, "b")))
        )
        await run.in_state(RunState.WAITING_INPUT)
        again = await reset_before(stage, run, "execute_tools", 1)
        view = await again.in_state(RunState.WAITING_INPUT)
        assert [one.id for one in view.result.waiting_for] == ["pay/inner.1"]
        if then == "completes":
            await answered(again, answers={"pay/inner.1": "yes"})
        else:
            await again.cancel()
        result = await again.result()
        await inside(stage, run).result()

    if then == "completes":
        assert result.state is RunState.COMPLETED
        assert (told(stage, "file"), told(stage, "take out")) == (["first", "a", "b"], [])
    else:
        assert result.state is RunState.CANCELLED
        assert told(stage, "take out") == ["a", "first"]


@pytest.mark.parametrize(("child_is", "then"), [("done", "b"), ("open", "b"), ("done", "a")])
async def test_a_child_run_of_another_input_is_undone_before_a_reset_run_begins_anew(
    stage: Stage, tmp_path: Path, child_is: str, then: str
) -> None:
    """Also where it wants the same paper: a new one, and not the one that is to be taken out."""
    meant = tmp_path / "meant"
    meant.write_text(paper(stage, "a"))
    read, _ = which(meant)
    name = "${input.name}" if then == "b" else paper(stage, then)
    write = {"id": "file", "tool": "papers.file", "params": {"name": name}}
    waits = [WAITS] if child_is == "open" else []
    pay = child(write, *waits, params={"name": "${which.name}"})
    after = [GO] if child_is == "done" else []
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(read, pay, *after))
        waiting = RunState.WAITING_EVENT if after else RunState.WAITING_INPUT
        await run.in_state(waiting)
        meant.write_text(paper(stage, "b"))
        again = await reset_before(stage, run, "execute_tools", 1)
        if after:
            await went_on(again)
        else:
            second = inside(stage, run, "pay.2")
            await second.in_state(RunState.WAITING_INPUT)
            # Its parent is told a moment later.
            asked = "pay/waits.1"
            await again.until(lambda view: asked in [w.id for w in view.result.waiting_for])
            await answered(again, answers={asked: "yes"})
        result = await again.result()
        await inside(stage, run).result()
        await inside(stage, run, "pay.2").result()

    assert (result.state, step(result, "pay").child) == (RunState.COMPLETED, f"{run.run_id}~pay.2")
    assert [view.id for view in result.steps] == ["which", "pay", *(one["id"] for one in after)]
    done = [(did, name) for did, name in LOG if name.startswith(f"{stage.task_queue}-")]
    assert done == [
        (did, paper(stage, name))
        for did, name in [("file", "a"), ("take out", "a"), ("file", then)]
    ]


@pytest.mark.parametrize("end", ["completes", "fails", "is cancelled", "keeps all", "is unwound"])
async def test_no_childs_of_earlier_lives_live_on(stage: Stage, tmp_path: Path, end: str) -> None:
    """The server ends those of the newest execution only: the others would wait for ever."""
    meant = tmp_path / "meant"
    meant.write_text("child")
    read, _ = which(meant)
    waits = {"id": "inner", "ask": "Inside?"}
    below = {"id": "below", "plan": {"name": "below", "steps": [files(stage, "c"), waits]}}
    pay = child(files(stage, "b"), below, when="which.name == 'child'")
    last = [FAILS] if end == "fails" else []
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(files(stage, "a"), read, pay, GO, *last))
        await run.in_state(RunState.WAITING_INPUT)
        meant.write_text("no child")
        again = await reset_before(stage, run, "execute_tools", 2)
        await again.in_state(RunState.WAITING_EVENT)
        if end == "is unwound":
            await again.handle.terminate("by hand")
            await until_found(stage, run)
            assert (await unwind(stage, run)).left == []
        elif end in ("is cancelled", "keeps all"):
            await again.cancel(mode=CancelMode.KEEP if end == "keeps all" else "compensate")
            await again.result()
        else:
            await went_on(again)
            await again.result()
        inner = inside(stage, run)
        below_it = inside(stage, inner, "below")
        open_ = [
            one.run_id
            for one in (inner, below_it)
            if (await one.handle.describe()).status is WorkflowExecutionStatus.RUNNING
        ]

    taken_out = {"completes": ["c", "b"], "keeps all": []}
    assert open_ == []
    assert told(stage, "take out") == taken_out.get(end, ["c", "b", "a"])
    # As soon as one is stopped, the server cancels what it is the parent of: either comes first.
    for one, ends in ((inner, {"failed"}), (below_it, {"failed", "cancelled"})):
        [row] = stage.run_rows(one)
        assert row["state"] in ends
        assert row["closed_ms"] is not None


async def test_child_runs_are_not_stopped_before_all_that_is_kept_is_marked(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled child run undoes what is not marked; here a page has room for one effect."""
    meant = tmp_path / "meant"
    meant.write_text("child")
    read, _ = which(meant)
    inner = [files(stage, "b"), files(stage, "c"), {"id": "inner", "ask": "Inside?"}]
    monkeypatch.setattr(run_tree, "list_remaining", partial(run_tree.list_remaining, limit=1))
    marked = list[list[str | None]]()

    async def stop(*asked: Any) -> None:
        with stage.ledger.transaction(DEFAULT_TENANT) as tx:
            rows = tx.all(rows_of(effects, effects.c.left_because, run_id=f"{run.run_id}~pay"))
        marked.append([row["left_because"] for row in rows])
        await stop_child_runs(*asked)

    monkeypatch.setattr(compensation, "stop_child_runs", stop)
    async with stage.worker_here(**TOOLS):
        run = await stage.start(plan(read, child(*inner, when="which.name == 'child'"), GO))
        await run.in_state(RunState.WAITING_INPUT)
        meant.write_text("no child")
        again = await reset_before(stage, run, "execute_tools", 1)
        await again.in_state(RunState.WAITING_EVENT)
        await again.cancel(mode=CancelMode.KEEP)
        await again.result()

    assert [len(one) for one in marked] == [2]
    assert None not in marked[0]
    assert told(stage, "take out") == []
