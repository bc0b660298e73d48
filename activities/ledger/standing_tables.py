"""The tables of standing approvals: votes given in advance, and each use that was made of them.

Workers read the first and write the second. The row of a standing approval is its history: triggers
let nothing of it change but its revocation, once.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from activities.ledger.schema import metadata, run_reference

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
