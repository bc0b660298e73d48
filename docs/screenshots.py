"""Takes the pictures of the approvers' pages: ``python -m docs.screenshots`` (needs Chromium).

The browser tests open each page, look at it, and take its picture if they are asked to. Two rounds
give two pictures, which differ in times and hashes: those of the docs are taken anew when a page
looks different.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from playwright.async_api import Page

from docs.png import small

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
