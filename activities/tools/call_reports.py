"""What a tool says: during its call, through its context, and as its output.

During its call it may spend, report progress, ask and write. Progress goes to Temporal with each
heartbeat, whose details the next attempt gets. An artifact that is written part by part is kept by
``effects/drafts.py``; by itself a draft is in memory: that is what a tool gets in a test.

Its output becomes JSON that the ledger, the chain and history can carry. This happens after an
effect, so it never raises: an odd output is recorded in the best form it has, and does not fail the
call.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Any, Final, TypeVar

from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python

from surehand.activities.tools.failures import Permanent
from surehand.process.off_loop import call_off_loop
from surehand.workflows.canonical_json import canonical_json, digest, is_too_deep, loses_digits
from surehand.workflows.contracts.base import Usage
from surehand.workflows.plain_text import clean_text

#: Larger ones are recorded by their digest only: a worker holds several outputs in memory.
LARGEST_ARTIFACT: Final = 64 * 1024 * 1024  # bytes
#: Characters that are kept of what is no JSON at all.
LONGEST_TEXT: Final = 2000


def to_json(output: Any) -> Any:
    """Return a tool's output as JSON; too large ones by digest, impossible ones by their text."""
    try:
        clean = _clean(_plain(output))
        text = canonical_json(clean)
        if is_too_deep(clean):
            return {"unserialisable": _text_of(output)}
    except Exception:
        # Whatever is wrong with it, the effect has happened.
        return {"unserialisable": _text_of(output)}
    if len(text) > LARGEST_ARTIFACT:
        return {"too_large": {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}}
    return clean


async def make_json(output: Any) -> Any:
    """Return the same, made beside the event loop if the output is large."""
    return await call_off_loop(to_json, output)


def _plain(output: Any) -> Any:
    if isinstance(output, BaseModel):
        try:
            return output.model_dump(mode="json")
        except ValueError:
            pass  # The general way below has a fallback for what the model cannot say.
    return to_jsonable_python(output, fallback=_text_of)


def _text_of(value: Any) -> str:
    try:
        return clean_text(repr(value), LONGEST_TEXT)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"


