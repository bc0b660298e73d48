"""Who has looked at params that their tool says are secret: events of the run, in its chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.identity import approval_id

#: Requests of one step that are looked through: by their ids, which no index of runs is needed for.
_MOST: Final = 100


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


def secret_requests(tx: Transaction, run_id: str, step_id: str) -> list[dict[str, Any]]:
    """Return the requests of a step whose params are secret.

    Args:
        tx: The transaction.
        run_id: The run.
        step_id: The step.
    """
    ids = [approval_id(run_id, step_id, number) for number in range(1, _MOST + 1)]
    columns = (approvals.c.approval_id, approvals.c.run_id, approvals.c.step_id)
    of_these = rows_of(approvals, *columns, secret=True).where(approvals.c.approval_id.in_(ids))
    return tx.all(of_these.order_by(approvals.c.approval_id))
