"""``drill``: the command, and its report as a file.

HTML needs no network and no scripts; the others are Markdown and JSON.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from surehand.cli import options
from surehand.cli.options import Caller
from surehand.cli.printer import Reply, shown_time
from surehand.client.plan_file import load_plan
from surehand.drill.report import (
    NONE,
    STEP,
    CellOutcome,
    DrillCell,
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
from surehand.process.exits import ExitCode, WrongUse, end_by_signal_in_order
from surehand.workflows.plain_text import plain

if TYPE_CHECKING:
    from surehand.drill.played import DrillState
    from surehand.drill.request import DrillRequest


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
    """Return what writes a file of this name; asked before the drill, which takes minutes."""
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


def _html_cell(cell: DrillCell | None) -> str:
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


#: How long one case may take, if nothing else is said: recoveries take seconds.
CASE_LIMIT: Final = timedelta(minutes=2)
STATES: Final = Path(".surehand") / "drill"


def _names(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names that an option lists; all there are go by none."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise WrongUse(f"{option} {text!r} names nothing: leave it out for all")
    return names


def drill(
    caller: options.Anybody,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A YAML or JSON file.")],
    world: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Returns what a run's effects have left."),
    ] = None,
    fresh: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Returns plan input for one more run."),
    ] = None,
    already: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Leaves the world as a step's call would."),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(help="What is done to a run, comma separated; default all."),
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Steps, comma separated; default all.")] = None,
    modes: Annotated[
        str | None, typer.Option(help="Durability modes, comma separated; default sync.")
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Write it: .html, .md or .json."),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A migrated ledger; default a file a case.")
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, max=64, help="Cases at a time; default 2, with --fresh.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with one that was ended early; a done one begins anew."
        ),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change the plan, as with start."),
    ] = None,
    timeout: Annotated[
        timedelta,
        typer.Option(
            parser=options.duration,
            metavar="DURATION",
            help="One case's; default 2m.",
            show_default=False,
        ),
    ] = CASE_LIMIT,
) -> Reply:
    r"""Kill workers at every step, interrupt, reset and stop runs there, and compare what is left.

    Each case is a fresh run with workers of its own: one dies, another one takes over.

    Crash points: before_claim, after_claim, during_call, after_call, after_outcome, before_report.

    Forced waits: pause, approval, ask, permission_loss, expiry.

    With --already: already_true, the world is so before the call, and no write may be skipped.

    Operations: reset, reset_step, reset_killed, terminate, deploy, freeze.

    Tools run for real, approved by 'drill-approver': drill a test system.

    Exits with 3 if a world differs, a point was not reached, or something ran that was not approved
    or not allowed; needing a human is no difference where the tool says that one decides.

    Example: python starter.py drill examples/refund.yaml --report drill.html \
      --world surehand.examples.shop.drill:world \
      --fresh surehand.examples.shop.drill:fresh
    """
    from surehand.drill.played import DrillState
    from surehand.drill.report import lines
    from surehand.drill.request import DrillRequest
    from surehand.drill.world import Function

    writers = [(file, writer_of(file)) for file in report or []]
    request = DrillRequest.checked(
        load_plan(plan, changes or []),
        plan,
        points=_names("--points", points),
        modes=_names("--modes", modes),
        steps=_names("--steps", steps),
        world=Function.load("--world", world) if world else None,
        fresh=Function.load("--fresh", fresh) if fresh else None,
        already=Function.load("--already", already) if already else None,
        parallel=parallel,
        limit=timeout,
        own_ledger=database is None,
    )
    file = writers[0][0] if writers else STATES / request.plan.name
    state = DrillState(file.with_name(f"{file.name}.state"))
    end_by_signal_in_order()
    found = _drilled(caller, request, database, state, resume=resume)
    for target, writer in writers:
        write(target, writer(found))
    caller.printer.lines(lines(found))  # with --json, too: it is what the progress comes to
    return Reply(found, (), ExitCode.DONE if found.ok else ExitCode.BROKEN)


def _drilled(
    caller: Caller,
    request: DrillRequest,
    database: str | None,
    state: DrillState,
    *,
    resume: bool,
) -> DrillReport:
    from surehand.cli.ledger_door import translated
    from surehand.drill.environment import prepared, require_tools
    from surehand.drill.people import APPROVER
    from surehand.drill.suite import DrillProgress, Suite

    printer = caller.printer
    require_tools(caller.environment)
    with ExitStack() as running:
        running.enter_context(translated())
        environment = running.enter_context(
            prepared(caller.environment, database=database, say=printer.say)
        )
        where = (
            "an embedded server"
            if environment.embedded
            else environment.temporal["TEMPORAL_ADDRESS"]
        )
        printer.say(f"Drilling {request.plan_name} on {where}; {APPROVER!r} approves what waits")
        suite = Suite(
            request,
            environment,
            caller.settings,
            caller.environment,
            DrillProgress(printer),
            state=state,
            resume=resume,
        )
        try:
            found = asyncio.run(suite.run())
        except KeyboardInterrupt:
            printer.warn(f"ended early; --resume goes on (cases done are kept in {state.file})")
            raise
        if not found.ok:
            environment.keep()
            printer.say(f"Ledgers and logs of all cases are kept in {environment.folder}")
        return found
