"""Step rows: one for each attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import bindparam, func, literal, null, or_, select

from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    rows_of,
    update_rows,
    upsert_row,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, steps
from surehand.activities.ledger.steps.acting import is_overtaken
from surehand.workflows.contracts.base import Usage
from surehand.workflows.contracts.tools import RecordRefusal

#: Class of an attempt that the tool has answered with no.
NO: Final = "no"
#: Characters that an event tells of why a step was refused.
LONGEST_REASON: Final = 2000

_ANSWERED: Final = or_(steps.c.state == "succeeded", func.coalesce(steps.c.error_class, "") == NO)

#: What a new start of an attempt says again, and what it takes back.
_STARTED: Final = ("tool", "state", "input", "started_ms", "holder")
_ENDED: Final = ("output", "error", "error_class", "ended_ms")


def _restart(started: Any) -> dict[str, Any]:
    return {**{name: started[name] for name in _STARTED}, **dict.fromkeys(_ENDED, null())}


_START_COLUMNS: Final = ("run_id", "step_id", "attempt", *_STARTED)
_START: Final = upsert_row(steps, _restart, _START_COLUMNS)
_START_UNANSWERED: Final = upsert_row(steps, _restart, _START_COLUMNS, where=~_ANSWERED)
_END_COLUMNS: Final = ("state", *_ENDED)
_OF_ATTEMPT: Final = update_rows(
    steps, run_id=bindparam("of_run"), step_id=bindparam("of_step"), attempt=bindparam("of_attempt")
)
_FINISH: Final = PreparedStatement(_OF_ATTEMPT, _END_COLUMNS)
_FINISH_OWN: Final = PreparedStatement(
    _OF_ATTEMPT.where(
        steps.c.holder == bindparam("of_holder"),
        steps.c.state == "running",
        ~is_overtaken(bindparam("of_run"), bindparam("of_batch")),
    ),
    _END_COLUMNS,
)


@dataclass(frozen=True)
class StepAttempt:
    """What identifies an attempt of a step, and what it was given."""

    run_id: str
    step_id: str
    attempt: int
    tool: str
    params: dict[str, Any]
    holder: str | None = None
    """Who makes it, where nothing but its row says whose end counts: a read's."""
    batch: str | None = None
    """The token of the batch that it is made in (``ledger/steps/acting.py``)."""

    @property
    def step(self) -> dict[str, str]:
        return {"run_id": self.run_id, "step_id": self.step_id}


@dataclass(frozen=True)
class Stored:
    """The end of a read that an earlier attempt has stored."""

    attempt: int
    output: Any
    no: dict[str, Any] | None
    """What it said no with: reason and code."""
    started_ms: int | None


def find_stored(
    tx: Transaction, call: StepAttempt, *, after: int, holders: str = ""
) -> Stored | None:
    """Return what the same read has been answered before, if it is recorded.

    Of several answers that of the read counts which began last: the run went on with it. Only
    attempts after ``after`` are of the same call; with ``holders``, only those count whose holders'
    names begin so.
    """
    own = steps.c
    columns = (own.attempt, own.tool, own.input, own.output, own.error_class, own.started_ms)
    answers = rows_of(steps, *columns, run_id=call.run_id, step_id=call.step_id)
    answers = answers.where(own.attempt > after, _ANSWERED)
    if holders:
        answers = answers.where(func.substr(own.holder, 1, len(holders)) == holders)
    row = tx.one(answers.order_by(own.started_ms.desc(), own.attempt.desc()).limit(1))
    # Other params are another question: a plan may be changed while its run is under way.
    if row is None or row["tool"] != call.tool or row["input"] != call.params:
        return None
    no = row["output"]["no"] if row["error_class"] == NO else None
    return Stored(row["attempt"], row["output"], no, row["started_ms"])


def has_begun(tx: Transaction, run_id: str, step_id: str) -> bool:
    """Return whether a step has an answer on record, or an effect that is or may be there."""
    step = {"run_id": run_id, "step_id": step_id}
    answered = rows_of(steps, literal(1), **step).where(_ANSWERED)
    made = rows_of(effects, literal(1), **step, undoes=None).where(effects.c.state != "failed")
    return tx.has(answered.union(made))


def start_attempt(tx: Transaction, attempt: StepAttempt, *, unanswered: bool = False) -> bool:
    """Record that an attempt runs; the same attempt again is the same row, begun again.

    If ``unanswered``, not once it has been answered. Returns whether it is recorded.
    """
    row = {
        **attempt.step,
        "attempt": attempt.attempt,
        "tool": attempt.tool,
        "state": "running",
        "input": attempt.params,
        "started_ms": tx.now_ms,
        "holder": attempt.holder,
    }
    if unanswered:
        return tx.execute(_START_UNANSWERED, **row) == 1
    tx.send(_START, **row)
    return True


