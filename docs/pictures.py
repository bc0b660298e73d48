"""Pictures: ``python -m docs.pictures`` draws the demo's terminal, ``--pages`` photographs pages.

The demo's text is that of docs/demo.txt, which a test holds against what the demo prints. For the
approvers' pages (which need Chromium) the browser tests open each page, look at it, and take its
picture if they are asked to. Two rounds give two pictures, which differ in times and hashes: those
of the docs are taken again when a page looks different.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from playwright.async_api import Page

ROOT: Final = Path(__file__).resolve().parent.parent
DEMO: Final = ROOT / "docs" / "demo.txt"
PICTURE: Final = DEMO.with_name("demo.svg")
#: From here on: the worker is dead, and another one takes over.
FIRST_LINE: Final = "4. Worker 1 is dead"
_WIDTH: Final = 120
#: What Rich would fetch from elsewhere.
_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_STYLES: Final = {
    r"^[0-9]\. .*": "bold cyan",
    r"^[A-Z]+( +[A-Z]+)+$": "dim",
    r"^OK: .*": "bold green",
}


def draw_demo() -> str:
    """Return the picture as SVG; the same text gives the same picture."""
    shown = DEMO.read_text(encoding="utf-8")
    text = Text(shown[shown.index(FIRST_LINE) :].rstrip(), no_wrap=True, overflow="ellipsis")
    for match in re.finditer("|".join(_STYLES), text.plain, re.MULTILINE):
        style = next(s for p, s in _STYLES.items() if re.fullmatch(p, match[0]))
        text.stylize(style, *match.span())
    console = Console(
        record=True,
        width=_WIDTH,
        file=io.StringIO(),
        # The same in each environment: not what TERM and NO_COLOR say.
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        _environ={},
    )
    console.print(text)
    drawn = console.export_svg(title="make demo", unique_id="demo")
    return "\n".join(line.rstrip() for line in _FONT.sub("", drawn).splitlines()) + "\n"


PAGE: Final = ROOT / "docs" / "howto" / "approvals-page.md"
FOLDER: Final = PAGE.with_name("approvals-page")
#: Bytes of one picture, and of all of them: whoever clones the repository fetches them.
LARGEST: Final = 120_000
LARGEST_TOGETHER: Final = 800_000
#: Tests that take them, and what asks them to.
TESTS: Final = ("tests/browser/test_page_access.py", "tests/browser/test_oidc_sign_in.py")
WANTED: Final = "TAKE_PICTURES"
_NARROW: Final = "-narrow"
NAMES: Final = (
    *("sign-in", "keys", "list", "list-narrow", "approval", "approval-narrow", "several", "others"),
    *("mine", "run", "artifacts", "no-principal", "error"),
)


def wanted() -> bool:
    return WANTED in os.environ


def file_of(name: str) -> Path:
    return FOLDER / f"{name}.png"


async def take(page: Page, name: str) -> None:
    """Take the picture of a page as it is now, and its narrow one if there is one."""
    await page.emulate_media(color_scheme="light")
    for one, width, height in ((name, 1280, 800), (name + _NARROW, 390, 844)):
        if one in NAMES:
            await page.set_viewport_size({"width": width, "height": height})
            await page.evaluate("scrollTo(0, 0)")
            await page.screenshot(path=file_of(one))


def take_all() -> None:
    began = time.time()
    command = [sys.executable, "-m", "tests", *TESTS, "-m", "", "-n", "1"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {WANTED: "yes"})
    taken = {file.stem for file in FOLDER.iterdir() if file.stat().st_mtime >= began}
    if left := sorted({*NAMES} - taken) or done.returncode:
        raise SystemExit(f"not all are taken: {left}")
    for name in NAMES:
        print(f"{file_of(name).stat().st_size:7} {name}")


if __name__ == "__main__":
    if "--pages" in sys.argv:
        take_all()
    else:
        PICTURE.write_text(draw_demo(), encoding="utf-8")
