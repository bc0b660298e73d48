"""Metrics and traces as a receiver gets them from real workers."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import pytest
from temporalio.api.common.v1 import Header, Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest

from surehand.activities.ledger.halts import halt_calls
from surehand.activities.ledger.history.stats import StatsScope, read_stats
from surehand.activities.ledger.runs import deletion
from surehand.workflows.contracts.base import RunState
from surehand.workflows.identity import DEFAULT_TENANT
from tests.docs.test_alerts import metrics_asked_for, whole
from tests.e2e.executions import inside
from tests.e2e.otlp_receiver import Receiver, receiving
from tests.e2e.plans import child, plan, refund_step
from tests.e2e.runs import decision_on, example_plan, refund_plan, until
from tests.e2e.stage import Stage
from tests.e2e.test_agents import driven, settings
from tests.worker_process import WORKER, WorkerProcess

REFUND = 'tool="payments.refund"'


def listening() -> socket.socket:
    """Return a socket that listens at a port of its own."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def address_of(taken: socket.socket) -> str:
    return "{}:{}".format(*taken.getsockname())


def scraped(address: str) -> str:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{address}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def value(text: str, name: str, *labels: str) -> float:
    """Return the sum of a metric's series that have these labels."""
    series = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return sum(float(number) for said, number in series if all(one in said for one in labels))


async def test_a_recovery_shows_at_endpoint_and_ledger(stage: Stage, order_id: str) -> None:
    with listening() as free:
        address = address_of(free)
    run = await stage.die_at("payments.refund:after_call", refund_plan(order_id), approve=True)
    with stage.ledger.transaction(DEFAULT_TENANT) as tx:
        halt_calls(tx, "oscar", "it pays twice", "another.tool")
        deletion.record_round(tx, failed=True)
        deletion.record_round(tx, failed=False)
    with stage.worker(metrics=address) as worker:
        result = await run.result()
        worker.wait_ready()
        text = await until(lambda: scraped(address), lambda said: "surehand_retention_age" in said)

    assert result.state is RunState.COMPLETED
    assert value(text, "surehand_effects_total", REFUND, 'outcome="committed"') == 1
    assert value(text, "surehand_recovery_seconds_count", REFUND, 'by="worker"') == 1
    assert value(text, "surehand_reconciliations_total", REFUND, 'rule="lookup"') == 1
    assert value(text, "surehand_ledger_transaction_seconds_count", 'outcome="committed"') > 5
    assert value(text, "surehand_ledger_transaction_seconds_count", 'outcome="unavailable"') == 0
    assert value(text, "temporal_request_total") > 0
    assert value(text, "surehand_ledger_epoch") == 0
    assert value(text, "surehand_halts", 'scope="tool"') == 1
    assert value(text, "surehand_halts", 'scope="run"') == 0
    assert 0 <= value(text, "surehand_retention_age_seconds") < 600
    # What dashboard and alerts ask for of the SDK; of ours, tests/docs/test_alerts.py looks at all.
    shown = {whole(name) for name in re.findall(r"^(\w+)", text, re.MULTILINE)}
    assert {one for one in metrics_asked_for() if one.startswith("temporal_")} - shown == set()
    for detail in (run.run_id, order_id, "ef-"):
        assert detail not in text
    scope = StatsScope(DEFAULT_TENANT, datetime.now(UTC) - timedelta(hours=1))
    found = read_stats(stage.ledger, scope)
    assert found.halts == {"tenant": 0, "tool": 1, "run": 0}
    assert (found.recoveries.ended, found.recoveries.success_rate) == (1, 1.0)
    assert found.leases.lost == 1
    assert (found.duplicates.keys, found.invariants.ok, found.invariants.runs) == (0, 1, 1)


def test_a_check_beside_a_worker_leaves_the_address_alone(tmp_path: Path) -> None:
    with listening() as taken:
        environment = {
            "SUREHAND_DATABASE_URL": "sqlite:///none.db",
            "SUREHAND_METRICS": address_of(taken),
        }
        with WorkerProcess(environment, tmp_path, [WORKER, "--check"]) as checked:
            assert checked.wait_exit() == 4
            assert "no ledger at" in checked.output()


