"""Transactions of plain writes and reads, each as one call of PostgreSQL.

A transaction of the general way takes six to ten round trips, and most of what it asks is
answered with "nothing". The functions of ``migrations/one_call.py`` ask the same, and record the
same rows and events, where nothing is in the way. Where anything is, they have written nothing:
the general way finds out what it is. On SQLite there is no way to go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Dialect, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator

from surehand.activities.ledger.core.engine import SCHEMA
from surehand.activities.ledger.core.sealed import Sealing, sealing
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, steps
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.effects.claim_entry import new_entry, tell_claimed
from surehand.activities.ledger.steps import attempts as step_rows
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.activities.ledger.steps.entries import Claimed, ClaimRequest, Entry

_DIALECT: Final[Dialect] = postgresql.dialect()  # type: ignore[no-untyped-call]
_RECORD_WRITE: Final = f"SELECT * FROM {SCHEMA}.record_write({', '.join(['%s'] * 23)})"
_BEGIN_READ: Final = f"SELECT {SCHEMA}.begin_read(%s, %s, %s, %s)"
_RECORD_READ: Final = f"SELECT * FROM {SCHEMA}.record_read({', '.join(['%s'] * 13)})"
#: Arguments that stand for an outcome, and for a claim, where there is none.
_NO_OUTCOME: Final = (None,) * 6
_NO_CLAIM: Final = (None,) * 9
#: Times that count from a claim.
_FROM_CLAIM: Final = ("first_call_ms", "claimed_ms", "lease_until_ms", "deadline_ms")


@dataclass(frozen=True)
class Outcome:
    """That an effect happened."""

    request: ClaimRequest
    entry: Entry
    receipt: Kept

    @property
    def is_plain(self) -> bool:
        """Whether nothing but its own rows has to be looked at to record it."""
        entry, foreign = self.entry, self.request.foreign or self.entry.foreign_receipt
        as_claimed = entry.state == "claimed" and entry.recovering_ms is None and not entry.undoes
        return as_claimed and self.receipt.artifact is None and not foreign


@dataclass(frozen=True)
class Recorded:
    """What one call has recorded."""

    commit_no: int | None
    claimed: Claimed | None


def is_plain(request: ClaimRequest) -> bool:
    """Return whether a claim needs nothing but its key, as far as the request itself says."""
    asked_for = request.gated or request.if_foreign is not None or request.permissions
    return not (asked_for or request.drift or request.undoes or request.within)


def record_write(
    tx: Transaction, run_id: str, outcome: Outcome | None, following: ClaimRequest | None
) -> Recorded | None:
    """Record an outcome that ``is_plain``, and claim what follows, if nothing is in its way.

    Args:
        tx: The call: no transaction is open around it.
        run_id: The run of both.
        outcome: Of the write that is over, if any is.
        following: What is claimed, if anything: a request that ``is_plain``.

    Returns:
        What was recorded; ``None``: nothing, because something is in the way.
    """
    made: dict[str, Any] = {}
    if following is not None:
        # The clock is the database's: times count from zero, and are moved when they are known.
        made = dict.fromkeys(effects.c.keys()) | {"tenant_id": tx.tenant}
        made |= new_entry(tx, following, epoch=0, generation=1)
    with _sealed(tx, run_id):
        done = _NO_OUTCOME if outcome is None else _outcome(outcome)
        claim = _NO_CLAIM if following is None else _claim(following, made)
    if outcome is not None:
        outcomes.tell_committed(tx, outcome.entry, outcome.receipt)
    if following is not None:
        tell_claimed(tx, following, Entry.from_row(made))
    row = tx.call(_RECORD_WRITE, run_id, *done, *claim)
    if row is None:
        return None
    claimed = None
    if following is not None and row["is_claimed"]:
        made |= {name: made[name] + tx.now_ms for name in _FROM_CLAIM}
        claimed = Claimed(Entry.from_row(made))
    elif following is not None:
        tx.pending[run_id].pop()
    tx.chained(run_id, row)
    return Recorded(row["done_number"], claimed)


def begin_read(tx: Transaction, attempt: StepAttempt) -> bool:
    """Record that the first attempt at a read runs, if nothing is in its way.

    Args:
        tx: The call: no transaction is open around it.
        attempt: The attempt, with its holder.

    Returns:
        Whether it is recorded.
    """
    with _sealed(tx, attempt.run_id):
        started = _started(tx.tenant, attempt)
    called = (tx.tenant, str(tx.patience_ms), *started)
    at_ms = tx.connection.exec_driver_sql(_BEGIN_READ, called).scalar_one()
    tx.now_ms = at_ms or 0
    return at_ms is not None


def record_read(tx: Transaction, attempt: StepAttempt, output: Any) -> bool:
    """Record what a read has returned, if its attempt still counts.

    Args:
        tx: The call: no transaction is open around it.
        attempt: The attempt, with its holder.
        output: What it has returned: no artifact.

    Returns:
        Whether it is recorded; if it is not, the general way finds out what is in the way.
    """
    run_id = attempt.run_id
    with _sealed(tx, run_id):
        cell = _cell(steps, "output", output)
    step_rows.tell_ended(tx, attempt, "succeeded")
    which = (attempt.step_id, attempt.attempt, attempt.holder, attempt.batch)
    row = tx.call(_RECORD_READ, run_id, *which, cell)
    if row is not None:
        tx.chained(run_id, row)
    return row is not None


def _sealed(tx: Transaction, run_id: str) -> AbstractContextManager[None]:
    return nullcontext() if tx.keys is None else sealing(Sealing(tx.tenant, run_id, tx.keys))


def _outcome(outcome: Outcome) -> tuple[Any, ...]:
    entry, receipt = outcome.entry, outcome.receipt.value
    attempt = outcome.request.step_attempt
    return (
        *(entry.entry_id, entry.fencing_token, _cell(effects, "receipt", receipt)),
        *(attempt.step_id, attempt.attempt, _cell(steps, "output", receipt)),
    )


def _claim(request: ClaimRequest, entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        *(request.step_id, request.tool, request.key, request.execution, request.batch),
        *(_row(effects, {**entry, "params": None}), _cell(effects, "params", request.params)),
        *_started(request.tenant, request.step_attempt),
    )


def _started(tenant: str, attempt: StepAttempt) -> tuple[str, str | None]:
    """Return the row of an attempt that runs, and its input."""
    started = {
        "tenant_id": tenant,
        "run_id": attempt.run_id,
        "step_id": attempt.step_id,
        "attempt": attempt.attempt,
        "tool": attempt.tool,
        "state": "running",
        "holder": attempt.holder,
    }
    return _row(steps, started), _cell(steps, "input", attempt.params)


def _row(table: Table, values: Mapping[str, Any]) -> str:
    """Return a row as JSON, its sealed cells sealed."""
    return json.dumps({name: _written(table, name, value) for name, value in values.items()})


def _cell(table: Table, column: str, value: Any) -> str | None:
    return None if value is None else json.dumps(_written(table, column, value))


def _written(table: Table, column: str, value: Any) -> Any:
    type_ = table.c[column].type
    return type_.process_bind_param(value, _DIALECT) if isinstance(type_, TypeDecorator) else value
