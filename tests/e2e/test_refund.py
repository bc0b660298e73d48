"""Guarantee G1: each effect happens once, in one run or several; what is refused is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError

from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import RunResult, StartRun
from surehand.workflows.contracts.steering import PauseRun, ResumeRun, Verb
from surehand.workflows.names import WORKFLOW
from surehand.workflows.plan.plan import Plan
from tests.e2e.executions import called
from tests.e2e.model_scripts import ALL, MODEL, call, driven, said
from tests.e2e.runs import Run, decision_on, failing_plan, refund_plan, states, step, timeline
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES


@pytest.mark.parametrize(
    ("database", "cached"),
    [("sqlite", "0"), pytest.param("postgresql", "1000", marks=pytest.mark.postgres)],
    ids=["replayed at each step", "kept in memory"],
)
async def test_a_refund_plan_pays_and_mails_once(stage: Stage, order_id: str, cached: str) -> None:
    with stage.ready_worker(max_cached_workflows=cached):
        run = await stage.start(refund_plan(order_id))
        request = await run.approve()
        result = await run.result()
        view = await run.view()

    assert result.state is RunState.COMPLETED
    assert set(states(result).values()) == {"succeeded"}
    assert stage.shop.counts(order_id) == {
        "refunds": 1,
        "refund_cancellations": 0,
        "mails": 1,
        "restocks": 1,
        "restock_undos": 0,
        "ticket_closures": 0,
    }
    entries = {row["tool"]: row for row in await stage.effects(run)}
    assert {tool: (row["state"], row["calls"]) for tool, row in entries.items()} == {
        "payments.refund": ("committed", 1),
        "inventory.restock": ("committed", 1),
        "mail.send": ("committed", 1),
    }
    assert entries["payments.refund"]["key"] == f"refund:{order_id}"
    assert entries["payments.refund"]["params_hash"] == request.params_hash
    assert entries["payments.refund"]["approval_id"] == request.approval_id
    assert step(result, "refund").output == entries["payments.refund"]["receipt"]
    assert view.result == result
    [approval] = stage.approval_rows(run)
    assert approval["consumed_entry"] == entries["payments.refund"]["entry_id"]


async def test_the_end_of_a_run_with_many_effects_can_be_told(
    stage: Stage, order_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of 10,000 effects a list of all took more than the server takes in one message.
    monkeypatch.setattr("surehand.activities.runs.MOST_EFFECTS", 2)
    _, result = await stage.play(refund_plan(order_id), approve=True)

    assert result.state is RunState.COMPLETED
    assert [effect.tool for effect in result.effects] == ["inventory.restock", "mail.send"]
    assert result.more_effects == 1


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("database", DATABASES)
async def test_a_second_run_pays_nothing_and_asks_nobody(stage: Stage, order_id: str) -> None:
    plan = refund_plan(order_id)
    async with stage.worker_here():
        first = await stage.start(plan)
        await first.approve()
        made = await first.result()
        second = await stage.start(plan)
        again = await second.result()
        view = await second.view()
        failed = await (await stage.start(failing_plan(order_id))).result()

    assert again.state is RunState.COMPLETED
    # The third run undoes nothing of what the first has made.
    assert (failed.state, states(failed)["close"]) == (RunState.FAILED, "failed")
    assert set((await stage.effect_states(first)).values()) == {"committed"}
    counts = stage.shop.counts(order_id)
    assert (counts["refund_cancellations"], counts["restock_undos"]) == (0, 0)
    assert stage.made(order_id) == (1, 1, 1)
    assert stage.approval_rows(second) == []
    for step_id in ("refund", "restock", "mail"):
        replayed = step(again, step_id)
        assert (replayed.replayed, replayed.made_by) == (True, first.run_id)
        assert replayed.output == step(made, step_id).output
        assert f"made by run {first.run_id}" in timeline(view, step_id)
    assert await stage.effects(second) == []
    replays = await stage.events(second, "effect.replayed")
    assert {event["body"]["made_by"] for event in replays} == {first.run_id}


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("database", DATABASES)
async def test_two_claims_of_one_key_make_one_call(stage: Stage, order_id: str) -> None:
    # Answered late, so that the second run meets the first one's claim and not its receipt.
    stage.shop.fault("refunds", ignore_keys=True, delay_after_s=1)
    plan = refund_plan(order_id)
    async with stage.worker_here():
        runs = [await stage.start(plan) for _ in range(2)]
        requests = [await run.asks() for run in runs]
        await asyncio.gather(
            *(run.send(decision_on(one)) for run, one in zip(runs, requests, strict=True))
        )
        results = [await run.result() for run in runs]

    assert [result.state for result in results] == [RunState.COMPLETED] * 2
    assert stage.made(order_id) == (1, 1, 1)
    (maker, _), (other, replayed) = maker_first(runs, results)
    assert step(replayed, "refund").made_by == maker.run_id
    assert len(await stage.events(maker, "approval.consumed")) == 1
    assert await stage.events(other, "approval.consumed") == []


def maker_first(runs: list[Run], results: list[RunResult]) -> list[tuple[Run, RunResult]]:
    pairs = list(zip(runs, results, strict=True))
    return sorted(pairs, key=lambda pair: step(pair[1], "refund").replayed)


AMOUNTS: Final = {"tool_modules": "tests.variants.amounts"}
CODE: Final = {**AMOUNTS, "workflow_modules": "tests.e2e.code"}
PAYMENT: Final = {"amount": 5, "when": "2026-12-31", "to": {"iban": "x"}, "parts": [1, 2]}
PRICE: Final = "5 2026-12-31 Transfer [1, 2]"


async def told(stage: Stage, run: Run, result: RunResult, step_id: str, reason: str) -> None:
    """Assert that a refused step says why: in its view, and as one event."""
    events = [one for one in await stage.events(run, "step.refused") if one["step_id"] == step_id]
    assert reason in (step(result, step_id).error or "")
    assert [reason in one["body"]["reason"] for one in events] == [True]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_refused_step_is_an_event_with_its_reason(stage: Stage, durability: str) -> None:
    steps: list[dict[str, Any]] = [
        {"id": "price", "tool": "payments.price", "params": PAYMENT},
        {"id": "nowhere", "tool": "payments.price", "params": {**PAYMENT, "amount": "${price.no}"}},
        {"id": "unfit", "tool": "payments.price", "params": {**PAYMENT, "amount": "${price}"}},
        {"id": "odd", "tool": "payments.price", "params": PAYMENT, "when": "price"},
        {"id": "each", "tool": "payments.price", "params": PAYMENT, "for_each": "${price}"},
        {"id": "ask", "ask": "Is it ${price.no}?"},
        {"id": "wait", "wait": {"event": "paid", "about": "${price.no}"}},
    ]
    plan = Plan.model_validate({"steps": steps, "defaults": {"on_failure": "continue"}})
    run, result = await stage.play(plan, durability=durability, **AMOUNTS)

    assert result.state is RunState.COMPLETED
    assert step(result, "price").output == PRICE
    for step_id, reason in (
        ("nowhere", "there is no 'no'"),
        ("unfit", "amount"),
        ("odd", "neither true nor false"),
        ("each", "is no list"),
        ("ask", "there is no 'no'"),
        ("wait", "there is no 'no'"),
    ):
        await told(stage, run, result, step_id, reason)
    assert len(await stage.events(run, "step.refused")) == 6


async def test_a_model_hears_which_of_its_params_are_refused(stage: Stage, tmp_path: Path) -> None:
    script = [
        call("payments.price", **PAYMENT),
        call("payments.price", **{**PAYMENT, "to": {}}),
        call("payments.price", amount=5),
        call("payments.price", **PAYMENT, colour="red"),
        ALL,
    ]
    run, result = await stage.play(driven(tmp_path, *script), **AMOUNTS, **MODEL)

    price, no_iban, no_date, _ = said(result)
    assert price == PRICE
    assert "iban" in no_iban["failed"]
    assert "when" in no_date["failed"]
    await told(stage, run, result, "turn-2.1", "iban")
    await told(stage, run, result, "turn-3.1", "when")


async def test_code_is_raised_what_is_refused_and_its_run_tells_it(stage: Stage) -> None:
    wanted: list[Any] = [
        ["payments.price", PAYMENT],
        ["payments.price", {**PAYMENT, "amount": "dear"}],
        ["payments.dance", {}],
        ["payments.dance", {}],
    ]
    plan = Plan.model_validate({"code": "Trying", "input": {"calls": wanted}})
    run, result = await stage.play(plan, **CODE)

    assert result.state is RunState.COMPLETED
    said: Any = result.output
    assert said[0] == PRICE
    assert states(result) == {
        "price": "succeeded",
        "price-2": "failed",
        "dance": "skipped",
        "dance-2": "skipped",
    }
    for raised, step_id, reason in (
        (said[1], "price-2", "amount"),
        (said[2], "dance", "unknown tool 'payments.dance'"),
        (said[3], "dance-2", "unknown tool 'payments.dance'"),
    ):
        assert reason in raised["failed"]
        await told(stage, run, result, step_id, reason)


async def refusal(stage: Stage, workflow_id: str, request: StartRun) -> ApplicationError:
    handle = await stage.client.start_workflow(
        WORKFLOW,
        request,
        id=workflow_id,
        task_queue=stage.task_queue,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    )
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


@pytest.mark.parametrize(
    ("workflow_id", "run_id", "tenant"),
    [
        ("one-run", "another-run", "default"),
        ("acme/run", "acme/run", "default"),
        ("run", "run", "acme"),
        ("umbrella/run", "umbrella/run", "acme"),
    ],
)
async def test_a_run_cannot_pass_for_another_one_or_for_another_tenants(
    stage: Stage, order_id: str, workflow_id: str, run_id: str, tenant: str
) -> None:
    plan = refund_plan(order_id)
    async with stage.worker_here():
        request = StartRun(run_id=run_id, tenant=tenant, user="uma", plan=plan)
        cause = await refusal(stage, f"{workflow_id}-{order_id}", request)
        assert cause.type == "RunIdInvalid"
        cause = await refusal(stage, workflow_id, request.model_copy(update={"run_id": run_id}))
        assert cause.type == "RunIdInvalid"
    assert set(stage.shop.counts(order_id).values()) == {0}


#: How a worker is missed that dies in what a run's own worker does for it.
MOVED_ON: Final = ("workflow task", "TIMEOUT_TYPE_START_TO_CLOSE")
#: Runs that are opened at once.
MANY: Final = 24


async def deaths(run: Run) -> Counter[tuple[str, str]]:
    """Return by what was missed that never ended: activity or workflow task, and time-out."""
    found: Counter[tuple[str, str]] = Counter()
    names = dict[int, str]()
    async for event in run.handle.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            names[event.event_id] = called(event)
        elif event.HasField("activity_task_started_event_attributes"):
            started = event.activity_task_started_event_attributes
            last = started.last_failure
            if last.HasField("timeout_failure_info"):
                kind = TimeoutType.Name(last.timeout_failure_info.timeout_type)
                found[names[started.scheduled_event_id], kind] += 1
        elif event.HasField("workflow_task_timed_out_event_attributes"):
            timed_out = event.workflow_task_timed_out_event_attributes.timeout_type
            if timed_out == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE:
                found["workflow task", TimeoutType.Name(timed_out)] += 1
    return found


@pytest.mark.crash
@pytest.mark.parametrize(
    ("activity", "point", "missed"),
    [
        ("open_run", CrashPoint.BEFORE_CLAIM, MOVED_ON),
        ("open_run", CrashPoint.BEFORE_REPORT, MOVED_ON),
        ("request_approval", CrashPoint.BEFORE_REPORT, MOVED_ON),
        ("verify_decision", CrashPoint.BEFORE_REPORT, MOVED_ON),
        ("steer", CrashPoint.BEFORE_REPORT, ("steer", "TIMEOUT_TYPE_HEARTBEAT")),
        ("close_run", CrashPoint.BEFORE_CLAIM, ("close_run", "TIMEOUT_TYPE_HEARTBEAT")),
    ],
)
async def test_a_worker_that_dies_in_an_activity_of_the_ledger_is_missed_once(
    stage: Stage, order_id: str, activity: str, point: CrashPoint, missed: tuple[str, str]
) -> None:
    with stage.ready_worker(crash_at=f"{activity}:{point}") as doomed:
        run = await stage.start(refund_plan(order_id))
        if activity in ("close_run", "verify_decision"):
            await run.approve()
        elif activity == "steer":
            await run.asks()
            await run.handle.signal(Verb.PAUSE, PauseRun(actor="olga"))
        doomed.wait_killed()
    async with stage.worker_here():
        if activity == "steer":
            await run.in_state(RunState.PAUSED_USER)
            await run.handle.signal(Verb.RESUME, ResumeRun(actor="olga"))
        if activity not in ("close_run", "verify_decision"):
            await run.approve()
        await run.completed()

    assert await deaths(run) == {missed: 1}
    counts = stage.shop.counts(order_id)
    assert (counts["refunds"], counts["mails"]) == (1, 1)


@pytest.mark.crash
async def test_deaths_while_opening_are_missed_by_tasks(stage: Stage, order_id: str) -> None:
    read = {"id": "read", "tool": "orders.read", "params": {"order_id": order_id}}
    plan = Plan.model_validate([read])
    with stage.ready_worker(crash_at="open_run:before_report") as doomed:
        runs = await asyncio.gather(*(stage.start(plan) for _ in range(MANY)))
        doomed.wait_killed()
    async with stage.worker_here():
        results = await asyncio.gather(*(run.result() for run in runs))

    assert {result.state for result in results} == {RunState.COMPLETED}
    missed = sum([await deaths(run) for run in runs], Counter[tuple[str, str]]())
    assert set(missed) == {MOVED_ON}
    for run in runs:
        assert len(await stage.events(run, "run.opened")) == 1
