"""Activities run to their end although they are cancelled, but for what has no effect outside."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from surehand.activities.worker.attempt import Doing, NobodyWaits, keep_alive

CANCELLED = ActivityCancellationDetails(cancel_requested=True)
STOPPED = ActivityCancellationDetails(worker_shutdown=True)


class Work:
    """Asks until it has an answer, and records what has come of it."""

    def __init__(self) -> None:
        self.claimed, self.asked = asyncio.Event(), asyncio.Event()
        self.answered, self.may_record = asyncio.Event(), asyncio.Event()
        self.may_ask = asyncio.Event()
        self.recorded = list[str]()

    async def do(self) -> str:
        self.claimed.set()
        await self.may_ask.wait()
        try:
            with Doing.current().until_cancelled():
                self.asked.set()
                await self.answered.wait()
            said = "answered"
        except NobodyWaits:
            said = "nobody waits"
        await self.may_record.wait()
        self.recorded.append(said)
        return said


def begun(environment: ActivityEnvironment, work: Work) -> asyncio.Task[str]:
    return asyncio.ensure_future(environment.run(keep_alive, work.do()))


async def test_a_question_ends_when_its_activity_is_cancelled_and_its_end_is_recorded() -> None:
    environment, work = ActivityEnvironment(), Work()
    work.may_ask.set()
    running = begun(environment, work)
    await work.asked.wait()
    environment.cancel(CANCELLED)
    work.may_record.set()
    assert await running == "nobody waits"
    assert work.recorded == ["nobody waits"]


async def test_a_question_whose_activity_was_cancelled_before_is_not_asked() -> None:
    environment, work = ActivityEnvironment(), Work()
    running = begun(environment, work)
    await work.claimed.wait()
    environment.cancel(CANCELLED)
    work.may_ask.set()
    work.may_record.set()
    assert await running == "nobody waits"
    assert not work.asked.is_set()


async def test_an_answer_that_is_there_is_recorded_although_its_activity_is_cancelled() -> None:
    environment, work = ActivityEnvironment(), Work()
    work.may_ask.set()
    work.answered.set()
    running = begun(environment, work)
    await work.asked.wait()
    environment.cancel(CANCELLED)
    work.may_record.set()
    assert await running == "answered"


async def test_a_worker_that_stops_ends_no_question() -> None:
    environment, work = ActivityEnvironment(), Work()
    work.may_ask.set()
    running = begun(environment, work)
    await work.asked.wait()
    environment.cancel(STOPPED)
    work.answered.set()
    work.may_record.set()
    assert await running == "answered"


async def test_a_question_that_ends_itself_is_none_that_was_cancelled() -> None:
    async def ends_itself() -> None:
        with Doing.current().until_cancelled():
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await ActivityEnvironment().run(keep_alive, ends_itself())
