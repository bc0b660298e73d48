"""Small PNG files of screenshots: 256 colours are enough for text on a ground."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
#: Bytes of a pixel, by the colour type that a browser writes: RGB, and RGB with alpha.
_CHANNELS: Final = {2: 3, 6: 4}
_MOST: Final = 256


def small(png: bytes) -> bytes:
    """Return a screenshot with a palette of 256 colours at most."""
    chunks = list(_chunks(png))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth != 8 or kind not in _CHANNELS or interlaced:
        raise ValueError("this is no screenshot of a browser")
    size = _CHANNELS[kind]
    packed = zlib.decompress(b"".join(data for name, data in chunks if name == b"IDAT"))
    rows = list(_rows(packed, width * size, size))
    shift = 0
    while len(colours := _colours(rows, size, shift)) > _MOST:
        shift += 1
    numbers = {colour: number for number, colour in enumerate(sorted(colours))}
    indexed = b"".join(
        b"\0" + bytes(numbers[_rounded(row[at : at + 3], shift)] for at in range(0, len(row), size))
        for row in rows
    )
    return _SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", b"".join(numbers)),
            _chunk(b"IDAT", zlib.compress(indexed, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def _rows(packed: bytes, length: int, size: int) -> Iterator[bytes]:
    """Yield the rows of a picture as they are: the file has what differs from those beside it."""
    before = bytes(length)
    for at in range(0, len(packed), length + 1):
        kind, row = packed[at], bytearray(packed[at + 1 : at + 1 + length])
        for i in range(length if kind else 0):
            left = row[i - size] if i >= size else 0
            corner = before[i - size] if i >= size else 0
            row[i] = (row[i] + _guess(kind, left, before[i], corner)) & 255
        before = bytes(row)
        yield before


def _guess(kind: int, left: int, up: int, corner: int) -> int:
    """Return what a PNG's filter takes a byte for, by those beside it."""
    match kind:
        case 1:
            return left
        case 2:
            return up
        case 3:
            return (left + up) // 2
        case _:
            to = left + up - corner
            nearest = (
                (abs(to - left), 0, left),
                (abs(to - up), 1, up),
                (abs(to - corner), 2, corner),
            )
            return min(nearest)[2]


def _colours(rows: list[bytes], size: int, shift: int) -> set[bytes]:
    seen = {row[at : at + 3] for row in rows for at in range(0, len(row), size)}
    return {_rounded(colour, shift) for colour in seen}


def _rounded(colour: bytes, shift: int) -> bytes:
    """Return the colour in whose place a like one is: the lightest of them, so that white stays."""
    return bytes(channel | ((1 << shift) - 1) for channel in colour)
