"""Worker interceptors that stand between a run and its activities."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import Client, Interceptor
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor

Execute = Callable[[ExecuteActivityInput], Awaitable[Any]]


class Between(Interceptor, WorkerInterceptor):
    """Hands each activity of a worker to :meth:`around`."""

    def client(self, client: Client) -> Client:
        """Return a client whose workers are intercepted by this as well."""
        config = client.config()
        return Client(**{**config, "interceptors": [*config["interceptors"], self]})

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        around = self.around

        class Handed(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                return await around(input, super().execute_activity)

        return Handed(next)

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        return await execute(input)


class Pause(Between):
    """Holds the first call of one activity until it is told to go on."""

    def __init__(
        self, activity: str, of: Callable[[Any], bool] = lambda message: True, *, done: bool = False
    ) -> None:
        """Hold an activity.

        Args:
            activity: Its name.
            of: Only the calls whose message is one of those wanted.
            done: Only once it is done: its report is held.
        """
        self._activity = activity
        self._of = of
        self._done = done
        self._reached = asyncio.Event()
        self._go_on = asyncio.Event()

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        if input.fn.__name__ != self._activity or not self._of(input.args[0]):
            return await execute(input)
        if self._done:
            result = await execute(input)
            await self._hold()
            return result
        await self._hold()
        return await execute(input)

    async def _hold(self) -> None:
        self._reached.set()
        await self._go_on.wait()

    async def reached(self) -> None:
        """Wait until the activity is held."""
        async with asyncio.timeout(30):
            await self._reached.wait()

    def go_on(self) -> None:
        self._go_on.set()


class Failing(Between):
    """Has the first attempt of one activity fail: the next one goes through Temporal's queue."""

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._failed = False

    async def around(self, input: ExecuteActivityInput, execute: Execute) -> Any:
        if input.fn.__name__ == self._activity and not self._failed:
            self._failed = True
            raise ApplicationError("not now")
        return await execute(input)
