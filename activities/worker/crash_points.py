"""Crash points: where a drill can kill or freeze this process, as in the guarantees' tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import Signals
from typing import Final


class CrashPoint(StrEnum):
    """A moment in the life of one tool call."""

    BEFORE_CLAIM = "before_claim"
    AFTER_CLAIM = "after_claim"
    DURING_CALL = "during_call"
    AFTER_CALL = "after_call"
    AFTER_OUTCOME = "after_outcome"
    BEFORE_REPORT = "before_report"


#: A read claims nothing: before its claim is before its call, and its answer is recorded where it
#: is reported.
READ_POINTS: Final = (
    CrashPoint.BEFORE_CLAIM,
    CrashPoint.DURING_CALL,
    CrashPoint.AFTER_CALL,
    CrashPoint.BEFORE_REPORT,
)

#: How long after its start a call is killed at ``during_call``: the request is on the wire by
#: then. A call that is over sooner is killed at its end, before anybody looks at its answer.
DURING: Final = 0.2  # seconds


@dataclass(frozen=True)
class Crash:
    """Kills this process with SIGKILL at one point of one tool's calls; normally nowhere.

    Any activity can be named instead of a tool: it is killed before it does anything, or when it
    has done all and Temporal has not heard of it.
    """

    tool: str = ""
    point: CrashPoint | None = None
    step: str = ""
    """Only calls for this step; empty for all of the tool's."""
    once: Path | None = None
    """Made at the crash. Where it is there already nobody crashes: workers that share it stand by
    for one another."""
    by: Signals = Signals.SIGKILL
    """The signal. After SIGSTOP the process is frozen until SIGCONT."""

    @classmethod
    def parse(cls, setting: str, once: str = "", by: Signals = Signals.SIGKILL) -> Crash:
        """Return the crash that ``tool:point`` or ``tool:point@step`` names.

        An empty setting never crashes. ``once``: the file that makes it the only crash. Raises
        ``ValueError``.
        """
        if not setting:
            return cls()
        tool, _, place = setting.rpartition(":")
        point, at, step = place.partition("@")
        if not tool or point not in list(CrashPoint) or (at and not step):
            points = ", ".join(CrashPoint)
            raise ValueError(
                f"{setting!r} is not tool:point or tool:point@step, points are {points}"
            )
        return cls(tool, CrashPoint(point), step, Path(once) if once else None, by)

    def at(self, tool: str, step: str, point: CrashPoint) -> None:
        """Die here, if this is the place."""
        if self._is(tool, step, point) and self._first():
            os.kill(os.getpid(), self.by)

    @contextmanager
    def during(self, tool: str, step: str) -> Iterator[None]:
        """Die a moment after the call in this block has started, if this is the place."""
        point = CrashPoint.DURING_CALL
        if not self._is(tool, step, point):
            yield
            return
        timer = asyncio.get_running_loop().call_later(DURING, self.at, tool, step, point)
        try:
            yield
        finally:
            timer.cancel()
            self.at(tool, step, point)

    def _is(self, tool: str, step: str, point: CrashPoint) -> bool:
        return tool == self.tool and self.step in ("", step) and point is self.point

    def _first(self) -> bool:
        if self.once is None:
            return True
        try:
            self.once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
