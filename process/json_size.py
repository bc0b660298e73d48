"""How many values a JSON text has, counted before anything parses it.

A parser holds Python's lock to its end, so no thread makes up for it. It takes its time by values:
10 MiB of numbers hold up all leases and heartbeats of a worker for half a second, 10 MiB of text
for a few milliseconds.
"""

from __future__ import annotations

from typing import Final

#: Of a JSON text that strangers have written: so many are parsed in a hundredth of a second.
MOST_VALUES: Final = 50_000
#: Bytes that are counted at a time, in a millisecond.
PART: Final = 256 * 1024
#: What begins a value, or parts it from the next one.
_MARKS: Final = b",:[{"
#: What ends a line. No text in JSON goes past it, so a quote that is no JSON's, in a stream of
#: events, hides nothing behind it.
_ENDS: Final = b"\r\n"
_ALL_ELSE: Final = bytes(set(range(256)) - set(_MARKS + _ENDS + b'"'))


class ValueCounter:
    """Counts the values of a text that arrives in parts.

    It counts the marks between values, outside of texts, and lines: for each value there is at
    least one mark. For a stream of events, each of its lines is work, too.
    """

    def __init__(self, most: int = MOST_VALUES) -> None:
        """Begin; more values than ``most`` are too many."""
        self._left = most
        self._inside = False
        """Whether the parts so far end within a text."""
        self._held = b""
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
