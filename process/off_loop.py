"""Work whose time a stranger's value decides: outside of the event loop, or refused by its size.

The event loop renews leases and sends heartbeats: what holds it up for three seconds costs calls of
all tenants their leases. A thread of Python shares the processor with it every few milliseconds. To
hop there and back takes a tenth of a millisecond, so what is small stays.

A parser in C holds Python's lock to its end, so a thread does not help. Its time grows with the
number of values: 10 MiB of numbers hold up all leases and heartbeats of a worker for half a second,
10 MiB of text for a few milliseconds. So values are counted before anything parses them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from pydantic import BaseModel

#: Of a JSON text that strangers have written: so many are parsed in a hundredth of a second.
MOST_PARSED: Final = 50_000
#: Bytes that are counted at a time, in a millisecond.
PART: Final = 256 * 1024
#: What begins a value, or parts it from the next one.
_MARKS: Final = b",:[{"
#: What ends a line. No text in JSON goes past it, so a quote that is no JSON's, in a stream of
#: events, hides nothing behind it.
_ENDS: Final = b"\r\n"
_ALL_ELSE: Final = bytes(set(range(256)) - set(_MARKS + _ENDS + b'"'))


@dataclasses.dataclass
class ValueCounter:
    """Counts the values of a text that arrives in parts.

    It counts the marks between values, outside of texts, and lines: for each value there is at
    least one mark. For a stream of events, each of its lines is work, too.
    """

    _left: int = MOST_PARSED
    _inside: bool = False
    """Whether the parts so far end within a text."""
    _held: bytes = b""
    """A backslash at their end: what it escapes has yet to come."""

    def takes(self, part: bytes) -> bool:
        """Return whether there are not too many values, with those of the next part."""
        part = self._held + part
        escapes = len(part) - len(part.rstrip(b"\\"))
        self._held = b"\\" if escapes % 2 else b""
        bare = part.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _ALL_ELSE)
        if sum(bare.count(end) for end in _ENDS) > self._left:
            return False
        for line in bare.splitlines(keepends=True):
            pieces = line.split(b'"')
            self._left -= sum(map(len, pieces[1 if self._inside else 0 :: 2]))
            ends_within = self._inside == (len(pieces) % 2 == 1)
            self._inside = ends_within and not line.endswith((b"\r", b"\n"))
        return self._left >= 0


T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")

#: Values, and characters or bytes of text, that are looked at in a few milliseconds.
MOST_VALUES: Final = 1000
LONGEST_TEXT: Final = 64 * 1024


def is_large(*values: object) -> bool:
    """Return whether it may take long to go through values, without going through all of them.

    So it may with what cannot be gone through: an odd object of somebody's tool.
    """
    most, longest = MOST_VALUES, LONGEST_TEXT
    waiting = list(values)
    try:
        while waiting and most >= 0 and longest >= 0:
            value = waiting.pop()
            if isinstance(value, str | bytes | bytearray):
                longest -= len(value)
            elif isinstance(value, Mapping | list | tuple | set | frozenset):
                most -= len(value)
                if most >= 0:
                    waiting += value
                    waiting += value.values() if isinstance(value, Mapping) else ()
            elif isinstance(value, BaseModel):
                waiting += (value.__dict__, value.__pydantic_extra__)
            elif dataclasses.is_dataclass(value):
                waiting.append(getattr(value, "__dict__", None))
    except Exception:
        return True
    return most < 0 or longest < 0


async def call_off_loop(
    work: Callable[Concatenate[V, P], T], value: V, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what a function makes of a value: in a thread if the value is large."""
    if is_large(value):
        return await run_in_thread(work, value, *args, **kwargs)
    return work(value, *args, **kwargs)


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a function returns in a thread; it may run code of users."""
    import asyncio  # not with `tool`, which is light

    def run() -> T:
        try:
            return work(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(f"{getattr(work, '__name__', work)} raised StopIteration") from error

    return await asyncio.to_thread(run)


async def load_json(data: bytes) -> Any:
    return await call_off_loop(_load_json, data)


def _load_json(data: bytes) -> Any:
    counter = ValueCounter()
    parts = range(0, len(data), PART)
    if all(counter.takes(data[start : start + PART]) for start in parts):
        return json.loads(data)
    return _IN_PYTHON.decode(data.decode())


class _DecoderInPython(json.JSONDecoder):
    """Reads JSON slowly, without holding Python's lock to the end of it."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object = json.decoder.JSONObject  # type: ignore[attr-defined]
        self.parse_array = json.decoder.JSONArray  # type: ignore[attr-defined]
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_IN_PYTHON: Final = _DecoderInPython()
