"""``Ping``: ends as soon as a worker takes it up, which is all it is for."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import names


@workflow.defn(name=names.PING)
class Ping:
    """Shows that a worker answers on a task queue; does nothing else."""

    @workflow.run
    async def run(self) -> None:
        """End at once."""
