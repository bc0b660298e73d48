"""What the calls under way have told with their heartbeats: the server has it, not the worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue
from temporalio.client import WorkflowExecutionDescription

from workflows.ports import RUN_STRETCH


@dataclass(frozen=True)
class Told:
    """The newest word of each call."""

    under_way: str | None = None
    """The step that a stretch is at."""
    progress: dict[str, JsonValue] = field(default_factory=dict)
    """How far calls have come, by step, in their tools' own words."""


NOTHING_TOLD: Final = Told()


async def told_by_calls(run: WorkflowExecutionDescription) -> Told:
    """Return what the calls of a run have told."""
    under_way, progress = None, {}
    for pending in run.raw_description.pending_activities:
        details = await run.data_converter.decode(pending.heartbeat_details.payloads)
        if pending.activity_type.name == RUN_STRETCH.name and details:
            under_way = str(details[0])
        for part in details:
            if isinstance(part, dict) and "step_id" in part:
                progress[str(part["step_id"])] = part.get("progress")
    return Told(under_way, progress)
