"""Options of activities: whoever dies is missed by the heartbeats, whatever it was doing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.workflow import ActivityConfig

from workflows import options

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    "given",
    [
        options.ledger_call("open"),
        options.sweep_call("acme"),
        options.tool_call(SECOND, "pay"),
        options.stretch_call([SECOND, SECOND], "pay to mail"),
        options.compensation_call("pay: undo"),
    ],
)
def test_every_activity_is_missed_as_soon_as_a_tool_call_is(given: ActivityConfig) -> None:
    assert given["heartbeat_timeout"] == options.HEARTBEAT_TIMEOUT


@pytest.mark.parametrize("tenant", ["acme", "ä" * 60, "a" * 63 + "ä"])
def test_whose_turn_it_is_is_told_in_no_more_than_the_server_takes(tenant: str) -> None:
    key = options.fair(tenant).fairness_key

    assert key and tenant.startswith(key)
    assert len(key.encode()) <= 64
