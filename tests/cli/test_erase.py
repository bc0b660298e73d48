"""A run that was erased: nobody reads it again, and what has happened is proven all the same."""

from __future__ import annotations

import json
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import make_url

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import run_keys
from surehand.activities.ledger.runs import keys, lifecycle
from surehand.activities.run_keys import wrap
from surehand.process.ciphers import KeyRing, add_to_file, new_key
from surehand.process.dev_server import DevServer
from surehand.verify import judge_file
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import CloseRun
from tests.cli.starter import Verbs
from tests.ledger.scene import RUN, Scene
from tests.ledger_databases import DATABASES, OWNER
from tests.postgres_server import PostgresServer
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

#: Of a mail, in bytes: it is kept as an artifact.
LARGE: Final = 12_000


@dataclass(frozen=True)
class Office:
    """A worker with a server, a ledger and a store of its own, and the verbs beside it."""

    verbs: Verbs
    worker: WorkerProcess
    shop: ShopProcess
    folder: Path
    postgres: PostgresServer | None = None
    """Whose database the ledger is, if it is no file in the folder."""

    def found(self, marker: str | bytes) -> list[str]:
        """Return the files in which somebody who steals them reads a text, or a key."""
        wanted = marker.encode() if isinstance(marker, str) else marker
        folders = {"": self.folder}
        if self.postgres is not None:
            self.postgres.execute("CHECKPOINT")
            folders["ledger/"] = self.postgres.folder / "data"
        return sorted(
            f"{name}{file.relative_to(folder)}"
            for name, folder in folders.items()
            for file in folder.rglob("*")
            if file.is_file() and wanted in file.read_bytes()
        )

    def wrapped(self, name: str) -> bytes:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            asked = ledger.execute("SELECT wrapped FROM run_keys WHERE run_id = ?", (name,))
            return bytes(asked.fetchone()[0])

    def notifier_said(self, name: str, error: str) -> None:
        """Have a notifier have raised that when it was to tell of a run."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger, ledger:
            told = ledger.execute(
                "UPDATE notifications SET state = 'failed', sent_ms = NULL, error = ?"
                " WHERE run_id = ?",
                (error, name),
            )
            assert told.rowcount > 0

    def plan(self, marker: str, order: str) -> str:
        file = self.folder.parent / f"{marker}.json"
        mail = {
            "order_id": order,
            "kind": "goodbye",
            "to": f"{marker}@example.com",
            "subject": f"Dear {marker}",
            "body": marker * (1 + LARGE // len(marker)),
        }
        asked = {"approval": {"quorum": 1}}
        steps: list[dict[str, Any]] = [
            {"id": "order", "tool": "orders.read", "params": {"order_id": order}},
            {"id": "mail", "tool": "mail.send", "params": mail, **asked},
        ]
        document = {"name": "goodbye", "input": {"about": marker}, "steps": steps}
        file.write_text(json.dumps(document))
        return str(file)

    def asked(self, name: str, marker: str, order: str) -> str:
        """Start a run, wait for its question, and return its params hash."""
        started = self.verbs("start", self.plan(marker, order), "--run-id", name, "--wait")
        assert started.code == 10, started
        return str(self.verbs("show", f"{name}/mail/1", "--json").document()["params_hash"])

    def approve(self, name: str, hash_: str, marker: str) -> None:
        given = ("--params-hash", hash_, "--as", "ann", "--reason", f"known to {marker}")
        ended = self.verbs("approve", f"{name}/mail/1", *given)
        assert ended.code == 0, ended

    def completed(self, name: str, marker: str, order: str) -> None:
        self.approve(name, self.asked(name, marker, order), marker)
        followed = self.verbs("show", name, "--follow")
        assert followed.code == 0, followed


@pytest.fixture(params=["encrypted"])
def office(
    request: pytest.FixtureRequest,
    temporal_cli: Path,
    running_shop: ShopProcess,
    sqlite_template: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Office]:
    folder, vault = tmp_path / "stolen", tmp_path / "vault"
    (folder / "temporal").mkdir(parents=True)
    vault.mkdir()
    kind, _, database = request.param.partition(", ")
    postgres, url = None, f"sqlite:///{folder / 'ledger.db'}"
    if database == "postgresql":
        postgres = request.getfixturevalue("postgres_server")
        url = request.getfixturevalue("postgres_ledgers").create()
    else:
        shutil.copy(sqlite_template, folder / "ledger.db")
    server = DevServer.start(
        cli=temporal_cli,
        db_file=folder / "temporal" / "temporal.db",
        log_file=folder / "temporal" / "log",
        ui_port=None,
    )
    settings = {
        "TEMPORAL_ADDRESS": server.address,
        "SUREHAND_DATABASE_URL": url,
        "SUREHAND_ARTIFACTS": str(folder / "artifacts"),
        "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
        "SUREHAND_TASK_QUEUE": f"erase-{uuid.uuid4().hex[:8]}",
        "SUREHAND_LARGEST_INLINE": "1024",
        "SUREHAND_USER": "root",
        "SHOP_URL": running_shop.url,
    }
    if kind == "encrypted":
        add_to_file(vault / "keys", new_key("first"))
        settings["SUREHAND_KEY_ENCRYPTION_KEYS"] = str(vault / "keys")
    try:
        with WorkerProcess(settings, tmp_path / "worker") as worker:
            worker.wait_ready()
            verbs = Verbs(settings, vault, monkeypatch)
            yield Office(verbs, worker, running_shop, folder, postgres)
    finally:
        server.kill()


@pytest.fixture
def marker() -> str:
    return f"ana-{uuid.uuid4().hex}"


@pytest.mark.parametrize(
    "office",
    [
        "plain",
        pytest.param("encrypted", marks=pytest.mark.fast),
        pytest.param("plain, postgresql", marks=pytest.mark.postgres),
        pytest.param("encrypted, postgresql", marks=pytest.mark.postgres),
    ],
    indirect=True,
)
def test_whoever_steals_the_databases_and_the_store_finds_no_value_of_a_run(
    office: Office, marker: str, request: pytest.FixtureRequest
) -> None:
    office.completed("run-1", marker, office.shop.new_order())
    found = office.found(marker)

    if "plain" in request.node.name:
        assert {name.split("/")[0].split(".")[0] for name in found} >= {
            "artifacts",
            "ledger",
            "temporal",
        }
    else:
        assert found == []


def test_an_erased_run_is_proven_unreadable_and_not_repeated(office: Office, marker: str) -> None:
    order = office.shop.new_order()
    office.completed("run-1", marker, order)
    mails = office.shop.counts(order)["mails"]
    office.completed("other", f"{marker}-other", office.shop.new_order())
    office.notifier_said("run-1", f"no such mailbox: {marker}")
    wrapped = office.wrapped("run-1")
    assert office.found(wrapped) and office.found(marker)
    [kept, *_] = office.verbs("artifacts", "run-1", "--json").document()["rows"]
    erased = office.verbs("erase", "run-1", "--reason", "request 4711")
    again = office.verbs("erase", "run-1")
    audited = office.verbs("audit", "run-1")
    told = office.verbs("audit", "run-1", "--json").document()
    listed = office.verbs("list", "--json").document()["runs"]

    assert erased.code == 0, erased
    assert again.code == 2 and "was erased before, by root" in again.line()
    assert audited.code == 0 and "the chain holds" in audited.out
    assert " by root: request 4711" in audited.out
    assert told["ok"] and told["erased"].endswith("by root: request 4711")
    assert {one["run_id"]: one["plan"] for one in listed} == {
        "run-1": "(cannot be read)",
        "other": "goodbye",
    }
    # The key-encryption keys are still there.
    for verb in (
        ["show", "run-1"],
        ["effects", "run-1"],
        ["checkpoint", "run-1"],
        ["artifacts", "run-1", kept["artifact_id"]],
        ["retry", "run-1"],
        ["fork", "run-1", "--from", "mail"],
        ["simulate", "run-1", "--from", "1"],
    ):
        ended = office.verbs(*verb)
        # How it has ended, Temporal says without a key.
        assert ended.code in (2, 4) or verb[0] == "show", (verb, ended)
        assert "was erased by root on" in ended.err.splitlines()[-1], (verb, ended)
        assert "Traceback" not in ended.err and marker not in ended.out + ended.err, verb
    receipt, key = (office.folder.parent / name for name in ("receipt.json", "rita.pem"))
    assert office.verbs("principal", "keygen", str(key)).code == 0
    written = office.verbs("receipt", "run-1", "--key", str(key), "--to", str(receipt))
    code, said = judge_file(receipt, ())
    assert (written.code, code) == (0, 0), (written, said)
    assert any("The run was erased on " in line for line in said)
    listed = office.verbs("events", "run-1")
    assert (listed.code, marker in receipt.read_text() + listed.out) == (0, False)
    assert office.found(marker) == []
    # Not even in what SQLite has written ahead: it could be unwrapped.
    assert office.found(wrapped) == []
    # Whoever had another run's key has it still.
    assert office.verbs("effects", "other").code == 0

    # The same mail to the same order: its business key is kept. A worker that remembers nothing.
    office.worker.stop()
    with WorkerProcess(office.verbs.environment, office.folder.parent / "worker-2") as worker:
        worker.wait_ready()
        # It is recorded, so nobody is asked.
        again = ["start", office.plan(marker, order), "--run-id", "run-2", "--wait"]
        ended = office.verbs(*again)
    assert ended.code == 20, ended
    assert "which was erased: it is not made again" in ended.out, ended
    assert office.shop.counts(order)["mails"] == mails == 1


def test_open_or_keyless_runs_are_not_erased(office: Office, marker: str) -> None:
    office.asked("open", marker, office.shop.new_order())
    refused = office.verbs("erase", "open")
    nobodys = office.verbs("erase", "no-such-run")
    part = office.verbs("erase", "open~part")

    assert refused.code == 2 and "run open is open: `cancel` ends it first" in refused.line()
    assert nobodys.code == 2 and "not found" in nobodys.line()
    assert part.code == 2 and "erase open" in part.line()
    shown = office.verbs("show", "open", "--json")
    assert shown.code in (0, 10) and marker in shown.out


@pytest.mark.parametrize("database", DATABASES[1:])
def test_only_the_role_that_owns_the_ledger_erases(
    ledger: Ledger, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene.begin(ledger, "default")
    with scene.tx() as tx:
        keys.add_key(tx, RUN, wrap(KeyRing([new_key("first")]), RUN, b"k" * 32))
        end = CloseRun(tenant="default", run_id=RUN, state=RunState.COMPLETED)
        lifecycle.close_run(tx, end)
    owner = make_url(ledger_url).set(username=OWNER).render_as_string(hide_password=False)
    refused, done = (
        Verbs({"SUREHAND_DATABASE_URL": url, "SUREHAND_USER": "root"}, tmp_path, monkeypatch)(
            "erase", RUN
        )
        for url in (ledger_url, owner)
    )

    assert refused.code == 2 and "permission denied" in refused.line()
    assert done.code == 0, done
    with scene.tx() as tx:
        [row] = tx.all(rows_of(run_keys))
    assert (row["wrapped"], row["erased_by"]) == (None, "root")
    assert scene.events(type_="run.erased")[0]["body"] == {"actor": "root"}


@pytest.mark.parametrize("office", ["plain"], indirect=True)
def test_a_run_that_was_not_encrypted_has_nothing_to_destroy(office: Office, marker: str) -> None:
    office.completed("run-1", marker, office.shop.new_order())
    refused = office.verbs("erase", "run-1")

    assert refused.code == 2 and "there is nothing to destroy" in refused.line()
