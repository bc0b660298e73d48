"""The ledger's tables: the state machine lives in the database, not only in code.

Times are milliseconds since 1970 by the database's clock (``_ms``). Every table but ``epochs``
and ``in_hand`` has ``tenant_id`` in its key. The migrations make these tables.

A notification's row is written in the transaction of the change that it tells of, and sent later,
outside of any transaction. It holds ids, references and lines that people read anyway: no params
and no secrets.

Workers only read who people are and what they may do. What is taken away stays as a row with the
time, so that it can be seen who could do what, and when. Of standing approvals workers read the
grants and write the uses. A grant's row is its history: triggers let nothing of it change but its
revocation, once.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    literal_column,
    text,
)
from sqlalchemy.schema import SchemaItem

from surehand.activities.ledger.core.sealed import Sealed, SealedEvent, SealedMembers, SealedText
from surehand.workflows.plan.policy import ASKED_PROOFS

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: SQLAlchemy's JSON stores None as JSON null, which ``IS NULL`` in a CHECK does not see.
Json = JSON(none_as_null=True)


def _table(name: str, *items: SchemaItem) -> Table:
    """Return a table whose key begins with the tenant."""
    return Table(name, metadata, Column("tenant_id", String(80), primary_key=True), *items)


def _table_of_runs(name: str, *items: SchemaItem) -> Table:
    """Return a table whose key begins with a run of the tenant."""
    run_id = Column("run_id", String(255), primary_key=True)
    return _table(name, run_id, *items, _run_reference())


def _run_columns() -> tuple[SchemaItem, ...]:
    """Return a column that names the run of a row, which is not in its key."""
    return Column("run_id", String(255), nullable=False), _run_reference()


def _run_reference() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"])


def _index(name: str, *columns: str, unique: bool = False, where: str | None = None) -> Index:
    """Return an index within each tenant; ``where``: of these rows alone."""
    only = None if where is None else text(where)
    columns = ("tenant_id", *columns)
    return Index(name, *columns, unique=unique, sqlite_where=only, postgresql_where=only)


def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


def _one_of(column: str, values: tuple[str, ...]) -> str:
    """Return the CHECK that a column has one of these values."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


