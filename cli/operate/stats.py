"""``stats``: how recoveries, retries, leases and compensations went, from the ledger alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from surehand.cli.verb import options
from surehand.cli.verb.ledger_door import ledger_of, read_settings
from surehand.cli.verb.printer import Lines, Reply, Styled, Table
from surehand.process.exits import ExitCode

if TYPE_CHECKING:
    from surehand.activities.ledger.history.stats_shapes import Spread, Stats


async def stats(
    caller: options.Onlooker,
    since: Annotated[
        timedelta,
        options.lasting("--since", "How far back to look.", show_default="1d"),
    ] = timedelta(hours=24),
    run: Annotated[str | None, typer.Option("--run", help="Only this run's figures.")] = None,
    probe: Annotated[
        int,
        typer.Option(
            "--probe", min=0, max=10_000, help="Write transactions to make and measure now."
        ),
    ] = 0,
) -> Reply:
    """Show recoveries, retries, leases, compensations, and whether all invariants hold.

    Example: python starter.py stats --since 7d --probe 100
    """
    from surehand.activities.ledger.history.stats import Scope
    from surehand.activities.ledger.history.stats import stats as figures

    run_id = caller.run_id(run) if run else None
    scope = Scope(caller.tenant, datetime.now(UTC) - since, run_id)
    async with ledger_of(read_settings()) as ledger:
        found = figures(ledger, scope, probes=probe)
    holds = not found.invariants.broken and not found.duplicates.keys
    code = ExitCode.DONE if holds else ExitCode.BROKEN
    return Reply(found, _lines(found, probed=bool(probe)), code)


def _lines(found: Stats, *, probed: bool) -> Lines:
    whose = f"run {found.run_id}" if found.run_id else f"tenant {found.tenant}"
    yield Styled(f"Figures of {whose} since {found.since:%Y-%m-%d %H:%M:%S} UTC", "bold")
    if found.epoch is not None:
        yield f"Epoch {found.epoch} is open: the ledger was restored"
    rows = [*_recovery_rows(found), *_other_rows(found), _checkpoint_row(found, probed)]
    yield Table(("what", "figure", "more"), rows)
    if found.retries:
        yield ""
        yield Table(
            ("failure class", "failures", "retried", "mean delay", "calls", "succeeded"),
            [
                [
                    one.failure_class,
                    str(one.failures),
                    str(one.retried),
                    "" if one.mean_delay is None else f"{one.mean_delay:.1f} s",
                    str(one.calls),
                    f"{one.succeeded} ({_share(one.success_rate)})",
                ]
                for one in found.retries
            ],
        )
    for broken in found.invariants.broken:
        yield Styled(f"BROKEN {broken.run_id}: {broken.first_break}", "bold red")
    yield ""
    yield "Only at the metrics endpoint (SUREHAND_METRICS):"
    yield from (f"  {line}" for line in found.only_in_metrics)


def _recovery_rows(found: Stats) -> list[list[str]]:
    it = found.recoveries
    return [
        ["recoveries", str(it.ended), f"{it.under_way} under way; begun by {_counts(it.begun)}"],
        ["  settled without a human", _share(it.success_rate), _counts(it.branches)],
        [
            "  human takeover",
            _share(it.human_takeover_rate),
            f"{it.by_human} settled, {it.waiting_for_human} waiting",
        ],
        ["  time", *_spread(it.time)],
        ["  time, by a human", *_spread(it.time_by_human)],
    ]


def _other_rows(found: Stats) -> list[list[str]]:
    twice, leases, undone = found.duplicates, found.leases, found.compensations
    asked, checked = found.interventions, found.invariants
    return [
        [
            "duplicates",
            str(twice.keys),
            f"{twice.repeats_answered} repeats answered from the ledger,"
            f" {twice.late_receipts} late receipts",
        ],
        ["leases kept", _share(leases.success_rate), f"{leases.claims} claims, {leases.lost} lost"],
        [
            "compensations",
            str(undone.compensated),
            f"{undone.uncompensated} left as they were, {undone.failed} failed",
        ],
        [
            "interventions",
            str(sum(asked.opened.values())),
            f"{asked.settled} settled, {asked.open} open; by rule: {_counts(asked.opened)}",
        ],
        [
            "invariants hold",
            f"{checked.ok} of {checked.runs} runs",
            f"{len(checked.broken)} broken",
        ],
    ]


def _checkpoint_row(found: Stats, probed: bool) -> list[str]:
    it = found.checkpoint
    if it is None:
        why = "there is no run to measure on yet" if probed else "--probe N measures"
        return ["checkpoint latency", "", why]
    figure, more = _spread(it.latency)
    return ["checkpoint latency", figure, f"{more}; {_share(it.success_rate)} succeeded"]


def _spread(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "", "none"
    p50, p95, p99 = (_seconds(value) for value in (spread.p50, spread.p95, spread.p99))
    return p50, f"p50 of {spread.count}; p95 {p95}, p99 {p99}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"


def _share(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:.1%}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing"
