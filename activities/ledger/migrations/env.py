"""Alembic's entry: runs on the connection that ``core/migrate.py`` hands over."""

from __future__ import annotations

from alembic import context

from surehand.activities.ledger.core.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