checkpoints = _table_of_runs(
    "checkpoints",
    Column("name", String(64), primary_key=True),
    # The run's newest event when the document was made.
    Column("seq", BigInteger, nullable=False),
    # As `checkpoint RUN` prints it, or a reference to an artifact; NULL: its run was erased.
    Column("document", Sealed("checkpoints.document")),
    Column("bytes", BigInteger, nullable=False),
    Column("saved_by", String(200), nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
    _check("counts", "seq >= 0"),
)

notifications = _table(
    "notifications",
    # Made of what makes the row unique: the receiver drops a second delivery by it.
    Column("notification_id", String(80), primary_key=True),
    *_run_columns(),
    Column("step_id", String(80)),
    Column("kind", String(32), nullable=False),
    # The approval, the intervention, the entry, the step or the run that it is about.
    Column("subject", String(400), nullable=False),
    # Of a reminder: how many intervals after the request; 0 for what is told once.
    Column("number", Integer, nullable=False),
    # The notifier, by the name that the settings have for it.
    Column("channel", String(200), nullable=False),
    Column("facts", Sealed("notifications.facts"), nullable=False),
    Column("state", String(16), nullable=False),
    # When it is tried next. Whoever tries it moves that ahead, so that nobody else does meanwhile.
    Column("due_ms", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text),
    Column("written_ms", BigInteger, nullable=False),
    Column("sent_ms", BigInteger),
    # Of a chat: the message, until it says what has become of its request.
    Column("message", String(200)),
    _check("state", _one_of("state", ("pending", "sent", "failed", "void"))),
    _check("sent_at_a_time", "(state = 'sent') = (sent_ms IS NOT NULL)"),
    _check("counts", "number >= 0 AND attempts >= 0"),
    # An activity that is tried again tells nobody twice.
    UniqueConstraint("tenant_id", "kind", "subject", "number", "channel"),
    _index("ix_notifications_due", "channel", "due_ms", where="state = 'pending'"),
    _index("ix_notifications_message", "channel", where="message IS NOT NULL"),
    _index("ix_notifications_written", "written_ms"),
    _index("ix_notifications_run", "run_id"),
)

ENTRY_STATES: Final = (
    "claimed",
    "committed",
    "failed",
    "in_doubt",
    "partial",
    "compensating",
    "compensated",
)
#: Of an entry that waits for its outcome.
UNSETTLED_STATES: Final = ("claimed", "in_doubt", "partial")
_UNSETTLED: Final = _one_of("state", UNSETTLED_STATES)

_OPEN_ROOT: Final = "closed_ms IS NULL AND parent_run_id IS NULL"
_CLOSED_ROOT: Final = "closed_ms IS NOT NULL AND parent_run_id IS NULL"

runs = _table(
    "runs",
    Column("run_id", String(255), primary_key=True),
    # Temporal's Run Ids: of the run's first execution, which tells a repeated opening from a reused
    # run_id, and of the one that acts for it, which no earlier one does any more. Part of no key.
    Column("first_execution", String(80), nullable=False),
    Column("execution", String(80), nullable=False),
    # The run and the step that a child run was started by.
    Column("parent_run_id", String(255)),
    Column("parent_step_id", String(80)),
    # The run whose outputs it has taken over: that one is not deleted before this one.
    Column("linked_run_id", String(255)),
    Column("user_id", String(200), nullable=False),
    # Who has started it, and the evidence: the signature (for a child run that of the run that it
    # goes back to), the key it was made with, its nonce, and when the server took it.
    Column("started_by", String(200), nullable=False),
    Column("start_signature", Text),
    Column("start_kid", String(80)),
    Column("start_nonce", String(100)),
    Column("start_ms", BigInteger, nullable=False),
    Column("plan_name", String(80), nullable=False),
    Column("input", Sealed("runs.input"), nullable=False),
    Column("state", String(32), nullable=False),
    Column("error", SealedText("runs.error")),
    # The event chain: the newest seq and hash. Writers take them by updating this row last.
    Column("seq", BigInteger, nullable=False),
    Column("head", String(80), nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    # Since when it may take steps; NULL: it waits for its tenant's quota of open runs.
    Column("admitted_ms", BigInteger),
    Column("closed_ms", BigInteger),
    # The attempt of its newest batch that began last: no other claims or reads in a batch.
    Column("batch", String(400)),
    _check(
        "closed_when_ended",
        "(closed_ms IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))",
    ),
    _check(
        "start_signed_whole",
        "(start_signature IS NULL) = (start_kid IS NULL)"
        " AND (start_nonce IS NULL OR start_kid IS NOT NULL)",
    ),
    # G3: a signature starts one run.
    _index(
        "uq_runs_start_nonce",
        "started_by",
        "start_nonce",
        unique=True,
        where="start_nonce IS NOT NULL",
    ),
    _check("parent_run_and_step", "(parent_run_id IS NULL) = (parent_step_id IS NULL)"),
    # Which count against a quota, and which wait for it.
    _index("ix_runs_open", "opened_ms", where=_OPEN_ROOT),
    _index("ix_runs_parent", "parent_run_id", "parent_step_id", where="parent_run_id IS NOT NULL"),
    _index("ix_runs_linked", "linked_run_id", where="linked_run_id IS NOT NULL"),
    # Which have ended long ago.
    _index("ix_runs_closed", "closed_ms", where=_CLOSED_ROOT),
)

# The key of a run and its child runs, wrapped by a key-encryption key. It is there before the run:
# what starts a run is encrypted already. So it refers to none. Rotation writes it anew.
run_keys = _table(
    "run_keys",
    # The run at the top of the tree; what is no run, but keeps the ledger in order, has none.
    Column("run_id", String(255), primary_key=True),
    # By which key-encryption key it is wrapped.
    Column("kek_id", String(80), nullable=False),
    Column("wrapped", LargeBinary),
    Column("created_ms", BigInteger, nullable=False),
    Column("erased_ms", BigInteger),
    Column("erased_by", String(200)),
    _check("erased_at_a_time", "(wrapped IS NULL) = (erased_ms IS NOT NULL)"),
    _check("erased_by_somebody", "(erased_ms IS NULL) = (erased_by IS NULL)"),
)

plans = _table_of_runs(
    "plans",
    Column("plan_version", Integer, primary_key=True),
    Column("plan", Sealed("plans.plan"), nullable=False),
    Column("tools", Json, nullable=False),
    Column("stored_ms", BigInteger, nullable=False),
)

steps = _table_of_runs(
    "steps",
    Column("step_id", String(80), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("tool", String(120), nullable=False),
    Column("state", String(16), nullable=False),
    Column("input", Sealed("steps.input")),
    Column("output", Sealed("steps.output")),
    Column("error", SealedText("steps.error")),
    Column("error_class", String(32)),
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("holder", String(400)),
    _check("state", _one_of("state", ("pending", "running", "succeeded", "failed", "skipped"))),
    _check("attempt", "attempt >= 0"),
)

effects = _table(
    "effects",
    Column("entry_id", String(80), primary_key=True),
    Column("tool", String(120), nullable=False),
    Column("tool_version", String(40), nullable=False),
    Column("key", String(400), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("identity_hash", String(80), nullable=False),
    Column("params_hash", String(80), nullable=False),
    Column("params", Sealed("effects.params"), nullable=False),
    *_run_columns(),
    Column("step_id", String(80), nullable=False),
    # How it would be undone, as loaded at its newest claim, or as a human has agreed to since; what
    # undoes another has none.
    Column("undo", Json),
    Column("undoes", String(80)),
    Column("state", String(16), nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    # The attempt that holds the lease; an attempt that lost the answer to its claim finds itself.
    Column("holder", String(400)),
    Column("activity_key", String(400)),
    Column("lease_until_ms", BigInteger),
    # How long the lease lasts from a renewal on: whoever claims says so, and whoever judges whether
    # it is over goes by that. One that lies further ahead is of a clock that was set back.
    Column("lease_ms", BigInteger, nullable=False),
    # When the last of the calls that may be on the wire ends, and what it was given: until then,
    # and `settle` longer, a lookup's "not found" proves nothing; without `settle` it never does.
    Column("deadline_ms", BigInteger),
    Column("timeout_ms", BigInteger, nullable=False),
    Column("settle_ms", BigInteger),
    Column("window_ms", BigInteger),
    Column("first_call_ms", BigInteger),
    # The epoch in which it was claimed first, or put in doubt because of the restore; 0: none was
    # open. What an open epoch finds of an earlier one may have been called since, unrecorded.
    Column("epoch", Integer, nullable=False),
    # Since when an outcome is missing that an earlier attempt should have recorded.
    Column("recovering_ms", BigInteger),
    # An earlier call of this entry may have happened: only a commit or a lookup settles it.
    Column("unproven", Boolean, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("failures", Json, nullable=False),
    Column("approval_id", String(400)),
    # What a lookup by state has said before the newest call.
    Column("observed", Sealed("effects.observed")),
    Column("receipt", Sealed("effects.receipt")),
    # Whether strangers may have written it: it marks each run that takes it.
    Column("foreign_receipt", Boolean, nullable=False),
    Column("answer", Sealed("effects.answer")),
    Column("evidence", Sealed("effects.evidence")),
    Column("error", SealedText("effects.error")),
    # Its place among all that was committed: effects are undone by it, last first.
    Column("commit_no", BigInteger),
    # Why it was left as it is when the run that it belongs to was undone.
    Column("left_because", SealedText("effects.left_because")),
    Column("claimed_ms", BigInteger, nullable=False),
    Column("settled_ms", BigInteger),
    # When params, receipt and all else that it carries were deleted: the rest protects its key.
    Column("content_deleted_ms", BigInteger),
    _check("state", _one_of("state", ENTRY_STATES)),
    _check("leased_while_claimed", "(state = 'claimed') = (lease_until_ms IS NOT NULL)"),
    _check(
        "recovering_until_settled",
        f"recovering_ms IS NULL OR {_UNSETTLED}",
    ),
    _check("undos_have_their_own_keys", "(undoes IS NOT NULL) = (substr(key, 1, 5) = 'undo:')"),
    _check("counts", "generation >= 1 AND fencing_token >= 1 AND calls >= 1"),
    _check(
        "committed_has_number",
        "(commit_no IS NOT NULL) OR state NOT IN ('committed', 'compensating', 'compensated')",
    ),
    # G1: one entry for each generation of a business key, whoever asks.
    UniqueConstraint("tenant_id", "tool", "key", "generation"),
    # G4: an effect has one compensation; one that is proven not to have happened is none.
    _index(
        "uq_effects_undoes", "undoes", unique=True, where="undoes IS NOT NULL AND state != 'failed'"
    ),
    # G1: a generation is only followed by another once it is undone or proven not to have happened.
    _index(
        "uq_effects_live_key",
        "tool",
        "key",
        unique=True,
        where="state NOT IN ('failed', 'compensated')",
    ),
    _index("ix_effects_run", "run_id", "step_id"),
    # What undoes an effect, and what has failed to.
    _index("ix_effects_undoes", "undoes", where="undoes IS NOT NULL"),
    # What nobody may be settling, oldest first.
    _index(
        "ix_effects_unsettled",
        "claimed_ms",
        "entry_id",
        where=_UNSETTLED,
    ),
    _index("uq_effects_commit_no", "commit_no", unique=True),
)

#: That an entry waits for its outcome; written out, so that the index of those alone serves.
WITHOUT_OUTCOME: Final = effects.c.state.in_(
    [literal_column(f"'{state}'") for state in UNSETTLED_STATES]
)

bars = _table_of_runs(
    "bars",
    Column("step_id", String(80), primary_key=True),
    Column("barred_ms", BigInteger, nullable=False),
)

replays = _table_of_runs(
    "replays",
    Column("step_id", String(80), primary_key=True),
    Column("entry_id", String(80), primary_key=True),
    Column("replayed_ms", BigInteger, nullable=False),
    _index("ix_replays_entry", "entry_id"),
)

artifacts = _table(
    "artifacts",
    Column("artifact_id", String(80), primary_key=True),
    *_run_columns(),
    Column("step_id", String(80), nullable=False),
    Column("type", String(80), nullable=False),
    Column("uri", String(400), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # The run at the top of the tree with whose key it is encrypted; NULL: it is in plain.
    Column("sealed_for", String(255)),
    # What the artifact store did not take when an outcome was in hand.
    Column("content", LargeBinary),
    Column("created_ms", BigInteger, nullable=False),
    UniqueConstraint("tenant_id", "run_id", "step_id", "sha256"),
    _index("ix_artifacts_sha256", "sha256"),
)

drafts = _table_of_runs(
    "drafts",
    Column("step_id", String(80), primary_key=True),
    # Counts the step's: whoever begins anew writes the next one.
    Column("number", Integer, primary_key=True),
    # Of the call that it is written by: another call does not go on with it.
    Column("params_hash", String(80), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # What is in the artifact store, in order: name, sha256 and bytes of each part.
    Column("parts", Json, nullable=False),
    # What comes after that, too small to be a part of its own; NULL: removed, as the parts are.
    Column("tail", LargeBinary),
    Column("begun_ms", BigInteger, nullable=False),
    # When nothing more may be written.
    Column("ended_ms", BigInteger),
    Column("removed_ms", BigInteger),
    _check("counts", "number >= 1 AND bytes >= 0"),
    _check("removed_at_a_time", "(tail IS NULL) = (removed_ms IS NOT NULL)"),
    _check("ended_when_removed", "removed_ms IS NULL OR ended_ms IS NOT NULL"),
    _index("uq_drafts_under_way", "run_id", "step_id", unique=True, where="ended_ms IS NULL"),
    _index("ix_drafts_kept", where="removed_ms IS NULL"),
)

leases = _table(
    "leases",
    Column("resource", String(400), primary_key=True),
    # Grows with each lease; the row stays when the resource is free, so that no number comes twice.
    Column("fencing_token", BigInteger, nullable=False),
    # The newest lease's step: its later attempts may take the lease over.
    *_run_columns(),
    Column("step_id", String(80), nullable=False),
    Column("tool", String(120), nullable=False),
    # The attempt that holds it; NULL when the resource is free.
    Column("holder", String(400)),
    Column("lease_until_ms", BigInteger),
    # The longest time limit of the leases that its times are of: what lies further ahead is of a
    # clock that was set back.
    Column("lease_ms", BigInteger, nullable=False),
    # Until then an attempt that was taken over from may still be calling: others are kept out.
    Column("others_after_ms", BigInteger, nullable=False),
    Column("acquired_ms", BigInteger, nullable=False),
    _check("held_until", "(holder IS NULL) = (lease_until_ms IS NULL)"),
    _check("fencing_token", "fencing_token >= 1"),
    _index("ix_leases_held", "lease_until_ms", where="holder IS NOT NULL"),
)

events = _table_of_runs(
    "events",
    Column("seq", BigInteger, primary_key=True),
    Column("type", String(64), nullable=False),
    Column("step_id", String(80)),
    Column("body", SealedEvent(), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("previous", String(80), nullable=False),
    Column("hash", String(80), nullable=False),
    _check("seq", "seq >= 1"),
    # What has happened since: for statistics, which must not read the whole ledger.
    _index("ix_events_at", "at_ms"),
    # Each claim asks whether its run has read content from outside.
    _index("ix_events_foreign", "run_id", where="type = 'run.marked_foreign'"),
    # Each undo asks which steps have returned its effect, too.
    _index("ix_events_replayed", "run_id", where="type = 'effect.replayed'"),
)

# What a worker has in hand: should it die, others go on with that at once (``presence.py``).
# No promise rests on a row. So these are of no tenant, and the only ones that workers delete.
in_hand = Table(
    "in_hand",
    metadata,
    # The identity by which Temporal knows it.
    Column("worker", String(200), primary_key=True),
    Column("workflow_id", String(255), primary_key=True),
    # Temporal's, whose workers see each other's runs.
    Column("namespace", String(255), nullable=False),
)

approvals = _table(
    "approvals",
    Column("approval_id", String(400), primary_key=True),
    *_run_columns(),
    Column("step_id", String(80), nullable=False),
    Column("tool", String(120), nullable=False),
    Column("tool_version", String(40), nullable=False),
    Column("key", String(400), nullable=False),
    Column("params_hash", String(80), nullable=False),
    Column("params", Sealed("approvals.params"), nullable=False),
    # What people have answered to the tool's own questions: the params hash covers it.
    Column("answers", Sealed("approvals.answers")),
    Column("description", SealedText("approvals.description"), nullable=False),
    Column("undo", SealedText("approvals.undo"), nullable=False),
    Column("user_id", String(200), nullable=False),
    # Who has changed the params since the plan asked; they count as requesters, too.
    Column("editors", Json, nullable=False),
    # What all policies together ask for, and what has to prove a decision.
    Column("needs", Json, nullable=False),
    # The roles whose votes can count, in order; empty: everybody's can.
    Column("asked_of", String(1000), nullable=False),
    Column("assurance", String(16), nullable=False),
    # Digest of what the tool's precondition said when the request was made.
    Column("precondition", SealedText("approvals.precondition")),
    # Whether the tool says that it is to be on record who is shown the params.
    Column("secret", Boolean, nullable=False, server_default=false()),
    Column("state", String(16), nullable=False),
    Column("requested_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("decided_by", String(200)),
    Column("verified", Boolean),
    Column("consumed_entry", String(80)),
    Column("consumed_generation", Integer),
    # When people are reminded of it next; NULL: no policy asks for that.
    Column("remind_ms", BigInteger),
    _check(
        "state",
        _one_of("state", ("pending", "approved", "rejected", "expired", "superseded", "void")),
    ),
    _check("assurance", _one_of("assurance", ASKED_PROOFS)),
    _check(
        "decided_by_someone",
        "(state IN ('approved', 'rejected', 'superseded')) = (decided_by IS NOT NULL)",
    ),
    # G3: only an approved request authorises an entry.
    _check("only_approved_is_consumed", "consumed_entry IS NULL OR state = 'approved'"),
    _check("consumed_whole", "(consumed_entry IS NULL) = (consumed_generation IS NULL)"),
    # How many wait: a tenant may have a quota of them. And which of them are over first.
    _index("ix_approvals_pending", "expires_ms", "approval_id", where="state = 'pending'"),
    # The same for whoever has some of the roles, and by tool.
    _index(
        "ix_approvals_asked",
        "asked_of",
        "tool",
        "expires_ms",
        "approval_id",
        where="state = 'pending'",
    ),
    _index("ix_approvals_remind", "remind_ms", where="state = 'pending' AND remind_ms IS NOT NULL"),
    # Which a run that ends has asked for.
    _index("ix_approvals_run", "run_id"),
)


def has_expired(request: Any, now_ms: int) -> Any:
    """Return whether a request's time is over; of the table's columns, the condition for that."""
    return request["expires_ms"] <= now_ms


def soonest_open(now_ms: int) -> int:
    """Return the first ``expires_ms`` that has not expired: where an index of them is read from."""
    return now_ms + 1


#: Of a decision: a vote that its approver has sent.
_IN_PERSON: Final = "verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL"

decisions = _table(
    "decisions",
    Column("decision_id", String(400), primary_key=True),
    *_run_columns(),
    Column("approval_id", String(400), nullable=False),
    Column("approver", String(200), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("params_hash", String(200), nullable=False),
    Column("reason", SealedText("decisions.reason"), nullable=False),
    Column("verdict", String(32), nullable=False),
    Column("message", SealedText("decisions.message"), nullable=False),
    Column("verified", Boolean, nullable=False),
    # The params that an edit asks for instead.
    Column("edited", Sealed("decisions.edited")),
    # The evidence: the signature, the key it was made with, its nonce.
    Column("signature", Text),
    Column("kid", String(80)),
    Column("nonce", String(100)),
    Column("at_ms", BigInteger, nullable=False),
    # The standing approval that has voted in its granter's place.
    Column("standing_id", String(40)),
    # In whose place a deputy has voted.
    Column("deputy_for", String(200)),
    _check("verified_by_a_signature", "verified = (kid IS NOT NULL AND nonce IS NOT NULL)"),
    # G3: nobody counts twice for one request. Votes given in advance are counted by name with the
    # others; their own key is that of their use.
    _index("uq_decisions_vote", "approval_id", "approver", unique=True, where=_IN_PERSON),
    # What somebody has said, newest last.
    _index(
        "ix_decisions_approver", "approver", "at_ms", "decision_id", where="standing_id IS NULL"
    ),
    # What was said to one request.
    _index("ix_decisions_approval", "approval_id"),
    _index("ix_decisions_run", "run_id"),
    # G3: a signature is judged once.
    _index("uq_decisions_nonce", "approver", "nonce", unique=True, where="nonce IS NOT NULL"),
)

steerings = _table(
    "steerings",
    Column("steering_id", String(400), primary_key=True),
    *_run_columns(),
    # Temporal's Run Id: a run that was reset is sent what it was sent before once more.
    Column("workflow_run_id", String(80), nullable=False),
    Column("verb", String(16), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("content", SealedMembers("steerings.content"), nullable=False),
    Column("code", String(32), nullable=False),
    Column("message", SealedText("steerings.message"), nullable=False),
    Column("verified", Boolean, nullable=False),
    # The evidence: the signature (by the actor's key, or by a resume token), and its nonce.
    Column("signature", Text),
    Column("kid", String(80)),
    Column("nonce", String(100)),
    # Of what a run hands on to its child run: what it was as the parent's.
    Column("forwarded_as", String(400)),
    Column("at_ms", BigInteger, nullable=False),
    _check("signed_whole", "(kid IS NULL) = (nonce IS NULL)"),
    _check("verified_by_a_signature", "NOT verified OR nonce IS NOT NULL"),
    # What somebody has answered, newest last.
    _index(
        *("ix_steerings_actor", "actor", "at_ms", "steering_id"),
        where="forwarded_as IS NULL AND verb IN ('answer', 'resolve')",
    ),
    # A signature is judged once in one life of a run.
    _index(
        "uq_steerings_nonce",
        "run_id",
        "workflow_run_id",
        "nonce",
        unique=True,
        where="nonce IS NOT NULL",
    ),
)

interventions = _table(
    "interventions",
    Column("intervention_id", String(80), primary_key=True),
    *_run_columns(),
    Column("step_id", String(80), nullable=False),
    Column("entry_id", String(80), nullable=False),
    # Counts the entry's, from 1: which is the newest no clock can say, because they are set back.
    Column("number", Integer, nullable=False),
    Column("rule", String(32), nullable=False),
    Column("question", SealedText("interventions.question"), nullable=False),
    # How the effect would be undone as the question says: the answer `undo` agrees to this alone.
    Column("undo", Json),
    Column("state", String(16), nullable=False),
    Column("outcome", String(16)),
    Column("actor", String(200)),
    Column("evidence", SealedText("interventions.evidence")),
    Column("resolution_id", String(400)),
    Column("opened_ms", BigInteger, nullable=False),
    Column("settled_ms", BigInteger),
    _check("state", _one_of("state", ("open", "settled"))),
    _check("settled_whole", "(state = 'settled') = (outcome IS NOT NULL AND actor IS NOT NULL)"),
    # G2: one open question for each entry, in each run that waits for the answer.
    _index("uq_interventions_open", "entry_id", "run_id", unique=True, where="state = 'open'"),
    _index("ix_interventions_entry", "entry_id", "number"),
    _index("ix_interventions_run", "run_id", "step_id"),
)


def _principal_reference() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "principal"], ["principals.tenant_id", "principals.principal"]
    )


principals = _table(
    "principals",
    Column("principal", String(200), primary_key=True),
    Column("added_ms", BigInteger, nullable=False),
)

grants = _table(
    "grants",
    Column("principal", String(200), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("name", String(80), primary_key=True),
    Column("granted_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    _check("kind", _one_of("kind", ("role", "permission"))),
    _principal_reference(),
)

principal_keys = _table(
    "principal_keys",
    # The thumbprint of the key (RFC 7638).
    Column("kid", String(80), primary_key=True),
    Column("principal", String(200), nullable=False),
    Column("public_key", Json, nullable=False),
    # Of a passkey: its credential, its site, and whether it leaves its device; NULL: signs JWS.
    Column("passkey", Json),
    Column("added_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    _principal_reference(),
)

principal_changes = _table(
    "principal_changes",
    Column("change_id", String(40), primary_key=True),
    Column("principal", String(200), nullable=False),
    Column("change", String(32), nullable=False),
    Column("what", String(100), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    _principal_reference(),
)

deputies = _table(
    "deputies",
    Column("deputy_id", String(40), primary_key=True),
    Column("principal", String(200), nullable=False),
    # Whose votes count in that one's place.
    Column("deputy", String(200), nullable=False),
    # NULL: calls of all tools.
    Column("tool", String(120)),
    # The param that is limited, and the most that it may be: a decimal as text.
    Column("amount_of", String(200)),
    Column("most", String(40)),
    Column("until_ms", BigInteger, nullable=False),
    Column("named_ms", BigInteger, nullable=False),
    Column("named_by", String(200), nullable=False),
    Column("revoked_ms", BigInteger),
    Column("revoked_by", String(200)),
    _check("amount_whole", "(amount_of IS NULL) = (most IS NULL)"),
    _check("revoked_whole", "(revoked_ms IS NULL) = (revoked_by IS NULL)"),
    _check("somebody_else", "deputy <> principal"),
    _index("ix_deputies_deputy", "deputy"),
    _principal_reference(),
)

standing_approvals = _table(
    "standing_approvals",
    # Made of the nonce, which is signed: a copy of a row under another id is worth nothing.
    Column("standing_id", String(40), primary_key=True),
    Column("granter", String(200), nullable=False),
    Column("tool", String(120), nullable=False),
    Column("tool_version", String(40), nullable=False),
    Column("schema_hash", String(80), nullable=False),
    Column("condition", String(500)),
    Column("most_uses", Integer),
    Column("total_of", String(200)),
    # A decimal as text: numbers of the database would be rounded.
    Column("most_total", String(40)),
    # Also for runs that have read content from outside.
    Column("foreign_too", Boolean, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("nonce", String(100), nullable=False),
    # The evidence: the signature over all of that, and the key it was made with.
    Column("signature", Text),
    Column("kid", String(80)),
    Column("granted_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    Column("revoked_by", String(200)),
    _check("signed_whole", "(signature IS NULL) = (kid IS NULL)"),
    _check("total_whole", "(total_of IS NULL) = (most_total IS NULL)"),
    _check("revoked_whole", "(revoked_ms IS NULL) = (revoked_by IS NULL)"),
    _check("most_uses", "most_uses >= 1"),
    _index("ix_standing_approvals_tool", "tool"),
)

standing_uses = _table(
    "standing_uses",
    # One use for each request: asking for the same approval again uses nothing twice.
    Column("approval_id", String(400), primary_key=True),
    Column("standing_id", String(40), primary_key=True),
    *_run_columns(),
    Column("step_id", String(80), nullable=False),
    # What it adds to the sum: a decimal as text.
    Column("amount", String(80)),
    Column("used_ms", BigInteger, nullable=False),
    # Given back: the approval ended, or was asked for again, before it was used.
    Column("returned_ms", BigInteger),
    _index("ix_standing_uses_standing", "standing_id"),
    _index("ix_standing_uses_run", "run_id", "step_id"),
    ForeignKeyConstraint(
        ["tenant_id", "standing_id"],
        ["standing_approvals.tenant_id", "standing_approvals.standing_id"],
    ),
    ForeignKeyConstraint(
        ["tenant_id", "approval_id"], ["approvals.tenant_id", "approvals.approval_id"]
    ),
)

#: What is counted by the hour or the day.
USAGES: Final = ("effects", "tokens", "money")

quotas = _table(
    "quotas",
    # NULL: as much as comes.
    Column("open_runs", Integer),
    Column("effects_per_hour", Integer),
    Column("pending_approvals", Integer),
    Column("tokens_per_day", BigInteger),
    # A decimal as text: numbers of the database would be rounded.
    Column("money_per_day", String(40)),
    # What becomes of what is over: it waits, or it fails.
    Column("over", String(8), nullable=False),
    # Of the tenant's activities where tenants take turns.
    Column("weight", Double, nullable=False),
    Column("set_by", String(200), nullable=False),
    Column("set_ms", BigInteger, nullable=False),
    _check("over", _one_of("over", ("queue", "reject"))),
    _check("weight", "weight >= 0.001 AND weight <= 1000"),
    _check(
        "at_least_nothing",
        "(open_runs IS NULL OR open_runs >= 0)"
        " AND (effects_per_hour IS NULL OR effects_per_hour >= 0)"
        " AND (pending_approvals IS NULL OR pending_approvals >= 0)"
        " AND (tokens_per_day IS NULL OR tokens_per_day >= 0)",
    ),
)

quota_usage = _table(
    "quota_usage",
    Column("kind", String(16), primary_key=True),
    # The beginning of a clock hour, or of a day of UTC, by the database's clock.
    Column("window_start_ms", BigInteger, primary_key=True),
    # Of money in billionths.
    Column("used", BigInteger, nullable=False),
    _check("kind", _one_of("kind", USAGES)),
    _check("used", "used >= 0"),
)

tenants = _table(
    "tenants",
    # By its name in the cells file.
    Column("cell", String(64), nullable=False),
    Column("set_by", String(200), nullable=False),
    Column("set_ms", BigInteger, nullable=False),
)

limit_uses = _table(
    "limit_uses",
    # One row for each entry and limit, whose claim is counted again if it goes forward again.
    Column("entry_id", String(80), primary_key=True),
    Column("limit_name", String(60), primary_key=True),
    # Of what the effects that count together have in common; keyed where runs are sealed.
    Column("group_hash", String(80), nullable=False),
    # In millionths.
    Column("amount", BigInteger, nullable=False),
    Column("counted_ms", BigInteger, nullable=False),
    _check("amount", "amount >= 0"),
    _index("ix_limit_uses_group", "group_hash", "counted_ms"),
)

halts = _table(
    "halts",
    Column("halt_id", String(40), primary_key=True),
    # NULL: of all tools.
    Column("tool", String(120)),
    # Of this run and its child runs; NULL: of all runs. It need not have been opened yet.
    Column("run_id", String(255)),
    # What undoes effects waits as well.
    Column("undo_too", Boolean, nullable=False),
    Column("reason", Text, nullable=False),
    Column("halted_by", String(200), nullable=False),
    Column("halted_ms", BigInteger, nullable=False),
    # Who lifts it, as the file of limits said where it was made; NULL: it said nothing.
    Column("needs", Json),
    Column("lifted_by", String(200)),
    Column("lifted_ms", BigInteger),
    _check("lifted_whole", "(lifted_ms IS NULL) = (lifted_by IS NULL)"),
    # Which stand: each claim looks there.
    _index("ix_halts_standing", "halted_ms", "halt_id", where="lifted_ms IS NULL"),
)

# One yes to lifting a halt. Nobody counts twice, but no unsigned row keeps out a signed one.
halt_votes = _table(
    "halt_votes",
    Column("vote_id", String(40), primary_key=True),
    Column("halt_id", String(40), nullable=False),
    Column("approver", String(200), nullable=False),
    # Of the halt, as it was shown.
    Column("params_hash", String(200), nullable=False),
    Column("signature", Text),
    Column("kid", String(80)),
    Column("nonce", String(100)),
    Column("at_ms", BigInteger, nullable=False),
    _index("ix_halt_votes_halt", "halt_id"),
    _index("uq_halt_votes_nonce", "approver", "nonce", unique=True, where="nonce IS NOT NULL"),
)

epochs = Table(
    "epochs",
    metadata,
    # Counts from 1; entries name the newest one under which they were claimed or put in doubt.
    Column("number", Integer, primary_key=True, autoincrement=False),
    # What the ledger was restored to, as whoever restored it says: what came after is forgotten.
    Column("restored_to_ms", BigInteger, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("opened_by", String(200), nullable=False),
    Column("closed_ms", BigInteger),
    Column("closed_by", String(200)),
    _check("number", "number >= 1"),
    _check("opened_later", "restored_to_ms <= opened_ms"),
    _check("closed_whole", "(closed_ms IS NULL) = (closed_by IS NULL)"),
)

# Runs that are going, or deleted but for their tombstones.
deletions = _table_of_runs(
    "deletions",
    # From then on nobody takes it back: files may be gone.
    Column("begun_ms", BigInteger, nullable=False),
    Column("begun_by", String(200), nullable=False),
    Column("deleted_ms", BigInteger),
    _index("ix_deletions_going", "run_id", where="deleted_ms IS NULL"),
)

# What retention leaves alone, until it is released.
holds = _table_of_runs(
    "holds",
    Column("kept_by", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("kept_ms", BigInteger, nullable=False),
)

# One row for a tenant, so that somebody notices if rounds come no more.
retention_rounds = _table(
    "retention_rounds",
    # When a round has last done all that was to be done; if none has, when the first one ended.
    Column("whole_ms", BigInteger, nullable=False),
)

#: The state of an intervention that waits; written out, so that the index of those alone serves.
OPEN: Final[ColumnElement[str]] = literal_column("'open'")
