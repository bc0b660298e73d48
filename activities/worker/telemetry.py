"""Logs: structlog, as JSON or for the console; each line with run, step and attempt.

And the SDK's core, whose Prometheus endpoint shows its metrics and ours.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from surehand.activities.ledger.core.store import LedgerUnavailable
from surehand.activities.worker.metrics import BUCKETS
from surehand.activities.worker.settings import SettingsError
from surehand.process.sources import PREFIX
from surehand.workflows.errors import WAITS, ErrorType

#: Where OpenTelemetry's own variables say that spans go, the more special one first.
_RECEIVERS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"


def find_receiver(environ: Mapping[str, str]) -> str:
    """Return host and port of whoever receives this process's spans; empty: nobody.

    Raises:
        SettingsError: It is to be spoken to in a protocol that we do not have.
    """
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or environ.get("OTEL_TRACES_EXPORTER", "") == "none":
        return ""
    url = next(filter(None, map(environ.get, _RECEIVERS)), "")
    if not url:
        return ""
    asked = next(((name, environ[name]) for name in _PROTOCOLS if environ.get(name)), None)
    if asked is not None and asked[1] != PROTOCOL:
        raise SettingsError(f"{asked[0]} is {asked[1]}: traces are sent by {PROTOCOL} only")
    # Without what may stand before it: a password.
    return urlsplit(url).netloc.rpartition("@")[2] or url


class AddressError(Exception):
    """An endpoint cannot listen where it was told to."""

    def __init__(self, what: str, address: str, reason: str) -> None:
        setting = f"{PREFIX}{what.upper()}"
        super().__init__(f"{what} cannot be served at {address} ({setting}): {reason}")


def configure_logging(
    format_: str, level: str, hide: Callable[[str], str] = lambda text: text
) -> None:
    """Send our logs, and those of libraries, to standard error in one form.

    Args:
        format_: ``console`` or ``json``.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        hide: Returns a text without what nobody may read.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if format_ == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        # First: a line that nobody reads is not made.
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_core_fields, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
                # Of the whole line: whatever a field is, what it shows is text by now.
                lambda _logger, _method, line: hide(str(line)),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for ours in ("surehand.activities", "surehand.workflows", "surehand.worker", "__main__"):
        logging.getLogger(ours).setLevel(level.upper())
    logging.getLogger("temporalio.activity").addFilter(_untold)
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


def core_runtime(metrics: str) -> Runtime:
    """Return the SDK's core of this process; its log goes where ours goes.

    Args:
        metrics: Address of the Prometheus endpoint, ``ip:port``; empty: none.

    Raises:
        AddressError: The address is taken, or not this machine's.
    """
    if not metrics:
        return Runtime(telemetry=TelemetryConfig(logging=_core_logging()))
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


#: Set once this attempt's failure has been logged: the SDK would log it again, with a traceback.
_told: ContextVar[bool] = ContextVar("told", default=False)


def _untold(record: logging.LogRecord) -> bool:
    failure = getattr(record, "__temporal_error_identifier", None) == "ActivityFailure"
    return not (failure and _told.get())


class ContextInterceptor(Interceptor):
    """Gives every log line of an activity its run, step and attempt."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the activities of this worker."""
        return _ActivityContext(next)


class _ActivityContext(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        message = input.args[0] if input.args else None
        call = getattr(message, "call", message)
        with structlog.contextvars.bound_contextvars(
            run_id=info.workflow_id,
            step_id=getattr(call, "step_id", None),
            attempt=info.attempt,
            activity=info.activity_type,
        ):
            log = structlog.get_logger(__name__)
            log.debug("activity.started")
            try:
                result = await super().execute_activity(input)
            except Exception as error:
                tell_failure(log, error)
                raise
            outcome = getattr(result, "outcome", None)
            log.debug("activity.done", outcome=getattr(outcome, "kind", outcome))
            return result


def tell_failure(log: structlog.stdlib.BoundLogger, error: Exception) -> None:
    """Log how an attempt failed: one line, and a traceback only where nobody expected it."""
    _told.set(True)
    if isinstance(error, LedgerUnavailable):
        log.warning("ledger.unavailable", error=str(error))
        return
    if not isinstance(error, ApplicationError):
        log.error("activity.broken", error_type=type(error).__name__, exc_info=error)
        return
    if error.type == ErrorType.LEDGER_LOST:
        say = log.error
    else:
        say = log.info if error.type in WAITS else log.warning
    delay = error.next_retry_delay
    say(
        "activity.failed",
        error_type=error.type,
        error=error.message,
        retry_in=None if delay is None else round(delay.total_seconds(), 3),
        final=error.non_retryable,
    )
