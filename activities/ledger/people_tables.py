"""The tables of what people are asked and say: approvals, decisions, steering, interventions."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    String,
    Table,
    Text,
    text,
)

from activities.ledger.schema import Json, metadata, one_of, run_reference

#: Of a decision: a vote that its approver has sent.
_IN_PERSON: Final = "verdict = 'accepted' AND outcome = 'approve' AND standing_id IS NULL"

approvals = Table(
    "approvals",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("approval_id", String(400), primary_key=True),
    Column("run_id", String(255), nullable=False),
    Column("step_id", String(80), nullable=False),
    Column("tool", String(120), nullable=False),
    Column("tool_version", String(40), nullable=False),
    Column("key", String(400), nullable=False),
    Column("params_hash", String(80), nullable=False),
    Column("params", Json, nullable=False),
    Column("description", Text, nullable=False),
    Column("undo", Text, nullable=False),
    Column("user_id", String(200), nullable=False),
    # Who has changed the params since the plan asked; they count as requesters, too.
    Column("editors", Json, nullable=False),
    # What all policies together ask for, and what has to prove a decision.
    Column("needs", Json, nullable=False),
    Column("assurance", String(16), nullable=False),
    # Digest of what the tool's precondition said when the request was made.
    Column("precondition", String(80)),
    Column("state", String(16), nullable=False),
    Column("requested_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("decided_by", String(200)),
    Column("verified", Boolean),
    Column("consumed_entry", String(80)),
    Column("consumed_generation", Integer),
    # When people are reminded of it next; NULL: no policy asks for that.
    Column("remind_ms", BigInteger),
    CheckConstraint(
        one_of("state", ("pending", "approved", "rejected", "expired", "superseded", "void")),
        name="state",
    ),
    CheckConstraint(one_of("assurance", ("open", "signed")), name="assurance"),
    CheckConstraint(
        "(state IN ('approved', 'rejected', 'superseded')) = (decided_by IS NOT NULL)",
        name="decided_by_someone",
    ),
    # G3: only an approved request authorises an entry.
    CheckConstraint(
        "consumed_entry IS NULL OR state = 'approved'", name="only_approved_is_consumed"
    ),
    CheckConstraint(
        "(consumed_entry IS NULL) = (consumed_generation IS NULL)", name="consumed_whole"
    ),
    Index(
        "ix_approvals_remind",
        "tenant_id",
        "remind_ms",
        sqlite_where=text("state = 'pending' AND remind_ms IS NOT NULL"),
        postgresql_where=text("state = 'pending' AND remind_ms IS NOT NULL"),
    ),
    run_reference(),
)

decisions = Table(
    "decisions",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("decision_id", String(400), primary_key=True),
    Column("run_id", String(255), nullable=False),
    Column("approval_id", String(400), nullable=False),
    Column("approver", String(200), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("params_hash", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("verdict", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("verified", Boolean, nullable=False),
    # The params that an edit asks for instead.
    Column("edited", Json),
    # The evidence: the signature, the key it was made with, its nonce.
    Column("signature", Text),
    Column("kid", String(80)),
    Column("nonce", String(100)),
    Column("at_ms", BigInteger, nullable=False),
    # The standing approval that has voted in its granter's place.
    Column("standing_id", String(40)),
    CheckConstraint(
        "verified = (kid IS NOT NULL AND nonce IS NOT NULL)", name="verified_by_a_signature"
    ),
    # G3: nobody counts twice for one request. Votes given in advance are counted by name with the
    # others; their own key is that of their use.
    Index(
        "uq_decisions_vote",
        "tenant_id",
        "approval_id",
        "approver",
        unique=True,
        sqlite_where=text(_IN_PERSON),
        postgresql_where=text(_IN_PERSON),
    ),
    # G3: a signature counts once.
    Index(
        "uq_decisions_nonce",
        "tenant_id",
        "approver",
        "nonce",
        unique=True,
        sqlite_where=text("verdict = 'accepted' AND nonce IS NOT NULL"),
        postgresql_where=text("verdict = 'accepted' AND nonce IS NOT NULL"),
    ),
    run_reference(),
)

steerings = Table(
    "steerings",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("steering_id", String(400), primary_key=True),
    Column("run_id", String(255), nullable=False),
    # Temporal's Run Id: a run that was reset is sent what it was sent before once more.
    Column("workflow_run_id", String(80), nullable=False),
    Column("verb", String(16), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("content", Json, nullable=False),
    Column("code", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("verified", Boolean, nullable=False),
    # The evidence: the signature (by the actor's key, or by a resume token), and its nonce.
    Column("signature", Text),
    Column("kid", String(80)),
    Column("nonce", String(100)),
    Column("at_ms", BigInteger, nullable=False),
    CheckConstraint("(kid IS NULL) = (nonce IS NULL)", name="signed_whole"),
    CheckConstraint("NOT verified OR nonce IS NOT NULL", name="verified_by_a_signature"),
    # A signature counts once in one life of a run.
    Index(
        "uq_steerings_nonce",
        "tenant_id",
        "run_id",
        "workflow_run_id",
        "nonce",
        unique=True,
        sqlite_where=text("code = 'accepted' AND nonce IS NOT NULL"),
        postgresql_where=text("code = 'accepted' AND nonce IS NOT NULL"),
    ),
    run_reference(),
)

interventions = Table(
    "interventions",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("intervention_id", String(80), primary_key=True),
    Column("run_id", String(255), nullable=False),
    Column("step_id", String(80), nullable=False),
    Column("entry_id", String(80), nullable=False),
    Column("rule", String(32), nullable=False),
    Column("question", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("outcome", String(16)),
    Column("actor", String(200)),
    Column("evidence", Text),
    Column("resolution_id", String(400)),
    Column("opened_ms", BigInteger, nullable=False),
    Column("settled_ms", BigInteger),
    CheckConstraint(one_of("state", ("open", "settled")), name="state"),
    CheckConstraint(
        "(state = 'settled') = (outcome IS NOT NULL AND actor IS NOT NULL)", name="settled_whole"
    ),
    # G2: one open question for each entry, in each run that waits for the answer.
    Index(
        "uq_interventions_open",
        "tenant_id",
        "entry_id",
        "run_id",
        unique=True,
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
    run_reference(),
)
