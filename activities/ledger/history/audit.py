"""Proving what happened: the event chain, and what the events say about each commit (G6).

``verify_chain`` and ``verify_story`` are pure: they work on the events of a ledger and on an
exported file alike, and name the first break.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from surehand.activities.ledger.approvals.votes import folded
from surehand.activities.ledger.core.people_tables import has_expired
from surehand.activities.ledger.core.transaction import GENESIS, event_hash
from surehand.activities.ledger.effects.epochs import RESTORED, Epoch
from surehand.workflows.contracts.approvals import Assurance, standing_label
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.identity import NotCanonical
from surehand.workflows.plan.plan import ITERATION

#: What an event's hash covers, beside the hash before it.
HASHED: Final = ("run_id", "seq", "type", "step_id", "body", "at_ms")
#: An exported line: what is hashed, and the two hashes.
EXPORTED: Final = (*HASHED, "previous", "hash")

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Break:
    """The first thing that does not hold."""

    seq: int
    """The event where it shows; 0 for the chain as a whole."""
    reason: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"event {self.seq}: {self.reason}" if self.seq else self.reason


class NotAnExport(ValueError):
    """A file is not an export of events; the message names the line."""


def verify_chain(events: Sequence[Event], heads: Iterable[ChainHead] = ()) -> Break | None:
    """Return the first break of a run's chain, or ``None`` if it holds.

    Args:
        events: All events of the run, in order.
        heads: Heads recorded elsewhere (the ledger's run row, Temporal's history): the chain must
            pass through each of them, so that a rewritten or shortened one shows.
    """
    previous, hashes = GENESIS, {0: GENESIS}
    for seq, event in enumerate(events, start=1):
        if event["seq"] != seq:
            return Break(seq, f"missing: the next one that is there is {event['seq']}")
        if event["previous"] != previous:
            return Break(seq, "does not follow the event before it")
        try:
            computed = event_hash(previous, {name: event[name] for name in HASHED})
        except NotCanonical as error:
            return Break(seq, str(error))
        if event["hash"] != computed:
            return Break(seq, "was changed: its hash does not fit its content")
        previous = hashes[seq] = computed
    for head in sorted(heads, key=lambda head: head.seq):
        if head.seq not in hashes:
            return Break(0, f"the chain ends at {len(events)}, but event {head.seq} was recorded")
        if hashes[head.seq] != head.hash:
            return Break(head.seq, "is not the one that was recorded when it was written")
    return None


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

    Args:
        events: All events of a run, in order.
        heads: Heads that Temporal's history has.
        restores: The ledger's epochs: what was recorded in between is forgotten, unless it fits.
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


@dataclass
class _Story:
    """What the events have said so far."""

    gated: set[str] = field(default_factory=set)
    asked: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The request by approval id."""
    votes: dict[str, set[str]] = field(default_factory=dict)
    """Who has said yes, in a way that counts for the request, by approval id."""
    approved: set[str] = field(default_factory=set)
    waived: set[tuple[str | None, str]] = field(default_factory=set)
    """Steps and params hashes that no policy asks a human about."""
    consumed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Entry and params hash by approval id."""
    claimed: dict[str, Event] = field(default_factory=dict)
    """The newest claim of each entry."""
    committed: set[str] = field(default_factory=set)
    """Entries that are committed and not compensated."""


def verify_story(events: Sequence[Event]) -> Break | None:
    """Return the first event that should not be where it is, or ``None``.

    Checked are: each approval was asked for and given by as many people as were asked for, signed
    where that was asked for, before it was used;
    it was used in time, by one entry, for the params that were asked about; each claim of a step
    that needed an approval had one; no entry was committed twice.
    """
    story = _Story()
    for event in events:
        reason = _tell(story, event)
        if reason is not None:
            return Break(event["seq"], reason)
    return None


def _tell(story: _Story, event: Event) -> str | None:
    body = event["body"]
    match event["type"]:
        case "run.opened":
            story.gated = set(body.get("gated", []))
        case "run.amended":
            story.gated |= set(body.get("gated", []))
        case "approval.requested":
            story.asked[body["approval_id"]] = body
            # What was waived before somebody was asked is not waived any more.
            story.waived = {waived for waived in story.waived if waived[0] != event["step_id"]}
        case "decision.accepted":
            _vote(story, body, body.get("outcome"))
        case "approval.standing_used":
            _vote(story, body, "approve")
        case "approval.approved":
            return _approve(story, body["approval_id"])
        case "approval.waived":
            story.waived.add((event["step_id"], body["params_hash"]))
        case "approval.expired" | "approval.void" | "approval.standing_returned":
            story.approved.discard(body["approval_id"])
        case "approval.consumed":
            return _consume(story, body, event["at_ms"])
        case "effect.claimed":
            return _claim(story, event["step_id"], body)
        case "effect.in_doubt" if body.get("rule") == RESTORED:
            # It may have been claimed: of that, and its approval, the ledger has forgotten all.
            story.claimed.setdefault(body["entry_id"], body)
        case "effect.committed":
            return _commit(story, body)
        case "intervention.settled" if body.get("action") == "committed":
            story.committed.add(body["entry_id"])
        case "effect.compensated":
            story.committed.discard(body["entry_id"])
    return None


def _vote(story: _Story, body: Mapping[str, Any], outcome: str | None) -> None:
    asked = story.asked.get(body["approval_id"], {})
    if outcome == "approve" and _given(body).satisfies(asked_assurance(asked.get("assurance"))):
        votes = story.votes.setdefault(body["approval_id"], set())
        votes.add(folded(body.get("approver") or ""))


def asked_assurance(said: str | None) -> Assurance:
    """Return what has to prove an approval's votes, as its event or its row says."""
    try:
        return Assurance.OPEN if said is None else Assurance(said)
    except ValueError:
        return Assurance.DEVICE_PASSKEY  # whatever it is: nothing less is enough


