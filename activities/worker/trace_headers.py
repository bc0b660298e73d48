"""Headers of traces that cannot be read are taken away before Temporal's plugin reads them.

Whoever reaches the server can send any with a signal. The plugin raises on one that is not as it
has written it, in each attempt at the workflow task: the run would stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeVar

from temporalio import client, worker
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter

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
class ReadableHeaders(client.Interceptor, worker.Interceptor):
    """Has runs get only headers that can be read."""

    def workflow_interceptor_class(
        self, input: worker.WorkflowInterceptorClassInput
    ) -> type[worker.WorkflowInboundInterceptor]:
        """Return what looks at all that arrives."""
        return _Inbound


class _Inbound(worker.WorkflowInboundInterceptor):
    async def execute_workflow(self, input: worker.ExecuteWorkflowInput) -> Any:
        return await super().execute_workflow(readable(input))

    async def handle_signal(self, input: worker.HandleSignalInput) -> None:
        await super().handle_signal(readable(input))

    async def handle_query(self, input: worker.HandleQueryInput) -> Any:
        return await super().handle_query(readable(input))

    def handle_update_validator(self, input: worker.HandleUpdateInput) -> None:
        super().handle_update_validator(readable(input))

    async def handle_update_handler(self, input: worker.HandleUpdateInput) -> Any:
        return await super().handle_update_handler(readable(input))
