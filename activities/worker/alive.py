"""Every activity, from its start to its end: Temporal hears that it lives, nothing cuts it off.

A model's turn alone is asked no longer when it is cancelled: nobody waits for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

if TYPE_CHECKING:
    from surehand.activities.tools.progress import Progress

T = TypeVar("T")


class NobodyWaits(Exception):
    """The activity was cancelled while it did what has no effect outside."""


#: A third of the time after which Temporal takes this worker for dead.
HEARTBEAT_EVERY: Final = 1.0  # seconds


@dataclass
class Doing:
    """What an attempt is at; Temporal shows it beside the activity."""

    text: str = ""
    """What it waits for, or the step that a batch is at."""
    progress: Progress | None = None
    told_before: Mapping[str, Any] | None = None
    """What the attempt before has told of its progress: told on until there is news, so that
    it is not lost with an attempt that dies at once."""
    _ends: asyncio.Task[Any] | None = None
    """The task in which the activity does what a cancellation ends."""

    @staticmethod
    def current() -> Doing:
        """Return what the heartbeats of the current activity tell."""
        return _doing.get(None) or Doing()

    def details(self) -> list[Any]:
        """Return it as the details of a heartbeat."""
        news = self.progress.told() if self.progress is not None else None
        told = news or self.told_before
        return [self.text, told] if told else [self.text] if self.text else []

    @contextmanager
    def until_cancelled(self) -> Iterator[None]:
        """End the block when the activity is cancelled: for what has no effect outside.

        Raises:
            NobodyWaits: It was.
        """
        if _cancelled():
            raise NobodyWaits
        self._ends = task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError as error:
            if task is None or not _cancelled():
                raise
            task.uncancel()
            raise NobodyWaits from error
        finally:
            self._ends = None

    def end(self) -> None:
        """End what a cancellation ends, if the activity is at it."""
        if self._ends is not None and _cancelled():
            self._ends.cancel()


def _cancelled() -> bool:
    """Return whether whoever wanted the activity has cancelled it: its worker's end is no such."""
    details = activity.cancellation_details()
    return details is not None and details.cancel_requested


_doing: ContextVar[Doing] = ContextVar("doing")


class KeepAlive(Interceptor):
    """Has every activity of a worker heartbeat, and run to its end although it is cancelled.

    Only what is inside of ``until_cancelled`` ends then, such as the question to a model.

    Every one, because a transaction of the ledger can be cut off by the death of a worker as a
    tool's call can. Where no other worker notices it (``takeover.py``), missing heartbeats show it.
    """

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Wrap the activities of this worker."""
        return _KeptAlive(next)


class _KeptAlive(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await kept_alive(super().execute_activity(input))


async def kept_alive(work: Coroutine[Any, Any, T]) -> T:
    """Run the current activity to its end, heartbeating, even when it is cancelled meanwhile.

    All of them are short or end within a deadline. A call that is stopped would only have an
    unknown outcome, and nobody would hear what a transaction has come to.
    """
    info = activity.info()
    told = next((part for part in info.heartbeat_details if isinstance(part, dict)), None)
    # What a model has said to an attempt that is over is void.
    doing = Doing(told_before=told and {k: v for k, v in told.items() if k != "tokens"})
    _doing.set(doing)
    task = asyncio.ensure_future(work)
    # A local activity has nobody to tell: it lives as long as its workflow task.
    with _silence() if info.is_local else _heartbeats(doing):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                doing.end()
            except Exception:
                break
    return task.result()


@contextmanager
def _silence() -> Iterator[None]:
    yield


@contextmanager
def _heartbeats(doing: Doing) -> Iterator[None]:
    """Tell Temporal that this attempt is alive, for as long as the block lasts."""
    next_: asyncio.TimerHandle

    def wait() -> None:
        nonlocal next_
        # A timer and no task: hardly any activity lasts long enough to need one.
        next_ = asyncio.get_running_loop().call_later(HEARTBEAT_EVERY, beat)

    def beat() -> None:
        wait()
        activity.heartbeat(*doing.details())

    # Not at once: Temporal counts from the start. To write a heartbeat down takes the server as
    # long as to start an activity.
    wait()
    try:
        yield
    finally:
        next_.cancel()
