"""What a worker tells of itself: logs, metrics and spans.

Logs are structlog's, as JSON or for the console; each line has run, step and attempt. Metrics go
through the SDK's core. Most of them are read off the events that transactions have committed, so
that counters and ledger agree; their labels have few values, and never name a run, a key or a
tenant. Spans follow the GenAI conventions. What is here needs no OpenTelemetry: ``traces.py`` makes
real spans of it. No span has what a call was given, what came of it, or the words of an error.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from temporalio.common import MetricMeter
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from surehand.process.exits import WrongUse
from surehand.process.settings import PREFIX, SettingsError
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts import tools
from surehand.workflows.contracts.effects import Compensate

#: Seconds; a claim or an outcome takes 2 ms, and a transaction that hangs is given up after 10 s.
TRANSACTION_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
#: Seconds; a recovery takes a lease at least, one by a human takes minutes or hours.
WAIT_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 3600, 14400, 86400)

#: Histograms and the limits of their buckets; the endpoint adds ``_seconds`` to their names.
BUCKETS: Final[dict[str, tuple[float, ...]]] = {
    "surehand_ledger_transaction": TRANSACTION_BUCKETS,
    "surehand_retry_delay": WAIT_BUCKETS,
    "surehand_recovery": WAIT_BUCKETS,
    "surehand_decision": WAIT_BUCKETS,
    "surehand_lease_wait": WAIT_BUCKETS,
}

#: Outcome of an effect, by the event that records it.
_EFFECTS: Final = {
    "effect.claimed": "claimed",
    "effect.committed": "committed",
    "effect.failed": "failed",
    "effect.answered_no": "answered_no",
    "effect.in_doubt": "in_doubt",
    "effect.replayed": "replayed",
    "effect.refused": "refused",
    "effect.late_receipt": "late_receipt",
}


#: What is measured, by its name without ``surehand_``.
_SECONDS: Final = {
    "ledger_transaction": "Ledger transactions, by outcome",
    "retry_delay": "Pause before a failed call is tried again, by failure class",
    "recovery": "Time an outcome was missing until it was settled, and by whom",
    "decision": "Time from a request to each decision that counted, by outcome",
    "lease_wait": "Pause of an attempt that found a lease held, by reason",
}
_COUNTS: Final = {
    "effects": "Effects, by what became of them",
    "failures": "Failed calls, by failure class and whether they are tried again",
    "reconciliations": "Ways in which outcomes in doubt were settled, by rule",
    "compensations": "Undone effects, by outcome",
    "interventions": "Questions put to a human, opened and settled",
    "broken_invariants": "What did not hold at the end of a recovery: never any",
    "resources": "Resources: acquired, waited, refused, released, freed",
    "stale_entries": "Stale entries that were looked at, by outcome",
    "quota_refusals": "Steps and runs that a tenant's quota holds up, or refuses",
    "halted_calls": "Calls that a halt has kept from beginning; once for each step and halt",
    "notifications": "Notifications, by notifier and what became of them",
}
#: The same of what is measured now and then, with the unit.
_GAUGES: Final = {
    "ledger_epoch": ("Number of the epoch that is open after a restore; 0: none is", None),
    "halts": ("Halts that stand, of all tenants, by what they stop", None),
    "approvals_waiting": ("Requests for approval that wait, of all tenants", None),
    "approvals_age": ("Time since the oldest request that waits was made", "seconds"),
    "retention_age": (
        "Time since a round of retention did all it should, of the tenant longest without one",
        "seconds",
    ),
}


class Metrics:
    """The project's own instruments; without a meter they measure nothing."""

    def __init__(self, meter: MetricMeter = MetricMeter.noop) -> None:
        self._seconds = {
            name: meter.create_histogram_float(f"surehand_{name}", meaning, "seconds")
            for name, meaning in _SECONDS.items()
        }
        self._counts = {
            name: meter.create_counter(f"surehand_{name}", meaning)
            for name, meaning in _COUNTS.items()
        }
        self._gauges = {
            name: meter.create_gauge(f"surehand_{name}", *meaning)
            for name, meaning in _GAUGES.items()
        }

    def _count(self, name: str, number: int = 1, /, **labels: str) -> None:
        self._counts[name].add(number, labels)

    def _time(self, name: str, seconds: float, /, **labels: str) -> None:
        self._seconds[name].record(seconds, labels)

    def transaction(self, outcome: str, seconds: float) -> None:
        """Measure a transaction: ``committed``, ``rolled_back`` or ``unavailable``."""
        self._time("ledger_transaction", seconds, outcome=outcome)

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        tool = str(body.get("tool", ""))
        if type_ in _EFFECTS:
            self._count("effects", tool=tool, outcome=_EFFECTS[type_])
        match type_:
            case "step.failed" if body.get("failure_class") == "cancelled":
                pass  # A turn that nobody waited for has not failed.
            case "effect.failed" | "step.failed" if "failure_class" in body:
                class_, retry_ms = body["failure_class"], body.get("retry_ms")
                again = "no" if retry_ms is None else "yes"
                self._count("failures", tool=tool, failure_class=class_, again=again)
                if retry_ms is not None:
                    self._time("retry_delay", retry_ms / 1000, tool=tool, failure_class=class_)
            case "effect.reconciled" | "effect.committed" if "rule" in body:
                action = body["action"] if type_ == "effect.reconciled" else "commit"
                self._count("reconciliations", tool=tool, rule=str(body["rule"]), action=action)
            case "effect.compensated" | "effect.uncompensated":
                self._count("compensations", tool=tool, outcome=type_.removeprefix("effect."))
            case "intervention.opened":
                self._count("interventions", tool=tool, rule=body["rule"], outcome="opened")
                if body["rule"] == "compensation_failed":
                    self._count("compensations", tool=tool, outcome="failed")
            case "intervention.settled":
                self._count("interventions", tool=tool, rule=body["rule"], outcome=body["outcome"])
            case _ if type_.startswith("resource."):
                self._count("resources", tool=tool, outcome=type_.removeprefix("resource."))
                if type_ == "resource.acquired" and "waited_ms" in body:
                    waited = body["waited_ms"] / 1000
                    self._time("lease_wait", waited, tool=tool, reason="resource")
            case "decision.accepted" if "waited_ms" in body:
                waited, outcome = body["waited_ms"] / 1000, str(body["outcome"])
                self._time("decision", waited, tool=tool, outcome=outcome)
            case "call.halted":
                self._count("halted_calls", tool=tool)
            case "quota.exceeded":
                self.over_quota(body["quota"], body["over"])
            case "recovery.verified":
                by = "human" if body["action"] == "human" else "worker"
                self._time("recovery", body["took_ms"] / 1000, tool=tool, by=by)
                for name in body.get("broken", []):
                    self._count("broken_invariants", tool=tool, invariant=name)

    def lease_wait(self, tool: str, reason: str, wait: timedelta) -> None:
        """Measure a pause: ``held`` by another attempt, or ``settling`` after a lost call."""
        self._time("lease_wait", wait.total_seconds(), tool=tool, reason=reason)

    def over_quota(self, quota: str, over: str) -> None:
        """Count what a quota holds up (``queue``) or refuses (``reject``)."""
        self._count("quota_refusals", quota=quota, over=over)

    def notified(self, notifier: str, outcome: str, number: int = 1) -> None:
        """Count attempts to tell people: ``sent``, ``failed``, ``given_up``, ``dropped``, ..."""
        self._count("notifications", number, notifier=notifier, outcome=outcome)

    def stale(self, tool: str, outcome: str) -> None:
        """Count a stale entry that was looked at, as ``Reconciled`` names its outcome."""
        self._count("stale_entries", tool=tool, outcome=outcome)

    def epoch(self, number: int) -> None:
        self._gauges["ledger_epoch"].set(number)

    def halts(self, standing: Mapping[str, int]) -> None:
        """Say how many halts stand, by what they stop."""
        for scope, number in standing.items():
            self._gauges["halts"].set(number, {"scope": scope})

    def approvals(self, waiting: int, oldest: timedelta) -> None:
        """Say how many requests wait, and how old the oldest is."""
        self._gauges["approvals_waiting"].set(waiting)
        self._gauges["approvals_age"].set(oldest // timedelta(seconds=1))

    def retention(self, ages: Sequence[timedelta]) -> None:
        """Say how old the tenants' last rounds of retention are; nothing, where there were none."""
        if ages:
            self._gauges["retention_age"].set(max(ages) // timedelta(seconds=1))


PROTOCOL: Final = "http/protobuf"


def shown(receiver: str) -> str:
    """Return host and port of a URL, without what may stand before them: a password."""
    return urlsplit(receiver).netloc.rpartition("@")[2] or receiver


def find_receiver(environ: Mapping[str, str]) -> str | None:
    """Return the URL to which OpenTelemetry's own variables (``OTEL_*``) have spans sent.

    ``None``: none are sent. Raises ``SettingsError``.
    """
    exporters = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or "otlp" not in exporters.split(","):
        return None
    found = _find_variable(environ, "ENDPOINT")
    if found is None:
        return None
    protocol = _find_variable(environ, "PROTOCOL")
    if protocol is not None and protocol[1] != PROTOCOL:
        raise SettingsError(
            f"{protocol[0]} is {protocol[1]}: traces are sent by {PROTOCOL} only;"
            " set it so, or OTEL_TRACES_EXPORTER=none"
        )
    # As OpenTelemetry's specification has it: the general one is a base, the special one is whole.
    name, url = found
    return f"{url.rstrip('/')}/v1/traces" if name == "OTEL_EXPORTER_OTLP_ENDPOINT" else url


def _find_variable(environ: Mapping[str, str], what: str) -> tuple[str, str] | None:
    """Return the variable that says something of traces, the more special one first."""
    names = (f"OTEL_EXPORTER_OTLP_TRACES_{what}", f"OTEL_EXPORTER_OTLP_{what}")
    return next(((name, environ[name]) for name in names if environ.get(name)), None)


class AddressError(WrongUse):
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


def core_runtime(metrics: str = "") -> Runtime:
    """Return the SDK's core of this process; its log goes where ours goes."""
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
FAILURE_IS_LOGGED: Final[ContextVar[bool]] = ContextVar("failure_is_logged", default=False)


def _is_not_logged(record: logging.LogRecord) -> bool:
    failure = getattr(record, "__temporal_error_identifier", None) == "ActivityFailure"
    return not (failure and FAILURE_IS_LOGGED.get())


Value = str | int | bool

EXECUTE_TOOL: Final = "execute_tool"
CHAT: Final = "chat"
INVOKE_AGENT: Final = "invoke_agent"

#: Characters of a model's name.
_LONGEST_NAME: Final = 200
#: What is found out of the call under way while its span is open.
_NOTES: ContextVar[dict[str, Value] | None] = ContextVar("notes", default=None)


def note(found: Mapping[str, Value | None]) -> None:
    """Add attributes to the span that is open; outside of one nothing is noted."""
    notes = _NOTES.get()
    if notes is not None:
        notes |= {name: value for name, value in found.items() if value is not None}


def note_effect(tenant: str, tool: str, key: str) -> None:
    """Note which effect a call is about: the same key has the same hash in every run."""
    note({"surehand.effect.key_hash": digest([tenant, tool, key])})


def note_said(input_tokens: int | None, output_tokens: int | None) -> None:
    """Note what a model says that a turn has used; nothing where it was not asked."""
    used = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    note({f"gen_ai.usage.{name}": tokens for name, tokens in used.items()})


@contextmanager
def noting() -> Iterator[dict[str, Value]]:
    notes: dict[str, Value] = {}
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


class Spans:
    """Makes no spans; ``traces.py`` has those who do."""

    def open(
        self, operation: str, name: str, attributes: Mapping[str, Value]
    ) -> AbstractContextManager[None]:
        """Open a span for as long as the block lasts."""
        return nullcontext()

    @contextmanager
    def call(self, call: tools.ToolCall, attempt: int) -> Iterator[None]:
        known: dict[str, Value] = {
            "gen_ai.tool.call.id": call.step_id,
            "surehand.attempt": call.attempts_before + attempt,
            **_of_run(call.tenant, call.run_id, call.step_id),
        }
        if call.approval_id is not None:
            known["surehand.approval.id"] = call.approval_id
        if call.tool.name != tools.MODEL:
            with self.open(EXECUTE_TOOL, call.tool.name, known):
                yield
            return
        del known["gen_ai.tool.call.id"]
        model = str(call.params.get("model", ""))[:_LONGEST_NAME]
        provider = model.partition(":")[0] if ":" in model else call.params.get("framework")
        known["gen_ai.provider.name"] = str(provider)[:_LONGEST_NAME]
        with self.open(CHAT, model, known):
            yield

    @contextmanager
    def undo(self, asked: Compensate, tool: str, attempt: int) -> Iterator[None]:
        known: dict[str, Value] = {
            "gen_ai.tool.call.id": asked.step_id,
            "surehand.attempt": attempt,
            "surehand.effect.undoes": asked.entry_id,
            **_of_run(asked.tenant, asked.run_id, asked.step_id),
        }
        with self.open(EXECUTE_TOOL, tool, known):
            yield


def _of_run(tenant: str, run_id: str, step_id: str) -> dict[str, Value]:
    return {
        "gen_ai.conversation.id": run_id,
        "surehand.tenant": tenant,
        "surehand.run.id": run_id,
        "surehand.step.id": step_id,
    }


def note_report(report: tools.ToolReport) -> None:
    """Note how a call has ended, and whether it was there already."""
    outcome = report.outcome
    note({"surehand.outcome": outcome.kind})
    match outcome:
        case tools.Succeeded(replayed=replayed, entry_id=entry_id):
            note({"surehand.replayed": replayed, "surehand.effect.id": entry_id})
        case tools.AnsweredNo(replayed=replayed):
            note({"surehand.replayed": replayed})
        case tools.HumanNeeded(intervention_id=intervention_id):
            note({"surehand.intervention.id": intervention_id})
        case _:
            pass
