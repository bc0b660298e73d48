"""Figures of retries: how often each class of failures was tried again, and what came of it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sqlalchemy import and_, case, exists, func, select

from activities.ledger.stats_scope import Scope, number_of, text_of
from activities.ledger.stats_shapes import Retried, rate
from activities.ledger.store import Transaction
from activities.ledger.tables import effects, events, steps

#: An effect in one of these states has happened, whatever became of it.
_COMMITTED: Final = ("committed", "compensating", "compensated")


async def retries_of(tx: Transaction, scope: Scope) -> list[Retried]:
    """Return what became of failed calls, by failure class."""
    class_, retry_ms = text_of("failure_class"), number_of("retry_ms")
    failed = and_(
        scope.of(events, events.c.at_ms),
        events.c.type.in_(("effect.failed", "step.failed")),
        class_.is_not(None),
    )
    rows = await tx.all(
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
    for found in (await tx.all(_effects_again(again)), await tx.all(_reads_again(again))):
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
