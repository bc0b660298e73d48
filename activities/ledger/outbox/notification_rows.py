"""The outbox: written with the change that it tells of, taken by one worker at a time.

A row that is taken is due again a while later, which is its lease: should its taker die before it
records what became of it, another one sends it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, and_, case, func, null, or_

from surehand.activities.ledger.core.sealed import Erased
from surehand.activities.ledger.core.statements import ours, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    approvals,
    has_expired,
    interventions,
    notifications,
    runs,
)
from surehand.activities.ledger.halts import earliest_clock, is_halted
from surehand.activities.ledger.outbox.notification import (
    CHATS,
    Facts,
    Kind,
    Notification,
    delivery_id,
)
from surehand.activities.ledger.steps.entries import milliseconds
from surehand.activities.ledger.steps.foreign import foreign_content
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import foreign_text
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.plain_text import plain_line
from surehand.workflows.plan.policy import Needs

#: Requests of one run and tool that people are told of one by one while they wait. Of more they are
#: told in one line, once an hour, until some of these are decided.
MOST_TOLD: Final = 10
#: How soon it is looked again whether people can be told of what was held back.
_HELD_FOR: Final = timedelta(minutes=1)
_HOUR_MS: Final = 3_600_000
#: Rows that are given up in one transaction.
_BATCH: Final = 100


@dataclass(frozen=True)
class Taken:
    """A notification to be sent now, and which attempt that is, counted from 1."""

    notification: Notification
    attempt: int
    channel: str
    written_ms: int


def write_notification(
    tx: Transaction,
    kind: Kind,
    facts: Facts,
    *,
    run_id: str,
    subject: str,
    step_id: str | None = None,
    number: int = 0,
) -> None:
    """Have people told, by each of the ledger's channels; what is written already stays as it is.

    ``number`` tells apart what is told of one subject again and again.
    """
    if not tx.channels:
        return
    values = [
        {
            "notification_id": delivery_id(tx.tenant, kind, subject, number, channel),
            "run_id": run_id,
            "step_id": step_id,
            "kind": kind.value,
            "subject": subject,
            "number": number,
            "channel": channel,
            "facts": facts.model_dump(mode="json"),
            "state": "pending",
            "due_ms": tx.now_ms,
            "attempts": 0,
            "written_ms": tx.now_ms,
        }
        for channel in tx.channels
    ]
    tx.insert_new(notifications, *values)
    tx.has_news = True


def write_approval(tx: Transaction, row: Mapping[str, Any], kind: Kind, number: int = 0) -> None:
    """Have people told of an approval request, by its row."""
    requirements = Needs.model_validate(row["needs"]).requirements
    what = plain_line(row["description"])
    facts = Facts(
        what=what,
        tool=row["tool"],
        params_hash=row["params_hash"],
        undo=plain_line(row["undo"]),
        asked_by=tuple(map(plain_line, dict.fromkeys((row["user_id"], *row["editors"])))),
        needs=tuple(one.as_text() for one in requirements),
        roles=tuple(dict.fromkeys(role for one in requirements for role in one.roles)),
        foreign=plain_line(foreign_text(foreign_content(tx, row["run_id"]))),
        signed=Assurance(row["assurance"]) is not Assurance.OPEN,
        passkey=Assurance(row["assurance"]).by_passkey,
        # Nobody votes by a button on what was cut.
        chat=Assurance(row["assurance"]) is Assurance.CHAT and "…" not in what,
        until=_moment_of(row["expires_ms"]),
    )
    where = {"run_id": row["run_id"], "step_id": row["step_id"]}
    write_notification(tx, kind, facts, subject=row["approval_id"], number=number, **where)


def write_pause(
    tx: Transaction, run_id: str, step_id: str, number: int, *, tool: str, reason: str
) -> None:
    """Have people told that a run waits for a permission; ``number`` tells its pauses apart."""
    facts = Facts(what=plain_line(reason), tool=tool)
    where = {"run_id": run_id, "step_id": step_id, "subject": f"{run_id}/{step_id}"}
    write_notification(tx, Kind.PERMISSION, facts, number=number, **where)


def write_question(tx: Transaction, run_id: str, interrupt: Interrupt) -> None:
    """Have people told that a run asks for a value."""
    facts = Facts(what=plain_line(interrupt.question), until=interrupt.expires_at)
    subject, step_id = _question_subject(run_id, interrupt), interrupt.step_id
    write_notification(tx, Kind.QUESTION, facts, run_id=run_id, subject=subject, step_id=step_id)


def drop_question(tx: Transaction, run_id: str, interrupt: Interrupt) -> None:
    """Tell nobody of a question any more: it is answered, or its time is over."""
    its = {"kind": Kind.QUESTION.value, "subject": _question_subject(run_id, interrupt)}
    tx.execute(update_rows(notifications, **its, state="pending").values(state="void"))


def _question_subject(run_id: str, interrupt: Interrupt) -> str:
    return f"{run_id}/{interrupt.interrupt_id}"


def take_due(
    tx: Transaction, channel: str, now_ms: int, *, limit: int, lease: timedelta
) -> tuple[list[Taken], int, int]:
    """Return what is to be sent now, which nobody else takes for as long as ``lease``.

    What nobody has to be told any more, because it is decided, expired or settled, is dropped. So
    is a reminder of what nobody was told of yet. It also returns how many were dropped, and how
    many are held back for a while. A chat that has told of it, or may have, is to say what has
    become of it.
    """
    # The order of the index, but in a chat: there people wait for what is new.
    new_first = [notifications.c.message.is_not(None)] if channel in CHATS else []
    due = rows_of(notifications, channel=channel, state="pending")
    due = due.where(notifications.c.due_ms <= now_ms)
    order = (*new_first, notifications.c.due_ms, notifications.c.notification_id)
    found = _lock_free(tx, due.order_by(*order), limit)
    if channel in CHATS and len(found) < limit:
        found += _reopen_messages(tx, channel, now_ms, limit - len(found))
    if not found:
        return [], 0, 0
    rows = _drop_erased(tx, found)
    over = _find_over(tx, rows, now_ms) | _find_untold(tx, channel, rows)
    outcomes = _find_outcomes(tx, channel, [one for one in rows if one["notification_id"] in over])
    over -= outcomes.keys()
    new = [one for one in rows if one["message"] is None and one["notification_id"] not in outcomes]
    held = _hold_back(tx, channel, [one for one in new if one["notification_id"] not in over])
    taken = []
    for row in rows:
        if row["notification_id"] in held:
            # As if it were written now: how long it is tried counts from when it may be sent.
            values = {"written_ms": now_ms, "due_ms": now_ms + milliseconds(_HELD_FOR)}
            _change_row(tx, row["notification_id"], row["attempts"], **values)
            continue
        if row["notification_id"] in over:
            _change_row(tx, row["notification_id"], row["attempts"], state="void")
            continue
        attempt = row["attempts"] + 1
        values = {"attempts": attempt, "due_ms": now_ms + milliseconds(lease)}
        if _change_row(tx, row["notification_id"], row["attempts"], **values):
            taken.append(_taken_from(row, attempt, outcomes.get(row["notification_id"])))
    return taken, len(over) + len(found) - len(rows), len(held)


def _lock_free(tx: Transaction, query: Select[Any], limit: int) -> list[dict[str, Any]]:
    """Return the first rows that nobody else has just now, under their locks."""
    mine = query.limit(limit).with_for_update(skip_locked=True)
    return tx.all(mine.execution_options(sealed="shown"))


def _drop_erased(
    tx: Transaction, found: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Return rows without those that nobody can read any more; these are void."""
    erased = [row for row in found if isinstance(row["facts"], Erased)]
    for row in erased:
        name = row["notification_id"]
        _change_row(tx, name, row["attempts"], state="void", message=None)
    return [row for row in found if not isinstance(row["facts"], Erased)]