def _clean(value: Any) -> Any:
    """Replace what RFC 8785 or a database refuses: huge numbers, infinity, surrogates, NUL."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int | float) and loses_digits(value):
        return str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


#: Of money in one call, and the smallest part of it that counts.
MOST_SPENT: Final = 10**12
SMALLEST_SPENT: Final = Decimal("1e-12")
#: Not the thread's own, which a tool may have changed.
_EXACT: Final = Context(prec=60)


@dataclass
class Meter:
    """Adds up what one call uses."""

    tokens: int = 0
    money: Decimal = Decimal(0)

    def add(self, tokens: int, money: str | Decimal) -> None:
        """Add to it. Raises ``ValueError``."""
        try:
            amount = Decimal(money)
        except (InvalidOperation, TypeError) as error:
            raise ValueError(f"ctx.spend: money={money!r} is no decimal number") from error
        if type(tokens) is not int:
            raise ValueError(f"ctx.spend: tokens={tokens!r} is no whole number")
        if not 0 <= tokens <= MOST_SPENT or not amount.is_finite() or not 0 <= amount <= MOST_SPENT:
            raise ValueError(f"ctx.spend: from nothing to {MOST_SPENT}, and nothing is given back")
        self.tokens += tokens
        with localcontext(_EXACT):
            self.money += amount

    def usage(self) -> Usage:
        """Return it as the run gets it."""
        # After the call: what it has used must not fail it, however odd the sum.
        with localcontext(_EXACT):
            money = min(self.money, Decimal(MOST_SPENT)).quantize(SMALLEST_SPENT).normalize()
        return Usage(tokens=self.tokens, money=format(money, "f"))


#: Bytes of canonical JSON: it is sent with each heartbeat.
LARGEST_PROGRESS: Final = 8 * 1024


@dataclass
class Progress:
    """What the call of one step has said."""

    step_id: str
    earlier: JsonValue = None
    """The last word of the attempt before this one, if it did not come to its end."""
    newest: JsonValue = None
    bytes_written: int | None = None
    """How much of an artifact stands, where the tool writes one."""

    def note(self, value: Any) -> None:
        """Take what a tool says; never raises, because a call must not fail of it."""
        try:
            said = to_json(value)
            size = len(canonical_json(said))
        except Exception as error:
            self._warn(repr(error))
            return
        if size > LARGEST_PROGRESS:
            reason = f"{size} bytes, {LARGEST_PROGRESS} at most: keep it elsewhere, and say where"
            self._warn(reason)
            return
        self.newest = said

    def _warn(self, reason: str) -> None:
        import structlog  # not with `tool`, which is light

        structlog.get_logger().warning("progress.not_kept", step_id=self.step_id, reason=reason)

    def told(self) -> dict[str, JsonValue]:
        """Return it as heartbeats carry it; empty if there is no news."""
        said = self.earlier if self.newest is None else self.newest
        told: dict[str, JsonValue] = {"step_id": self.step_id, "progress": said}
        if self.bytes_written is not None:
            told["bytes_written"] = self.bytes_written
        return told if self.newest is not None or len(told) > 2 else {}


#: Those of the call under way; the tasks that a call starts have them, too.
_METER: ContextVar[Meter] = ContextVar("meter")
_PROGRESS: ContextVar[Progress] = ContextVar("progress")
R = TypeVar("R", Meter, Progress)


def current_meter() -> Meter:
    """Return the meter of the call under way; outside of one, one that nobody reads."""
    return _METER.get(None) or Meter()


def current_progress() -> Progress:
    """Return what the call under way has said; outside of one nobody is told."""
    return _PROGRESS.get(None) or Progress("")


def measure_usage() -> AbstractContextManager[Meter]:
    return _for_this_call(_METER, Meter())


def take_progress(progress: Progress) -> AbstractContextManager[Progress]:
    """Take what the call under way says."""
    return _for_this_call(_PROGRESS, progress)


@contextmanager
def _for_this_call(variable: ContextVar[R], value: R) -> Iterator[R]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


#: Characters of a question.
LONGEST_QUESTION = 2000


class NeedsAnswer(BaseException):
    """A tool cannot go on without an answer; the call starts again once a human has given it.

    Not an ``Exception``: a tool that catches those must not go on without its answer.
    """

    def __init__(self, question: str, schema: dict[str, Any], before: int = 0) -> None:
        """Say what is asked, and how many of the call's answers stand before it."""
        super().__init__(question)
        self.question = question
        self.schema = schema
        self.before = before

    @property
    def digest(self) -> str:
        """What tells the question from others."""
        return digest({"question": self.question, "schema": self.schema})


@dataclass
class Answers:
    """What humans have answered to one call, handed out in the order of its questions.

    Each with the digest of its question: another one in its place is asked again.
    """

    given: Sequence[tuple[str, JsonValue]] = ()
    """The digests of the questions so far, and their answers."""
    _asked: int = 0

    def next(self, question: str, schema: dict[str, Any] | None) -> JsonValue:
        """Return the answer to the call's next question. Raises ``NeedsAnswer``."""
        text = clean_text(str(question), LONGEST_QUESTION)
        needed = NeedsAnswer(text, dict(schema or {}), before=self._asked)
        if self._asked >= len(self.given):
            raise needed
        about, answer = self.given[self._asked]
        if about != needed.digest:
            raise needed
        self._asked += 1
        return answer


#: Longest media type: it is a column of the artifact's row.
_LONGEST_TYPE: Final = 80
_MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;.*)?", re.ASCII)


