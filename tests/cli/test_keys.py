"""Encryption as people work with it: keys, rotation, a codec server, starters without keys."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import make_url
from temporalio.client import Client

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import run_keys
from surehand.activities.ledger.runs import keys as rows
from surehand.activities.run_keys import wrap
from surehand.cli.codec_server.server import TokenFile
from surehand.process.ciphers import KeyRing, add_to_file, new_key
from tests.cli.starter import REFUND, Starter, Verbs
from tests.ledger_databases import DATABASES, OWNER
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess


@dataclass(frozen=True)
class Office:
    """A worker that encrypts, and the ways to it."""

    settings: dict[str, str]
    folder: Path
    keys: Path

    def without_keys(self, monkeypatch: pytest.MonkeyPatch, **more: str) -> Verbs:
        """Return the verbs of whoever reaches Temporal only."""
        hidden = ("SUREHAND_KEY_ENCRYPTION_KEYS", "SUREHAND_DATABASE_URL", "SUREHAND_ARTIFACTS")
        left = {name: value for name, value in self.settings.items() if name not in hidden}
        return Verbs({**left, **more}, self.folder / "elsewhere", monkeypatch)


@pytest.fixture(scope="module")
def office(
    settings: dict[str, str], sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("encrypted")
    (folder / "elsewhere").mkdir()
    shutil.copy(sqlite_template, folder / "ledger.db")
    keys = folder / "keys"
    add_to_file(keys, new_key("first"))
    ours = {
        **settings,
        "SUREHAND_DATABASE_URL": f"sqlite:///{folder / 'ledger.db'}",
        "SUREHAND_ARTIFACTS": str(folder / "artifacts"),
        "SUREHAND_TASK_QUEUE": f"encrypted-{uuid.uuid4().hex[:8]}",
        "SUREHAND_KEY_ENCRYPTION_KEYS": str(keys),
    }
    with WorkerProcess(ours, folder / "worker") as worker:
        worker.wait_ready()
        yield Office(ours, folder, keys)
    # Others ask all runs of the tenant, and nobody answers for these any more.
    asyncio.run(end_all(ours["TEMPORAL_ADDRESS"], ours["SUREHAND_TASK_QUEUE"]))


async def end_all(address: str, queue: str) -> None:
    client = await Client.connect(address)
    left = f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'"
    async for run in client.list_workflows(left):
        await client.get_workflow_handle(run.id).terminate()


@pytest.fixture(scope="module")
def codec(office: Office) -> Iterator[Callable[[str], list[str]]]:
    """A codec server; gives the options of whoever has a new token of a right."""
    tokens = office.folder / "tokens"
    tokens.touch()
    serve = ["codec", "serve", "--tokens", str(tokens), "--http", "127.0.0.1:0"]
    starter = Starter(office.settings, office.folder)
    with starter.child(office.folder / "codec.log", *serve) as server:
        server.wait_said("codec server at")
        found = re.search(r"http://\S+", server.output())
        assert found is not None

        def options_of(right: str) -> list[str]:
            made = starter("codec", "token", str(tokens), "--right", right, "--json")
            token = made.document()["token"]
            assert token not in tokens.read_text()
            return ["--codec-endpoint", found[0], "--codec-auth", f"Bearer {token}"]

        yield options_of


@pytest.fixture
def verbs(office: Office, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs of whoever has the ledger and the keys."""
    return Verbs(office.settings, office.folder, monkeypatch)


def start(shop: ShopProcess) -> tuple[str, str, list[str]]:
    """Return a run's name, its order, and the arguments that start it."""
    name, order = f"run-{uuid.uuid4().hex[:8]}", shop.new_order()
    return name, order, ["start", REFUND, "--run-id", name, "--set", f"input.order_id={order}"]


def said_in(history: str) -> list[str]:
    """Return what the payloads of a history say, as Temporal's command line shows them."""
    found = re.findall(r'"data": "([A-Za-z0-9+/=]*)"', history)
    return [base64.b64decode(data).decode(errors="replace") for data in found]