def _given(body: Mapping[str, Any]) -> Assurance:
    """Return what proves a vote, as its event says."""
    if not body.get("verified"):
        return Assurance.OPEN
    try:
        return Assurance(str(body.get("proof")))
    except ValueError:
        return Assurance.SIGNED


def _approve(story: _Story, approval_id: str) -> str | None:
    story.approved.add(approval_id)
    asked = story.asked.get(approval_id)
    wanted = asked.get("quorum", 1) if asked else 0
    found = len(story.votes.get(approval_id, ()))
    if found >= wanted:
        return None
    return f"approval {approval_id} was given by {found} of {wanted} people who were asked for"


def _consume(story: _Story, body: Mapping[str, Any], at_ms: int) -> str | None:
    approval_id, entry = body["approval_id"], body["entry_id"]
    if approval_id not in story.asked:
        return f"approval {approval_id} was used, but never asked for"
    if approval_id not in story.approved:
        return f"approval {approval_id} was used, but no decision approved it"
    if has_expired(story.asked[approval_id], at_ms):
        return f"approval {approval_id} was used after it had expired"
    if body["params_hash"] != story.asked[approval_id]["params_hash"]:
        return f"approval {approval_id} was used for other params than were asked about"
    if approval_id in story.consumed and story.consumed[approval_id][0] != entry:
        return f"approval {approval_id} was used by two entries"
    story.consumed[approval_id] = (entry, body["params_hash"])
    return None


def _claim(story: _Story, step_id: str | None, body: Mapping[str, Any]) -> str | None:
    entry, approval_id = body["entry_id"], body.get("approval_id")
    if entry in story.committed:
        return f"entry {entry} was claimed again although it stands committed"
    if ITERATION.sub("", step_id or "") in story.gated and not body.get("undoes"):
        if approval_id is None and (step_id, body["params_hash"]) in story.waived:
            story.claimed[entry] = body
            return None
        used = story.consumed.get(approval_id) if approval_id else None
        if used is None or used[0] != entry:
            return f"entry {entry} of step {step_id} was claimed without its approval"
        if used[1] != body["params_hash"]:
            return f"entry {entry} of step {step_id} was claimed with other params than approved"
    story.claimed[entry] = body
    return None


def _commit(story: _Story, body: Mapping[str, Any]) -> str | None:
    entry = body["entry_id"]
    if entry not in story.claimed:
        return f"entry {entry} was committed without a claim"
    if entry in story.committed:
        return f"entry {entry} was committed twice"
    story.committed.add(entry)
    return None


def erasure(events: Sequence[Event]) -> str | None:
    """Return when a run was erased, by whom, and why; ``None``: it was not.

    Args:
        events: All events of a run, in order.
    """
    for event in events:
        if event["type"] == "run.erased":
            at, body = datetime.fromtimestamp(event["at_ms"] / 1000, UTC), event["body"]
            why = f": {body['because']}" if body.get("because") else ""
            return f"on {at:%Y-%m-%d %H:%M} UTC by {body['actor']}{why}"
    return None


def unverified_approvers(events: Sequence[Event]) -> list[str]:
    """Return the names in which calls were approved that nothing proves: the decision is unsigned.

    Args:
        events: All events of a run, in order.
    """
    return [
        _voter(event["body"])
        for event in events
        if (
            event["type"] == "approval.standing_used"
            or (event["type"] == "decision.accepted" and event["body"].get("outcome") == "approve")
        )
        and not event["body"].get("verified")
    ]


def _voter(body: Mapping[str, Any]) -> str:
    name = body.get("approver") or "nobody"
    return standing_label(name, body["standing_id"]) if "standing_id" in body else name


def verify_entries(events: Sequence[Event], entries: Iterable[Mapping[str, Any]]) -> Break | None:
    """Return the first of a run's ledger entries that its events do not tell of, or ``None``.

    Args:
        events: All events of the run, in order.
        entries: The run's rows of ``effects``.
    """
    story = _Story()
    for event in events:
        _tell(story, event)
    by_key: dict[tuple[str, str], str] = {}
    for entry in entries:
        entry_id, name = entry["entry_id"], (entry["tool"], entry["key"])
        if entry["state"] != "committed":
            continue
        if entry_id not in story.committed:
            return Break(0, f"entry {entry_id} is committed in the ledger, but in no event")
        if name in by_key:
            return Break(0, f"entries {by_key[name]} and {entry_id} of one key are committed")
        by_key[name] = entry_id
    return None


def to_lines(events: Sequence[Event]) -> str:
    """Return events as an export: one JSON object a line."""
    return "".join(
        json.dumps({name: event[name] for name in EXPORTED}, ensure_ascii=False) + "\n"
        for event in events
    )


def lines_of(text: str) -> list[str]:
    """Return the lines of an export; what else ends a line in Unicode may be part of one."""
    return text.removesuffix("\n").split("\n") if text else []


def from_lines(text: str) -> list[dict[str, Any]]:
    """Return the events of an export.

    Raises:
        NotAnExport: A line is not an exported event.
    """
    events = []
    for number, line in enumerate(lines_of(text), start=1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise NotAnExport(f"line {number} is not JSON: {error}") from error
        missing = [name for name in EXPORTED if not isinstance(event, dict) or name not in event]
        if missing:
            raise NotAnExport(f"line {number} is not an exported event: no {', '.join(missing)}")
        events.append(event)
    return events
