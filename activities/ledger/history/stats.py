"""Figures of one tenant, from the ledger's events and rows: added up in SQL, never loaded whole.

The classes are what ``surehand stats`` tells. Add-only: scripts read it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Select, Subquery, case, func, or_, select

from surehand.activities.ledger.approvals.waiting import Group, measure_waiting
from surehand.activities.ledger.core.statements import ours, rows_of, update_rows
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.ledger.core.tables import (
    WITHOUT_OUTCOME,
    approvals,
    decisions,
    effects,
    events,
    interventions,
    runs,
    steps,
)
from surehand.activities.ledger.effects.epochs import current_epoch
from surehand.activities.ledger.halts import count_halts
from surehand.activities.ledger.history.audit import verify_run
from surehand.activities.ledger.history.reads import chain_of, open_interventions
from surehand.activities.ledger.people.principals import read_principals
from surehand.activities.ledger.runs.deletion import is_deleted
from surehand.workflows.contracts.approvals import VerdictCode


class Figures(BaseModel):
    """Base of the parts."""

    model_config = ConfigDict(frozen=True)


class Spread(Figures):
    """Percentiles of durations, in seconds."""

    count: int
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """Return the percentiles (nearest rank) of some durations; ``None`` if there are none."""
        if not seconds:
            return None
        ranked = sorted(seconds)
        at = [ranked[math.ceil(len(ranked) * share) - 1] for share in (0.50, 0.95, 0.99)]
        return cls(count=len(ranked), p50=at[0], p95=at[1], p99=at[2])


class Recoveries(Figures):
    """Effects whose outcome an attempt has left open."""

    begun: dict[str, int]
    """How they began: ``lease_over``, ``stale``, ``call_ended_without_an_outcome``,
    ``no_to_a_repeat``, ``restored``."""
    branches: dict[str, int]
    """What was done about them: ``rule: action``."""
    ended: int
    without_human: int
    by_human: int
    under_way: int
    """Now, whenever they began."""
    waiting_for_human: int
    """Of those under way."""
    success_rate: float | None
    """Those ended without a human, of all that have ended or wait for one."""
    human_takeover_rate: float | None
    """The others of these."""
    time: Spread | None
    """From the moment an attempt found the outcome missing; without a human."""
    time_by_human: Spread | None


class Duplicates(Figures):
    """What must never be, and what came close."""

    keys: int
    """Business keys with two committed effects that are not undone: must be 0."""
    late_receipts: int
    """Receipts of attempts that had been taken over: kept as evidence."""
    repeats_answered: int
    """Calls that were answered with the receipt of an effect made before."""


class Retried(Figures):
    """Failures of one class, of writes and reads."""

    failure_class: str
    failures: int
    retried: int
    mean_delay: float | None
    """Seconds before a retry."""
    calls: int
    """Effects and reads that were tried again."""
    succeeded: int
    """Those of them that have succeeded since."""
    success_rate: float | None


class Leases(Figures):
    """Leases on effects."""

    claims: int
    lost: int
    """Ran out before an outcome was recorded: another attempt, or the reaper, took over."""
    success_rate: float | None


class Compensations(Figures):
    """Effects of runs that were undone."""

    compensated: int
    uncompensated: int
    """Listed: kept, irreversible, or left so by a human."""
    failed: int
    """Put in front of a human."""


class InterventionFigures(Figures):
    """Questions that only a human can settle."""

    opened: dict[str, int]
    """By rule: ``unknown``, ``partial``, ``compensation_failed``, ``undo_changed``,
    ``undo_refused``."""
    settled: int
    open: int
    """Now, whenever they were opened."""


class ApprovalFigures(Figures):
    """Requests for approval, and the people who decide them."""

    decisions: int
    time: Spread | None
    """From the request to the decision of each person."""
    waiting: int
    """Now, whenever they were asked."""
    oldest: float | None
    """Seconds since the oldest of them was asked."""
    asked_each_day: dict[str, float]
    """By principal: requests for which their vote can count."""
    decided_each_day: dict[str, float]
    """By person: decisions that counted."""


class Probe(Figures):
    """Write transactions that were made to measure them."""

    transactions: int
    failed: int
    success_rate: float
    latency: Spread | None


class BrokenRun(Figures):
    """A run whose records do not hold."""

    run_id: str
    first_break: str


class Invariants(Figures):
    """What ``audit`` finds in each run."""

    runs: int
    ok: int
    broken: list[BrokenRun]


class Stats(Figures):
    """``stats``."""

    tenant: str
    since: datetime
    recoveries: Recoveries
    duplicates: Duplicates
    retries: list[Retried]
    leases: Leases
    compensations: Compensations
    interventions: InterventionFigures
    approvals: ApprovalFigures
    epoch: int | None
    """The epoch that is open: the ledger was restored."""
    halts: dict[str, int]
    """Halts of the tenant that stand, by what they stop: ``tenant``, ``tool``, ``run``."""
    checkpoint: Probe | None
    """With ``--probe``."""
    invariants: Invariants


def share_of(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class StatsScope:
    """Whose figures, and since when."""

    tenant: str
    since: datetime

    @property
    def since_ms(self) -> int:
        """The beginning, by the database's clock."""
        return int(self.since.timestamp() * 1000)

    def events(self, *columns: Any) -> Select[Any]:
        return rows_of(events, *columns).where(events.c.at_ms >= self.since_ms)