def test_a_starter_without_keys_reads_nothing_and_starts_nothing(
    office: Office, verbs: Verbs, shop: ShopProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, order, arguments = start(shop)
    verbs(*arguments, "--wait")
    blind = office.without_keys(monkeypatch)
    shown = blind("show", name)
    listed = blind("list")
    other, other_order, begins = start(shop)
    blind(*begins)
    refused = verbs("show", other)

    assert order not in shown.out
    # One run that is encrypted hides no other one.
    assert listed.code == 0, listed
    assert re.search(rf"{name} .*\(cannot be read\)", listed.out)
    assert "it is encrypted, and no keys are set here" in shown.line()
    assert "it is in plain, and here only what is encrypted counts" in refused.line()
    assert shop.counts(other_order)["refunds"] == 0


def test_without_a_ledger_nothing_is_plain(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"SUREHAND_KEY_ENCRYPTION_KEYS": str(office.keys)}
    refused = office.without_keys(monkeypatch, **keys)("list")

    assert refused.code == 2
    assert "set SUREHAND_DATABASE_URL" in refused.line()


def test_a_signal_of_temporal_s_command_line_is_encrypted_by_the_codec_server_and_counts(
    office: Office,
    verbs: Verbs,
    codec: Callable[[str], list[str]],
    shop: ShopProcess,
    temporal_cli: Path,
) -> None:
    name, order, arguments = start(shop)
    verbs(*arguments, "--wait")
    approval_id, _, params_hash = verbs.asked(name)
    request = {"approval_id": approval_id, "params_hash": params_hash}
    decision = json.dumps({**request, "outcome": "approve", "approver": "ann"})
    server = codec("write")
    sent = [str(temporal_cli), "workflow", "signal", "--workflow-id", name, "--name", "decide"]
    sent += ["--input", decision, "--address", office.settings["TEMPORAL_ADDRESS"], *server]
    signalled = subprocess.run(sent, timeout=60, capture_output=True, text=True)
    assert signalled.returncode == 0, signalled.stderr
    followed = verbs("show", name, "--follow")
    history = [str(temporal_cli), "workflow", "show", "--workflow-id", name, "--output", "json"]
    history += ["--address", office.settings["TEMPORAL_ADDRESS"]]
    raw = subprocess.run(history, check=True, timeout=60, capture_output=True, text=True).stdout
    read = subprocess.run(
        [*history, *server], check=True, timeout=60, capture_output=True, text=True
    ).stdout

    assert followed.code == 0, followed
    assert shop.counts(order)["refunds"] == 1
    assert not any(order in said for said in said_in(raw))
    assert any(order in said for said in said_in(read))


def test_rewrapping_beside_a_worker_works(office: Office, verbs: Verbs, shop: ShopProcess) -> None:
    name, order, arguments = start(shop)
    verbs(*arguments, "--wait")
    made = verbs("keys", "new", str(office.keys), "--id", "second")
    before = verbs("keys", "list", "--json").document()
    rotated = verbs("keys", "rotate", "--json").document()
    again = verbs("keys", "rotate", "--json").document()
    after = verbs("keys", "list", "--json").document()
    verbs.approve(name, "--as", "ann")
    followed = verbs("show", name, "--follow")
    later, later_order, begins = start(shop)
    verbs(*begins, "--wait")
    verbs.approve(later, "--as", "ann")
    ended = verbs("show", later, "--follow")

    assert made.code == 0, made
    counts = {one["id"]: one["keys"] for one in before["keys"]}
    assert [one["id"] for one in before["keys"] if one["wraps"]] == ["second"]
    assert rotated["rotated"] == counts["first"] > 0
    assert again["rotated"] == 0
    assert {one["id"]: one["keys"] for one in after["keys"]}["first"] == 0
    # The worker has not been started anew: it has read the file when it needed the key.
    assert (followed.code, ended.code) == (0, 0), (followed, ended)
    assert shop.counts(order)["refunds"] == shop.counts(later_order)["refunds"] == 1


@pytest.mark.parametrize("database", DATABASES[1:])
def test_only_the_role_that_owns_the_ledger_wraps_keys_anew(
    ledger: Ledger, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, file = new_key("old"), tmp_path / "keys"
    with ledger.transaction("default") as tx:
        rows.add_key(tx, "a", wrap(KeyRing([old]), "a", b"k" * 32))
    add_to_file(file, old)
    add_to_file(file, new_key("fresh"))
    keys = {"SUREHAND_KEY_ENCRYPTION_KEYS": str(file)}
    owner = make_url(ledger_url).set(username=OWNER).render_as_string(hide_password=False)
    refused, done = (
        Verbs({**keys, "SUREHAND_DATABASE_URL": url}, tmp_path, monkeypatch)("keys", "rotate")
        for url in (ledger_url, owner)
    )

    assert refused.code == 2 and "permission denied" in refused.line()
    assert done.code == 0, done
    with ledger.transaction("default") as tx:
        assert {row["kek_id"] for row in tx.all(rows_of(run_keys))} == {"fresh"}


def test_a_rotation_says_which_key_cannot_be_unwrapped_and_wraps_all_others(
    ledger: Ledger, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, lost, fresh = new_key("old"), new_key("lost"), new_key("fresh")
    file = tmp_path / "keys"
    with ledger.transaction("default") as tx:
        rows.add_key(tx, "a", wrap(KeyRing([old]), "a", b"k" * 32))
        rows.add_key(tx, "b", wrap(KeyRing([lost]), "b", b"k" * 32))
        rows.add_key(tx, "c", wrap(KeyRing([old]), "c", b"k" * 32))
    add_to_file(file, old)
    add_to_file(file, fresh)
    environment = {"SUREHAND_DATABASE_URL": ledger_url, "SUREHAND_KEY_ENCRYPTION_KEYS": str(file)}
    verbs = Verbs(environment, tmp_path, monkeypatch)
    failed = verbs("keys", "rotate")
    with ledger.transaction("default") as tx:
        now = {row["run_id"]: row["kek_id"] for row in tx.all(rows_of(run_keys))}
    shown = verbs("keys", "list")
    add_to_file(file, lost)
    done = verbs("keys", "rotate")

    assert failed.code == 4 and "'lost'" in failed.line()
    assert "1 key of runs cannot be read, 2 wrapped again" in failed.line()
    assert now == {"a": "fresh", "b": "lost", "c": "fresh"}
    assert "not here" in shown.out
    assert done.code == 0, done
    with ledger.transaction("default") as tx:
        assert {row["kek_id"] for row in tx.all(rows_of(run_keys))} == {"lost"}


def test_keys_are_private_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = Verbs({}, tmp_path, monkeypatch)
    made = verbs("keys", "new", "keys", "--id", "first")
    twice = verbs("keys", "new", "keys", "--id", "first")
    file = tmp_path / "keys"
    secret = file.read_text().partition("=")[2].strip()
    environment = {"SUREHAND_KEY_ENCRYPTION_KEYS": file.read_text().strip()}
    settings = verbs("settings", **environment)

    assert (made.code, twice.code) == (0, 2)
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in made.out + made.err + settings.out + settings.err


def test_a_token_has_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs, file = Verbs({}, tmp_path, monkeypatch), tmp_path / "tokens"
    first = verbs("codec", "token", "tokens", "--json").document()["token"]
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    second = verbs("codec", "token", "tokens", "--tenant", "acme", "--json").document()["token"]
    holders = [TokenFile(file).find_holder(token) for token in (first, second)]

    assert [holder and holder.tenants for holder in holders] == [("default",), ("acme",)]
