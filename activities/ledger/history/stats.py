"""Figures of one tenant, from the ledger's events and rows: added up in SQL, never loaded whole."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import and_, case, exists, func, or_, select, update

from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable, Transaction
from surehand.activities.ledger.core.tables import effects, events, interventions, runs, steps
from surehand.activities.ledger.history.audit import verify_chain, verify_entries, verify_story
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.history.stats_shapes import (
    BrokenRun,
    Compensations,
    Duplicates,
    Interventions,
    Invariants,
    Leases,
    Probe,
    Recoveries,
    Retried,
    Spread,
    Stats,
    rate,
)


@dataclass(frozen=True)
class Scope:
    """Whose figures, and since when."""

    tenant: str
    since: datetime
    run_id: str | None = None

    @property
    def since_ms(self) -> int:
        """The beginning, by the database's clock."""
        return int(self.since.timestamp() * 1000)

    def of(self, table: Any, moment: Any = None) -> Any:
        """Return the condition for a table's rows of this scope."""
        found = table.c.tenant_id == self.tenant
        if moment is not None:
            found &= moment >= self.since_ms
        return found if self.run_id is None else found & (table.c.run_id == self.run_id)


def count_of(tx: Transaction, table: Any, *conditions: Any) -> int:
    """Return how many rows meet the conditions."""
    row = tx.one(select(func.count().label("n")).select_from(table).where(*conditions))
    return int(row["n"]) if row else 0


def text_of(name: str) -> Any:
    """Return a field of an event's body, as text."""
    return events.c.body[name].as_string()


def number_of(name: str) -> Any:
    """Return a field of an event's body, as a number."""
    return events.c.body[name].as_integer()


#: An effect in one of these states has happened, whatever became of it.
_COMMITTED: Final = ("committed", "compensating", "compensated")


def retries_of(tx: Transaction, scope: Scope) -> list[Retried]:
    """Return what became of failed calls, by failure class."""
    class_, retry_ms = text_of("failure_class"), number_of("retry_ms")
    failed = and_(
        scope.of(events, events.c.at_ms),
        events.c.type.in_(("effect.failed", "step.failed")),
        class_.is_not(None),
    )
    rows = tx.all(
        select(
            class_.label("failure_class"),
            func.count().label("failures"),
            func.count(retry_ms).label("retried"),
            func.avg(retry_ms).label("delay_ms"),
        )
        .where(failed)
        .group_by(class_)
    )
    succeeded: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    again = and_(failed, retry_ms.is_not(None))
    for found in (tx.all(_effects_again(again)), tx.all(_reads_again(again))):
        for row in found:
            calls[row["failure_class"]] += row["calls"]
            succeeded[row["failure_class"]] += row["succeeded"]
    return [
        Retried(
            failure_class=name,
            failures=row["failures"],
            retried=row["retried"],
            mean_delay=None if row["delay_ms"] is None else float(row["delay_ms"]) / 1000,
            calls=calls[name],
            succeeded=succeeded[name],
            success_rate=rate(succeeded[name], calls[name]),
        )
        for row in sorted(rows, key=lambda row: str(row["failure_class"]))
        for name in [str(row["failure_class"])]
    ]


def _effects_again(again: Any) -> Any:
    entry_id = text_of("entry_id")
    tried = (
        select(
            events.c.tenant_id,
            text_of("failure_class").label("failure_class"),
            entry_id.label("entry_id"),
        )
        .where(again, events.c.type == "effect.failed")
        .distinct()
        .subquery()
    )
    happened = case((effects.c.state.in_(_COMMITTED), 1), else_=0)
    return (
        select(
            tried.c.failure_class,
            func.count().label("calls"),
            func.sum(happened).label("succeeded"),
        )
        .join(
            effects,
            and_(effects.c.tenant_id == tried.c.tenant_id, effects.c.entry_id == tried.c.entry_id),
        )
        .group_by(tried.c.failure_class)
    )


def _reads_again(again: Any) -> Any:
    tried = (
        select(
            events.c.tenant_id,
            events.c.run_id,
            events.c.step_id,
            text_of("failure_class").label("failure_class"),
        )
        .where(again, events.c.type == "step.failed")
        .distinct()
        .subquery()
    )
    answered = exists().where(
        steps.c.tenant_id == tried.c.tenant_id,
        steps.c.run_id == tried.c.run_id,
        steps.c.step_id == tried.c.step_id,
        steps.c.state == "succeeded",
    )
    return select(
        tried.c.failure_class,
        func.count().label("calls"),
        func.sum(case((answered, 1), else_=0)).label("succeeded"),
    ).group_by(tried.c.failure_class)


#: Measured as they happen, by the endpoint that SUREHAND_METRICS names; recorded nowhere.
ONLY_IN_METRICS: Final = (
    "surehand_ledger_transaction_seconds: latency of the ledger's real transactions",
    "temporal_request_latency_seconds: latency of writes to Temporal's history",
    "surehand_lease_wait_seconds: how often and how long attempts waited for a lease",
    "surehand_stale_entries_total: what each round looked at",
)

_CLAIM_LOST: Final = ("lease_over", "stale")


