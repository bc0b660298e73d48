"""What a process tells of itself, and where it sends it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

import pytest
import yaml
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from surehand.activities.worker.telemetry import BUCKETS, Metrics, find_receiver, shown
from surehand.process.settings import SettingsError

ANY = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://any:4318/"}
TRACES = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://ann:secret@own:4318/in"}


@pytest.mark.parametrize(
    ("environ", "receiver"),
    [
        ({}, None),
        (ANY, "http://any:4318/v1/traces"),
        (TRACES, "http://ann:secret@own:4318/in"),
        (ANY | TRACES, "http://ann:secret@own:4318/in"),
        (ANY | {"OTEL_SDK_DISABLED": "True"}, None),
        (ANY | {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_spans_go_where_the_variables_say(environ: dict[str, str], receiver: str | None) -> None:
    assert find_receiver(environ) == receiver


def test_a_password_of_a_receiver_is_not_shown() -> None:
    assert shown(TRACES["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]) == "own:4318"


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"]
)
def test_a_protocol_that_is_not_spoken_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        find_receiver(ANY | {name: "grpc"})


TOOL = {"tool": "payments.refund"}
DETAILS = {**TOOL, "entry_id": "ef-1", "intervention_id": "iv-1", "attempt": 7, "code": "x"}
Seen = dict[str, tuple[float, dict[str, Any]]]


class Measured:
    """Metrics that are kept instead of being shown."""

    def __init__(self) -> None:
        self._buffer = MetricBuffer(1000)
        runtime = Runtime(telemetry=TelemetryConfig(logging=None, metrics=self._buffer))
        self.metrics = Metrics(runtime.metric_meter)

    def seen(self) -> Seen:
        found = {}
        for update in self._buffer.retrieve_updates():
            if update.metric.name.startswith("surehand_"):
                labels = {k: v for k, v in update.attributes.items() if k != "service_name"}
                found[update.metric.name] = (update.value, labels)
        return found


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured()


#: An event with its details, and below it what it adds to which metric, with which labels.
COUNTS: Final = """
effect.committed {}
    effects 1 {outcome: committed}
effect.committed {rule: lookup}
    effects 1 {outcome: committed}
    reconciliations 1 {rule: lookup, action: commit}
effect.failed {failure_class: transient, retry_ms: 1100}
    effects 1 {outcome: failed}
    failures 1 {failure_class: transient, again: 'yes'}
    retry_delay 1.1 {failure_class: transient}
step.failed {failure_class: permanent}
    failures 1 {failure_class: permanent, again: 'no'}
step.failed {failure_class: cancelled}
effect.reconciled {rule: dedupes, action: call_again}
    reconciliations 1 {rule: dedupes, action: call_again}
recovery.verified {action: human, took_ms: 2500, broken: [runs_what_was_approved]}
    recovery 2.5 {by: human}
    broken_invariants 1 {invariant: runs_what_was_approved}
intervention.opened {rule: compensation_failed}
    interventions 1 {rule: compensation_failed, outcome: opened}
    compensations 1 {outcome: failed}
intervention.settled {rule: unknown, outcome: happened}
    interventions 1 {rule: unknown, outcome: happened}
effect.uncompensated {}
    compensations 1 {outcome: uncompensated}
decision.accepted {outcome: reject, waited_ms: 90000}
    decision 90 {outcome: reject}
resource.acquired {waited_ms: 1500}
    resources 1 {outcome: acquired}
    lease_wait 1.5 {reason: resource}
resource.acquired {}
    resources 1 {outcome: acquired}
resource.freed {}
    resources 1 {outcome: freed}
run.opened {}
step.succeeded {}
"""


@pytest.mark.parametrize("story", re.findall(r"^\S.*(?:\n .*)*", COUNTS, re.MULTILINE))
def test_an_event_counts_as(measured: Measured, story: str) -> None:
    event, *added = story.splitlines()
    type_, _, body = event.partition(" ")
    expected = dict[str, tuple[float, dict[str, str]]]()
    for line in added:
        name, value, labels = line.split(maxsplit=2)
        expected[f"surehand_{name}"] = (float(value), yaml.safe_load(labels))

    measured.metrics.event(type_, {**DETAILS, **yaml.safe_load(body)})

    assert measured.seen() == {
        name: (value, {**TOOL, **labels}) for name, (value, labels) in expected.items()
    }


def test_what_is_measured_as_it_happens(measured: Measured) -> None:
    measured.metrics.transaction("committed", 0.002)
    measured.metrics.lease_wait("payments.refund", "held", timedelta(seconds=3))
    measured.metrics.stale("payments.refund", "waiting")
    measured.metrics.notified("webhook", "sent", 3)

    seen = measured.seen()

    assert seen == {
        "surehand_ledger_transaction": (0.002, {"outcome": "committed"}),
        "surehand_lease_wait": (3, {**TOOL, "reason": "held"}),
        "surehand_stale_entries": (1, {**TOOL, "outcome": "waiting"}),
        "surehand_notifications": (3, {"notifier": "webhook", "outcome": "sent"}),
    }
    assert seen.keys() - {"surehand_stale_entries", "surehand_notifications"} <= BUCKETS.keys()


def test_an_epoch_and_rounds_of_retention_are_told_as_they_are(measured: Measured) -> None:
    measured.metrics.epoch(2)
    hour = timedelta(hours=1)
    measured.metrics.retention([hour, timedelta(minutes=1)])
    found = measured.seen()

    assert found["surehand_ledger_epoch"] == (2, {})
    assert found["surehand_retention_age"] == (3600, {})


def test_what_waits_for_approval_is_told_by_number_and_age(measured: Measured) -> None:
    measured.metrics.approvals(3, timedelta(hours=1))

    assert measured.seen() == {
        "surehand_approvals_waiting": (3, {}),
        "surehand_approvals_age": (3600, {}),
    }


def test_halts_that_stand_are_told_by_what_they_stop(measured: Measured) -> None:
    measured.metrics.halts({"tool": 2})

    assert measured.seen() == {"surehand_halts": (2, {"scope": "tool"})}


def test_where_nobody_has_retention_nothing_is_told_of_it() -> None:
    measured = Measured()
    measured.metrics.retention([])

    assert measured.seen() == {}
