"""A drill's report as one HTML file that needs nothing else: no network, no scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from surehand.cli.verb.text import plain, shown_time
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
)

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


def document(report: DrillReport) -> str:
    """Return the report as an HTML document."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: DrillReport) -> Iterator[str]:
    title = f"Drill of {report.plan}"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{_text(title)}</h1>"
    kind = "same" if report.ok else "differs"
    yield f'<p class="verdict {kind}">{_text(headline(report))}</p>'
    yield f"<p>{_text(shown_time(report.started_at))}</p>"
    for points in parts(report):
        yield from _matrix(report, points)
    yield "<ul>"
    for line in (*facts(report), *approval_lines(report)):
        yield f"<li>{_text(line)}</li>"
    yield "</ul>"
    for cell, reasons in findings(report):
        yield f"<h2>{_text(place(cell))}</h2>\n<ul>"
        yield from (f"<li><code>{_text(reason)}</code></li>" for reason in reasons)
        yield "</ul>"
    yield "</body>\n</html>"


def _matrix(report: DrillReport, points: Sequence[str]) -> Iterator[str]:
    yield '<div class="wide">\n<table>\n<thead><tr>'
    yield "".join(f"<th>{_text(name)}</th>" for name in (STEP, *points))
    yield "</tr></thead>\n<tbody>"
    for mode in report.modes:
        for target in rows_of(report, points):
            cells = (_cell(report.cell(target, point, mode)) for point in points)
            yield f"<tr><th>{_text(label(report, target, mode))}</th>{''.join(cells)}</tr>"
    for name, *times in recovery_rows(report, points):
        cells = (f"<td>{_text(time)}</td>" for time in times)
        yield f"<tr><th>{_text(name)}</th>{''.join(cells)}</tr>"
    yield "</tbody>\n</table>\n</div>"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return f'<td class="none">{NONE}</td>'
    kind = cell.outcome.value.split()[0]
    small = "" if cell.recovery_s is None else f"<small>{cell.recovery_s:.1f} s</small>"
    if cell.outcome is CellOutcome.NOT_REACHED:
        small = ""
    run = f' title="run {_text(cell.run_id)}"' if cell.run_id else ""
    return f'<td class="{kind}"{run}>{_text(cell_text(cell))}{small}</td>'


def _text(text: str) -> str:
    return escape(plain(text))
