"""Traces by OpenTelemetry, through Temporal's own plugin; needs the extra ``opentelemetry``.

Each execution of a run is a trace. Its root is the span ``invoke_agent``, which is sent when the
execution ends. The spans of calls are sent when the calls end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanKind, StatusCode
from temporalio import client, workflow
from temporalio.api.common.v1 import Payload
from temporalio.contrib.opentelemetry import (
    OpenTelemetryPlugin,
    ReplaySafeTracerProvider,
    create_tracer_provider,
)
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from surehand.activities.worker import telemetry
from surehand.workflows.contracts.base import ENDED, RunState
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.names import WAITS
from surehand.workflows.run.agent_run import BaseRun

#: Where the plugin writes them.
HEADER: Final = "_tracer-data"


class _WithHeaders(Protocol):
    headers: Mapping[str, Payload]


T = TypeVar("T", bound=_WithHeaders)


def readable(input: T) -> T:
    """Return what has arrived, without a header that is no map of words."""
    if (header := input.headers.get(HEADER)) is None:
        return input
    try:
        [carrier] = PayloadConverter.default.from_payloads([header])
        known = isinstance(carrier, dict) and all(isinstance(one, str) for one in carrier.values())
    except Exception:  # whatever the decoder raises on what a stranger has written
        known = False
    if not known:
        input.headers = {name: one for name, one in input.headers.items() if name != HEADER}
    return input


# Also a client's: what a client has comes before what a plugin adds to the worker alone.
# Whoever reaches the server can send any header with a signal. The plugin raises on one that is not
# as it has written it, in each attempt at the workflow task: the run would stand still.
class ReadableHeaders(client.Interceptor, Interceptor):
    """Has runs get only headers that can be read."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        return _ReadableInbound


class _ReadableInbound(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        return await super().execute_workflow(readable(input))

    async def handle_signal(self, input: HandleSignalInput) -> None:
        await super().handle_signal(readable(input))

    async def handle_query(self, input: HandleQueryInput) -> Any:
        return await super().handle_query(readable(input))

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        super().handle_update_validator(readable(input))

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        return await super().handle_update_handler(readable(input))


#: What spans call the thing that they are about, by their operation.
_NAMED: Final = {telemetry.EXECUTE_TOOL: "gen_ai.tool.name", telemetry.CHAT: "gen_ai.request.model"}
#: How long a worker that ends waits for the receiver of its last spans.
FLUSH_PATIENCE: Final = timedelta(seconds=3)


@dataclass(frozen=True)
class Traces:
    """What makes the traces of this process."""

    provider: ReplaySafeTracerProvider
    plugin: OpenTelemetryPlugin
    spans: telemetry.Spans
    runs: Interceptor

    async def close(self) -> None:
        """Send what is not sent yet; what cannot be sent in time is lost."""
        # In a thread that nobody waits for any longer, not even the end of the process.
        flushing = threading.Thread(target=self.provider.force_flush, daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_PATIENCE.total_seconds())


def open_traces(environ: Mapping[str, str], version: str) -> Traces:
    """Make this process send traces to where OpenTelemetry's own variables (``OTEL_*``) say."""
    own: dict[str, str] = {"service.version": version} if version else {}
    named = "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"
    if not environ.get(named[0]) and "service.name=" not in environ.get(named[1], ""):
        own["service.name"] = "surehand"
    # Nothing is left to its end at exit: `close` has a limit, and that would have none.
    provider = create_tracer_provider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("surehand")
    plugin = OpenTelemetryPlugin()
    plugin.interceptors = [ReadableHeaders(), *(plugin.interceptors or ())]
    return Traces(provider, plugin, _CallSpans(tracer), _RunSpans(tracer))


class _CallSpans(telemetry.Spans):
    """Spans of what a run calls, inside the run's own."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def open(
        self, operation: str, name: str, attributes: Mapping[str, telemetry.Value]
    ) -> Iterator[None]:
        """Open a span; the words of an error are content, and not in it."""
        known = {"gen_ai.operation.name": operation, _NAMED[operation]: name, **attributes}
        with (
            self._tracer.start_as_current_span(
                f"{operation} {name}",
                kind=SpanKind.CLIENT if operation == telemetry.CHAT else SpanKind.INTERNAL,
                attributes=known,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            telemetry.noting() as notes,
        ):
            try:
                yield
            except BaseException as error:
                type_ = error.type if isinstance(error, ApplicationError) else None
                span.set_attribute("error.type", type_ or type(error).__name__)
                if type_ not in WAITS:
                    span.set_status(StatusCode.ERROR)
                raise
            finally:
                span.set_attributes(notes)


class _RunSpans(Interceptor):
    """Makes a span of each execution of a run."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        tracer = self._tracer

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                run = workflow.instance()
                if not isinstance(run, BaseRun):
                    return await super().execute_workflow(input)
                span = _start_span_of_run(tracer, input.args[0])
                # Never detached: the tasks of the run have it, and their context ends with them.
                attach(trace.set_span_in_context(span))
                ended = ""
                try:
                    return await super().execute_workflow(input)
                except workflow.ContinueAsNewError:
                    ended = "continued"
                    raise
                except ApplicationError:
                    ended = "refused"
                    raise
                finally:
                    if run.run_state in ENDED:
                        ended = run.run_state.value
                    # A run that is dropped from memory raises, too: another worker ends its span.
                    if ended:
                        span.set_attribute("surehand.run.state", ended)
                        if ended in ("refused", RunState.FAILED):
                            span.set_status(StatusCode.ERROR)
                        span.end()

        return Inbound


def _start_span_of_run(tracer: trace.Tracer, request: StartRun) -> Span:
    """Start the span below whoever has started the run, such as its parent run.

    An execution that Temporal has continued has a trace of its own, with a link to the one before:
    no viewer shows a trace of ten thousand spans. Its id comes from Temporal's generator, which is
    the same in each replay: so whichever worker ends it, the spans inside are below it.
    """
    caller = trace.get_current_span().get_span_context()
    context, links = trace.set_span_in_context(NonRecordingSpan(caller), Context()), list[Link]()
    if workflow.info().continued_run_id is not None:
        context, links = Context(), [Link(caller)] if caller.is_valid else []
    attributes = {
        "gen_ai.operation.name": telemetry.INVOKE_AGENT,
        "gen_ai.agent.name": request.plan.name,
        "gen_ai.conversation.id": request.run_id,
        "surehand.tenant": request.tenant,
        "surehand.run.id": request.run_id,
    }
    name = f"{telemetry.INVOKE_AGENT} {request.plan.name}"
    return tracer.start_span(name, context=context, attributes=attributes, links=links)
