"""Logs: structlog, as JSON or for the console; each line with run, step and attempt.

And the SDK's core, which shows or sends its metrics and ours.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import structlog
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    OpenTelemetryConfig,
    OpenTelemetryMetricTemporality,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from surehand.activities.worker.metrics import BUCKETS
from surehand.activities.worker.settings import SettingsError
from surehand.process.settings import PREFIX

PROTOCOL: Final = "http/protobuf"
_DEFAULT_INTERVAL: Final = "60000"
_TEMPORALITIES: Final = {
    "cumulative": OpenTelemetryMetricTemporality.CUMULATIVE,
    "delta": OpenTelemetryMetricTemporality.DELTA,
}


class Receiver(NamedTuple):
    """Who receives what a process tells of itself, by OTLP over HTTP."""

    url: str
    named_by: str
    """The variable that names it."""


def shown(receiver: Receiver | OpenTelemetryConfig | None) -> str:
    """Return host and port, without what may stand before them: a password."""
    if receiver is None:
        return "off"
    return urlsplit(receiver.url).netloc.rpartition("@")[2] or receiver.url


def find_receiver(
    environ: Mapping[str, str], signal: Literal["traces", "metrics"]
) -> Receiver | None:
    """Return whom OpenTelemetry's own variables (``OTEL_*``) name for a signal.

    Raises ``SettingsError``.

    Returns:
        The receiver; ``None``: nothing is sent.
    """
    exporters = environ.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp"
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or "otlp" not in exporters.split(","):
        return None
    found = _variable(environ, signal, "ENDPOINT")
    if found is None:
        return None
    name, url = found
    protocol = _variable(environ, signal, "PROTOCOL")
    if protocol is not None and protocol[1] != PROTOCOL:
        raise SettingsError(
            f"{protocol[0]} is {protocol[1]}: {signal} are sent by {PROTOCOL} only;"
            f" set it so, or OTEL_{signal.upper()}_EXPORTER=none"
        )
    # As OpenTelemetry's specification has it: the general one is a base, the special one is whole.
    general = name == "OTEL_EXPORTER_OTLP_ENDPOINT"
    return Receiver(f"{url.rstrip('/')}/v1/{signal}" if general else url, name)


def _variable(environ: Mapping[str, str], signal: str, what: str) -> tuple[str, str] | None:
    """Return the variable that says something of a signal, the more special one first."""
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}")
    return next(((name, environ[name]) for name in names if environ.get(name)), None)


def find_metrics_receiver(environ: Mapping[str, str], endpoint: str) -> OpenTelemetryConfig | None:
    """Return whom metrics are sent to.

    ``endpoint``: where they are served for Prometheus. The core has one way only: a receiver that
    is named for all signals gives way to it. Raises ``SettingsError``.
    """
    receiver = find_receiver(environ, "metrics")
    if receiver is None:
        return None
    if endpoint:
        if receiver.named_by == "OTEL_EXPORTER_OTLP_ENDPOINT":
            return None
        raise SettingsError(
            f"{PREFIX}METRICS and {receiver.named_by} are both set, and metrics go one way:"
            " unset one of them"
        )
    certificate = _variable(environ, "metrics", "CERTIFICATE")
    if certificate is not None:
        raise SettingsError(
            f"{certificate[0]} is set, and metrics are sent by the certificates of this machine"
            " only: set OTEL_METRICS_EXPORTER=none, or unset it"
        )
    interval = environ.get("OTEL_METRIC_EXPORT_INTERVAL") or _DEFAULT_INTERVAL
    if not interval.isdecimal() or int(interval) == 0:
        raise SettingsError(
            f"OTEL_METRIC_EXPORT_INTERVAL is {interval[:80]!r}: it is milliseconds, such as 60000"
        )
    preference = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    temporality = environ.get(preference) or "cumulative"
    if temporality.lower() not in _TEMPORALITIES:
        raise SettingsError(f"{preference} is {temporality[:80]!r}: cumulative or delta")
    headers = _variable(environ, "metrics", "HEADERS")
    return OpenTelemetryConfig(
        url=receiver.url,
        headers=_members("" if headers is None else headers[1]),
        metric_periodicity=timedelta(milliseconds=int(interval)),
        metric_temporality=_TEMPORALITIES[temporality.lower()],
        durations_as_seconds=True,
        http=True,
        histogram_bucket_overrides=BUCKETS,
    )


def _members(text: str) -> dict[str, str]:
    """Return what a list such as ``a=1,b=2%2C3`` says (W3C Baggage, as ``OTEL_*`` have it)."""
    pairs = (one.partition("=") for one in text.split(",") if "=" in one)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in pairs}


class AddressError(Exception):
    """An endpoint cannot listen where it was told to."""

    def __init__(self, what: str, address: str, reason: str) -> None:
        setting = f"{PREFIX}{what.upper()}"
        super().__init__(f"{what} cannot be served at {address} ({setting}): {reason}")


def configure_logging(
    format_: str, level: str, hide: Callable[[str], str] = lambda text: text
) -> None:
    """Send our logs, and those of libraries, to standard error in one form."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format_ == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    # Of the whole line: whatever a field is, what it shows is text by now.
    ends: list[structlog.typing.Processor] = [renderer, lambda _log, _how, line: hide(str(line))]
    # Past the standard library's loggers, which take twice as long. A line that nobody reads is
    # not begun.
    structlog.configure(
        processors=[*shared, *ends],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_core_fields, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ends],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("temporalio.activity").addFilter(_is_not_logged)
    logging.captureWarnings(True)


def _core_logging() -> LoggingConfig:
    """Have the Rust core log as we do, instead of writing to the terminal itself."""
    return LoggingConfig(
        filter=TelemetryFilter(core_level="WARN", other_level="ERROR"),
        forwarding=LogForwardingConfig(
            logger=logging.getLogger("temporalio.core"),
            append_target_to_name=False,
            prepend_target_on_message=False,
            append_log_fields_to_message=False,
        ),
    )


def _core_fields(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Add what a line of the Rust core says beside its message."""
    line = getattr(event.get("_record"), "temporal_log", None)
    if line is None:
        return event
    return {**line.fields, "target": line.target, **event}


def core_runtime(metrics: str = "", receiver: OpenTelemetryConfig | None = None) -> Runtime:
    """Return the SDK's core of this process; its log goes where ours goes."""
    if not metrics:
        return Runtime(
            telemetry=TelemetryConfig(
                logging=_core_logging(),
                metrics=receiver,
                # Who tells stands in the resource, and by the right name.
                attach_service_name=False,
                global_tags={} if receiver is None else _resource(os.environ),
            )
        )
    endpoint = PrometheusConfig(
        bind_address=metrics,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides=BUCKETS,
    )
    try:
        return Runtime(telemetry=TelemetryConfig(logging=_core_logging(), metrics=endpoint))
    except ValueError as error:
        reason = str(error).rpartition(": ")[2]
        raise AddressError("metrics", metrics, reason) from error


def _resource(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what this process is called where its metrics arrive."""
    named = _members(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = environ.get("OTEL_SERVICE_NAME") or named.get("service.name") or "surehand"
    return {"service.instance.id": str(uuid4()), **named, "service.name": name}


#: Set once this attempt's failure has been logged: the SDK would log it again, with a traceback.
FAILURE_IS_LOGGED: Final[ContextVar[bool]] = ContextVar("failure_is_logged", default=False)


def _is_not_logged(record: logging.LogRecord) -> bool:
    failure = getattr(record, "__temporal_error_identifier", None) == "ActivityFailure"
    return not (failure and FAILURE_IS_LOGGED.get())
