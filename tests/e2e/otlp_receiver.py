"""Receives spans as a collector does: OTLP over HTTP, from real workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class Seen:
    """A span that has arrived."""

    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    """Ids of the spans that it is linked to."""
    attributes: dict[str, Any]
    failed: bool
    began_ns: int
    ended_ns: int
    service: str


@dataclass
class Receiver:
    """What has arrived so far."""

    url: str
    spans: list[Seen] = field(default_factory=list)
    raw: bytes = b""

    def environment(self) -> dict[str, str]:
        """Return what has a worker send its spans here, at once."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}

    def named(self, beginning: str) -> list[Seen]:
        """Return the spans whose name begins so, in the order in which they began."""
        found = [span for span in self.spans if span.name.startswith(beginning)]
        return sorted(found, key=lambda span: span.began_ns)

    def executions(self, run_id: str) -> list[Seen]:
        """Return the spans of a run's executions, oldest first.

        A workflow task that Temporal has had tried again ends its run again: that is the same
        span, by its id.
        """
        roots = {span.id: span for span in self.named("invoke_agent")}
        return [one for one in roots.values() if one.attributes["surehand.run.id"] == run_id]

    def inside(self, root: Seen) -> list[str]:
        """Return the names of the spans right below another one, in their order."""
        return [span.name for span in self.named("") if span.parent == root.id]

    def _take(self, body: bytes) -> None:
        self.raw += body
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(batch.resource.attributes)
            for scope in batch.scope_spans:
                self.spans += [_seen(span, resource) for span in scope.spans]


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def _seen(span: trace_pb2.Span, resource: dict[str, Any]) -> Seen:
    return Seen(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple(link.span_id.hex() for link in span.links),
        attributes=_plain(span.attributes),
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        service=str(resource.get("service.name")),
    )


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver._take(body)
            self.send_response(200)
            self.end_headers()

        log_message: Callable[..., None] = lambda *_: None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
