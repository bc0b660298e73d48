"""Fresh PostgreSQL ledgers for the tests, with the roles and rights of production."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

import pytest

from surehand.activities.ledger.core.migrate import migrate
from surehand.activities.ledger.core.tables import metadata
from tests.postgres_server import PostgresServer

ROOT: Final = Path(__file__).parent.parent
GRANTS: Final = ROOT / "deploy" / "postgres" / "grants.sql"
OWNER: Final = "surehand_owner"
WORKER: Final = "surehand_worker"
RETENTION: Final = "surehand_retention"
#: Whose rows each belong to a tenant; those of the other tables are the whole ledger's.
TENANT_TABLES: Final = [one.name for one in metadata.sorted_tables if "tenant_id" in one.c]
#: The two ledgers that a guarantee holds on; for ``parametrize("database", DATABASES)``.
DATABASES: Final = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))
_TEMPLATE: Final = "ledger_template"


class PostgresLedgers:
    """Copies of one migrated database: migrating takes a second, a copy a tenth of one."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        for role in (OWNER, WORKER, RETENTION):
            server.execute(f"CREATE ROLE {role} LOGIN")
        migrate(server.create_database(_TEMPLATE, OWNER))
        server.execute(f"SET ROLE {OWNER}; {GRANTS.read_text()}", _TEMPLATE)

    def create(self) -> str:
        """Return the URL of a fresh ledger for the workers' role, which owns nothing in it."""
        name = f"ledger_{uuid.uuid4().hex[:12]}"
        self._server.execute(f'CREATE DATABASE "{name}" TEMPLATE {_TEMPLATE} OWNER {OWNER}')
        # Of a template the rights on its tables are copied, those on the database are not.
        self._server.execute(f'REVOKE TEMPORARY ON DATABASE "{name}" FROM PUBLIC')
        return self._server.url(name, WORKER)
