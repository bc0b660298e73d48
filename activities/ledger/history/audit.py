"""Proving what happened: the event chain, what the events say about each commit, signatures (G6).

``verify_chain`` and ``verify_story`` are pure: they work on the events of a ledger and on an
exported file alike, and name the first break.

Rows of decisions can be written by whoever has the workers' rights in the database. What such a row
is worth, its signature says; and what no event tells of, was not written by a worker. So signatures
on record are verified again: on decisions and starts, and under exports (G3).

A file alone cannot show that its end was cut off, or that all of it was written anew with hashes
that fit: whoever signs its head, and keeps the key elsewhere, makes that show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from surehand.activities.ledger.approvals import standing
from surehand.activities.ledger.approvals.votes import fold_name, is_vote_of
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, has_expired, runs
from surehand.activities.ledger.core.transaction import GENESIS, event_hash
from surehand.activities.ledger.effects.epochs import RESTORED, Epoch
from surehand.activities.ledger.halts import stood_still
from surehand.activities.ledger.people import signatures, starts
from surehand.activities.ledger.people.proofs import why_unproven
from surehand.workflows.canonical_json import NotCanonical
from surehand.workflows.contracts.approvals import (
    Assurance,
    ExportClaims,
    audience,
    standing_label,
)
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.identity import tenant_of_run
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
        return f"event {self.seq}: {self.reason}" if self.seq else self.reason


class NotAnExport(ValueError):
    """A file is not an export of events; the message names the line."""


def verify_chain(events: Sequence[Event], heads: Iterable[ChainHead] = ()) -> Break | None:
    """Return the first break of a run's chain, or ``None`` if it holds.

    It must pass through each head that was recorded elsewhere (the ledger's run row, Temporal's
    history), so that a rewritten or shortened one shows.
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
        reason = _take_event(story, event)
        if reason is not None:
            return Break(event["seq"], reason)
    return None


def _take_event(story: _Story, event: Event) -> str | None:
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
            _take_vote(story, body, body.get("outcome"))
        case "approval.standing_used":
            _take_vote(story, body, "approve")
        case "approval.approved":
            return _take_approval(story, body["approval_id"])
        case "approval.waived":
            story.waived.add((event["step_id"], body["params_hash"]))
        case "approval.expired" | "approval.void" | "approval.standing_returned":
            story.approved.discard(body["approval_id"])
        case "approval.consumed":
            return _take_use(story, body, event["at_ms"])
        case "effect.claimed":
            return _take_claim(story, event["step_id"], body)
        case "effect.in_doubt" if body.get("rule") == RESTORED:
            # It may have been claimed: of that, and its approval, the ledger has forgotten all.
            story.claimed.setdefault(body["entry_id"], body)
        case "effect.committed":
            return _take_commit(story, body)
        case "intervention.settled" if body.get("action") == "committed":
            story.committed.add(body["entry_id"])
        case "effect.compensated":
            story.committed.discard(body["entry_id"])
    return None


def _take_vote(story: _Story, body: Mapping[str, Any], outcome: str | None) -> None:
    asked = story.asked.get(body["approval_id"], {})
    if outcome == "approve" and _proof_of_vote(body).satisfies(
        asked_assurance(asked.get("assurance"))
    ):
        votes = story.votes.setdefault(body["approval_id"], set())
        votes.add(fold_name(body.get("approver") or ""))


def asked_assurance(said: str | None) -> Assurance:
    """Return what has to prove an approval's votes, as its event or its row says."""
    try:
        return Assurance.OPEN if said is None else Assurance(said)
    except ValueError:
        return Assurance.DEVICE_PASSKEY  # whatever it is: nothing less is enough


def _proof_of_vote(body: Mapping[str, Any]) -> Assurance:
    """Return what proves a vote, as its event says."""
    if not body.get("verified"):
        return Assurance.OPEN
    try:
        return Assurance(str(body.get("proof")))
    except ValueError:
        return Assurance.SIGNED


def _take_approval(story: _Story, approval_id: str) -> str | None:
    story.approved.add(approval_id)
    asked = story.asked.get(approval_id)
    wanted = asked.get("quorum", 1) if asked else 0
    found = len(story.votes.get(approval_id, ()))
    if found >= wanted:
        return None
    return f"approval {approval_id} was given by {found} of {wanted} people who were asked for"


def _take_use(story: _Story, body: Mapping[str, Any], at_ms: int) -> str | None:
    approval_id, entry = body["approval_id"], body["entry_id"]
    if approval_id not in story.asked:
        return f"approval {approval_id} was used, but never asked for"
    if approval_id not in story.approved:
        return f"approval {approval_id} was used, but no decision approved it"
    # Its time stood still while calls were halted; who has used it says for how long.
    if has_expired(story.asked[approval_id], at_ms - body.get("halted_ms", 0)):
        return f"approval {approval_id} was used after it had expired"
    if body["params_hash"] != story.asked[approval_id]["params_hash"]:
        return f"approval {approval_id} was used for other params than were asked about"
    if approval_id in story.consumed and story.consumed[approval_id][0] != entry:
        return f"approval {approval_id} was used by two entries"
    story.consumed[approval_id] = (entry, body["params_hash"])
    return None