def _reopen_messages(
    tx: Transaction, channel: str, now_ms: int, limit: int
) -> list[dict[str, Any]]:
    """Queue messages for an update if their requests are over, with the patience of new ones."""
    expired = has_expired(approvals.c, earliest_clock(tx, now_ms))
    over = rows_of(approvals, approvals.c.approval_id).where(
        approvals.c.approval_id == notifications.c.subject,
        or_(approvals.c.state != "pending", expired),
    )
    sent = rows_of(notifications, channel=channel, state="sent")
    sent = sent.where(notifications.c.message.is_not(None), over.exists())
    order = (notifications.c.sent_ms, notifications.c.notification_id)
    told = _lock_free(tx, sent.order_by(*order), limit)
    if not told:
        return []
    again = {"state": "pending", "sent_ms": None, "attempts": 0}
    again |= {"due_ms": now_ms, "written_ms": now_ms}
    mine = notifications.c.notification_id.in_([row["notification_id"] for row in told])
    tx.execute(update_rows(notifications, state="sent").where(mine).values(**again))
    return [{**row, **again} for row in told]


def _find_outcomes(
    tx: Transaction, channel: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return what has become of requests that a chat has told of, or may have, by row."""
    told = {
        row["notification_id"]: row["subject"]
        for row in rows
        if row["message"] is not None or (channel in CHATS and row["attempts"] > 0)
    }
    if not told:
        return {}
    its = approvals.c
    found = rows_of(approvals, its.approval_id, its.state, its.decided_by, its.verified)
    texts = dict[str, str]()
    for row in tx.all(found.where(its.approval_id.in_(set(told.values())))):
        # What is over and still pending has expired.
        text = "Expired" if row["state"] == "pending" else row["state"].capitalize()
        if row["decided_by"] is not None:
            text += f" by {row['decided_by']}{'' if row['verified'] else ' (unverified)'}"
        texts[row["approval_id"]] = plain_line(text)
    return {name: texts.get(subject, "Void") for name, subject in told.items()}


def _hold_back(tx: Transaction, channel: str, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of requests that people are not told of now, and tell that in one line.

    They have been told of as many of the same run and tool which still wait.
    """
    asked = [row for row in rows if row["kind"] == Kind.APPROVAL]
    if not asked:
        return set()
    its, to_whom = approvals.c, {"channel": channel, "kind": Kind.APPROVAL.value}
    told_of = ours(notifications, subject=its.approval_id, run_id=its.run_id, **to_whom)
    waiting = rows_of(approvals, its.run_id, its.tool, func.count().label("told"), state="pending")
    query = waiting.join(notifications, told_of).where(
        its.run_id.in_({row["run_id"] for row in asked}),
        # Sent, or being sent by somebody.
        notifications.c.attempts > 0,
        notifications.c.state.in_(("pending", "sent")),
    )
    found = tx.all(query.group_by(its.run_id, its.tool))
    told = Counter({(row["run_id"], row["tool"]): int(row["told"]) for row in found})
    held, floods = set[str](), set[tuple[str, str]]()
    for row in asked:
        if row["attempts"] > 0:
            continue
        flood = (row["run_id"], row["facts"]["tool"])
        if told[flood] >= MOST_TOLD:
            held.add(row["notification_id"])
            floods.add(flood)
        told[flood] += 1
    for run_id, tool in sorted(floods):
        what = f"more than {MOST_TOLD} calls of {tool} wait for approval in run {run_id}"
        facts, number = Facts(what=plain_line(what), tool=tool), tx.now_ms // _HOUR_MS
        where = {"run_id": run_id, "subject": f"{run_id}/{tool}"}
        write_notification(tx, Kind.FLOOD, facts, number=number, **where)
    return held


def _find_untold(tx: Transaction, channel: str, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the ids of reminders of requests that nobody has been told of yet by this channel."""
    mine = {row["notification_id"]: row["subject"] for row in rows if row["kind"] == Kind.REMINDER}
    if not mine:
        return set()
    subject, to_whom = notifications.c.subject, {"channel": channel, "kind": Kind.APPROVAL.value}
    waiting = rows_of(notifications, subject, **to_whom, state="pending", attempts=0)
    untold = set(tx.read_column(waiting.where(subject.in_(set(mine.values())))))
    return {name for name, about in mine.items() if about in untold}


def _find_over(tx: Transaction, rows: Sequence[Mapping[str, Any]], now_ms: int) -> set[str]:
    """Return the ids of rows that tell of what waits for nobody any more."""
    clock_ms = earliest_clock(tx, now_ms)
    asked = {
        (Kind.APPROVAL, Kind.REMINDER): (
            approvals.c.approval_id,
            and_(approvals.c.state == "pending", ~has_expired(approvals.c, clock_ms)),
        ),
        (Kind.INTERVENTION,): (interventions.c.intervention_id, interventions.c.state == "open"),
        (Kind.PERMISSION, Kind.QUESTION, Kind.FLOOD): (runs.c.run_id, runs.c.closed_ms.is_(None)),
    }
    over: set[str] = set()
    for kinds, (column, waits) in asked.items():
        about = "run_id" if Kind.PERMISSION in kinds else "subject"
        mine = {row["notification_id"]: row[about] for row in rows if row["kind"] in kinds}
        if mine:
            wait = rows_of(column.table, column).where(waits)
            waiting = set(tx.read_column(wait.where(column.in_(set(mine.values())))))
            over |= {name for name, subject in mine.items() if subject not in waiting}
    return over


def record_sent(
    tx: Transaction, notification_id: str, now_ms: int, message: str | None = None
) -> bool:
    """Record that it was sent, whatever else was thought of it; ``False`` if that is known.

    The message of what is void is not kept: its run may be erased.
    """
    kept = case((notifications.c.state == "void", null()), else_=message)
    unsent = update_rows(notifications, notification_id=notification_id)
    unsent = unsent.where(notifications.c.state != "sent")
    return tx.execute(unsent.values(state="sent", sent_ms=now_ms, error=None, message=kept)) == 1


def put_off(tx: Transaction, taken: Taken, error: str, due_ms: int) -> bool:
    """Record a failed attempt and when the next one is due; ``False`` if somebody else has it."""
    name = taken.notification.delivery_id
    return _change_row(tx, name, taken.attempt, error=error, due_ms=due_ms)


def give_up(tx: Transaction, taken: Taken, error: str) -> bool:
    """Record that it will not be sent any more; ``False`` if somebody else has it."""
    note = taken.notification
    failed = {"state": "failed", "error": error, "message": None}
    if not _change_row(tx, note.delivery_id, taken.attempt, **failed):
        return False
    tx.event(
        note.run_id,
        "notification.failed",
        step_id=note.step_id,
        notification_id=note.delivery_id,
        kind=note.kind,
        subject=note.subject,
        attempts=taken.attempt,
        action="give_up",
    )
    return True


def find_unserved(
    tx: Transaction, served: Collection[str], now_ms: int, *, older_than: timedelta
) -> list[Taken]:
    """Return what has not been sent for so long, of channels that this worker does not serve."""
    unsent = rows_of(notifications, state="pending").where(
        notifications.c.channel.not_in(served),
        notifications.c.due_ms <= now_ms,
        notifications.c.written_ms <= now_ms - milliseconds(older_than),
    )
    rows = _lock_free(tx, unsent.order_by(notifications.c.written_ms), _BATCH)
    return [_taken_from(row, row["attempts"]) for row in _drop_erased(tx, rows)]


def _change_row(tx: Transaction, name: str, at_attempt: int, /, **values: Any) -> bool:
    """Change a pending row that is still at that attempt."""
    own = {"notification_id": name, "state": "pending", "attempts": at_attempt}
    return tx.execute(update_rows(notifications, **own).values(**values)) == 1


def _taken_from(row: Mapping[str, Any], attempt: int, outcome: str | None = None) -> Taken:
    names = ("run_id", "step_id", "kind", "subject", "number")
    notification = Notification(
        **row["facts"],
        **{name: row[name] for name in names},
        delivery_id=row["notification_id"],
        tenant=row["tenant_id"],
        at=_moment_of(row["written_ms"]),
        attempt=attempt,
        message=row["message"],
        outcome=outcome,
    )
    return Taken(notification, attempt, row["channel"], row["written_ms"])


def _moment_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


#: Requests that people are reminded of in one transaction.
_REMINDERS: Final = 100


def write_reminders(tx: Transaction, now_ms: int) -> int:
    """Write the reminders that are due, one for each request, and return how many.

    Their number is the count of intervals since the request, so that what nobody was there to send
    is skipped. An older one that is not sent yet is dropped: the newer one tells it. Nobody is
    reminded of a call that is halted.
    """
    rows = tx.all(
        rows_of(approvals, state="pending")
        .where(
            approvals.c.remind_ms <= now_ms,
            ~has_expired(approvals.c, earliest_clock(tx, now_ms)),
            ~is_halted(approvals.c.tool, approvals.c.run_id),
        )
        .order_by(approvals.c.remind_ms, approvals.c.approval_id)
        .limit(_REMINDERS)
        # Somebody is deciding it, or reminding of it, just now.
        .with_for_update(skip_locked=True)
    )
    for row in rows:
        every = Needs.model_validate(row["needs"]).remind_every
        assert every is not None, "only such a request has a next reminder"
        number = (now_ms - row["requested_ms"]) // milliseconds(every)
        its = {"kind": Kind.REMINDER.value, "subject": row["approval_id"], "state": "pending"}
        older = update_rows(notifications, **its).where(notifications.c.number < number)
        tx.execute(older.values(state="void"))
        write_approval(tx, row, Kind.REMINDER, number)
        following = row["requested_ms"] + (number + 1) * milliseconds(every)
        own = update_rows(approvals, approval_id=row["approval_id"])
        tx.execute(own.values(remind_ms=following))
    return len(rows)
