"""Asking a dependency that was down whether it is up again, before it is called again."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from surehand.activities.tools.failures import Failure, FailureClass
from surehand.activities.tools.tool import Tool
from surehand.activities.worker.watchdog import Watchdog

log = structlog.get_logger()

#: A dependency that does not say within this time that it is well, is not. Far below a lease.
PATIENCE: Final = timedelta(seconds=1)
STILL_DOWN: Final = Failure(FailureClass.DEPENDENCY_DOWN, "its health check says it is still down")


async def is_healthy(watchdog: Watchdog, tool: Tool) -> bool:
    """Return what the tool's health check says; ``True`` where it has none."""
    if tool.health is None:
        return True
    try:
        async with watchdog.watched(f"the health check of {tool.name}", PATIENCE):
            return bool(await tool.health())
    except (Exception, asyncio.CancelledError) as error:
        log.info("dependency.unhealthy", tool=tool.name, error=repr(error))
        return False