def _take_claim(story: _Story, step_id: str | None, body: Mapping[str, Any]) -> str | None:
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


def _take_commit(story: _Story, body: Mapping[str, Any]) -> str | None:
    entry = body["entry_id"]
    if entry not in story.claimed:
        return f"entry {entry} was committed without a claim"
    if entry in story.committed:
        return f"entry {entry} was committed twice"
    story.committed.add(entry)
    return None


def find_erasure(events: Sequence[Event]) -> str | None:
    """Return when a run was erased, by whom, and why; ``None``: it was not."""
    for event in events:
        if event["type"] == "run.erased":
            at, body = datetime.fromtimestamp(event["at_ms"] / 1000, UTC), event["body"]
            why = f": {body['because']}" if body.get("because") else ""
            return f"on {at:%Y-%m-%d %H:%M} UTC by {body['actor']}{why}"
    return None


def unverified_approvers(events: Sequence[Event]) -> list[str]:
    """Return the names in which calls were approved by decisions that nobody has signed."""
    return [
        _voter_name(event["body"])
        for event in events
        if (
            event["type"] == "approval.standing_used"
            or (event["type"] == "decision.accepted" and event["body"].get("outcome") == "approve")
        )
        and not event["body"].get("verified")
    ]


def _voter_name(body: Mapping[str, Any]) -> str:
    name = body.get("approver") or "nobody"
    return standing_label(name, body["standing_id"]) if "standing_id" in body else name


def verify_entries(events: Sequence[Event], entries: Iterable[Mapping[str, Any]]) -> Break | None:
    """Return the first of a run's ledger entries that its events do not tell of, or ``None``."""
    story = _Story()
    for event in events:
        _take_event(story, event)
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


def write_lines(events: Sequence[Event]) -> str:
    """Return events as an export: one JSON object a line."""
    return "".join(
        json.dumps({name: event[name] for name in EXPORTED}, ensure_ascii=False) + "\n"
        for event in events
    )


def split_lines(text: str) -> list[str]:
    """Return the lines of an export; what else ends a line in Unicode may be part of one."""
    return text.removesuffix("\n").split("\n") if text else []


def read_lines(text: str) -> list[dict[str, Any]]:
    events = []
    for number, line in enumerate(split_lines(text), start=1):
        try:
            event = json.loads(line)
        except ValueError as error:
            raise NotAnExport(f"line {number} is not JSON: {error}") from error
        missing = [name for name in EXPORTED if not isinstance(event, dict) or name not in event]
        if missing:
            raise NotAnExport(f"line {number} is not an exported event: no {', '.join(missing)}")
        events.append(event)
    return events


