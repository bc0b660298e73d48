"""How many local activities one workflow task has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from surehand.workflows import activity_client
from surehand.workflows.activity_client import MOST_LOCAL, ActivityClient

WANTED = 2 * MOST_LOCAL + 50


async def test_a_workflow_task_has_no_more_local_activities_than_fit_in_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The timer stands for the end of the task, and is held.
    timers = list[asyncio.Event]()

    async def sleep(_: object) -> None:
        timers.append(asyncio.Event())
        await timers[-1].wait()

    async def wait_condition(comes_true: Callable[[], bool]) -> None:
        while not comes_true():
            await asyncio.sleep(0)

    monkeypatch.setattr(activity_client.workflow, "sleep", sleep)
    monkeypatch.setattr(activity_client.workflow, "wait_condition", wait_condition)
    client, begun = ActivityClient(cast(Any, None), lambda: None), list[int]()

    async def one(number: int) -> None:
        await client._make_room()
        begun.append(number)

    calls = asyncio.gather(*map(one, range(WANTED)))
    for tasks in (1, 2):
        while len(timers) < tasks:
            await asyncio.sleep(0)
        assert (len(timers), len(begun)) == (tasks, tasks * MOST_LOCAL)
        timers[-1].set()
    await calls
    assert (len(begun), len(timers)) == (WANTED, 2)
