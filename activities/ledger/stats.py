"""Figures of one tenant, from the ledger's events and rows: added up in SQL, never loaded whole."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC
from typing import Final

from sqlalchemy import exists, func, or_, select, update

from activities.ledger.audit import verify_chain, verify_entries, verify_story
from activities.ledger.reads import chain_of
from activities.ledger.stats_retries import retries_of
from activities.ledger.stats_scope import Scope, count_of, number_of, text_of
from activities.ledger.stats_shapes import (
    BrokenRun,
    Compensations,
    Duplicates,
    Interventions,
    Invariants,
    Leases,
    Probe,
    Recoveries,
    Spread,
    Stats,
    rate,
)
from activities.ledger.store import Ledger, LedgerUnavailable, Transaction
from activities.ledger.tables import effects, events, interventions, runs

#: Measured as they happen, by the endpoint that SUREHAND_METRICS names; recorded nowhere.
ONLY_IN_METRICS: Final = (
    "surehand_ledger_transaction_seconds: latency of the ledger's real transactions",
    "temporal_request_latency_seconds: latency of writes to Temporal's history",
    "surehand_lease_wait_seconds: how often and how long attempts waited for a lease",
    "surehand_swept_total: what each sweep looked at",
)

_CLAIM_LOST: Final = ("lease_over", "swept")


async def stats(ledger: Ledger, scope: Scope, *, probes: int = 0) -> Stats:
    """Return the figures of one tenant, or of one of its runs.

    Args:
        ledger: The ledger.
        scope: Whose, and since when.
        probes: Write transactions to make and measure; they change nothing.

    Raises:
        RunNotFound: No such run in this tenant.
    """
    invariants = await _audit(ledger, scope)
    async with ledger.transaction(scope.tenant) as tx:
        told = await _told(tx, scope)
        recoveries = await _recoveries(tx, scope, told)
        duplicates = await _duplicates(tx, scope, told)
        retries = await retries_of(tx, scope)
        open_now = await count_of(
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
        checkpoint=await _probe(ledger, scope, probes) if probes else None,
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


async def _told(tx: Transaction, scope: Scope) -> _Told:
    said = [text_of(name) for name in ("rule", "action", "found")]
    rows = await tx.all(
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


async def _recoveries(tx: Transaction, scope: Scope, told: _Told) -> Recoveries:
    ended = await tx.all(
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
    under_way = await count_of(tx, effects, scope.of(effects), missing)
    waiting = await count_of(tx, effects, scope.of(effects), missing, asked)
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


async def _duplicates(tx: Transaction, scope: Scope, told: _Told) -> Duplicates:
    twice = (
        select(effects.c.key)
        .where(scope.of(effects), effects.c.state.in_(("committed", "compensating")))
        .group_by(effects.c.tenant_id, effects.c.tool, effects.c.key)
        .having(func.count() > 1, func.max(effects.c.settled_ms) >= scope.since_ms)
        .subquery()
    )
    return Duplicates(
        keys=await count_of(tx, twice),
        late_receipts=told.of("effect.late_receipt"),
        repeats_answered=told.of("effect.replayed"),
    )


async def _audit(ledger: Ledger, scope: Scope) -> Invariants:
    """Audit the runs that were open since then, one after the other."""
    if scope.run_id is not None:
        found = [scope.run_id]
    else:
        async with ledger.transaction(scope.tenant) as tx:
            still = or_(runs.c.closed_ms.is_(None), runs.c.closed_ms >= scope.since_ms)
            rows = await tx.all(
                select(runs.c.run_id).where(scope.of(runs), still).order_by(runs.c.run_id)
            )
        found = [str(row["run_id"]) for row in rows]
    broken = []
    for run_id in found:
        chain, entries, head = await chain_of(ledger, scope.tenant, run_id)
        first = verify_chain(chain, [head]) or verify_story(chain) or verify_entries(chain, entries)
        if first is not None:
            broken.append(BrokenRun(run_id=run_id, first_break=str(first)))
    return Invariants(runs=len(found), ok=len(found) - len(broken), broken=broken)


async def _probe(ledger: Ledger, scope: Scope, count: int) -> Probe | None:
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
    async with ledger.transaction(scope.tenant) as tx:
        row = await tx.one(newest)
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
            async with ledger.transaction(scope.tenant) as tx:
                await tx.execute(as_it_is)
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
