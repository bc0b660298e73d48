"""G1 after a restore: the ledger is put back to an instant, and no effect is made again."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from surehand.activities.ledger.history.reads import effects_of
from surehand.workflows.plan.plan import Plan
from tests.cli.office import LedgerOffice
from tests.cli.starter import Starter
from tests.e2e.kinds import NEITHER, human_settles_refund
from tests.e2e.runs import Run, refund_plan, until
from tests.e2e.stage import Stage
from tests.ledger_databases import DATABASES, OWNER
from tests.postgres_server import PostgresServer

VARIANTS = Path(__file__).parent.parent / "variants"
pytestmark = [pytest.mark.crash, pytest.mark.guarantee("G1")]


class Backups:
    """Backs the ledger of a stage up, and puts a backup in its place."""

    def __init__(self, stage: Stage, server: PostgresServer | None) -> None:
        self._stage, self._server = stage, server
        self._name = str(make_url(stage.ledger_url).database)
        self._copy = stage.folder / "backup.sqlite"

    def back_up(self) -> datetime:
        """Make a backup while workers run; returns the instant that it is of."""
        # Before it: what is told to be earlier forgets more, which is safe.
        at = datetime.now(UTC)
        if self._server is not None:
            self._server.dump(self._name, "backup")
        else:
            with sqlite3.connect(self._name) as connection:
                connection.execute("VACUUM INTO ?", [str(self._copy)])
        return at

    def restore(self) -> None:
        """Put the backup in the ledger's place; no worker runs."""
        self._stage.ledger.engine.dispose()
        if self._server is not None:
            self._server.restore(self._name, "backup")
            return
        for end in ("", "-wal", "-shm"):
            Path(self._name + end).unlink(missing_ok=True)
        self._copy.rename(self._name)


@pytest.fixture
def backups(stage: Stage, database: str, request: pytest.FixtureRequest) -> Backups:
    server = request.getfixturevalue("postgres_server") if database == "postgresql" else None
    return Backups(stage, server)


@pytest.fixture
def starter(stage: Stage) -> Starter:
    """The verbs of whoever owns the ledger."""
    url = make_url(stage.ledger_url)
    if url.get_backend_name() == "postgresql":
        url = url.set(username=OWNER)
    owner = {"database_url": url.render_as_string(hide_password=False)}
    return Starter({**stage.environment(**owner), "SUREHAND_USER": "oscar"}, stage.folder)


def begin_anew(stage: Stage, behind: list[dict[str, Any]], cli: Path) -> None:
    for one in behind:
        program, *words = shlex.split(one["command"])
        assert program == "temporal"
        own = {"PATH": os.environ["PATH"], "HOME": str(stage.folder)}
        subprocess.run([str(cli), *words], env=own, check=True)


async def forgotten_runs(stage: Stage, backups: Backups) -> tuple[list[Run], list[str], datetime]:
    """Back up while a run waits for approval, then let it and a new one make all their effects.

    The refund's tool can do nothing to settle a doubt, the restock's can be looked up, and the
    mail's provider dedupes. The first run's worker dies over its mail.
    """
    # Of the refund no key and no lookup tells anything: only a human can.
    stage.shop.fault("refunds", ignore_keys=True, ignore_lookup=True)
    # A repeated restock would count, whatever its key.
    stage.shop.fault("restocks", ignore_keys=True)
    orders = [stage.shop.new_order(), stage.shop.new_order()]
    with stage.ready_worker(tool_modules=NEITHER) as worker:
        known = await stage.start(refund_plan(orders[0]))
        await known.asks()
        at = backups.back_up()
        unknown = await stage.start(refund_plan(orders[1]))
        await unknown.approve()
        await unknown.completed()
    with stage.worker(tool_modules=NEITHER, crash_at="mail.send:after_call") as worker:
        await known.approve()
        worker.wait_killed()
    assert [stage.made(order) for order in orders] == [(1, 1, 1)] * 2
    backups.restore()
    return [known, unknown], orders, at


