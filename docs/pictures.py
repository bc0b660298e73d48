"""Draws the demo's terminal for the README: ``python -m docs.pictures``.

The text is that of docs/demo.md, which a test holds against what the demo prints.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

PAGE: Final = Path(__file__).resolve().parent / "demo.md"
PICTURE: Final = PAGE.with_name("demo.svg")
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


def picture() -> str:
    """Return the picture as SVG; the same text gives the same picture."""
    shown = PAGE.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
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


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