BEFORE = ["execute_tool orders.read", "execute_tool refunds.calculate"]
AFTER = ["execute_tool payments.refund", "execute_tool inventory.restock", "execute_tool mail.send"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def traced(stage: Stage, receiver: Receiver, **more: str) -> WorkerProcess:
    """Start a worker that sends its spans to the receiver, and replays at each step."""
    environment = stage.environment(**more) | receiver.environment()
    return WorkerProcess(environment, stage.folder)


def ended(worker: WorkerProcess) -> None:
    """End a worker in good order: what it has not sent yet, it sends."""
    worker.signal(signal.SIGTERM)
    assert worker.wait_exit() == 0
    assert "Failed to detach context" not in worker.output()


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["async", "exit"])
async def test_a_run_is_one_trace_over_a_wait_a_kill_and_replays(
    stage: Stage, order_id: str, receiver: Receiver, mode: str
) -> None:
    with traced(stage, receiver) as worker:
        run = await stage.start(refund_plan(order_id), durability=mode)
        request = await run.asks()
        ended(worker)
    assert sorted(span.name for span in receiver.spans) == BEFORE
    with traced(stage, receiver, crash_at="payments.refund:after_call") as doomed:
        doomed.wait_ready()
        await run.send(decision_on(request))
        doomed.wait_killed()
    with traced(stage, receiver) as worker:
        result = await run.result()
        for _ in range(3):
            await run.view()  # a query replays the whole run
        ended(worker)

    assert result.state is RunState.COMPLETED
    [whole] = receiver.executions(run.run_id)
    inside = receiver.inside(whole)
    # Its lease may last a little longer than its workflow task: then the call is tried again.
    assert [name for name, _ in groupby(inside)] == [*BEFORE, *AFTER]
    assert len({span.id for span in receiver.spans}) == 1 + len(inside)
    assert {span.trace for span in receiver.spans} == {whole.trace}
    assert (whole.parent, whole.links) == ("", ())
    assert whole.attributes["surehand.run.state"] == "completed"
    assert all(whole.began_ns <= span.began_ns for span in receiver.spans)


async def test_spans_follow_conventions(stage: Stage, order_id: str, receiver: Receiver) -> None:
    with traced(stage, receiver) as worker:
        run = await stage.start(refund_plan(order_id))
        request = await run.approve()
        await run.result()
        again = await stage.start(refund_plan(order_id))
        await again.result()
        ended(worker)

    agent = receiver.executions(run.run_id)[0]
    assert (agent.name, agent.service) == ("invoke_agent refund", "surehand")
    assert agent.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert agent.attributes["gen_ai.agent.name"] == "refund"
    one, other = receiver.named("execute_tool payments.refund")
    said = one.attributes
    assert said["gen_ai.operation.name"] == "execute_tool"
    assert said["gen_ai.tool.name"] == "payments.refund"
    assert said["gen_ai.tool.call.id"] == "refund"
    assert said["gen_ai.conversation.id"] == run.run_id
    assert said["surehand.tenant"] == stage.tenant
    assert said["surehand.approval.id"] == request.approval_id
    assert (said["surehand.outcome"], said["surehand.replayed"]) == ("succeeded", False)
    assert other.attributes["surehand.replayed"] is True
    assert other.attributes["surehand.effect.key_hash"] == said["surehand.effect.key_hash"]
    entries = {row["entry_id"] for row in await stage.effects(run)}
    assert said["surehand.effect.id"] in entries


async def test_spans_hold_no_secrets(stage: Stage, order_id: str, receiver: Receiver) -> None:
    ticket = {"order_id": order_id, "ticket_id": "ticket-78"}
    with traced(stage, receiver) as worker:
        run = await stage.start(example_plan("refund_fails.yaml", **ticket))
        await run.approve()
        result = await run.result()
        ended(worker)

    assert result.state is RunState.FAILED and "422" in (result.error or "")
    closing = receiver.named("execute_tool tickets.close")[-1]
    assert (closing.failed, closing.attributes["error.type"]) == (True, "ToolFailed")
    undone = receiver.named("execute_tool payments.cancel_refund")[-1]
    assert undone.attributes["surehand.outcome"] == "compensated"
    assert receiver.executions(run.run_id)[-1].failed
    for content in (order_id, "ticket-78", "HTTP 422", "legal hold", "120.00", "@example"):
        assert content.encode() not in receiver.raw, content


async def test_a_childs_execution_is_within_its_parents_and_each_links_to_the_one_before(
    stage: Stage, order_id: str, receiver: Receiver
) -> None:
    steps = [{"id": f"r{n}", "tool": "orders.read", "params": {"order_id": order_id}}
             for n in range(12)]  # fmt: skip
    with traced(stage, receiver) as worker:
        parent = await stage.start(plan(child(refund_step(order_id))))
        inner = inside(stage, parent)
        await parent.in_state(RunState.WAITING_APPROVAL)
        await inner.approve()
        long = await stage.start(plan(*steps), continue_after=40)
        await parent.completed()
        await long.completed()
        ended(worker)

    [parents], [childs] = receiver.executions(parent.run_id), receiver.executions(inner.run_id)
    assert (childs.parent, childs.trace) == (parents.id, parents.trace)
    assert receiver.inside(childs) == ["execute_tool payments.refund"]
    found = receiver.executions(long.run_id)
    assert len(found) > 1
    assert [span.links for span in found] == [(), *((span.id,) for span in found[:-1])]
    states = [span.attributes["surehand.run.state"] for span in found]
    assert states == [*["continued"] * (len(found) - 1), "completed"]
    assert len(receiver.named("execute_tool orders.read")) == len(steps)


