"""Takes the pictures of the approvers' pages: ``python -m docs.screenshots`` (needs Chromium).

The browser tests open each page, look at it, and take its picture if they are asked to. Two rounds
give two pictures, which differ in times and hashes: those of the docs are taken again when a page
looks different. The files are small PNGs: 256 colours are enough for text on a ground.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.async_api import Page

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


ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "howto" / "approvals-page.md"
FOLDER: Final = PAGE.with_name("approvals-page")
#: Bytes of one picture, and of all of them: whoever clones the repository fetches them.
LARGEST: Final = 60_000
LARGEST_TOGETHER: Final = 400_000
#: Tests that take them, and what asks them to.
TESTS: Final = ("tests/browser/test_page_access.py", "tests/browser/test_oidc_sign_in.py")
WANTED: Final = "TAKE_PICTURES"
_NARROW: Final = "-narrow"
NAMES: Final = (
    *("sign-in", "keys", "list", "list-narrow", "approval", "approval-narrow", "several", "others"),
    *("mine", "run", "artifacts", "no-principal", "error"),
)


def wanted() -> bool:
    """Return whether tests are to take pictures."""
    return WANTED in os.environ


def file_of(name: str) -> Path:
    """Return where a picture is kept."""
    return FOLDER / f"{name}.png"


async def take(page: Page, name: str) -> None:
    """Take the picture of a page as it is now, and its narrow one if there is one."""
    await page.emulate_media(color_scheme="light")
    for one, width, height in ((name, 1280, 800), (name + _NARROW, 360, 740)):
        if one in NAMES:
            await page.set_viewport_size({"width": width, "height": height})
            await page.evaluate("scrollTo(0, 0)")
            file_of(one).write_bytes(small(await page.screenshot()))


def main() -> None:
    """Have all pictures taken."""
    began = time.time()
    command = [sys.executable, "-m", "tests", *TESTS, "-m", "", "-n", "1"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {WANTED: "yes"})
    taken = {file.stem for file in FOLDER.iterdir() if file.stat().st_mtime >= began}
    if left := sorted({*NAMES} - taken) or done.returncode:
        raise SystemExit(f"not all are taken: {left}")
    for name in NAMES:
        print(f"{file_of(name).stat().st_size:7} {name}")


if __name__ == "__main__":
    main()