@pytest.mark.parametrize("database", DATABASES)
async def test_after_a_restore_no_effect_is_made_again_and_what_nobody_can_tell_a_human_says(
    stage: Stage, backups: Backups, starter: Starter, temporal_cli: Path
) -> None:
    runs, orders, at = await forgotten_runs(stage, backups)

    opened = starter("ledger", "restored", "--to", at.isoformat(), "--json")
    assert opened.code == 0, opened
    behind = {one["run_id"]: one for one in opened.document()["behind"]}
    assert {run_id: one["known"] for run_id, one in behind.items()} == {
        runs[0].run_id: True,
        runs[1].run_id: False,
    }
    told = starter("audit", runs[0].run_id)
    assert told.code == 0, told
    assert "Restored:" in told.out
    assert starter("stats", "--json").document()["epoch"] == 1
    checks = starter("doctor", "--json").document()["checks"]
    assert any("warning: epoch 1 is open" in one["detail"] for one in checks)
    begin_anew(stage, list(behind.values()), temporal_cli)
    again = [Run(run.run_id, stage.client.get_workflow_handle(run.run_id)) for run in runs]
    with stage.ready_worker(tool_modules=NEITHER) as worker:
        assert "worker.restored" in worker.output()
        for run, order in zip(again, orders, strict=True):
            assert await human_settles_refund(stage, run, order) == "happened"
            await run.completed()
            assert set((await stage.effect_states(run)).values()) == {"committed"}

    assert [stage.made(order) for order in orders] == [(1, 1, 1)] * 2, "an effect was repeated"
    stage.started[:] = again
    shown = starter("ledger", "restored", "--json").document()
    assert shown["behind"] == []
    assert (
        starter("ledger", "restored", "--done", "--json").document()["epoch"]["closed_by"]
        == "oscar"
    )


async def test_a_child_run_begins_anew_after_its_parent_and_repeats_nothing(
    stage: Stage, backups: Backups, starter: Starter, temporal_cli: Path
) -> None:
    for endpoint in ("refunds", "restocks"):
        stage.shop.fault(endpoint, ignore_keys=True)
    order = stage.shop.new_order()
    plan = Plan.model_validate(yaml.safe_load((VARIANTS / "parent.yaml").read_text()))
    plan.input["order_id"] = order
    ungated = "tests.variants.refund_ungated"
    at = backups.back_up()
    with stage.ready_worker(tool_modules=ungated):
        parent = await stage.start(plan)
        await parent.completed()
    made = stage.shop.counts(order)
    backups.restore()

    listed = starter("ledger", "restored", "--to", at.isoformat(), "--json").document()["behind"]
    with stage.ready_worker(tool_modules=ungated):
        told = []
        while listed:
            told.append([one["run_id"] for one in listed])
            begin_anew(stage, listed, temporal_cli)
            for one in listed:
                run = Run(one["run_id"], stage.client.get_workflow_handle(one["run_id"]))
                await until(run.heads, bool)
                await run.completed()
            listed = starter("ledger", "restored", "--json").document()["behind"]

    assert told == [[parent.run_id], [f"{parent.run_id}~pay"]]
    assert stage.shop.counts(order) == made
    stage.started[:] = [Run(parent.run_id, stage.client.get_workflow_handle(parent.run_id))]
    result = await stage.started[0].result()
    assert {view.state for view in result.effects} == {"committed"}
    inner = await stage.ledger.transact("default", effects_of, f"{parent.run_id}~pay")
    assert [row["state"] for row in inner] == ["committed"] * 2


class Epochs(LedgerOffice):
    """Whoever says that the ledger was restored."""

    group = "ledger"

    def rows(self) -> Any:
        return self.done("restored", "--json").document()["epoch"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["--to", "yesterday"], "write a time with its zone"),
        (["--to", "2026-01-01T12:00"], "write a time with its zone"),
        (["--to", "2026-01-01"], "write a time with its zone"),
        (["--to", "9999-01-01T00:00:00Z"], "still to come"),
        (["--done"], "no epoch is open"),
        (["--done", "--to", "2026-01-01T12:00:00Z"], "name one of them"),
    ],
)
def test_what_cannot_be_the_instant_of_a_restore_is_refused_in_one_line(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], why: str
) -> None:
    office = Epochs.opened(ledger_url, tmp_path, monkeypatch, TEMPORAL_ADDRESS="127.0.0.1:1")

    assert why in office.refused("restored", *said)
