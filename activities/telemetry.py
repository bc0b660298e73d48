"""Logs: structlog, as JSON or for the console; each line with run, step and attempt.

And the SDK's core, whose Prometheus endpoint shows its metrics and ours.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog
from temporalio import activity
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.ledger.store import LedgerUnavailable
from activities.metrics import BUCKETS


class MetricsAddressError(Exception):
    """The Prometheus endpoint cannot listen where it was told to."""


def configure_logging(format_: str, level: str) -> None:
    """Send our logs, and those of libraries, to standard error in one form.

    Args:
        format_: ``console`` or ``json``.
        level: ``debug``, ``info``, ``warning`` or ``error``.
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
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for ours in ("activities", "workflows", "worker", "__main__"):
        logging.getLogger(ours).setLevel(level.upper())


def core_runtime(metrics: str) -> Runtime:
    """Return the SDK's core of this process.

    Args:
        metrics: Address of the Prometheus endpoint, ``ip:port``; empty: none.

    Raises:
        MetricsAddressError: The address is taken, or not this machine's.
    """
    if not metrics:
        return Runtime(telemetry=TelemetryConfig())
    endpoint = PrometheusConfig(
        bind_address=metrics,
        counters_total_suffix=True,
        unit_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides=BUCKETS,
    )
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=endpoint))
    except ValueError as error:
        reason = str(error).rpartition(": ")[2]
        raise MetricsAddressError(
            f"metrics cannot be served at {metrics} (SUREHAND_METRICS): {reason}"
        ) from error


T = TypeVar("T")


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
                result = await _undisturbed(super().execute_activity(input))
            except LedgerUnavailable as error:
                log.warning("ledger.unavailable", error=str(error))
                raise
            outcome = getattr(result, "outcome", None)
            log.debug("activity.done", outcome=getattr(outcome, "kind", outcome))
            return result


async def _undisturbed(work: Coroutine[Any, Any, T]) -> T:
    """Run an activity to its end although it is cancelled meanwhile.

    All of them are short or end within a deadline; a transaction that is cut off in the middle can
    leave the ledger's file locked for every process.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
        except Exception:
            break
    return task.result()
