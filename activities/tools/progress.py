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

from surehand.activities.tools.output_json import to_json
from surehand.workflows.identity import canonical_json

log = structlog.get_logger()

#: Bytes of canonical JSON: it is sent with each heartbeat.
LARGEST: Final = 8 * 1024
#: Characters of what a model says that a heartbeat carries: more than it says between two of them.
LONGEST_TOKENS: Final = 4 * 1024


@dataclass
class Progress:
    """What the call of one step has said."""

    step_id: str
    earlier: JsonValue = None
    """The last word of the attempt before this one, if it did not come to its end."""
    newest: JsonValue = None
    bytes_written: int | None = None
    """How much of an artifact stands, where the tool writes one."""
    attempt: int = 1
    """The step's."""
    tokens: str = ""
    """The newest of what a model says in this attempt, as it says it."""
    tokens_before: int = 0
    """How many characters of that came before."""

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
        """Return it as heartbeats carry it; empty if there is no news."""
        said = self.earlier if self.newest is None else self.newest
        told: dict[str, JsonValue] = {"step_id": self.step_id, "progress": said}
        if self.bytes_written is not None:
            told["bytes_written"] = self.bytes_written
        if self.tokens:
            at = {"attempt": self.attempt, "before": self.tokens_before}
            told["tokens"] = {**at, "text": self.tokens}
        return told if self.newest is not None or len(told) > 2 else {}


#: Of the call under way; the tasks that a call starts have it, too.
_PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)


def note_progress(value: Any) -> None:
    """Note what a tool says of the call under way; outside of one nobody is told."""
    progress = _PROGRESS.get()
    if progress is not None:
        progress.note(value)


def note_written(size: int) -> None:
    """Note how much of its artifact the call under way has written."""
    progress = _PROGRESS.get()
    if progress is not None:
        progress.bytes_written = size


def note_tokens(text: str) -> None:
    """Note what a model has just said in the call under way: shown to whoever follows, not kept.

    It goes with the heartbeats that are sent anyway, about once a second. So it is in no table and
    in no history, it is gone with the activity, and whoever follows needs no database.
    """
    progress = _PROGRESS.get()
    if progress is not None and text:
        said = progress.tokens + text
        progress.tokens = said[-LONGEST_TOKENS:]
        progress.tokens_before += len(said) - len(progress.tokens)


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