def count_of(tx: Transaction, query: Select[Any]) -> int:
    return tx.count(select(func.count()).select_from(query.subquery()))


def text_of(name: str) -> Any:
    return events.c.body[name].as_string()


def number_of(name: str) -> Any:
    return events.c.body[name].as_integer()


#: An effect in one of these states has happened, whatever became of it.
_COMMITTED: Final = ("committed", "compensating", "compensated")


def retries_of(tx: Transaction, scope: StatsScope) -> list[Retried]:
    class_, retry_ms = text_of("failure_class"), number_of("retry_ms")
    rows = tx.all(
        scope.events(
            class_.label("failure_class"),
            func.count().label("failures"),
            func.count(retry_ms).label("retried"),
            func.avg(retry_ms).label("delay_ms"),
        )
        .where(events.c.type.in_(("effect.failed", "step.failed")), class_.is_not(None))
        .group_by(class_)
    )
    calls, succeeded = Counter[str](), Counter[str]()
    for again in (*tx.all(_effects_again(scope)), *tx.all(_reads_again(scope))):
        calls[again["failure_class"]] += again["calls"]
        succeeded[again["failure_class"]] += again["succeeded"]
    found = []
    for row in sorted(rows, key=itemgetter("failure_class")):
        name, delay_ms = row["failure_class"], row.pop("delay_ms")
        found.append(
            Retried(
                **row,
                mean_delay=None if delay_ms is None else float(delay_ms) / 1000,
                calls=calls[name],
                succeeded=succeeded[name],
                success_rate=share_of(succeeded[name], calls[name]),
            )
        )
    return found


def _tried_again(scope: StatsScope, type_: str, *columns: Any) -> Subquery:
    """Return the failures of a kind after which it is called again."""
    class_, retry_ms = text_of("failure_class"), number_of("retry_ms")
    return (
        scope.events(class_.label("failure_class"), *columns)
        .where(events.c.type == type_, class_.is_not(None), retry_ms.is_not(None))
        .distinct()
        .subquery()
    )


def _effects_again(scope: StatsScope) -> Select[Any]:
    tried = _tried_again(scope, "effect.failed", text_of("entry_id").label("entry_id"))
    happened = case((effects.c.state.in_(_COMMITTED), 1), else_=0)
    return (
        rows_of(
            effects,
            tried.c.failure_class,
            func.count().label("calls"),
            func.sum(happened).label("succeeded"),
        )
        .join(tried, effects.c.entry_id == tried.c.entry_id)
        .group_by(tried.c.failure_class)
    )


def _reads_again(scope: StatsScope) -> Select[Any]:
    tried = _tried_again(scope, "step.failed", events.c.run_id, events.c.step_id)
    its = {"run_id": tried.c.run_id, "step_id": tried.c.step_id}
    answered = rows_of(steps, **its, state="succeeded").exists()
    return select(
        tried.c.failure_class,
        func.count().label("calls"),
        func.sum(case((answered, 1), else_=0)).label("succeeded"),
    ).group_by(tried.c.failure_class)


_CLAIM_LOST: Final = ("lease_over", "stale")


