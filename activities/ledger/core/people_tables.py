"""The tables of people: who they are, what they are asked, say, and approve in advance.

Workers only read who people are and what they may do. What is taken away stays as a row with the
time, so that it can be seen who could do what, and when.

Of standing approvals workers read the grants and write the uses. A grant's row is its history:
triggers let nothing of it change but its revocation, once.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
    false,
    text,
)

from surehand.activities.ledger.core.schema import Json, metadata, one_of, run_reference
from surehand.activities.ledger.core.sealed import Sealed, SealedMembers, SealedText

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
    CheckConstraint(
        one_of("state", ("pending", "approved", "rejected", "expired", "superseded", "void")),
        name="state",
    ),
    CheckConstraint(
        one_of("assurance", ("open", "signed", "passkey", "device_passkey")), name="assurance"
    ),
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
    # How many wait: a tenant may have a quota of them. And which of them are over first.
    Index(
        "ix_approvals_pending",
        "tenant_id",
        "expires_ms",
        "approval_id",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    # The same for whoever has some of the roles, and by tool.
    Index(
        "ix_approvals_asked",
        "tenant_id",
        "asked_of",
        "tool",
        "expires_ms",
        "approval_id",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "ix_approvals_remind",
        "tenant_id",
        "remind_ms",
        sqlite_where=text("state = 'pending' AND remind_ms IS NOT NULL"),
        postgresql_where=text("state = 'pending' AND remind_ms IS NOT NULL"),
    ),
    # Which a run that ends has asked for.
    Index("ix_approvals_run", "tenant_id", "run_id"),
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
    # What somebody has said, newest last.
    Index(
        "ix_decisions_approver",
        "tenant_id",
        "approver",
        "at_ms",
        "decision_id",
        sqlite_where=text("standing_id IS NULL"),
        postgresql_where=text("standing_id IS NULL"),
    ),
    # What was said to one request.
    Index("ix_decisions_approval", "tenant_id", "approval_id"),
    Index("ix_decisions_run", "tenant_id", "run_id"),
    # G3: a signature is judged once.
    Index(
        "uq_decisions_nonce",
        "tenant_id",
        "approver",
        "nonce",
        unique=True,
        sqlite_where=text("nonce IS NOT NULL"),
        postgresql_where=text("nonce IS NOT NULL"),
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
    Column("content", SealedMembers("steerings.content"), nullable=False),
    Column("code", String(32), nullable=False),
    Column("message", SealedText("steerings.message"), nullable=False),
    Column("verified", Boolean, nullable=False),
    # The evidence: the signature (by the actor's key, or by a resume token), and its nonce.
    Column("signature", Text),
    Column("kid", String(80)),
    Column("nonce", String(100)),
    Column("at_ms", BigInteger, nullable=False),
    CheckConstraint("(kid IS NULL) = (nonce IS NULL)", name="signed_whole"),
    CheckConstraint("NOT verified OR nonce IS NOT NULL", name="verified_by_a_signature"),
    # A signature is judged once in one life of a run.
    Index(
        "uq_steerings_nonce",
        "tenant_id",
        "run_id",
        "workflow_run_id",
        "nonce",
        unique=True,
        sqlite_where=text("nonce IS NOT NULL"),
        postgresql_where=text("nonce IS NOT NULL"),
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
    Index("ix_interventions_entry", "tenant_id", "entry_id", "number"),
    Index("ix_interventions_run", "tenant_id", "run_id", "step_id"),
    run_reference(),
)


def _principal_reference() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["tenant_id", "principal"], ["principals.tenant_id", "principals.principal"]
    )


principals = Table(
    "principals",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("principal", String(200), primary_key=True),
    Column("added_ms", BigInteger, nullable=False),
)

grants = Table(
    "grants",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("principal", String(200), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("name", String(80), primary_key=True),
    Column("granted_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    CheckConstraint(one_of("kind", ("role", "permission")), name="kind"),
    _principal_reference(),
)

principal_keys = Table(
    "principal_keys",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
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

principal_changes = Table(
    "principal_changes",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    Column("change_id", String(40), primary_key=True),
    Column("principal", String(200), nullable=False),
    Column("change", String(32), nullable=False),
    Column("what", String(100), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    _principal_reference(),
)


standing_approvals = Table(
    "standing_approvals",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
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
    CheckConstraint("(signature IS NULL) = (kid IS NULL)", name="signed_whole"),
    CheckConstraint("(total_of IS NULL) = (most_total IS NULL)", name="total_whole"),
    CheckConstraint("(revoked_ms IS NULL) = (revoked_by IS NULL)", name="revoked_whole"),
    CheckConstraint("most_uses >= 1", name="most_uses"),
    Index("ix_standing_approvals_tool", "tenant_id", "tool"),
)

standing_uses = Table(
    "standing_uses",
    metadata,
    Column("tenant_id", String(80), primary_key=True),
    # One use for each request: asking for the same approval again uses nothing twice.
    Column("approval_id", String(400), primary_key=True),
    Column("standing_id", String(40), primary_key=True),
    Column("run_id", String(255), nullable=False),
    Column("step_id", String(80), nullable=False),
    # What it adds to the sum: a decimal as text.
    Column("amount", String(80)),
    Column("used_ms", BigInteger, nullable=False),
    # Given back: the approval ended, or was asked for again, before it was used.
    Column("returned_ms", BigInteger),
    Index("ix_standing_uses_standing", "tenant_id", "standing_id"),
    Index("ix_standing_uses_run", "tenant_id", "run_id", "step_id"),
    ForeignKeyConstraint(
        ["tenant_id", "standing_id"],
        ["standing_approvals.tenant_id", "standing_approvals.standing_id"],
    ),
    ForeignKeyConstraint(
        ["tenant_id", "approval_id"], ["approvals.tenant_id", "approvals.approval_id"]
    ),
    run_reference(),
)


def has_expired(request: Any, now_ms: int) -> Any:
    """Return whether a request's time is over; of the table's columns, the condition for that."""
    return request["expires_ms"] <= now_ms


def soonest_open(now_ms: int) -> int:
    """Return the first ``expires_ms`` that has not expired: where an index of them is read from."""
    return now_ms + 1