@pytest.mark.parametrize("framework", ["pydantic-ai", "openai-agents", "langchain"])
async def test_a_models_turns_are_spans_with_tokens_beside_the_tools_it_calls(
    stage: Stage, order_id: str, count: Path, receiver: Receiver, framework: str
) -> None:
    with traced(stage, receiver, **settings(framework)) as worker:
        run = await stage.start(driven(framework, "refunds", order_id, count))
        await run.decide(decision_on(await run.asks("turn-2.1")))
        await run.result()
        ended(worker)

    chats = receiver.named("chat")
    assert len(chats) == 3
    for chat in chats:
        assert chat.attributes["gen_ai.operation.name"] == "chat"
        assert chat.attributes["gen_ai.request.model"]
        assert chat.attributes["gen_ai.provider.name"]
        assert chat.attributes["gen_ai.conversation.id"] == run.run_id
        if framework != "langchain":  # whose model here does not say
            assert chat.attributes["gen_ai.usage.input_tokens"] >= 10
            assert chat.attributes["gen_ai.usage.output_tokens"] >= 5
    assert len(receiver.named("execute_tool")) == 2
    assert order_id.encode() not in receiver.raw


async def test_a_run_is_made_though_nobody_receives_its_spans(stage: Stage, order_id: str) -> None:
    with receiving() as gone:
        pass
    with traced(stage, gone) as worker:
        run = await stage.start(refund_plan(order_id))
        await run.approve()
        result = await run.result()
        worker.signal(signal.SIGTERM)
        code = worker.wait_exit()

    assert (result.state, code) == (RunState.COMPLETED, 0)
    assert stage.shop.counts(order_id)["refunds"] == 1


async def test_without_telemetry_it_works(stage: Stage, order_id: str, receiver: Receiver) -> None:
    missing = "import sys\nsys.modules['opentelemetry'] = None\n"
    (stage.folder / "without").mkdir()
    (stage.folder / "without" / "sitecustomize.py").write_text(missing)
    environment = stage.environment() | receiver.environment()
    environment |= {"PYTHONPATH": str(stage.folder / "without")}
    with WorkerProcess(environment, stage.folder) as worker:
        run = await stage.start(plan(refund_step(order_id)))
        await run.approve()
        result = await run.result()
        said = worker.output()

    assert result.state is RunState.COMPLETED
    assert "worker.no_traces" in said and "surehand[opentelemetry]" in said
    assert receiver.spans == []


async def test_workers_with_and_without_traces_go_on_with_each_others_runs(
    stage: Stage, order_id: str, count: Path, receiver: Receiver
) -> None:
    agents = settings("pydantic-ai")  # draws random numbers of the run
    with stage.worker(**agents):
        run = await stage.start(driven("pydantic-ai", "refunds", order_id, count))
        request = await run.asks("turn-2.1")
    with traced(stage, receiver, **agents) as worker:
        await run.decide(decision_on(request))
        await until(lambda: stage.shop.counts(order_id)["refunds"], lambda refunds: refunds == 1)
        ended(worker)
    with stage.worker(**agents) as worker:
        result = await run.result()
        assert "Nondeterminism" not in worker.output()

    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["refunds"] == 1
    assert "execute_tool payments.refund" in {span.name for span in receiver.spans}


async def test_a_header_of_a_trace_that_nobody_can_read_stops_no_run(
    stage: Stage, receiver: Receiver, order_id: str
) -> None:
    with traced(stage, receiver):
        run = await stage.start(refund_plan(order_id))
        await run.asks()
        for carrier in (b"null", b"{", b"7", b'{"traceparent": 7}', b'["a"]'):
            header = Payload(metadata={"encoding": b"json/plain"}, data=carrier)
            await stage.client.workflow_service.signal_workflow_execution(
                SignalWorkflowExecutionRequest(
                    namespace=stage.client.namespace,
                    workflow_execution=WorkflowExecution(workflow_id=run.run_id),
                    signal_name="unheard_of",
                    header=Header(fields={"_tracer-data": header}),
                )
            )
        await run.approve()
        await run.completed()
