"""Step rows: one for each attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Insert, bindparam, func, literal, null, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from surehand.activities.ledger.core.statements import (
    OF_TENANT,
    PreparedStatement,
    rows_of,
    update_rows,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, events, steps
from surehand.activities.ledger.steps.acting import overtaken
from surehand.workflows.contracts.base import Usage
from surehand.workflows.contracts.tools import RecordRefusal

#: Class of an attempt that the tool has answered with no.
NO: Final = "no"
#: Characters that an event tells of why a step was refused.
LONGEST_REASON: Final = 2000

_ANSWERED: Final = or_(steps.c.state == "succeeded", func.coalesce(steps.c.error_class, "") == NO)

#: What a new start of an attempt says anew, and what it takes back.
_STARTED: Final = ("tool", "state", "input", "started_ms", "holder")
_ENDED: Final = ("output", "error", "error_class", "ended_ms")


def _start(insert: postgresql.Insert | sqlite.Insert, *, unanswered: bool) -> Insert:
    started = {name: insert.excluded[name] for name in _STARTED}
    return insert.values(tenant_id=OF_TENANT).on_conflict_do_update(
        index_elements=list(steps.primary_key),
        set_={**started, **dict.fromkeys(_ENDED, null())},
        where=~_ANSWERED if unanswered else None,
    )


_START_COLUMNS: Final = ("run_id", "step_id", "attempt", *_STARTED)
_START: Final = {
    (dialect.__name__.rpartition(".")[2], unanswered): PreparedStatement(
        _start(dialect.insert(steps), unanswered=unanswered), _START_COLUMNS
    )
    for dialect in (postgresql, sqlite)
    for unanswered in (False, True)
}
_END_COLUMNS: Final = ("state", *_ENDED)
_OF_ATTEMPT: Final = update_rows(
    steps, run_id=bindparam("of_run"), step_id=bindparam("of_step"), attempt=bindparam("of_attempt")
)
_FINISH: Final = PreparedStatement(_OF_ATTEMPT, _END_COLUMNS)
_FINISH_OWN: Final = PreparedStatement(
    _OF_ATTEMPT.where(
        steps.c.holder == bindparam("of_holder"),
        steps.c.state == "running",
        ~overtaken(bindparam("of_run"), bindparam("of_batch")),
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


@dataclass(frozen=True)
class Stored:
    """The end of a read that an earlier attempt has stored."""

    attempt: int
    output: Any
    no: dict[str, Any] | None
    """What it said no with: reason and code."""
    started_ms: int | None


def stored(tx: Transaction, call: StepAttempt, *, after: int, holders: str = "") -> Stored | None:
    """Return what the same read has been answered before, if it is recorded.

    Of several answers that of the read counts which began last: the run went on with it.

    Args:
        call: The attempt that is about to read.
        after: Only attempts after this one are of the same call.
        holders: Only what those have recorded whose names begin so.
    """
    rows = tx.all(
        rows_of(
            steps,
            *(steps.c.attempt, steps.c.tool, steps.c.input),
            *(steps.c.output, steps.c.error_class, steps.c.started_ms),
            run_id=call.run_id,
            step_id=call.step_id,
        )
        .where(steps.c.attempt > after, _ANSWERED, *([_held_by(holders)] if holders else []))
        .order_by(steps.c.started_ms.desc(), steps.c.attempt.desc())
        .limit(1)
    )
    for row in rows:
        # Other params are another question: a plan may be changed while its run is under way.
        if row["tool"] == call.tool and row["input"] == call.params:
            no = row["output"]["no"] if row["error_class"] == NO else None
            return Stored(row["attempt"], row["output"], no, row["started_ms"])
    return None


def _held_by(holders: str) -> ColumnElement[bool]:
    return func.substr(steps.c.holder, 1, len(holders)) == holders


def has_begun(tx: Transaction, run_id: str, step_id: str) -> bool:
    """Return whether a step has an answer on record, or an effect that is or may be there."""
    answered = rows_of(steps, literal(1), run_id=run_id, step_id=step_id).where(_ANSWERED)
    effect = rows_of(effects, literal(1), run_id=run_id, step_id=step_id, undoes=None).where(
        effects.c.state != "failed"
    )
    return bool(tx.all(answered.union(effect)))


def start(tx: Transaction, attempt: StepAttempt, *, unanswered: bool = False) -> bool:
    """Record that an attempt runs; the same attempt again is the same row, begun anew.

    Args:
        unanswered: Not where it has been answered.

    Returns:
        Whether it is recorded.
    """
    row = {
        "run_id": attempt.run_id,
        "step_id": attempt.step_id,
        "attempt": attempt.attempt,
        "tool": attempt.tool,
        "state": "running",
        "input": attempt.params,
        "started_ms": tx.now_ms,
        "holder": attempt.holder,
    }
    starting = _START[tx.dialect, unanswered]
    if unanswered:
        return tx.execute(starting, **row) == 1
    tx.send(starting, **row)
    return True


def begin_read(
    tx: Transaction, attempt: StepAttempt, *, after: int, holders: str | None
) -> Stored | None:
    """Record that a read runs, or return what it has been answered already.

    Args:
        attempt: The attempt, with its holder.
        after: Only attempts after this one are of the same call.
        holders: Only what those have recorded counts whose names begin so; ``None``: nothing.
    """

    def known_already() -> Stored | None:
        if holders is None:
            return None
        return stored(tx, attempt, after=after, holders=holders)

    # First: what an earlier attempt records from now on does not count, so none is overlooked.
    if attempt.attempt > 1:
        take_over(tx, attempt)
    known = known_already()
    if known is not None:
        return known
    if start(tx, attempt, unanswered=True):
        return None
    # Answered meanwhile; or a run was reset to before its answer.
    known = known_already()
    if known is None and not _is_overtaken(tx, attempt):
        start(tx, attempt)
    return known


def _is_overtaken(tx: Transaction, attempt: StepAttempt) -> bool:
    """Return whether the batch of an attempt is not its own any more; the run is locked."""
    if attempt.batch is None:
        return False
    tx.lock_run(attempt.run_id)
    late = overtaken(attempt.run_id, literal(attempt.batch))
    return bool(tx.all(select(literal(1)).where(late)))


def take_over(tx: Transaction, attempt: StepAttempt) -> None:
    """Let no earlier attempt of a step that may still be under way record an answer."""
    tx.execute(
        update_rows(steps, run_id=attempt.run_id, step_id=attempt.step_id, state="running")
        .where(steps.c.attempt < attempt.attempt)
        .values(holder=attempt.holder)
    )


def finish(
    tx: Transaction,
    attempt: StepAttempt,
    state: str,
    *,
    output: Any = None,
    error: str | None = None,
    error_class: str | None = None,
) -> bool:
    """Record how an attempt ended; one that names its holder, only if it still counts.

    It does not where another one has begun since, nor where its batch is over: what was made of
    another answer may be there. Nor does it twice.

    Returns:
        Whether it was recorded.
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
    row = rows_of(steps, literal(1), run_id=attempt.run_id, step_id=attempt.step_id, **own)
    late = overtaken(literal(attempt.run_id), literal(attempt.batch, steps.c.holder.type))
    return tx.one(row.where(~late).with_for_update()) is not None