def stats(ledger: Ledger, scope: Scope, *, probes: int = 0) -> Stats:
    """Return the figures of one tenant, or of one of its runs.

    Args:
        ledger: The ledger.
        scope: Whose, and since when.
        probes: Write transactions to make and measure; they change nothing.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    invariants = _audit(ledger, scope)
    with ledger.transaction(scope.tenant) as tx:
        told = _told(tx, scope)
        recoveries = _recoveries(tx, scope, told)
        duplicates = _duplicates(tx, scope, told)
        retries = retries_of(tx, scope)
        open_now = count_of(
            tx, interventions, scope.of(interventions), interventions.c.state == "open"
        )
    claims = told.of("effect.claimed")
    lost = told.lost()
    return Stats(
        tenant=scope.tenant,
        run_id=scope.run_id,
        since=scope.since.astimezone(UTC),
        recoveries=recoveries,
        duplicates=duplicates,
        retries=retries,
        leases=Leases(claims=claims, lost=lost, success_rate=rate(max(claims - lost, 0), claims)),
        compensations=Compensations(
            compensated=told.of("effect.compensated"),
            uncompensated=told.of("effect.uncompensated"),
            failed=told.of("intervention.opened", rule="compensation_failed"),
        ),
        interventions=Interventions(
            opened=told.by_rule("intervention.opened"),
            settled=told.of("intervention.settled"),
            open=open_now,
        ),
        checkpoint=_probe(ledger, scope, probes) if probes else None,
        invariants=invariants,
        only_in_metrics=list(ONLY_IN_METRICS),
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
        found: Counter[str] = Counter()
        for (type_of, rule, _, _), n in self.counts.items():
            if type_of == type_:
                found[rule] += n
        return dict(sorted(found.items()))

    def branches(self) -> dict[str, int]:
        found: Counter[str] = Counter()
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


def _told(tx: Transaction, scope: Scope) -> _Told:
    said = [text_of(name) for name in ("rule", "action", "found")]
    rows = tx.all(
        select(
            events.c.type,
            *(one.label(name) for one, name in zip(said, ("a", "b", "c"), strict=True)),
            func.count().label("n"),
        )
        .where(
            scope.of(events, events.c.at_ms),
            or_(events.c.type.like("effect.%"), events.c.type.like("intervention.%")),
        )
        .group_by(events.c.type, *said)
    )
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for row in rows:
        counts[row["type"], row["a"] or "", row["b"] or "", row["c"] or ""] += row["n"]
    return _Told(counts)


def _recoveries(tx: Transaction, scope: Scope, told: _Told) -> Recoveries:
    ended = tx.all(
        select(text_of("action").label("action"), number_of("took_ms").label("took_ms")).where(
            scope.of(events, events.c.at_ms), events.c.type == "recovery.verified"
        )
    )
    times: dict[bool, list[float]] = {True: [], False: []}
    for row in ended:
        times[row["action"] == "human"].append(row["took_ms"] / 1000)
    missing = effects.c.recovering_ms.is_not(None)
    asked = exists().where(
        interventions.c.tenant_id == effects.c.tenant_id,
        interventions.c.entry_id == effects.c.entry_id,
        interventions.c.state == "open",
    )
    under_way = count_of(tx, effects, scope.of(effects), missing)
    waiting = count_of(tx, effects, scope.of(effects), missing, asked)
    judged = len(ended) + waiting
    return Recoveries(
        begun=told.by_rule("effect.in_doubt"),
        branches=told.branches(),
        ended=len(ended),
        without_human=len(times[False]),
        by_human=len(times[True]),
        under_way=under_way,
        waiting_for_human=waiting,
        success_rate=rate(len(times[False]), judged),
        human_takeover_rate=rate(len(times[True]) + waiting, judged),
        time=Spread.of(times[False]),
        time_by_human=Spread.of(times[True]),
    )


def _duplicates(tx: Transaction, scope: Scope, told: _Told) -> Duplicates:
    twice = (
        select(effects.c.key)
        .where(scope.of(effects), effects.c.state.in_(("committed", "compensating")))
        .group_by(effects.c.tenant_id, effects.c.tool, effects.c.key)
        .having(func.count() > 1, func.max(effects.c.settled_ms) >= scope.since_ms)
        .subquery()
    )
    return Duplicates(
        keys=count_of(tx, twice),
        late_receipts=told.of("effect.late_receipt"),
        repeats_answered=told.of("effect.replayed"),
    )


def _audit(ledger: Ledger, scope: Scope) -> Invariants:
    """Audit the runs that were open since then, one after the other."""
    if scope.run_id is not None:
        found = [scope.run_id]
    else:
        with ledger.transaction(scope.tenant) as tx:
            still = or_(runs.c.closed_ms.is_(None), runs.c.closed_ms >= scope.since_ms)
            rows = tx.all(
                select(runs.c.run_id).where(scope.of(runs), still).order_by(runs.c.run_id)
            )
        found = [str(row["run_id"]) for row in rows]
    broken = []
    for run_id in found:
        with ledger.transaction(scope.tenant) as tx:
            chain, entries, head = chain_of(tx, run_id)
        first = verify_chain(chain, [head]) or verify_story(chain) or verify_entries(chain, entries)
        if first is not None:
            broken.append(BrokenRun(run_id=run_id, first_break=str(first)))
    return Invariants(runs=len(found), ok=len(found) - len(broken), broken=broken)


def _probe(ledger: Ledger, scope: Scope, count: int) -> Probe | None:
    """Measure write transactions that write one run's row as it is: no event, nothing changed.

    ``None`` if there is no run yet.
    """
    # One that has ended, if there is one: nobody waits for its row.
    newest = (
        select(runs.c.run_id)
        .where(scope.of(runs))
        .order_by(runs.c.closed_ms.is_(None), runs.c.opened_ms.desc())
        .limit(1)
    )
    with ledger.transaction(scope.tenant) as tx:
        row = tx.one(newest)
    if row is None:
        return None
    as_it_is = (
        update(runs)
        .where(runs.c.tenant_id == scope.tenant, runs.c.run_id == row["run_id"])
        .values(plan_name=runs.c.plan_name)
    )
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
