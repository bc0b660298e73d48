"""How far a long call has come, by what its tool says: for the next attempt, and for people.

It goes to Temporal with each heartbeat, whose details the next attempt gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import structlog
from pydantic import JsonValue

from surehand.activities.tools.outputs import to_json
from surehand.workflows.identity import canonical_json

log = structlog.get_logger()

#: Bytes of canonical JSON: it is sent with each heartbeat.
LARGEST: Final = 8 * 1024


@dataclass
class Progress:
    """What the call of one step has said."""

    step_id: str
    earlier: JsonValue = None
    """The last word of the attempt before this one, if it did not come to its end."""
    newest: JsonValue = None

    def note(self, value: Any) -> None:
        """Take what a tool says; never raises, because a call must not fail of it."""
        try:
            said = to_json(value)
            size = len(canonical_json(said))
        except Exception as error:
            log.warning("progress.not_kept", step_id=self.step_id, reason=repr(error))
            return
        if size > LARGEST:
            reason = f"{size} bytes, {LARGEST} at most: keep it elsewhere, and say where"
            log.warning("progress.not_kept", step_id=self.step_id, reason=reason)
            return
        self.newest = said

    def told(self) -> dict[str, JsonValue]:
        """Return it as heartbeats carry it."""
        return {"step_id": self.step_id, "progress": self.newest}


#: Of the call under way; the tasks that a call starts have it, too.
_PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)


def note_progress(value: Any) -> None:
    """Note what a tool says of the call under way; outside of one nobody is told."""
    progress = _PROGRESS.get()
    if progress is not None:
        progress.note(value)


def earlier_progress() -> JsonValue:
    """Return the last word of the attempt before this one."""
    progress = _PROGRESS.get()
    return None if progress is None else progress.earlier


@contextmanager
def progressing(progress: Progress) -> Iterator[None]:
    """Take what the call under way says."""
    token = _PROGRESS.set(progress)
    try:
        yield
    finally:
        _PROGRESS.reset(token)