class Draft:
    r"""An artifact that a call writes part by part; ``ctx.artifact`` of a tool.

    The parts outlive a crash: the next attempt finds them, and continues from their end. On success
    the step's output refers to what ``finish`` has made of them.

    Example:
        >>> @tool("report.write", effect=READ)
        ... async def write(params: Order, ctx: ToolContext) -> dict[str, JsonValue]:
        ...     if ctx.artifact.bytes_written == 0:
        ...         await ctx.artifact.append("# Report\n")
        ...     await ctx.artifact.append(f"{params.order_id} was paid.\n")
        ...     return await ctx.artifact.finish(media_type="text/markdown")
        >>> (await write.fn(Order(order_id="order-7"), ctx))["bytes"]
        27
    """

    #: What is raised past the largest size; a draft that is kept knows what it means for its call.
    _too_large: type[Exception] = Permanent

    def __init__(self) -> None:
        self._size = 0
        self._memory = bytearray()
        import asyncio  # not with `tool`, which is light

        # A tool may write from several tasks: parts follow one another.
        self._one_at_a_time = asyncio.Lock()

    @property
    def bytes_written(self) -> int:
        """How many bytes this and earlier attempts have written."""
        return self._size

    async def append(self, part: bytes | str) -> None:
        """Append a part; it is durable when this returns. Text is UTF-8.

        Raises:
            Permanent: More than 64 MiB in all. From a write, which may have had its effect
                already, ``OutcomeUnknown``.
        """
        data = part.encode() if isinstance(part, str) else bytes(part)
        async with self._one_at_a_time:
            size = self._size + len(data)
            if size > LARGEST_ARTIFACT:
                raise self._too_large(f"an artifact of {size} bytes: {LARGEST_ARTIFACT} at most")
            if data:
                await self._append(data)

    async def read(self, last: int | None = None) -> bytes:
        """Return what this and earlier attempts have written.

        Args:
            last: Only so many bytes of its end.
        """
        async with self._one_at_a_time:
            start = 0 if last is None else max(0, self._size - last)
            return await self._read(start)

    async def restart(self) -> None:
        """Drop what was written, and begin again."""
        async with self._one_at_a_time:
            await self._restart()

    async def finish(self, media_type: str = "application/octet-stream") -> dict[str, JsonValue]:
        """Make one artifact of all parts, and return the reference for the tool's output.

        It is ``{"artifact": "sha256:...", "bytes": 27, "media_type": "text/markdown"}``; the digest
        is that of the whole content, and where a run is encrypted one that only its key can make.
        ``artifacts RUN DIGEST`` prints it.

        Args:
            media_type: What it is, such as ``text/markdown``.

        Raises:
            ValueError: No media type.
        """
        if len(media_type) > _LONGEST_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
            raise ValueError(f"{media_type[:100]!r} is no media type such as 'text/markdown'")
        async with self._one_at_a_time:
            content = await self._read(0)
            sha256 = await self._keep(content, media_type)
        return {"artifact": f"sha256:{sha256}", "bytes": len(content), "media_type": media_type}

    async def _append(self, data: bytes) -> None:
        self._memory += data
        self._size = len(self._memory)

    async def _read(self, start: int) -> bytes:
        return bytes(self._memory[start:])

    async def _restart(self) -> None:
        self._memory.clear()
        self._size = 0

    async def _keep(self, content: bytes, media_type: str) -> str:
        """Keep the whole, and return the digest that it is named by."""
        return hashlib.sha256(content).hexdigest()


class NoDraft(Draft):
    """In the place of a draft where nothing is written: each use of it raises."""

    @property
    def bytes_written(self) -> int:
        """Nothing is written here."""
        raise self._refused()

    async def _append(self, data: bytes) -> None:
        raise self._refused()

    async def _read(self, start: int) -> bytes:
        raise self._refused()

    async def _restart(self) -> None:
        raise self._refused()

    def _refused(self) -> RuntimeError:
        return RuntimeError(
            "only a tool's own call writes an artifact: no lookup, precondition or undo,"
            " and no transactional tool"
        )
