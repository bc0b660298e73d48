"""An endpoint shows, or a receiver gets, the SDK's metrics and ours, of few values.

The ledger tells the same story.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from surehand.activities.ledger.history.stats import StatsScope, stats
from surehand.activities.ledger.retention import policy
from surehand.process.children import clean_environment
from surehand.workflows.contracts.states import RunState
from surehand.workflows.identity import DEFAULT_TENANT
from tests.docs.test_alerts import metrics_asked_for, whole
from tests.e2e.otlp_receiver import receiving
from tests.e2e.runs import example_plan, until
from tests.e2e.stage import Stage
from tests.worker_process import ROOT, WorkerProcess

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
    """Return what the endpoint shows."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f"http://{address}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def value(text: str, name: str, *labels: str) -> float:
    """Return the sum of a metric's series that have these labels."""
    series = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return sum(float(number) for said, number in series if all(one in said for one in labels))


async def test_a_recovery_shows_at_the_endpoint_and_in_the_figures_of_the_ledger(
    stage: Stage, order_id: str
) -> None:
    with listening() as free:
        address = address_of(free)
    with stage.worker(crash_at="payments.refund:after_call") as doomed:
        doomed.wait_ready()
        run = await stage.start(example_plan("refund.yaml", order_id=order_id))
        await run.approve()
        doomed.wait_killed()
    with stage.ledger.transaction(DEFAULT_TENANT) as tx:
        policy.record_round(tx, failed=True)
        policy.record_round(tx, failed=False)
    with stage.worker(metrics=address) as worker:
        result = await run.result()
        worker.wait_ready()
        text = await until(
            lambda: scraped(address), lambda said: "surehand_retention_failing" in said
        )

    assert result.state is RunState.COMPLETED
    assert value(text, "surehand_effects_total", REFUND, 'outcome="committed"') == 1
    assert value(text, "surehand_recovery_seconds_count", REFUND, 'by="worker"') == 1
    assert value(text, "surehand_reconciliations_total", REFUND, 'rule="lookup"') == 1
    assert value(text, "surehand_ledger_transaction_seconds_count", 'outcome="committed"') > 5
    assert value(text, "surehand_ledger_transaction_seconds_count", 'outcome="unavailable"') == 0
    assert value(text, "temporal_request_total") > 0
    assert value(text, "surehand_ledger_epoch") == 0
    assert value(text, "surehand_ledger_standbys") == 0
    assert 0 <= value(text, "surehand_retention_age_seconds") < 600
    assert value(text, "surehand_retention_failing") == 0
    # What dashboard and alerts ask for of the SDK; of ours, tests/docs/test_alerts.py looks at all.
    shown = {whole(name) for name in re.findall(r"^(\w+)", text, re.MULTILINE)}
    assert {one for one in metrics_asked_for() if one.startswith("temporal_")} - shown == set()
    for detail in (run.run_id, order_id, "ef-"):
        assert detail not in text
    scope = StatsScope(DEFAULT_TENANT, datetime.now(UTC) - timedelta(hours=1))
    found = stats(stage.ledger, scope)
    assert (found.recoveries.ended, found.recoveries.success_rate) == (1, 1.0)
    assert found.leases.lost == 1
    assert (found.duplicates.keys, found.invariants.ok, found.invariants.runs) == (0, 1, 1)


async def test_a_receiver_gets_the_metrics_that_an_endpoint_would_show(
    stage: Stage, order_id: str
) -> None:
    committed = (("outcome", "committed"), ("tool", "payments.refund"))
    with receiving() as receiver:
        environment = stage.environment() | {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.url}/v1/metrics",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-team=a%20b,x-other=1",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "OTEL_SERVICE_NAME": "refunds",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        with WorkerProcess(environment, stage.folder) as worker:
            run = await stage.start(example_plan("refund.yaml", order_id=order_id))
            await run.approve()
            result = await run.result()
            effects = await until(
                lambda: receiver.metrics.get("surehand_effects", {}), lambda got: committed in got
            )
            said = worker.output()

    assert result.state is RunState.COMPLETED
    told = effects[committed]
    assert told.value == 1
    assert told.resource["service.name"] == "refunds"
    assert told.resource["deployment.environment.name"] == "test"
    assert told.resource["service.instance.id"]
    assert (told.headers["x-team"], told.headers["x-other"]) == ("a b", "1")
    measured = receiver.metrics["surehand_ledger_transaction"]
    assert measured[(("outcome", "committed"),)].value > 5
    assert measured[(("outcome", "committed"),)].unit == "seconds"
    assert any(name.startswith("temporal_") for name in receiver.metrics)
    assert receiver.spans == []
    assert urlsplit(receiver.url).netloc in said
    for detail in (run.run_id, order_id, "ef-"):
        assert detail.encode() not in receiver.raw


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318/v1/metrics"},
            "SUREHAND_METRICS and OTEL_EXPORTER_OTLP_METRICS_ENDPOINT are both set, and"
            " metrics go one way: unset one of them",
        ),
        (
            {
                "SUREHAND_METRICS": "",
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            },
            "OTEL_EXPORTER_OTLP_PROTOCOL is grpc: traces are sent by http/protobuf only;"
            " set it so, or OTEL_TRACES_EXPORTER=none",
        ),
        (
            {},
            "metrics cannot be served at ADDRESS (SUREHAND_METRICS): Address already in use"
            " (os error 98)",
        ),
    ],
    ids=["two ways", "another protocol", "taken"],
)
def test_what_cannot_be_sent_or_served_is_refused_in_one_line(
    tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    with listening() as taken:
        own = {"SUREHAND_DATABASE_URL": "sqlite:///none.db", "SUREHAND_METRICS": address_of(taken)}
        with WorkerProcess(own | settings, tmp_path) as worker:
            code = worker.wait_exit()
        expected = f"surehand: {said}".replace("ADDRESS", address_of(taken))

    assert (code, worker.output().strip()) == (2, expected)


def test_a_check_beside_a_worker_leaves_the_address_alone(tmp_path: Path) -> None:
    with listening() as taken:
        environment = {
            "SUREHAND_DATABASE_URL": "sqlite:///none.db",
            "SUREHAND_METRICS": address_of(taken),
        }
        checked = subprocess.run(
            [sys.executable, str(ROOT / "worker.py"), "--check"],
            env=clean_environment(environment),
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    assert checked.returncode == 4
    assert "no ledger at" in checked.stderr
