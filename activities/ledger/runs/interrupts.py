"""What is recorded of a run's questions: asked, answered, or left without an answer."""

from __future__ import annotations

from pydantic import JsonValue

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import events
from surehand.activities.ledger.outbox import notification_rows
from surehand.activities.ledger.steps import attempts
from surehand.activities.ledger.steps.attempts import StepAttempt
from surehand.workflows.canonical_json import NotCanonical, digest
from surehand.workflows.contracts.steering import (
    GivenAnswer,
    Interrupt,
    InterruptKind,
    RecordInterrupt,
    Steer,
)
from surehand.workflows.plan.plan import ASKING, WAITING


def record(tx: Transaction, asked: RecordInterrupt) -> None:
    """Record that a question was asked, or that nobody has answered it; the same twice is once."""
    interrupt = asked.interrupt
    if _recorded(tx, asked):
        return
    row = _attempt(asked.run_id, interrupt)
    if interrupt.kind.is_whole_step:
        if asked.what == "opened":
            attempts.start(tx, row)
        elif asked.what == "expired" and asked.output is None:
            attempts.finish(tx, row, "failed", error="nobody has answered", error_class="expired")
        else:
            attempts.finish(tx, row, "succeeded", output=asked.output)
    if asked.what != "opened":
        notification_rows.drop_question(tx, asked.run_id, interrupt)
    elif interrupt.kind is not InterruptKind.EVENT:
        notification_rows.write_question(tx, asked.run_id, interrupt)
    tx.event(
        asked.run_id,
        f"interrupt.{asked.what}",
        step_id=interrupt.step_id,
        interrupt_id=interrupt.interrupt_id,
        kind=interrupt.kind.value,
        question=_digest(interrupt.question),
    )


def _recorded(tx: Transaction, asked: RecordInterrupt) -> bool:
    rows = tx.all(
        rows_of(
            events,
            events.c.body,
            run_id=asked.run_id,
            step_id=asked.interrupt.step_id,
            type=f"interrupt.{asked.what}",
        )
    )
    return any(row["body"]["interrupt_id"] == asked.interrupt.interrupt_id for row in rows)


def answered(tx: Transaction, asked: Steer, given: GivenAnswer) -> None:
    """Record an answer that counts."""
    interrupt = given.interrupt
    notification_rows.drop_question(tx, asked.run_id, interrupt)
    if interrupt.kind is InterruptKind.ASK:
        row = _attempt(asked.run_id, interrupt)
        attempts.finish(tx, row, "succeeded", output=given.value)
    tx.event(
        asked.run_id,
        "interrupt.answered",
        step_id=interrupt.step_id,
        interrupt_id=interrupt.interrupt_id,
        kind=interrupt.kind.value,
        actor=asked.actor,
        answer=_digest(given.value),
        steering_id=asked.steering_id,
        value_by=asked.actor if interrupt.kind.gives_value(given.value) else None,
    )


def _attempt(run_id: str, interrupt: Interrupt) -> StepAttempt:
    asked = {"question": interrupt.question, "answer": interrupt.answer_schema}
    does = WAITING if interrupt.kind is InterruptKind.EVENT else ASKING
    return StepAttempt(run_id, interrupt.step_id, 1, does, asked)


def _digest(value: JsonValue) -> str:
    try:
        return digest(value)
    except NotCanonical:
        return digest(str(value))
