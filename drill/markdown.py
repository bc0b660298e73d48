"""A drill's report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from surehand.cli.verb.text import plain, shown_time
from surehand.drill.report import (
    DrillReport,
    approval_lines,
    facts,
    findings,
    headline,
    place,
    tables,
)

#: What Markdown, or HTML inside it, would read as more than text.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#])")


def document(report: DrillReport) -> str:
    """Return the report as a Markdown document."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: DrillReport) -> Iterator[str]:
    yield f"# Drill of {_text(report.plan)}"
    yield ""
    yield f"**{_text(headline(report))}** ({shown_time(report.started_at)})"
    yield ""
    for heads, body in tables(report):
        yield from _table(heads, body)
        yield ""
    for line in (*facts(report), *approval_lines(report)):
        yield f"- {_text(line)}"
    for cell, reasons in findings(report):
        yield ""
        yield f"## {_text(place(cell))}"
        yield ""
        yield from (f"- {_text(reason)}" for reason in reasons)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(head)
    yield _row(["---"] * len(head), escape=False)
    yield from map(_row, body)


def _row(cells: Sequence[str], *, escape: bool = True) -> str:
    return f"| {' | '.join(_text(cell) if escape else cell for cell in cells)} |"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", plain(text))
