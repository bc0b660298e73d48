"""Calling a port: the one place where the workflow room names an activity."""

from __future__ import annotations

from temporalio import workflow

from workflows.options import ledger_call
from workflows.ports import In, Out, Port


async def call_port(
    port: Port[In, Out],
    message: In,
    summary: str,
    *,
    options: workflow.ActivityConfig | None = None,
) -> Out:
    """Call an activity by its port.

    Args:
        port: Name and types.
        message: What it takes.
        summary: What the Web UI shows beside it.
        options: Timeouts and retries; those of one ledger transaction by default.

    Raises:
        ActivityError: As the activity ended.
    """
    result: Out = await workflow.execute_activity(
        port.name, message, result_type=port.returns, **(options or ledger_call(summary))
    )
    return result
