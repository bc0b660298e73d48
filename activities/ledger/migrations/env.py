"""Alembic's entry: runs on the connection that ``core/migrate.py`` hands over."""

from __future__ import annotations

from alembic import context

from surehand.activities.ledger.core.tables import metadata
from surehand.activities.ledger.migrations.protection import SEARCH_PATH

connection = context.config.attributes["connection"]
if connection.dialect.name == "postgresql":
    connection.exec_driver_sql(f"SET LOCAL search_path = {SEARCH_PATH}")
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
