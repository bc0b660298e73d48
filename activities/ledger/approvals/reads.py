"""Who has looked at params that their tool says are secret: events of the run, in its chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surehand.activities.ledger.core.store import Transaction
from surehand.workflows.contracts.interrupts import Interrupt


def record_read(tx: Transaction, row: Mapping[str, Any], reader: str) -> None:
    """Record that somebody is about to be shown the params of a request.

    Args:
        tx: The transaction; what is read is shown only once it is committed.
        row: Of ``approvals``.
        reader: Who is signed in, as far as that is proven.
    """
    tx.event(
        row["run_id"],
        "approval.read",
        step_id=row["step_id"],
        approval_id=row["approval_id"],
        actor=reader,
    )


def record_question_read(tx: Transaction, run_id: str, asked: Interrupt, reader: str) -> None:
    """Record that somebody is about to be shown the params that a question is about.

    Args:
        tx: The transaction; what is read is shown only once it is committed.
        run_id: Of the run that asks.
        asked: The question.
        reader: Who is signed in, as far as that is proven.
    """
    tx.event(
        run_id,
        "interrupt.read",
        step_id=asked.step_id,
        interrupt_id=asked.interrupt_id,
        actor=reader,
    )