def read_stats(ledger: Ledger, scope: StatsScope, *, probes: int = 0) -> Stats:
    """Return the figures of one tenant.

    ``probes`` write transactions are made and measured; they change nothing.
    """
    invariants = _audit_runs(ledger, scope)
    with ledger.transaction(scope.tenant) as tx:
        told = _count_events(tx, scope)
        epoch, halts = current_epoch(tx), count_halts(tx)
        recoveries = _read_recoveries(tx, scope, told)
        duplicates = _find_duplicates(tx, scope, told)
        retries = retries_of(tx, scope)
        asked = _read_approvals(tx, scope)
        open_now = open_interventions(tx)
    claims, lost = told.of("effect.claimed"), told.lost()
    return Stats(
        tenant=scope.tenant,
        since=scope.since.astimezone(UTC),
        recoveries=recoveries,
        duplicates=duplicates,
        retries=retries,
        leases=Leases(
            claims=claims, lost=lost, success_rate=share_of(max(claims - lost, 0), claims)
        ),
        compensations=Compensations(
            compensated=told.of("effect.compensated"),
            uncompensated=told.of("effect.uncompensated"),
            failed=told.of("intervention.opened", rule="compensation_failed"),
        ),
        interventions=InterventionFigures(
            opened=told.by_rule("intervention.opened"),
            settled=told.of("intervention.settled"),
            open=open_now,
        ),
        approvals=asked,
        epoch=None if epoch is None else epoch.number,
        halts=halts,
        checkpoint=_probe_writes(ledger, scope, probes) if probes else None,
        invariants=invariants,
    )


@dataclass(frozen=True)
class _Told:
    """How many events there are, by type, rule, action and what was found before."""

    counts: Counter[tuple[str, str, str, str]]

    def of(self, type_: str, *, rule: str | None = None) -> int:
        return sum(
            n for key, n in self.counts.items() if key[0] == type_ and rule in (None, key[1])
        )

    def by_rule(self, type_: str) -> dict[str, int]:
        found = Counter[str]()
        for (type_of, rule, _, _), n in self.counts.items():
            if type_of == type_:
                found[rule] += n
        return dict(sorted(found.items()))

    def branches(self) -> dict[str, int]:
        found = Counter[str]()
        for (type_, rule, action, _), n in self.counts.items():
            if type_ == "effect.reconciled" or (type_ == "effect.committed" and rule):
                found[f"{rule}: {action or 'commit'}"] += n
        return dict(sorted(found.items()))

    def lost(self) -> int:
        """Return how many claims were taken over: put in doubt, or called again at once."""
        doubted = sum(self.of("effect.in_doubt", rule=rule) for rule in _CLAIM_LOST)
        again = sum(
            n
            for (type_, _, _, before), n in self.counts.items()
            if type_ == "effect.reconciled" and before == "claimed"
        )
        return doubted + again


def _count_events(tx: Transaction, scope: StatsScope) -> _Told:
    said = (events.c.type, *(text_of(name) for name in ("rule", "action", "found")))
    named = [one.label(f"said_{n}") for n, one in enumerate(said)]
    query = scope.events(*named, func.count()).group_by(*said)
    about = or_(events.c.type.like("effect.%"), events.c.type.like("intervention.%"))
    counts = Counter[tuple[str, str, str, str]]()
    for row in tx.all(query.where(about)):
        type_, rule, action, found, number = row.values()
        counts[type_, rule or "", action or "", found or ""] += number
    return _Told(counts)


def _read_recoveries(tx: Transaction, scope: StatsScope, told: _Told) -> Recoveries:
    said = (text_of("action").label("action"), number_of("took_ms").label("took_ms"))
    ended = tx.all(scope.events(*said).where(events.c.type == "recovery.verified"))
    by_human = [row["took_ms"] / 1000 for row in ended if row["action"] == "human"]
    without = [row["took_ms"] / 1000 for row in ended if row["action"] != "human"]
    missing = rows_of(effects, effects.c.entry_id).where(
        WITHOUT_OUTCOME, effects.c.recovering_ms.is_not(None)
    )
    asked = rows_of(interventions, entry_id=effects.c.entry_id, state="open").exists()
    under_way = count_of(tx, missing)
    waiting = count_of(tx, missing.where(asked))
    judged = len(ended) + waiting
    return Recoveries(
        begun=told.by_rule("effect.in_doubt"),
        branches=told.branches(),
        ended=len(ended),
        without_human=len(without),
        by_human=len(by_human),
        under_way=under_way,
        waiting_for_human=waiting,
        success_rate=share_of(len(without), judged),
        human_takeover_rate=share_of(len(by_human) + waiting, judged),
        time=Spread.of(without),
        time_by_human=Spread.of(by_human),
    )


