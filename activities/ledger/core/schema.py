"""What the ledger's tables have in common: names of constraints, keys that carry the tenant."""

from __future__ import annotations

from sqlalchemy import JSON, Column, ForeignKeyConstraint, MetaData, String

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


def one_of(column: str, values: tuple[str, ...]) -> str:
    """Return the CHECK that a column has one of these values."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def tenant_columns() -> tuple[Column[str], Column[str]]:
    """Return the columns that are the beginning of a run's own rows' key."""
    return (
        Column("tenant_id", String(80), primary_key=True),
        Column("run_id", String(255), primary_key=True),
    )


def run_reference() -> ForeignKeyConstraint:
    """Return the reference of a row to its run."""
    return ForeignKeyConstraint(["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"])
