"""Options of activities: whoever dies is missed by the heartbeats, whatever it was doing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.workflow import ActivityConfig

from surehand.activities.tools.tool import LookupAnswer, LookupBy, NotFound, ToolContext
from surehand.activities.tools.toolbox import WRITE, tool
from surehand.workflows import options
from surehand.workflows.contracts.tools import ToolSpec

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "given",
    [
        options.ledger_call("open"),
        options.reconcile_call("acme"),
        options.tool_call(SECOND, "pay"),
        options.compensation_call("pay: undo"),
    ],
)
def test_every_activity_is_missed_as_soon_as_a_tool_call_is(given: ActivityConfig) -> None:
    assert given["heartbeat_timeout"] == options.HEARTBEAT_TIMEOUT


class Note(BaseModel):
    """Anything."""


def written(*, by: LookupBy | None) -> ToolSpec:
    """Return the spec of a write that takes a minute and that has such a lookup."""

    async def look(params: Note, ctx: ToolContext) -> LookupAnswer:
        return NotFound()

    finds: dict[str, Any] = {} if by is None else {"lookup": look, "lookup_by": by}
    finds |= {"recovery": "human"} if by is None else {"settle": SECOND}

    @tool("notes.write", effect=WRITE, timeout=MINUTE, irreversible=True, **finds)
    async def write(params: Note, ctx: ToolContext) -> None:
        """Write a note."""

    return write.spec()


@pytest.mark.parametrize(
    ("by", "looks"),
    [
        (None, 0),
        ("key", 2),  # for an earlier call, and for its own
        ("state", 3),  # and right before its own
    ],
)
def test_an_attempt_has_time_for_each_of_its_looks_and_for_its_call(
    by: LookupBy | None, looks: int
) -> None:
    recorded = ToolSpec.model_validate_json(written(by=by).model_dump_json())

    assert recorded.longest_attempt == MINUTE * (1 + looks)


@pytest.mark.parametrize("tenant", ["acme", "ä" * 60, "a" * 63 + "ä"])
def test_whose_turn_it_is_is_told_in_no_more_than_the_server_takes(tenant: str) -> None:
    key = options.fair(tenant).fairness_key

    assert key and tenant.startswith(key)
    assert len(key.encode()) <= 64