def _find_duplicates(tx: Transaction, scope: StatsScope, told: _Told) -> Duplicates:
    twice = (
        rows_of(effects, effects.c.key)
        .where(effects.c.state.in_(("committed", "compensating")))
        .group_by(effects.c.tool, effects.c.key)
        .having(func.count() > 1, func.max(effects.c.settled_ms) >= scope.since_ms)
    )
    return Duplicates(
        keys=count_of(tx, twice),
        late_receipts=told.of("effect.late_receipt"),
        repeats_answered=told.of("effect.replayed"),
    )


def _read_approvals(tx: Transaction, scope: StatsScope) -> ApprovalFigures:
    said, asked = decisions.c, approvals.c
    counted = rows_of(decisions, said.approver, said.at_ms, asked.requested_ms).where(
        said.at_ms >= scope.since_ms,
        said.verdict == VerdictCode.ACCEPTED.value,
        said.standing_id.is_(None),
    )
    decided = tx.all(counted.join(approvals, ours(approvals, approval_id=said.approval_id)))
    waiting, oldest_ms = measure_waiting(tx)
    groups = tx.all(
        rows_of(approvals, asked.asked_of, func.count().label("n"))
        .where(asked.requested_ms >= scope.since_ms)
        .group_by(asked.asked_of)
    )
    days = max(tx.now_ms - scope.since_ms, 1) / 86_400_000
    questions, answers = Counter[str](), Counter(row["approver"] for row in decided)
    for person in read_principals(tx):
        for row in groups:
            if Group(row["asked_of"], "").is_for(person.roles):
                questions[person.name] += row["n"]
    return ApprovalFigures(
        decisions=len(decided),
        time=Spread.of([max(0, row["at_ms"] - row["requested_ms"]) / 1000 for row in decided]),
        waiting=waiting,
        oldest=oldest_ms / 1000 if waiting else None,
        asked_each_day={name: n / days for name, n in sorted(questions.items())},
        decided_each_day={name: n / days for name, n in sorted(answers.items())},
    )


def _audit_runs(ledger: Ledger, scope: StatsScope) -> Invariants:
    """Audit the runs that were open since then, one after the other."""
    # Of deleted ones there is no chain any more: their receipts prove them.
    still = or_(runs.c.closed_ms.is_(None), runs.c.closed_ms >= scope.since_ms)
    there = rows_of(runs, runs.c.run_id).where(~is_deleted(), still)
    with ledger.transaction(scope.tenant) as tx:
        found = tx.read_column(there.order_by(runs.c.run_id))
    broken = []
    for run_id in found:
        with ledger.transaction(scope.tenant) as tx:
            chain, entries, head = chain_of(tx, run_id)
        first = verify_run(chain, entries, [head])
        if first is not None:
            broken.append(BrokenRun(run_id=run_id, first_break=str(first)))
    return Invariants(runs=len(found), ok=len(found) - len(broken), broken=broken)


def _probe_writes(ledger: Ledger, scope: StatsScope, count: int) -> Probe | None:
    """Measure write transactions that write one run's row as it is: no event, nothing changed.

    ``None`` if there is no run yet.
    """
    # One that has ended, if there is one: nobody waits for its row.
    newest = (
        rows_of(runs, runs.c.run_id)
        .order_by(runs.c.closed_ms.is_(None), runs.c.opened_ms.desc())
        .limit(1)
    )
    with ledger.transaction(scope.tenant) as tx:
        row = tx.one(newest)
    if row is None:
        return None
    as_it_is = update_rows(runs, run_id=row["run_id"]).values(plan_name=runs.c.plan_name)
    took, failed = [], 0
    for _ in range(count):
        start = time.perf_counter()
        try:
            with ledger.transaction(scope.tenant) as tx:
                tx.execute(as_it_is)
        except LedgerUnavailable:
            failed += 1
        else:
            took.append(time.perf_counter() - start)
    return Probe(
        transactions=count,
        failed=failed,
        success_rate=(count - failed) / count,
        latency=Spread.of(took),
    )
