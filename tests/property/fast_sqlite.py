"""SQLite without threads and without waiting for a disk: an example has a hundred transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import aiosqlite
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")


def hasten(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an engine quick; its URL has to say ``check_same_thread=false``."""
    monkeypatch.setattr(aiosqlite.Connection, "_execute", _at_once)
    event.listen(engine.sync_engine, "connect", _no_fsync)


def _no_fsync(connection: Any, _record: Any) -> None:
    # No power is cut here.
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.close()


async def _at_once(self: Any, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    # In this thread, instead of waiting for another one to run each statement.
    return work(*args, **kwargs)
