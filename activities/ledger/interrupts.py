"""What is recorded of a run's questions: asked, answered, or left without an answer."""

from __future__ import annotations

from pydantic import JsonValue
from sqlalchemy import select

from activities.ledger import notifications, steps
from activities.ledger.steps import StepAttempt
from activities.ledger.store import Transaction
from activities.ledger.tables import events
from workflows.contracts import GivenAnswer, Interrupt, InterruptKind, RecordInterrupt, Steer
from workflows.identity import NotCanonical, digest
from workflows.plan import ASKING, WAITING


async def record(tx: Transaction, asked: RecordInterrupt) -> None:
    """Record that a question was asked, or that nobody has answered it; the same twice is once."""
    interrupt = asked.interrupt
    if await _recorded(tx, asked):
        return
    row = _attempt(asked.run_id, interrupt)
    if interrupt.kind in (InterruptKind.ASK, InterruptKind.EVENT):
        if asked.what == "opened":
            await steps.start(tx, row)
        elif asked.what == "expired" and asked.output is None:
            await steps.finish(
                tx, row, "failed", error="nobody has answered", error_class="expired"
            )
        else:
            await steps.finish(tx, row, "succeeded", output=asked.output)
    if asked.what != "opened":
        await notifications.drop_question(tx, asked.run_id, interrupt)
    elif interrupt.kind is not InterruptKind.EVENT:
        await notifications.write_question(tx, asked.run_id, interrupt)
    tx.event(
        asked.run_id,
        f"interrupt.{asked.what}",
        step_id=interrupt.step_id,
        interrupt_id=interrupt.interrupt_id,
        kind=interrupt.kind.value,
        question=_digest(interrupt.question),
    )


async def _recorded(tx: Transaction, asked: RecordInterrupt) -> bool:
    rows = await tx.all(
        select(events.c.body).where(
            events.c.tenant_id == tx.tenant,
            events.c.run_id == asked.run_id,
            events.c.step_id == asked.interrupt.step_id,
            events.c.type == f"interrupt.{asked.what}",
        )
    )
    return any(row["body"]["interrupt_id"] == asked.interrupt.interrupt_id for row in rows)


async def answered(tx: Transaction, asked: Steer, given: GivenAnswer) -> None:
    """Record an answer that counts."""
    interrupt = given.interrupt
    await notifications.drop_question(tx, asked.run_id, interrupt)
    if interrupt.kind is InterruptKind.ASK:
        row = _attempt(asked.run_id, interrupt)
        await steps.finish(tx, row, "succeeded", output=given.value)
    tx.event(
        asked.run_id,
        "interrupt.answered",
        step_id=interrupt.step_id,
        interrupt_id=interrupt.interrupt_id,
        kind=interrupt.kind.value,
        actor=asked.actor,
        answer=_digest(given.value),
        steering_id=asked.steering_id,
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
