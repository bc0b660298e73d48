"""What a restore has forgotten, and clocks that were set back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import ScalarSelect, func

from surehand.activities.ledger.core.engine import lock_name
from surehand.activities.ledger.core.statements import OfRow, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, epochs, events, runs
from surehand.activities.ledger.steps.entries import ClaimRequest, Entry
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import forward_key, step_key


def lease_left(tx: Transaction, entry: Entry) -> int:
    """Return how long a claimed entry's lease lasts, in milliseconds; 0 or less: it is over."""
    return _time_left(tx, entry, "lease_until_ms", entry.lease_until_ms, entry.lease_ms)


def call_left(tx: Transaction, entry: Entry) -> int:
    """Return how long the calls of an entry may last, in milliseconds."""
    return _time_left(tx, entry, "deadline_ms", entry.deadline_ms, entry.timeout_ms)


def _time_left(tx: Transaction, entry: Entry, column: str, until: int | None, longest: int) -> int:
    left = (until or 0) - tx.now_ms
    if left <= longest:
        return left
    own = update_rows(effects, entry_id=entry.entry_id, fencing_token=entry.fencing_token)
    tx.execute(own.values({column: tx.now_ms + longest}))
    body = {"entry_id": entry.entry_id, "evidence": column, "action": "cut_to_what_it_can_be"}
    tx.event(entry.run_id, "clock.set_back", step_id=entry.step_id, **body)
    return longest


#: Fencing tokens between one epoch and the next: more than are ever given out in between, and few
#: enough that a token stays below 2^53, which JSON keeps.
_TOKENS: Final = 2**32
#: What an open epoch means, as people are told.
MEANING: Final = (
    "the ledger was restored: what it may have forgotten is looked up, or asked about, before it is"
    " called, until `ledger restored --done`"
)
#: The rule in the event of an entry that is in doubt because of a restore.
RESTORED: Final = "restored"


class EpochError(WrongUse):
    """An epoch cannot be opened, or closed; the message says why."""


@dataclass(frozen=True)
class Epoch(OfRow):
    """A restore of the ledger, and what follows from it until it is closed."""

    number: int
    restored_to_ms: int
    opened_ms: int
    opened_by: str
    closed_ms: int | None = None
    closed_by: str | None = None

    def forgets(self, at_ms: int) -> bool:
        """Return whether what was recorded at that time may be what the restore has forgotten."""
        return self.restored_to_ms <= at_ms <= self.opened_ms

    def doubts(self, entry: Entry) -> bool:
        """Return whether nobody has touched an entry since: it may have been called, unrecorded."""
        return entry.epoch < self.number and entry.state != "partial"


def open_epoch() -> ScalarSelect[int]:
    """Return the query of the number of the epoch that is open; NULL: none is."""
    return rows_of(epochs, func.max(epochs.c.number), closed_ms=None).scalar_subquery()


def list_epochs(tx: Transaction) -> list[Epoch]:
    return [Epoch.from_row(row) for row in tx.all(rows_of(epochs).order_by(epochs.c.number))]


def current_epoch(tx: Transaction) -> Epoch | None:
    row = tx.one(rows_of(epochs, closed_ms=None).order_by(epochs.c.number.desc()))
    return None if row is None else Epoch.from_row(row)


def newest_event_ms(tx: Transaction) -> int | None:
    """Return when the tenant's newest event was recorded."""
    newest: int | None = tx.value(rows_of(events, func.max(events.c.at_ms)))
    return newest


def least_token(tx: Transaction) -> int:
    """Return the least fencing token that a resource may be leased under.

    Outside systems refuse tokens below the greatest that they have seen, and that may be forgotten.
    """
    newest = func.coalesce(func.max(epochs.c.number), 0)
    return 1 + _TOKENS * tx.count(rows_of(epochs, newest))


def begin_epoch(tx: Transaction, restored_to_ms: int, actor: str) -> Epoch:
    """Open an epoch, of a ledger that was restored to that instant; raises ``EpochError``.

    Only the role that owns the tables may.
    """
    lock_name(tx.connection, "epochs")
    known = list_epochs(tx)
    if known and known[-1].closed_ms is None:
        raise EpochError(f"epoch {known[-1].number} is open already; close it first (--done)")
    if restored_to_ms > tx.now_ms:
        raise EpochError("that is still to come, by the ledger's clock")
    opened = Epoch(known[-1].number + 1 if known else 1, restored_to_ms, tx.now_ms, actor)
    tx.insert_row(epochs, **vars(opened))
    return opened


def close_epoch(tx: Transaction, actor: str) -> Epoch:
    """Close the epoch that is open; raises ``EpochError``.

    From now on keys without an entry are called at once.
    """
    lock_name(tx.connection, "epochs")
    epoch = current_epoch(tx)
    if epoch is None:
        raise EpochError("no epoch is open")
    tx.execute(
        update_rows(epochs, number=epoch.number).values(closed_ms=tx.now_ms, closed_by=actor)
    )
    return replace(epoch, closed_ms=tx.now_ms, closed_by=actor)


def may_be_forgotten(tx: Transaction, request: ClaimRequest, number: int | None) -> Epoch | None:
    """Return the open epoch, of that number, if it may have forgotten a call of this key."""
    if number is None or request.recovery is Recovery.TRANSACTIONAL:
        # What such a tool has done lies in the ledger's database, and was forgotten with its entry.
        return None
    epoch = current_epoch(tx)
    if epoch is None:
        return None
    if request.undoes is not None and _made_since(tx, request.undoes, epoch):
        return None
    if request.key == forward_key(step_key(request.run_id, request.step_id)):
        start_ms = tx.value(rows_of(runs, runs.c.start_ms, run_id=request.run_id))
        # The key is the run's own, and the server took that start only after the restore.
        if start_ms is not None and start_ms > epoch.opened_ms:
            return None
    return epoch


def _made_since(tx: Transaction, entry_id: str, epoch: Epoch) -> bool:
    """Return whether an effect was made after the opening, not found: nobody has undone it then."""
    made = {"epoch": epoch.number, "unproven": False, "entry_id": entry_id}
    row = tx.one(rows_of(effects, effects.c.evidence, **made))
    return row is not None and row["evidence"] is None


def note_restored(tx: Transaction, entry: Entry, epoch: Epoch) -> None:
    """Record that an entry is in doubt because of a restore."""
    why = f"epoch {epoch.number}: the ledger was restored, and may have forgotten a call"
    body = {"rule": RESTORED, "evidence": why, "action": "reconcile", "undoes": entry.undoes}
    entry.tell(tx, "effect.in_doubt", **body)
