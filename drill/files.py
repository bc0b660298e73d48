"""Report files: their kind follows from their name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from surehand.drill import html, markdown
from surehand.drill.report import DrillReport
from surehand.process.exits import WrongUse

Writer = Callable[[DrillReport], str]

_WRITERS: Final[dict[str, Writer]] = {
    ".html": html.document,
    ".md": markdown.document,
    ".json": lambda report: report.model_dump_json(indent=2) + "\n",
}


def writer_of(file: Path) -> Writer:
    """Return what writes a file of this name; asked before the drill, which takes minutes.

    Raises:
        WrongUse: It has no known suffix, or its folder is not there.
    """
    writer = _WRITERS.get(file.suffix)
    if writer is None:
        raise WrongUse(f"--report {file}: its name must end in {', '.join(_WRITERS)}")
    if not file.absolute().parent.is_dir():
        raise WrongUse(f"--report {file}: there is no folder {file.absolute().parent}")
    return writer


def write(file: Path, text: str) -> None:
    """Write a report; raises ``OSError`` when it cannot be written."""
    file.write_text(text, encoding="utf-8")