def first_unproven(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    """Return the first row of a run that nothing proves although it counts as proven, or ``None``.

    A key that was revoked later proves what it has signed before.
    """
    found = _find_unproven_start(tx, run_id, events) or _find_unproven_halt(tx, run_id, events)
    if found is not None:
        return found
    asked = _read_assurances(tx, run_id, events)
    rows = tx.all(
        rows_of(decisions, run_id=run_id, verdict="accepted")
        .order_by(decisions.c.at_ms, decisions.c.decision_id)
        # What is proven is nothing that is sealed: so it is of a run that was erased, too.
        .execution_options(sealed="stored")
    )
    told = {_vote_name(event["body"]): event for event in events if event["type"] in _TOLD_BY}
    for row in rows:
        wanted = asked.get(row["approval_id"], Assurance.OPEN)
        found = _find_unproven_decision(tx, row, told.get(_vote_name(row)), wanted)
        if found is not None:
            return found
    return None


_TOLD_BY = ("decision.accepted", "approval.standing_used")


def _vote_name(told: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return what an event and its row have in common."""
    if told.get("standing_id") is not None:
        return told["approval_id"], told["standing_id"]
    return told["decision_id"], None


def _find_unproven_start(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    opened = next((event for event in events if event["type"] == "run.opened"), None)
    row = tx.one(
        rows_of(runs, "user_id", "started_by", "start_kid", "start_signature", run_id=run_id)
    )
    if opened is None or row is None:
        return None  # the chain says so
    body = opened["body"]
    said = (body["user"], body.get("started_by"), body.get("kid"))
    if said != (row["user_id"], row["started_by"], row["start_kid"]):
        return Break(opened["seq"], "tells of another start of the run than the ledger's row")
    if not body.get("verified") and row["start_signature"] is None:
        return None
    why = starts.why_start_unproven(tx, run_id)
    return None if why is None else Break(opened["seq"], f"nothing proves who started it: {why}")


def _find_unproven_halt(tx: Transaction, run_id: str, events: Sequence[Event]) -> Break | None:
    """Return the first use of an approval for which calls were not halted as long as it says."""
    for event in events:
        body = event["body"]
        if event["type"] != "approval.consumed" or not body.get("halted_ms"):
            continue
        named = {"approval_id": body["approval_id"], "run_id": run_id}
        row = tx.one(rows_of(approvals, "tool", "requested_ms", **named))
        still_ms = 0
        if row is not None:
            whose = (row["tool"], run_id, row["requested_ms"], event["at_ms"])
            still_ms = stood_still(tx, *whose)
        if still_ms < body["halted_ms"]:
            reason = f"approval {body['approval_id']} was used after it had expired"
            return Break(event["seq"], f"{reason}: calls were not halted for so long")
    return None


def _read_assurances(tx: Transaction, run_id: str, events: Sequence[Event]) -> dict[str, Assurance]:
    """Return what has to prove an approval's votes, by their rows and their events."""
    id_, what = approvals.c.approval_id, approvals.c.assurance
    said = [
        (row["approval_id"], row["assurance"])
        for row in tx.all(rows_of(approvals, id_, what, run_id=run_id))
    ]
    bodies = (event["body"] for event in events if event["type"] == "approval.requested")
    said += [(body["approval_id"], body.get("assurance")) for body in bodies]
    found: dict[str, Assurance] = {}
    for approval_id, assurance in said:
        before = found.get(approval_id, Assurance.OPEN)
        found[approval_id] = before.stricter(asked_assurance(assurance))
    return found


def _find_unproven_decision(
    tx: Transaction, row: Mapping[str, Any], told: Event | None, asked: Assurance
) -> Break | None:
    what = f"decision {row['decision_id']} of {row['approver']}"
    if told is None:
        return Break(0, f"{what} counts in the ledger, but no event tells of it")
    body = told["body"]
    told_of = (body.get("approver"), bool(body.get("verified")), body.get("deputy_for"))
    if told_of != (row["approver"], row["verified"], row["deputy_for"]):
        return Break(told["seq"], f"{what} is another in the ledger's row")
    if asked is Assurance.OPEN and not row["verified"] and row["signature"] is None:
        return None
    given = row["standing_id"] is not None
    why = _why_not_given(tx, row, asked) if given else why_unproven(tx, row, asked, in_force=False)
    return None if why is None else Break(told["seq"], f"nothing proves {what}: {why}")


def _why_not_given(tx: Transaction, row: Mapping[str, Any], asked: Assurance) -> str | None:
    """Return why the vote of a standing approval is none."""
    found = standing.find_standing(tx, row["standing_id"])
    if found is None or not is_vote_of(row, found):
        return "there is no such standing approval"
    why = standing.why_unsigned(tx, found, in_force=False)
    if why is not None:
        return why
    if not found.assurance.satisfies(asked):
        return f"decisions {asked.as_text()}"
    scope = {"tool": found.scope.tool, "tool_version": found.scope.version}
    id_ = approvals.c.approval_id
    if tx.one(rows_of(approvals, id_, approval_id=row["approval_id"], **scope)) is None:
        return "its standing approval is for another tool"
    return None if standing.is_within(tx, found) else "more was used than was granted"


#: The one field of the last line.
_SIGNATURE: Final = "signature"
#: Of the year 9999: what follows is no date.
_LAST_SECOND: Final = 253_402_300_799


def signature_line(token: str) -> str:
    """Return the last line of a signed export."""
    return json.dumps({_SIGNATURE: token}) + "\n"


def read_export(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the events of an export, and its signature if it has one."""
    *above, last = split_lines(text) or [""]
    try:
        value = json.loads(last)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.keys() == {_SIGNATURE}:
        return read_lines("\n".join(above)), str(value[_SIGNATURE])
    return read_lines(text), None


def claims_to_be(token: str) -> tuple[str, ExportClaims]:
    """Return the key id and the claims of a signature that nobody has verified."""
    return signatures.header_kid(token, ExportClaims.typ), signatures.read_claims(
        token, ExportClaims
    )


def verify_signature(
    events: Sequence[Event], token: str | None, public_jwk: Mapping[str, Any] | None
) -> Break | None:
    """Return why a signature is not one over these events, or ``None``.

    Without ``public_jwk`` only what it claims is compared.
    """
    if token is None:
        return None if public_jwk is None else Break(0, "the export is not signed")
    try:
        claims = claims_to_be(token)[1]
        if public_jwk is not None:
            claims = signatures.verify_token(token, public_jwk, ExportClaims)
    except signatures.BadSignature as error:
        return Break(0, str(error))
    if not 0 <= claims.iat <= _LAST_SECOND:
        return Break(0, "the signature is made at no time that there is")
    run_id = str(events[0]["run_id"]) if events else ""
    if claims.run_id != run_id:
        return Break(0, f"the signature is over the export of another run, {claims.run_id}")
    if claims.aud != audience(tenant_of_run(run_id)):
        return Break(0, "the signature is for another tenant")
    if claims.seq < len(events):
        return Break(claims.seq + 1, "was added after the export was signed")
    return verify_chain(events, [ChainHead(seq=claims.seq, hash=claims.head)])
