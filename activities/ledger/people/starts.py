"""Who has started a run: proven when it opens, and looked at again wherever it counts (G3).

A run acts for its user. Who has started it may be somebody else: neither of them approves its
calls, and a call needs the permissions of both. A child run goes back to the start of its parent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from sqlalchemy import func

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import RunNotFound, Transaction
from surehand.activities.ledger.core.tables import events, runs
from surehand.activities.ledger.people import principals, signatures
from surehand.activities.ledger.people.proofs import StoredSignature, verify_proof, verify_stored
from surehand.verify import BadSignature
from surehand.workflows.contracts.approvals import Assurance, StartClaims, audience
from surehand.workflows.contracts.runs import OpenRun, StartRun
from surehand.workflows.identity import is_child_of

_EVIDENCE: Final = ("start_signature", "start_kid")
#: What a run's row says of its start; a child's row has the same, but for the nonce.
_START: Final = tuple(runs.c[name] for name in ("started_by", "start_ms", *_EVIDENCE))


class StartRefused(Exception):
    """A run is not opened: nothing proves who has started it, or it is started by nobody."""


def start_of(
    tx: Transaction, asked: OpenRun, assurance: Assurance, above: str | None
) -> dict[str, Any]:
    """Return what the row of a run that opens says of its start.

    The server, not the message, says which execution ``above`` has started it.
    """
    request = asked.request
    if request.parent is not None:
        return _inherit_start(tx, request, request.parent.run_id, assurance, above)
    taken_ms = tx.now_ms
    if asked.started_at is not None:
        taken_ms = int(asked.started_at.timestamp() * 1000)
    starter = request.started_by or request.user
    if request.signature is None:
        if assurance is Assurance.SIGNED:
            raise StartRefused("only signed starts count here: start it with --key")
        return _start_columns(starter, taken_ms)
    try:
        key, claims = verify_proof(tx, request.signature, starter, StartClaims, arrived_ms=taken_ms)
    except BadSignature as error:
        raise StartRefused(str(error)) from error
    content = signatures.digest_signed(request.content())
    bound = {
        "another tenant": (claims.aud, audience(tx.tenant)),
        "another run": (claims.run_id, request.run_id),
        "another person": (claims.sub, starter),
        "another user": (claims.user, request.user),
        "another plan, input or way to start it": (claims.content, content),
    }
    differs = signatures.find_difference(bound)
    if differs is not None:
        raise StartRefused(differs)
    used = tx.value(rows_of(runs, "run_id", started_by=starter, start_nonce=claims.jti))
    if used is not None:
        raise StartRefused(f"this signature has started run {used} already")
    return _start_columns(starter, taken_ms, request.signature, key.kid, claims.jti)


def name_starter(tx: Transaction, run_id: str) -> str:
    """Return who has started a run as people are told, empty where that is whom it acts for."""
    row = _read_row(tx, run_id)
    mark = "" if row["start_signature"] is not None else " (unverified)"
    return "" if row["started_by"] == row["user_id"] else f"{row['started_by']}{mark}"


def why_start_unproven(tx: Transaction, run_id: str) -> str | None:
    """Return why nothing proves who has started a run, as one clause; ``None``: it is proven.

    The signature is verified again, as it is on record. That its key was revoked since changes
    nothing: the run was started.
    """
    row = _read_row(tx, run_id)
    kept = StoredSignature(
        *(row["start_signature"], row["started_by"], row["start_kid"], row["start_nonce"]),
        taken_ms=row["start_ms"],
    )
    try:
        _, claims = verify_stored(tx, kept, StartClaims, in_force=False)
    except BadSignature as error:
        return str(error)
    mine = run_id == claims.run_id or is_child_of(run_id, claims.run_id)
    return None if mine and claims.user == row["user_id"] else "its signature is for something else"


def why_forbidden(
    tx: Transaction, run_id: str, user: str, permissions: Collection[str], assurance: Assurance
) -> str | None:
    """Return why a run may not make a call now, as one clause, or ``None``.

    Whoever has started the run needs the permissions, too.
    """
    if not permissions:
        return None
    if assurance is Assurance.SIGNED and (why := why_start_unproven(tx, run_id)) is not None:
        return f"nothing proves who has started run {run_id}: {why}"
    started_by = _read_row(tx, run_id)["started_by"]
    for name in dict.fromkeys((user, started_by)):
        lacking = principals.find_lacking(tx, name, permissions)
        if lacking is not None:
            return f"{name} has no permission {lacking}"
    return None


def _inherit_start(
    tx: Transaction, request: StartRun, parent: str, assurance: Assurance, above: str | None
) -> dict[str, Any]:
    """Return the start of a child run: its parent's, whose user it acts for."""
    row = tx.one(rows_of(runs, "user_id", "first_execution", *_START, run_id=parent))
    # Of the parent's id there may be another workflow by now, of anybody's.
    foreign = assurance is Assurance.SIGNED and row is not None and row["first_execution"] != above
    if row is None or row["user_id"] != request.user or foreign:
        raise StartRefused(f"run {parent} has not started it")
    # Its own nonce is that of the run that was signed for.
    return _start_columns(*(row[name] for name in ("started_by", "start_ms", *_EVIDENCE)))


