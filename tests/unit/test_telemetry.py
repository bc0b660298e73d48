"""Where a process sends what it tells of itself, by OpenTelemetry's own variables."""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.runtime import OpenTelemetryMetricTemporality

from surehand.activities.worker.settings import SettingsError
from surehand.activities.worker.telemetry import find_metrics_receiver, find_receiver, shown

ANY = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://any:4318/"}
METRICS = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://ann:secret@own:4318/in"}


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, None, None),
        (ANY, "http://any:4318/v1/traces", "http://any:4318/v1/metrics"),
        (METRICS, None, "http://ann:secret@own:4318/in"),
        (ANY | METRICS, "http://any:4318/v1/traces", "http://ann:secret@own:4318/in"),
        (ANY | {"OTEL_SDK_DISABLED": "True"}, None, None),
        (ANY | {"OTEL_METRICS_EXPORTER": "none"}, "http://any:4318/v1/traces", None),
        (ANY | {"OTEL_METRICS_EXPORTER": "prometheus"}, "http://any:4318/v1/traces", None),
        (ANY | {"OTEL_TRACES_EXPORTER": "none"}, None, "http://any:4318/v1/metrics"),
    ],
)
def test_each_signal_goes_where_its_variables_say(
    environ: dict[str, str], traces: str | None, metrics: str | None
) -> None:
    found = find_receiver(environ, "traces")
    assert (found.url if found else None) == traces
    config = find_metrics_receiver(environ, "")
    assert (config.url if config else None) == metrics


def test_a_password_of_a_receiver_is_not_shown() -> None:
    assert shown(find_metrics_receiver(METRICS, "")) == "own:4318"
    assert shown(None) == "off"


def test_an_endpoint_keeps_its_metrics_where_the_receiver_is_named_for_all_signals() -> None:
    assert find_metrics_receiver(ANY, "127.0.0.1:9464") is None


def test_the_variables_of_metrics_are_followed() -> None:
    asked = {
        "OTEL_EXPORTER_OTLP_HEADERS": "not=this",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "a=1, b=2%2C3 ,,c",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "Delta",
        "OTEL_METRIC_EXPORT_INTERVAL": "1500",
    }
    config = find_metrics_receiver(ANY | asked, "")

    assert config is not None
    assert config.http
    assert config.headers == {"a": "1", "b": "2,3"}
    assert config.metric_temporality is OpenTelemetryMetricTemporality.DELTA
    assert config.metric_periodicity == timedelta(seconds=1.5)


def test_without_more_metrics_are_sent_once_a_minute_and_add_up() -> None:
    config = find_metrics_receiver(ANY, "")

    assert config is not None
    assert config.metric_temporality is OpenTelemetryMetricTemporality.CUMULATIVE
    assert config.metric_periodicity == timedelta(minutes=1)
    assert config.headers == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "ca.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "lowmemory"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        find_metrics_receiver(ANY | {name: value}, "")
