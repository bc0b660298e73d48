"""The ledger's tables: the state machine lives in the database, not only in code.

Times are milliseconds since 1970 by the database's clock (``_ms``). Every table but ``epochs``
and ``in_hand`` has ``tenant_id`` in its key. The first migration makes these tables.

A notification's row is written in the transaction of the change that it tells of, and sent later,
outside of any transaction. It holds ids, references and lines that people read anyway: no params
and no secrets.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)

from surehand.activities.ledger.core import (
    people_tables,
    tenant_tables,
)
from surehand.activities.ledger.core.schema import (
    Json,
    metadata,
    one_of,
    run_reference,
    tenant_columns,
)
from surehand.activities.ledger.core.sealed import Sealed, SealedEvent, SealedText

_SHOWN = text("hidden_ms IS NULL")

checkpoints = Table(
    "checkpoints",
    metadata,
    *tenant_columns(),
    # Counts the run's, from 1.
    Column("number", Integer, primary_key=True),
    Column("name", String(64), nullable=False),
    # The run's newest event when the document was made.
    Column("seq", BigInteger, nullable=False),
    # As `checkpoint RUN` prints it, or a reference to an artifact; NULL: its run was erased.
    Column("document", Sealed("checkpoints.document")),
    Column("bytes", BigInteger, nullable=False),
    Column("saved_by", String(200), nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    # When its time was over, or it made room for a newer one; and the end of its grace.
    Column("hidden_ms", BigInteger),
    Column("delete_after_ms", BigInteger),
    CheckConstraint("number >= 1 AND seq >= 0", name="counts"),
    CheckConstraint("expires_ms > saved_ms", name="lives"),
    CheckConstraint("(hidden_ms IS NULL) = (delete_after_ms IS NULL)", name="hidden_for_a_grace"),
    CheckConstraint("delete_after_ms >= hidden_ms", name="grace"),
    CheckConstraint("document IS NOT NULL OR hidden_ms IS NOT NULL", name="erased_is_hidden"),
    # A name is free again once its checkpoint is hidden.
    Index(
        "uq_checkpoints_name",
        "tenant_id",
        "run_id",
        "name",
        unique=True,
        sqlite_where=_SHOWN,
        postgresql_where=_SHOWN,
    ),
    Index(
        "ix_checkpoints_expires",
        "tenant_id",
        "expires_ms",
        sqlite_where=_SHOWN,
        postgresql_where=_SHOWN,
    ),
    run_reference(),
)


notifications = Table(
    "notifications",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # Made of what makes the row unique: the receiver drops a second delivery by it.
    Column("notification_id", String(80), primary_key=True),
    Column("run_id", String(255), nullable=False),
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
    CheckConstraint(one_of("state", ("pending", "sent", "failed", "void")), name="state"),
    CheckConstraint("(state = 'sent') = (sent_ms IS NOT NULL)", name="sent_at_a_time"),
    CheckConstraint("number >= 0 AND attempts >= 0", name="counts"),
    # An activity that is tried again tells nobody twice.
    UniqueConstraint("tenant_id", "kind", "subject", "number", "channel"),
    Index(
        "ix_notifications_due",
        "tenant_id",
        "channel",
        "due_ms",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index("ix_notifications_written", "tenant_id", "written_ms"),
    Index("ix_notifications_run", "tenant_id", "run_id"),
    run_reference(),
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

_UNSETTLED: Final = "state IN ('claimed', 'in_doubt', 'partial')"

_OPEN_ROOT = text("closed_ms IS NULL AND parent_run_id IS NULL")
_CLOSED_ROOT = text("closed_ms IS NOT NULL AND parent_run_id IS NULL")

runs = Table(
    "runs",
    metadata,
    *tenant_columns(),
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
    CheckConstraint(
        "(closed_ms IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))",
        name="closed_when_ended",
    ),
    CheckConstraint(
        "(start_signature IS NULL) = (start_kid IS NULL)"
        " AND (start_nonce IS NULL OR start_kid IS NOT NULL)",
        name="start_signed_whole",
    ),
    # G3: a signature starts one run.
    Index(
        "uq_runs_start_nonce",
        "tenant_id",
        "started_by",
        "start_nonce",
        unique=True,
        sqlite_where=text("start_nonce IS NOT NULL"),
        postgresql_where=text("start_nonce IS NOT NULL"),
    ),
    CheckConstraint(
        "(parent_run_id IS NULL) = (parent_step_id IS NULL)", name="parent_run_and_step"
    ),
    # Which count against a quota, and which wait for it.
    Index(
        "ix_runs_open",
        "tenant_id",
        "opened_ms",
        sqlite_where=_OPEN_ROOT,
        postgresql_where=_OPEN_ROOT,
    ),
    Index(
        "ix_runs_parent",
        "tenant_id",
        "parent_run_id",
        "parent_step_id",
        sqlite_where=text("parent_run_id IS NOT NULL"),
        postgresql_where=text("parent_run_id IS NOT NULL"),
    ),
    Index(
        "ix_runs_linked",
        "tenant_id",
        "linked_run_id",
        sqlite_where=text("linked_run_id IS NOT NULL"),
        postgresql_where=text("linked_run_id IS NOT NULL"),
    ),
    # Which have ended long ago.
    Index(
        "ix_runs_closed",
        "tenant_id",
        "closed_ms",
        sqlite_where=_CLOSED_ROOT,
        postgresql_where=_CLOSED_ROOT,
    ),
)

# The key of a run and its child runs, wrapped by a key-encryption key. It is there before the run:
# what starts a run is encrypted already. So it refers to none. Rotation writes it anew.
run_keys = Table(
    "run_keys",
    metadata,
    # The run at the top of the tree; what is no run, but keeps the ledger in order, has none.
    *tenant_columns(),
    # By which key-encryption key it is wrapped.
    Column("kek_id", String(80), nullable=False),
    Column("wrapped", LargeBinary),
    Column("created_ms", BigInteger, nullable=False),
    Column("erased_ms", BigInteger),
    Column("erased_by", String(200)),
    CheckConstraint("(wrapped IS NULL) = (erased_ms IS NOT NULL)", name="erased_at_a_time"),
    CheckConstraint("(erased_ms IS NULL) = (erased_by IS NULL)", name="erased_by_somebody"),
)

plans = Table(
    "plans",
    metadata,
    *tenant_columns(),
    Column("plan_version", Integer, primary_key=True),
    Column("plan", Sealed("plans.plan"), nullable=False),
    Column("tools", Json, nullable=False),
    Column("stored_ms", BigInteger, nullable=False),
    run_reference(),
)

steps = Table(
    "steps",
    metadata,
    *tenant_columns(),
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
    CheckConstraint(
        one_of("state", ("pending", "running", "succeeded", "failed", "skipped")), name="state"
    ),
    CheckConstraint("attempt >= 0", name="attempt"),
    run_reference(),
)

effects = Table(
    "effects",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("entry_id", String(80), primary_key=True),
    Column("tool", String(120), nullable=False),
    Column("tool_version", String(40), nullable=False),
    Column("key", String(400), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("identity_hash", String(80), nullable=False),
    Column("params_hash", String(80), nullable=False),
    Column("params", Sealed("effects.params"), nullable=False),
    Column("run_id", String(255), nullable=False),
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
    CheckConstraint(one_of("state", ENTRY_STATES), name="state"),
    CheckConstraint(
        "(state = 'claimed') = (lease_until_ms IS NOT NULL)", name="leased_while_claimed"
    ),
    CheckConstraint(
        "recovering_ms IS NULL OR state IN ('claimed', 'in_doubt', 'partial')",
        name="recovering_until_settled",
    ),
    CheckConstraint(
        "(undoes IS NOT NULL) = (substr(key, 1, 5) = 'undo:')", name="undos_have_their_own_keys"
    ),
    CheckConstraint("generation >= 1 AND fencing_token >= 1 AND calls >= 1", name="counts"),
    CheckConstraint(
        "(commit_no IS NOT NULL) OR state NOT IN ('committed', 'compensating', 'compensated')",
        name="committed_has_number",
    ),
    # G1: one entry for each generation of a business key, whoever asks.
    UniqueConstraint("tenant_id", "tool", "key", "generation"),
    # G4: an effect has one compensation; one that is proven not to have happened is none.
    Index(
        "uq_effects_undoes",
        "tenant_id",
        "undoes",
        unique=True,
        sqlite_where=text("undoes IS NOT NULL AND state != 'failed'"),
        postgresql_where=text("undoes IS NOT NULL AND state != 'failed'"),
    ),
    # G1: a generation is only followed by another once it is undone or proven not to have happened.
    Index(
        "uq_effects_live_key",
        "tenant_id",
        "tool",
        "key",
        unique=True,
        sqlite_where=text("state NOT IN ('failed', 'compensated')"),
        postgresql_where=text("state NOT IN ('failed', 'compensated')"),
    ),
    Index("ix_effects_run", "tenant_id", "run_id", "step_id"),
    # What undoes an effect, and what has failed to.
    Index(
        "ix_effects_undoes",
        "tenant_id",
        "undoes",
        sqlite_where=text("undoes IS NOT NULL"),
        postgresql_where=text("undoes IS NOT NULL"),
    ),
    # What nobody may be settling, oldest first.
    Index(
        "ix_effects_unsettled",
        "tenant_id",
        "claimed_ms",
        "entry_id",
        sqlite_where=text(_UNSETTLED),
        postgresql_where=text(_UNSETTLED),
    ),
    Index("uq_effects_commit_no", "tenant_id", "commit_no", unique=True),
    run_reference(),
)

#: That an entry waits for its outcome; written out, so that the index of those alone serves.
WITHOUT_OUTCOME: Final = effects.c.state.in_(
    [literal_column(f"'{state}'") for state in ("claimed", "in_doubt", "partial")]
)

bars = Table(
    "bars",
    metadata,
    *tenant_columns(),
    Column("step_id", String(80), primary_key=True),
    Column("barred_ms", BigInteger, nullable=False),
    run_reference(),
)

replays = Table(
    "replays",
    metadata,
    *tenant_columns(),
    Column("step_id", String(80), primary_key=True),
    Column("entry_id", String(80), primary_key=True),
    Column("replayed_ms", BigInteger, nullable=False),
    # How a run that has completed is told when the effect is undone: as the tool said then.
    Column("told_by", String(16), nullable=False),
    CheckConstraint(one_of("told_by", ("intervention", "notification")), name="told_by"),
    Index("ix_replays_entry", "tenant_id", "entry_id"),
    run_reference(),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("artifact_id", String(80), primary_key=True),
    Column("run_id", String(255), nullable=False),
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
    Index("ix_artifacts_sha256", "tenant_id", "sha256"),
    run_reference(),
)

_UNENDED = text("ended_ms IS NULL")

drafts = Table(
    "drafts",
    metadata,
    *tenant_columns(),
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
    CheckConstraint("number >= 1 AND bytes >= 0", name="counts"),
    CheckConstraint("(tail IS NULL) = (removed_ms IS NOT NULL)", name="removed_at_a_time"),
    CheckConstraint("removed_ms IS NULL OR ended_ms IS NOT NULL", name="ended_when_removed"),
    Index(
        "uq_drafts_under_way",
        "tenant_id",
        "run_id",
        "step_id",
        unique=True,
        sqlite_where=_UNENDED,
        postgresql_where=_UNENDED,
    ),
    Index(
        "ix_drafts_kept",
        "tenant_id",
        sqlite_where=text("removed_ms IS NULL"),
        postgresql_where=text("removed_ms IS NULL"),
    ),
    run_reference(),
)

leases = Table(
    "leases",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("resource", String(400), primary_key=True),
    # Grows with each lease; the row stays when the resource is free, so that no number comes twice.
    Column("fencing_token", BigInteger, nullable=False),
    # The newest lease's step: its later attempts may take the lease over.
    Column("run_id", String(255), nullable=False),
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
    CheckConstraint("(holder IS NULL) = (lease_until_ms IS NULL)", name="held_until"),
    CheckConstraint("fencing_token >= 1", name="fencing_token"),
    Index(
        "ix_leases_held",
        "tenant_id",
        "lease_until_ms",
        sqlite_where=text("holder IS NOT NULL"),
        postgresql_where=text("holder IS NOT NULL"),
    ),
    run_reference(),
)

events = Table(
    "events",
    metadata,
    *tenant_columns(),
    Column("seq", BigInteger, primary_key=True),
    Column("type", String(64), nullable=False),
    Column("step_id", String(80)),
    Column("body", SealedEvent(), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("previous", String(80), nullable=False),
    Column("hash", String(80), nullable=False),
    CheckConstraint("seq >= 1", name="seq"),
    # What has happened since: for statistics, which must not read the whole ledger.
    Index("ix_events_at", "tenant_id", "at_ms"),
    # Each claim asks whether its run has read content from outside.
    Index(
        "ix_events_foreign",
        "tenant_id",
        "run_id",
        sqlite_where=text("type = 'run.marked_foreign'"),
        postgresql_where=text("type = 'run.marked_foreign'"),
    ),
    run_reference(),
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

#: Defined beside these for their size: what people are asked and say, what tenants may use, of
#: which cell they are, when the ledger was restored, what is hidden and deleted.
approvals: Final = people_tables.approvals
decisions: Final = people_tables.decisions
steerings: Final = people_tables.steerings
interventions: Final = people_tables.interventions
#: The state of an intervention that waits; written out, so that the index of those alone serves.
OPEN: Final[ColumnElement[str]] = literal_column("'open'")
epochs: Final = tenant_tables.epochs
quotas: Final = tenant_tables.quotas
quota_usage: Final = tenant_tables.quota_usage
retentions: Final = tenant_tables.retentions
retention_rounds: Final = tenant_tables.retention_rounds
holds: Final = tenant_tables.holds
tenants: Final = tenant_tables.tenants
#: Tables whose rows are written once and never changed; triggers refuse UPDATE, and DELETE but for
#: retention.
APPEND_ONLY: Final = ("decisions", "events", "steerings", "principal_changes")
#: All tables of tenants, for row-level security and grants; the others are the whole ledger's.
ALL: Final = tuple(table.name for table in metadata.sorted_tables if "tenant_id" in table.c)
