"""What the page says of PostgreSQL's backups is done here, with a real server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import make_url

from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.migrate import weak_guards
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import effects
from tests.docs.pages import DOCS, blocks
from tests.ledger.scene import Scene
from tests.ledger_databases import OWNER, ROOT, PostgresLedgers
from tests.postgres_server import SUPERUSER, PostgresServer, find_binaries

PAGE = DOCS / "howto" / "back-up.md"


@pytest.mark.postgres
def test_a_dump_is_restored_by_the_page_s_commands_and_knows_each_effect(
    postgres_server: PostgresServer, postgres_ledgers: PostgresLedgers, tmp_path: Path
) -> None:
    url = postgres_ledgers.create()
    ledger = Ledger(make_engine(url))
    made = [Scene.begin(ledger, tenant) for tenant in ("acme", "default")]
    for scene in made:
        scene.committed(scene.call())
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    commands = [one.text for one in blocks(PAGE) if "PostgreSQL" in one.not_run]
    assert len(commands) == 2
    restored = f"{make_url(url).database}_restored"
    script = "\n".join(["set -eu", *commands])
    script = script.replace("surehand_restored", restored)
    script = script.replace(" surehand\n", f" {make_url(url).database}\n")

    def run(user: str) -> subprocess.CompletedProcess[str]:
        where = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres_server.port), "PGUSER": user}
        path = {"PATH": f"{find_binaries()}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "-c", script], env={**where, **path}, cwd=tmp_path, capture_output=True,
            text=True,
        )  # fmt: skip

    refused = run(OWNER)
    assert refused.returncode != 0 and "row-level security" in refused.stderr
    done = run(SUPERUSER)
    assert done.returncode == 0, done.stderr

    again = Ledger(make_engine(make_url(url).set(database=restored).render_as_string(False)))
    for scene in made:
        found = Scene(again, scene.tenant).rows(effects)
        assert found == scene.rows(effects) and len(found) == 1
    assert weak_guards(again.engine) == []
    for one in (ledger, again):
        one.close()