def has_ended(tx: Transaction, attempt: StepAttempt) -> bool:
    """Return whether an attempt that names its holder has recorded its end already."""
    row = tx.one(
        rows_of(
            steps,
            literal(1),
            run_id=attempt.run_id,
            step_id=attempt.step_id,
            attempt=attempt.attempt,
            holder=attempt.holder,
        ).where(steps.c.state != "running")
    )
    return row is not None


def failures(tx: Transaction, attempt: StepAttempt, error_class: str) -> int:
    """Return how many earlier attempts of a step have ended with a failure of that class."""
    row = tx.one(
        rows_of(
            steps,
            func.count().label("n"),
            run_id=attempt.run_id,
            step_id=attempt.step_id,
            error_class=error_class,
        ).where(steps.c.attempt < attempt.attempt)
    )
    return int(row["n"]) if row else 0


def refuse(tx: Transaction, asked: RecordRefusal, told_by: str) -> None:
    """Tell that a step was refused before anything of it began; the same teller tells it once."""
    rows = tx.all(
        rows_of(
            events, events.c.body, run_id=asked.run_id, step_id=asked.step_id, type="step.refused"
        )
    )
    if any(row["body"]["told_by"] == told_by for row in rows):
        return
    body = {"tool": asked.tool, "reason": asked.reason[:LONGEST_REASON], "told_by": told_by}
    tx.event(asked.run_id, "step.refused", step_id=asked.step_id, **body)


def keep_usage(tx: Transaction, run_id: str, step_id: str, usage: Usage, told_by: str) -> bool:
    """Keep what an attempt has used that is tried again; the same teller tells it once.

    Returns:
        Whether it had not been told.
    """
    if any(row["told_by"] == told_by for row in _usages(tx, run_id, step_id)):
        return False
    body = {"tokens": usage.tokens, "money": usage.money, "told_by": told_by}
    tx.event(run_id, "step.spent", step_id=step_id, **body)
    return True


def kept_usage(tx: Transaction, run_id: str, step_id: str, holders: str, mine: str) -> list[Usage]:
    """Return what was kept of those whose names begin so, without one of them, which counts it."""
    return [
        Usage(tokens=body["tokens"], money=body["money"])
        for body in _usages(tx, run_id, step_id)
        if body["told_by"].startswith(holders) and body["told_by"] != mine
    ]


def _usages(tx: Transaction, run_id: str, step_id: str) -> list[dict[str, Any]]:
    rows = rows_of(events, events.c.body, run_id=run_id, step_id=step_id, type="step.spent")
    return [row["body"] for row in tx.all(rows)]
