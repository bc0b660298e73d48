"""Traces by OpenTelemetry, through Temporal's own plugin; needs the extra ``opentelemetry``.

A trace is a *stretch* of a run: from where it begins, or goes on, to where it waits for people or
ends. Its root is the span ``invoke_agent``. A wait may last for months, so no span is open in it;
the stretch behind it is a trace of its own, with a link to the one before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn, Protocol, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
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
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from surehand.activities.worker.spans import CHAT, EXECUTE_TOOL, INVOKE_AGENT, Spans, Value, noting
from surehand.workflows import ports
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
    header = input.headers.get(HEADER)
    if header is not None and not _is_readable(header):
        input.headers = {name: one for name, one in input.headers.items() if name != HEADER}
    return input


def _is_readable(header: Payload) -> bool:
    try:
        [carrier] = PayloadConverter.default.from_payloads([header])
    except Exception:  # whatever the decoder raises on what a stranger has written
        return False
    return isinstance(carrier, dict) and all(isinstance(one, str) for one in carrier.values())


# Also a client's: what a client has comes before what a plugin adds to the worker alone.
# Whoever reaches the server can send any header with a signal. The plugin raises on one that is not
# as it has written it, in each attempt at the workflow task: the run would stand still.
class ReadableHeaders(client.Interceptor, Interceptor):
    """Has runs get only headers that can be read."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        """Return what looks at all that arrives."""
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
_NAMED: Final = {EXECUTE_TOOL: "gen_ai.tool.name", CHAT: "gen_ai.request.model"}
#: Activities that act for the agent; a stretch begins with the first of them.
_ACTS: Final = frozenset(
    port.name for port in (ports.EXECUTE_TOOLS, ports.TAKE_TURN, ports.COMPENSATE)
)
#: A run in one of these goes on by itself, and its stretch with it; a rate limit's end is near.
_GOES_ON: Final = frozenset({RunState.RUNNING, RunState.COMPENSATING, RunState.WAITING_RATE_LIMIT})
#: How long a worker that ends waits for the receiver of its last spans.
FLUSH_PATIENCE: Final = timedelta(seconds=3)


@dataclass(frozen=True)
class Traces:
    """What makes the traces of this process."""

    provider: ReplaySafeTracerProvider
    plugin: OpenTelemetryPlugin
    spans: Spans
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


class _CallSpans(Spans):
    """Spans of what a run calls, inside the one of its stretch."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def open(self, operation: str, name: str, attributes: Mapping[str, Value]) -> Iterator[None]:
        """Open a span; the words of an error are content, and not in it."""
        known = {"gen_ai.operation.name": operation, _NAMED[operation]: name, **attributes}
        with (
            self._tracer.start_as_current_span(
                f"{operation} {name}",
                kind=SpanKind.CLIENT if operation == CHAT else SpanKind.INTERNAL,
                attributes=known,
                record_exception=False,
                set_status_on_exception=False,
            ) as span,
            noting() as notes,
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
    """Has each run make the spans of its stretches."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        tracer = self._tracer

        class Inbound(_Inbound):
            def __init__(self, next: WorkflowInboundInterceptor) -> None:
                super().__init__(next)
                self.stretches = _Stretches(tracer)

        return Inbound


class _Stretches:
    """The stretches of one execution of a run; also in a replay, where no span is sent.

    Ids come from Temporal's own generator, which is the same in each replay. So a link leads to the
    span that was sent, whichever worker goes on. It is not the generator that the run's own code
    draws from: a worker with traces replays what one without has begun.

    A run's tasks live longer than its stretches. So a stretch is put around each call as it is
    begun, and no task remembers one. One ends by a state that is shown, by continue-as-new or by a
    refusal. It ends by no exception that passes: a run that is dropped from memory raises some.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._request: StartRun | None = None
        self._span: Span | None = None
        self._last: SpanContext | None = None
        self._over = False

    def open(self, request: StartRun) -> None:
        """Begin the first one, below whoever has started the run.

        That is how a child run's is part of its parent's trace: whoever reads that asks what took
        so long. Later ones are not, because no viewer shows in its time a span below an ended one.
        What Temporal has continued goes on in another trace.
        """
        self._request = request
        caller = trace.get_current_span().get_span_context()
        if workflow.info().continued_run_id is None:
            self._begin(trace.set_span_in_context(NonRecordingSpan(caller), Context()))
        elif caller.is_valid:
            self._last = caller

    def _begin(self, context: Context) -> Span:
        assert self._request is not None
        request = self._request
        attributes = {
            "gen_ai.operation.name": INVOKE_AGENT,
            "gen_ai.agent.name": request.plan.name,
            "gen_ai.conversation.id": request.run_id,
            "surehand.tenant": request.tenant,
            "surehand.run.id": request.run_id,
        }
        span = self._tracer.start_span(
            f"{INVOKE_AGENT} {request.plan.name}",
            context=context,
            attributes=attributes,
            links=[] if self._last is None else [Link(self._last)],
        )
        self._span, self._last = span, span.get_span_context()
        return span

    def shown(self, state: RunState) -> None:
        """End the stretch where the run waits for people, or has ended."""
        if state in ENDED:
            self.end(state.value, failed=state is RunState.FAILED)
        elif state not in _GOES_ON and self._span is not None:
            self._close(self._span, state.value)

    def end(self, state: str, *, failed: bool = False) -> None:
        """End the last stretch; a run that ends out of a wait has one that says just that."""
        if self._request is None or self._over:
            return
        self._over = True
        span = self._span or self._begin(Context())
        if failed:
            span.set_status(StatusCode.ERROR)
        self._close(span, state)

    def _close(self, span: Span, state: str) -> None:
        span.set_attribute("surehand.run.state", state)
        span.end()
        self._span = None

    @contextmanager
    def inside(self, *, acts: bool = True) -> Iterator[None]:
        """Have what is begun in the block belong to the stretch; one begins with what acts."""
        span = self._span
        if span is None and acts and self._request is not None and not self._over:
            span = self._begin(Context())
        if span is None:
            yield
            return
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    @contextmanager
    def handed_on(self) -> Iterator[None]:
        """End the stretch, and have the next execution know it."""
        if self._span is not None:
            self._close(self._span, "continued")
        before = NonRecordingSpan(self._last or trace.INVALID_SPAN_CONTEXT)
        with trace.use_span(before, record_exception=False, set_status_on_exception=False):
            yield


class _Inbound(WorkflowInboundInterceptor):
    stretches: _Stretches

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self.stretches))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        run = workflow.instance()
        if not isinstance(run, BaseRun):
            return await super().execute_workflow(input)
        self.stretches.open(input.args[0])
        run.watch_state(self.stretches.shown)
        try:
            return await super().execute_workflow(input)
        except ApplicationError:
            # Refused before it was opened. A run that is dropped from memory raises other things.
            self.stretches.end("refused", failed=True)
            raise


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, stretches: _Stretches) -> None:
        super().__init__(next)
        self._stretches = stretches

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        with self._stretches.inside(acts=input.activity in _ACTS):
            return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        with self._stretches.inside(acts=input.activity in _ACTS):
            return super().start_local_activity(input)

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        with self._stretches.inside():
            return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        with self._stretches.handed_on():
            super().continue_as_new(input)
