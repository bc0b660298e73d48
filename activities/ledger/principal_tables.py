"""The tables of people: who they are, what they may do, and the keys they sign with.

Workers only read them. What is taken away stays as a row with the time, so that it can be seen who
could do what, and when.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKeyConstraint, String, Table

from activities.ledger.schema import Json, metadata, one_of


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