def _start_columns(
    started_by: str,
    start_ms: int,
    signature: str | None = None,
    kid: str | None = None,
    nonce: str | None = None,
) -> dict[str, Any]:
    return {
        "started_by": started_by,
        "start_ms": start_ms,
        "start_signature": signature,
        "start_kid": kid,
        "start_nonce": nonce,
    }


def _read_row(tx: Transaction, run_id: str) -> Mapping[str, Any]:
    return tx.read_run(run_id, "user_id", "start_nonce", *_START)


#: The events through which a person's words may come into the params of a call.
GIVES_VALUE: Final = (
    "run.opened",  # the plan and its input
    "run.amended",  # another plan
    "interrupt.answered",  # an answer, another output, the reason of a rejection
    "steering.accepted",  # an event, other params, the reason why a child run was cancelled
    "decision.accepted",  # an edit, the reason of a rejection
    "intervention.settled",  # the receipt of a call that somebody says has happened
)
#: Runs that one statement asks about.
_BATCH: Final = 500
_body: Final = events.c.body
#: What runs were told by people, and which other runs they have something of.
_TOLD: Final = (
    rows_of(
        events,
        func.coalesce(_body["value_by"].as_string(), _body["started_by"].as_string()).label("by"),
        _body["user"].as_string().label("user"),
        _body["parent"].as_string().label("parent"),
        _body["linked"].as_string().label("linked"),
        _body["made_by"].as_string().label("made_by"),
    )
    .where(events.c.type.in_((*GIVES_VALUE, "effect.replayed")))
    .distinct()
)


def find_planners(tx: Transaction, run_id: str) -> frozenset[str]:
    """Return who has started or amended a run, had it started, or given it a value.

    Or any of the runs that it is in, those that it has started or was forked from, those that have
    made an effect that it replays, and those beside it that had ended when it was opened.
    """
    opened = tx.opening(run_id)
    if opened is None:
        raise RunNotFound(run_id)
    people = set[str]()
    #: Of each run, whether everything below it counts, or only what had ended by then.
    found = dict[str, bool]()
    left = {run_id: True}
    while left:
        found |= left
        named = dict[str | None, bool]()
        for row in _read_told(tx, left):
            people |= {row["by"], row["user"]} - {None}
            named.setdefault(row["parent"], False)
            named |= {row["linked"]: True, row["made_by"]: True}
        named |= dict.fromkeys(_find_below(tx, left, opened.at_ms), True)
        left = {
            id_: whole
            for id_, whole in named.items()
            if id_ is not None and (id_ not in found or whole > found[id_])
        }
    return frozenset(people)


def _read_told(tx: Transaction, run_ids: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for some in _split_batches(run_ids):
        yield from tx.all(_TOLD.where(events.c.run_id.in_(some)))


def _find_below(tx: Transaction, left: Mapping[str, bool], opened_ms: int) -> Iterator[str]:
    """Yield the runs that these have started: all of them, or those that had ended by then."""
    child = (runs.c.run_id, runs.c.parent_run_id, runs.c.closed_ms)
    for some in _split_batches(left):
        for row in tx.all(rows_of(runs, *child).where(runs.c.parent_run_id.in_(some))):
            ended = row["closed_ms"] is not None and row["closed_ms"] <= opened_ms
            if ended or left[row["parent_run_id"]]:
                yield row["run_id"]


def _split_batches(run_ids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(run_ids)
    while some := list(islice(rest, _BATCH)):
        yield some
