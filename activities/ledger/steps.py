"""Step rows: one for each attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from activities.ledger.store import Transaction
from activities.ledger.tables import steps


@dataclass(frozen=True)
class StepAttempt:
    """What identifies an attempt of a step, and what it was given."""

    run_id: str
    step_id: str
    attempt: int
    tool: str
    params: dict[str, Any]


async def start(tx: Transaction, attempt: StepAttempt) -> None:
    """Record that an attempt runs; the same attempt twice is one row."""
    dialect = postgresql if tx.connection.dialect.name == "postgresql" else sqlite
    await tx.execute(
        dialect.insert(steps)
        .values(
            tenant_id=tx.tenant,
            run_id=attempt.run_id,
            step_id=attempt.step_id,
            attempt=attempt.attempt,
            tool=attempt.tool,
            state="running",
            input=attempt.params,
            started_ms=tx.now_ms,
        )
        .on_conflict_do_nothing()
    )


async def finish(
    tx: Transaction,
    attempt: StepAttempt,
    state: str,
    *,
    output: Any = None,
    error: str | None = None,
    error_class: str | None = None,
) -> None:
    """Record how an attempt ended."""
    await tx.execute(
        update(steps)
        .where(
            steps.c.tenant_id == tx.tenant,
            steps.c.run_id == attempt.run_id,
            steps.c.step_id == attempt.step_id,
            steps.c.attempt == attempt.attempt,
        )
        .values(
            state=state, output=output, error=error, error_class=error_class, ended_ms=tx.now_ms
        )
    )


async def failures(tx: Transaction, run_id: str, step_id: str, error_class: str) -> int:
    """Return how many attempts of a step have ended with a failure of that class."""
    row = await tx.one(
        select(func.count().label("n")).where(
            steps.c.tenant_id == tx.tenant,
            steps.c.run_id == run_id,
            steps.c.step_id == step_id,
            steps.c.error_class == error_class,
        )
    )
    return int(row["n"]) if row else 0
