"""What an audit reads of the ledger: a run's receipt, and what only the ledger can tell (G3, G6).

``surehand/verify.py`` judges receipts, for strangers and here alike. Rows of decisions can be
written by whoever has the workers' rights in the database. What such a row is worth, its signature
says; and what no event tells of, was not written by a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from surehand.activities.ledger.approvals import standing
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, runs
from surehand.activities.ledger.effects.epochs import Epoch
from surehand.activities.ledger.halts import stood_still
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.people import principals
from surehand.verify import (
    FORMAT,
    SHAPES,
    Break,
    Event,
    find_committed,
    find_unproven,
    verify_chain,
    verify_story,
)
from surehand.workflows.contracts.approvals import standing_label
from surehand.workflows.contracts.base import ChainHead


@dataclass(frozen=True)
class RecordedHead:
    """A head as Temporal's history has it."""

    head: ChainHead
    at_ms: int
    """When the server took it, by its own clock."""


def without_forgotten(
    events: Sequence[Event], heads: Iterable[RecordedHead], restores: Sequence[Epoch]
) -> tuple[list[ChainHead], int]:
    """Return the heads that a chain must pass through, and how many a restore explains.

    What was recorded between a restore's point and its epoch is forgotten, unless it fits.
    """
    hashes = {event["seq"]: event["hash"] for event in events}
    kept, forgotten = [], 0
    for one in heads:
        fits = hashes.get(one.head.seq) == one.head.hash
        if not fits and any(epoch.forgets(one.at_ms) for epoch in restores):
            forgotten += 1
        else:
            kept.append(one.head)
    return kept, forgotten


def unverified_approvers(events: Sequence[Event]) -> list[str]:
    """Return the names in which calls were approved by decisions that nobody has signed."""
    found = list[str]()
    for event in events:
        type_, body = event["type"], event["body"]
        in_person = type_ == "decision.accepted" and body.get("outcome") == "approve"
        if (in_person or type_ == "approval.standing_used") and not body.get("verified"):
            name = body.get("approver") or "nobody"
            id_ = body.get("standing_id")
            found.append(name if id_ is None else standing_label(name, id_))
    return found


def verify_run(
    events: Sequence[Event], entries: Iterable[Mapping[str, Any]], heads: Iterable[ChainHead]
) -> Break | None:
    """Return the first thing that does not hold in a run's chain, its story or its entries."""
    found = verify_chain(events, heads) or verify_story(events)
    return found or verify_entries(events, entries)


def verify_entries(events: Sequence[Event], entries: Iterable[Mapping[str, Any]]) -> Break | None:
    """Return the first of a run's ledger entries that its events do not tell of, or ``None``."""
    committed = find_committed(events)
    claims = (e["body"] for e in events if e["type"] == "effect.claimed")
    claimed = {claim["entry_id"]: claim["params_hash"] for claim in claims}
    by_key: dict[tuple[str, str], str] = {}
    for entry in entries:
        entry_id, name = entry["entry_id"], (entry["tool"], entry["key"])
        if entry["state"] != "committed":
            continue
        if entry_id not in committed:
            return Break(0, f"entry {entry_id} is committed in the ledger, but in no event")
        if claimed.get(entry_id, entry["params_hash"]) != entry["params_hash"]:
            return Break(0, f"entry {entry_id} has other params than its newest claim")
        if name in by_key:
            return Break(0, f"entries {by_key[name]} and {entry_id} of one key are committed")
        by_key[name] = entry_id
    return None


def read_receipt(tx: Transaction, run_id: str) -> dict[str, Any]:
    """Return a run's receipt, but for who signs it."""
    chain, _, _ = chain_of(tx, run_id)
    return _gather_evidence(tx, run_id, chain)


def _gather_evidence(tx: Transaction, run_id: str, events: Sequence[Event]) -> dict[str, Any]:
    columns = ("user_id", "started_by", "start_ms", "start_kid", "start_nonce", "start_signature")
    found = tx.one(rows_of(runs, *columns, run_id=run_id)) or {}
    start = {name.removeprefix("start_"): value for name, value in found.items()}
    start |= {"user": start.pop("user_id", ""), "at_ms": start.pop("ms", 0)}
    asked = rows_of(approvals, "approval_id", "assurance", run_id=run_id)
    assurance = {row["approval_id"]: row["assurance"] for row in tx.all(asked)}
    accepted = (
        rows_of(decisions, run_id=run_id, verdict="accepted")
        .order_by(decisions.c.at_ms, decisions.c.decision_id)
        # What is proven is nothing that is sealed: so it is of a run that was erased, too.
        .execution_options(sealed="stored")
    )
    votes = [{**row, "assurance": assurance.get(row["approval_id"])} for row in tx.all(accepted)]
    ids = dict.fromkeys(row["standing_id"] for row in votes if row["standing_id"] is not None)
    granted = [one for id_ in ids if (one := standing.find_standing(tx, id_)) is not None]
    kids = dict.fromkeys(one["kid"] for one in (start, *votes) if one.get("kid") is not None)
    keys = [key for kid in kids if (key := principals.find_key(tx, kid)) is not None]
    return {
        "format": FORMAT,
        "tenant": tx.tenant,
        "run_id": run_id,
        "start": start,
        "events": _only(SHAPES["events"], events),
        "decisions": _only(SHAPES["decisions"], votes),
        "standing": [
            {
                **{name: getattr(one, name) for name in SHAPES["standing"] if name != "scope"},
                "scope": one.scope.model_dump(mode="json", exclude_none=True),
            }
            for one in granted
        ],
        "keys": [
            {
                **{name: getattr(key, name) for name in SHAPES["keys"] if name != "passkey"},
                "passkey": None if key.passkey is None else asdict(key.passkey),
            }
            for key in keys
        ],
    }


def _only(names: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


def first_unproven(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    """Return the first row of a run that nothing proves although it counts as proven, or ``None``.

    A key that was revoked later proves what it has signed before.
    """
    receipt = _gather_evidence(tx, run_id, events)
    found = _find_unproven_halt(tx, run_id, events) or next(find_unproven(receipt), None)
    return found or next(_find_overused(tx, receipt), None)


def _find_unproven_halt(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    """Return the first use of an approval for which calls were not halted as long as it says."""
    for event in events:
        body = event["body"]
        if event["type"] != "approval.consumed" or not body.get("halted_ms"):
            continue
        named = {"approval_id": body["approval_id"], "run_id": run_id}
        row, still_ms = tx.one(rows_of(approvals, "tool", "requested_ms", **named)), 0
        if row is not None:
            still_ms = stood_still(tx, row["tool"], run_id, row["requested_ms"], event["at_ms"])
        if still_ms < body["halted_ms"]:
            reason = f"approval {body['approval_id']} was used after it had expired"
            return Break(event["seq"], f"{reason}: calls were not halted for so long")
    return None


def _find_overused(tx: Transaction, receipt: Mapping[str, Any]) -> Iterator[Break]:
    """Yield standing approvals of which all runs together have used more than was granted."""
    for one in receipt["standing"]:
        found = standing.find_standing(tx, one["standing_id"])
        if found is not None and not standing.is_within(tx, found):
            what = standing_label(one["granter"], one["standing_id"])
            yield Break(0, f"nothing proves decisions by {what}: more was used than was granted")
