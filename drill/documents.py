"""A drill's report as a file: HTML that needs no network and no scripts, Markdown, or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from surehand.cli.verb.text import shown_time
from surehand.drill.report import (
    NONE,
    STEP,
    Cell,
    CellOutcome,
    DrillReport,
    approval_lines,
    cell_text,
    facts,
    findings,
    headline,
    label,
    parts,
    place,
    recovery_rows,
    rows_of,
    tables,
)
from surehand.process.exits import WrongUse
from surehand.workflows.plain_text import plain

Writer = Callable[[DrillReport], str]

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --same: #2da44e33; --differs: #cf222e55;
        --human: #d4a72c44; --missed: #8250df44; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.5rem 0 .3rem; }
.verdict { font-size: 1.15rem; padding: .6rem .9rem; border-radius: .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1.2rem 0; }
th, td { border: 1px solid var(--line); padding: .4rem .6rem; text-align: left; }
th { font-weight: 600; white-space: nowrap; } td small { display: block; opacity: .75; }
.same { background: var(--same); } .differs { background: var(--differs); }
.needs { background: var(--human); } .not { background: var(--missed); }
.none { opacity: .45; } code, li { overflow-wrap: anywhere; }
"""
#: What Markdown, or HTML inside it, would read as more than text.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#])")


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


def html(report: DrillReport) -> str:
    """Return the report as an HTML document."""
    return "\n".join(_html_lines(report)) + "\n"


def _html_lines(report: DrillReport) -> Iterator[str]:
    title = f"Drill of {report.plan}"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_html_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{_html_text(title)}</h1>"
    kind = "same" if report.ok else "differs"
    yield f'<p class="verdict {kind}">{_html_text(headline(report))}</p>'
    yield f"<p>{_html_text(shown_time(report.started_at))}</p>"
    for points in parts(report):
        yield from _html_matrix(report, points)
    yield "<ul>"
    for line in (*facts(report), *approval_lines(report)):
        yield f"<li>{_html_text(line)}</li>"
    yield "</ul>"
    for cell, reasons in findings(report):
        yield f"<h2>{_html_text(place(cell))}</h2>\n<ul>"
        yield from (f"<li><code>{_html_text(reason)}</code></li>" for reason in reasons)
        yield "</ul>"
    yield "</body>\n</html>"


def _html_matrix(report: DrillReport, points: Sequence[str]) -> Iterator[str]:
    yield '<div class="wide">\n<table>\n<thead><tr>'
    yield "".join(f"<th>{_html_text(name)}</th>" for name in (STEP, *points))
    yield "</tr></thead>\n<tbody>"
    for mode in report.modes:
        for target in rows_of(report, points):
            cells = (_html_cell(report.cell(target, point, mode)) for point in points)
            yield f"<tr><th>{_html_text(label(report, target, mode))}</th>{''.join(cells)}</tr>"
    for name, *times in recovery_rows(report, points):
        cells = (f"<td>{_html_text(time)}</td>" for time in times)
        yield f"<tr><th>{_html_text(name)}</th>{''.join(cells)}</tr>"
    yield "</tbody>\n</table>\n</div>"


def _html_cell(cell: Cell | None) -> str:
    if cell is None:
        return f'<td class="none">{NONE}</td>'
    kind = cell.outcome.value.split()[0]
    small = "" if cell.recovery_s is None else f"<small>{cell.recovery_s:.1f} s</small>"
    if cell.outcome is CellOutcome.NOT_REACHED:
        small = ""
    run = f' title="run {_html_text(cell.run_id)}"' if cell.run_id else ""
    return f'<td class="{kind}"{run}>{_html_text(cell_text(cell))}{small}</td>'


def _html_text(text: str) -> str:
    return escape(plain(text))


def markdown(report: DrillReport) -> str:
    """Return the report as a Markdown document."""
    return "\n".join(_markdown_lines(report)) + "\n"


def _markdown_lines(report: DrillReport) -> Iterator[str]:
    yield f"# Drill of {_markdown_text(report.plan)}"
    yield ""
    yield f"**{_markdown_text(headline(report))}** ({shown_time(report.started_at)})"
    yield ""
    for heads, body in tables(report):
        yield from _markdown_table(heads, body)
        yield ""
    for line in (*facts(report), *approval_lines(report)):
        yield f"- {_markdown_text(line)}"
    for cell, reasons in findings(report):
        yield ""
        yield f"## {_markdown_text(place(cell))}"
        yield ""
        yield from (f"- {_markdown_text(reason)}" for reason in reasons)


def _markdown_table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _markdown_row(head)
    yield _markdown_row(["---"] * len(head), escaped=False)
    yield from map(_markdown_row, body)


def _markdown_row(cells: Sequence[str], *, escaped: bool = True) -> str:
    return f"| {' | '.join(_markdown_text(cell) if escaped else cell for cell in cells)} |"


def _markdown_text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", plain(text))


_WRITERS: Final[dict[str, Writer]] = {
    ".html": html,
    ".md": markdown,
    ".json": lambda report: report.model_dump_json(indent=2) + "\n",
}