def begin_read(
    tx: Transaction, attempt: StepAttempt, *, after: int, holders: str | None
) -> Stored | None:
    """Record that a read runs, or return what it has been answered already.

    Only attempts after ``after`` are of the same call, and of those only what holders have recorded
    whose names begin with ``holders``; ``None``: nothing.
    """
    if attempt.attempt > 1:
        # First: what an earlier attempt, which may be under way, records from now on does not
        # count, so none is overlooked.
        earlier = update_rows(steps, **attempt.step, state="running")
        earlier = earlier.where(steps.c.attempt < attempt.attempt)
        tx.execute(earlier.values(holder=attempt.holder))
    if holders is not None:
        known = find_stored(tx, attempt, after=after, holders=holders)
        if known is not None:
            return known
    if start_attempt(tx, attempt, unanswered=True):
        return None
    # Answered meanwhile, so it is looked up again; or a run was reset to before its answer.
    if holders is not None:
        known = find_stored(tx, attempt, after=after, holders=holders)
        if known is not None:
            return known
    if attempt.batch is not None:
        tx.lock_run(attempt.run_id)
        late = is_overtaken(attempt.run_id, literal(attempt.batch))
        if tx.has(select(literal(1)).where(late)):
            return None
    start_attempt(tx, attempt)
    return None


def finish_attempt(
    tx: Transaction,
    attempt: StepAttempt,
    state: str,
    *,
    output: Any = None,
    error: str | None = None,
    error_class: str | None = None,
) -> bool:
    """Record how an attempt ended; one that names its holder, only if it still counts.

    It does not once another one has begun, nor when its batch is over: what was made of another
    answer may be there. Nor does it twice. Returns whether it was recorded.
    """
    ended = {
        "of_run": attempt.run_id,
        "of_step": attempt.step_id,
        "of_attempt": attempt.attempt,
        "state": state,
        "output": output,
        "error": error,
        "error_class": error_class,
        "ended_ms": tx.now_ms,
    }
    if attempt.holder is not None:
        own = {"of_holder": attempt.holder, "of_batch": attempt.batch}
        return tx.execute(_FINISH_OWN, **own, **ended) == 1
    tx.send(_FINISH, **ended)
    return True


def tell_ended(tx: Transaction, attempt: StepAttempt, state: str, **body: Any) -> None:
    """Add the event of how an attempt at a read ended."""
    about = {"tool": attempt.tool, "attempt": attempt.attempt}
    tx.event(attempt.run_id, f"step.{state}", step_id=attempt.step_id, **about, **body)


def still_ours(tx: Transaction, attempt: StepAttempt) -> bool:
    """Lock an attempt's row and return whether its end would still be recorded."""
    own = {"holder": attempt.holder, "state": "running", "attempt": attempt.attempt}
    row = rows_of(steps, literal(1), **attempt.step, **own)
    late = is_overtaken(literal(attempt.run_id), literal(attempt.batch, steps.c.holder.type))
    return tx.has(row.where(~late).with_for_update())


def has_ended(tx: Transaction, attempt: StepAttempt) -> bool:
    """Return whether an attempt that names its holder has recorded its end already."""
    own = {"attempt": attempt.attempt, "holder": attempt.holder}
    row = rows_of(steps, literal(1), **attempt.step, **own).where(steps.c.state != "running")
    return tx.has(row)


def count_failures(tx: Transaction, attempt: StepAttempt, error_class: str) -> int:
    """Return how many earlier attempts of a step have ended with a failure of that class."""
    failed = rows_of(steps, func.count(), **attempt.step, error_class=error_class)
    return tx.count(failed.where(steps.c.attempt < attempt.attempt))


def record_refused_step(tx: Transaction, asked: RecordRefusal, told_by: str) -> None:
    """Tell that a step was refused before anything of it began; the same teller tells it once."""
    told = tx.list_told(asked.run_id, asked.step_id, "step.refused")
    if any(body["told_by"] == told_by for body in told):
        return
    body = {"tool": asked.tool, "reason": asked.reason[:LONGEST_REASON], "told_by": told_by}
    tx.event(asked.run_id, "step.refused", step_id=asked.step_id, **body)


def keep_usage(tx: Transaction, run_id: str, step_id: str, usage: Usage, told_by: str) -> bool:
    """Keep what an attempt has used that is tried again; the same teller tells it once.

    Returns whether it had not been told.
    """
    told = tx.list_told(run_id, step_id, "step.spent")
    if any(body["told_by"] == told_by for body in told):
        return False
    body = {"tokens": usage.tokens, "money": usage.money, "told_by": told_by}
    tx.event(run_id, "step.spent", step_id=step_id, **body)
    return True


def kept_usage(tx: Transaction, run_id: str, step_id: str, holders: str, mine: str) -> list[Usage]:
    """Return what was kept of those whose names begin so, without one of them, which counts it."""
    return [
        Usage(tokens=body["tokens"], money=body["money"])
        for body in tx.list_told(run_id, step_id, "step.spent")
        if body["told_by"].startswith(holders) and body["told_by"] != mine
    ]
