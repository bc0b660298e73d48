"""Crash points: places where a drill can kill this process, named as in the guarantees' tests."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class CrashPoint(StrEnum):
    """A moment in the life of one tool call."""

    BEFORE_CLAIM = "before_claim"
    AFTER_CLAIM = "after_claim"
    DURING_CALL = "during_call"
    AFTER_CALL = "after_call"
    AFTER_OUTCOME = "after_outcome"
    BEFORE_REPORT = "before_report"


#: How long after its start a call is killed at ``during_call``: the request is on the wire by then.
DURING: Final = 0.2  # seconds


class CrashSettingError(ValueError):
    """``SUREHAND_CRASH_AT`` is not ``tool:point``."""


@dataclass(frozen=True)
class Crash:
    """Kills this process with SIGKILL at one point of one tool's calls; normally nowhere."""

    tool: str = ""
    point: CrashPoint | None = None

    @classmethod
    def parse(cls, setting: str) -> Crash:
        """Return the crash that ``tool:point`` names; an empty setting never crashes."""
        if not setting:
            return cls()
        tool, _, point = setting.rpartition(":")
        if not tool or point not in list(CrashPoint):
            points = ", ".join(CrashPoint)
            raise CrashSettingError(
                f"setting SUREHAND_CRASH_AT: {setting!r} is not tool:point, points are {points}"
            )
        return cls(tool, CrashPoint(point))

    def at(self, tool: str, point: CrashPoint) -> None:
        """Die here, if this is the place."""
        if tool == self.tool and point is self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def during(self, tool: str) -> None:
        """Die a moment after the call has started, if this is the place."""
        if tool == self.tool and self.point is CrashPoint.DURING_CALL:
            asyncio.get_running_loop().call_later(DURING, self.at, tool, CrashPoint.DURING_CALL)
