"""Another tenant's run, approval, effect, decision or intervention is not found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import ProgrammingError

from surehand.activities.ledger.core.statements import PreparedStatement, rows_of
from surehand.activities.ledger.core.store import Ledger, RunNotFound
from surehand.activities.ledger.core.tables import metadata, runs, tenants
from surehand.activities.ledger.effects import (
    compensations,
)
from surehand.activities.ledger.effects.epochs import Epoch
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.history.audit import RecordedHead
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.runs.keys import add_tenant, cell_of_tenant
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed
from surehand.cli import maintenance
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import ChainHead
from tests.ledger.people import administration
from tests.ledger.scene import NOW, RUN, Scene, said
from tests.ledger_databases import TENANT_TABLES

#: A run that only the first tenant has; both have one called ``run-1``.
THEIRS = "theirs"


def everything(scene: Scene) -> dict[str, list[dict[str, Any]]]:
    return {name: scene.rows(metadata.tables[name]) for name in TENANT_TABLES}


async def test_another_tenants_run_question_and_request_are_not_found(
    scene: Scene, other: Scene
) -> None:
    scene.open_run(THEIRS)
    gated = scene.ask_approval(scene.call(run_id=THEIRS))
    _, question = scene.asked(scene.call(run_id=THEIRS, step_id="s", key="k"))
    for look in (reads.effects_of, reads.events_of, reads.interventions_of):
        with pytest.raises(RunNotFound):
            await other.ledger.transact(other.tenant, look, THEIRS)
        assert await scene.ledger.transact(scene.tenant, look, THEIRS)
    assert await other.ledger.transact(other.tenant, reads.interventions_of) == []

    theirs = everything(scene)
    other.open_run(THEIRS, "another workflow run")  # an id is used once in each tenant
    accepted, why = other.settle(said(question, "not_happened"), THEIRS)
    verdict = other.decide(gated)

    assert not accepted and "no intervention" in why
    assert (verdict.code, verdict.state) == ("unknown_approval", None)
    assert everything(scene) == theirs
    with pytest.raises(lifecycle.RunIdTaken):
        scene.open_run(THEIRS, "another workflow run")


def test_another_tenants_approval_lets_nothing_through(scene: Scene, other: Scene) -> None:
    gated = scene.approved(scene.call())

    result = other.claim(other.call(gated=True, approval_id=gated.approval_id))

    assert isinstance(result, ApprovalRefused)
    assert "there is no approval" in result.reason
    assert isinstance(scene.claim(gated), Claimed)


def test_two_tenants_with_one_key_make_two_effects(scene: Scene, other: Scene) -> None:
    ours = scene.committed(scene.call())

    theirs = other.claimed(other.call())

    assert theirs.entry_id != ours.entry_id
    assert theirs.provider_key != ours.provider_key


def test_undoing_in_one_tenant_bars_nothing_in_another(scene: Scene, other: Scene) -> None:
    scene.committed(scene.call())
    other.begin_undo()

    assert isinstance(scene.begin_undo(after=NOW), compensations.ToUndo)


def test_the_guard_of_the_tests_sees_what_the_driver_runs_itself(scene: Scene) -> None:
    of_everybody = PreparedStatement(select(runs.c.run_id).where(runs.c.run_id == bindparam("id")))

    with scene.tx() as tx:
        assert tx.all(PreparedStatement(rows_of(runs, runs.c.run_id, run_id=RUN)))
        for _ in range(2):
            with pytest.raises(AssertionError, match="no tenant for runs"):
                tx.all(of_everybody, id=RUN)


def test_a_tenant_that_has_moved_is_not_added_where_it_was(scene: Scene, other: Scene) -> None:
    for one in (scene, other):
        with administration(one) as tx:
            add_tenant(tx, "a", "olga")
            add_tenant(tx, "a", "olga")
    with administration(scene) as tx:
        tx.connection.execute(
            update(tenants).where(tenants.c.tenant_id == scene.tenant).values(cell="b")
        )

    refused = pytest.raises(PrincipalError, match=f"tenant {scene.tenant} is of cell b")
    with refused, administration(scene) as tx:
        add_tenant(tx, "a", "olga")
    for one, cell in ((scene, "b"), (other, "a")):
        with one.tx() as tx:
            assert cell_of_tenant(tx) == cell


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_worker_says_of_no_tenant_where_it_is(scene: Scene) -> None:
    """SQLite has no roles."""
    with pytest.raises(ProgrammingError, match="permission denied"), scene.tx() as tx:
        add_tenant(tx, "b", "olga")


FORGOTTEN = RecordedHead(ChainHead(seq=9, hash="sha256:forgotten"), 50)


async def test_the_runs_of_every_tenant_that_went_on_are_listed(
    ledger: Ledger, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = f"{scene.tenant}/known", f"{scene.tenant}-too/unknown"
    scene.open_run(known)
    # No tenant can be called so: somebody else's workflow on the same task queue.
    listed = [known, unknown, "No Tenant/run"]

    async def runs(condition: str, *, every_tenant: bool) -> AsyncIterator[Any]:
        assert every_tenant and "TaskQueue = 'q'" in condition
        for run_id in listed:
            yield SimpleNamespace(id=run_id, parent_id=None)

    async def heads(_: object, run_id: str) -> list[RecordedHead]:
        return [FORGOTTEN]

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[Ledger]:
        yield ledger

    async def connection() -> Any:
        return SimpleNamespace(listed=runs, temporal_options=lambda: [])

    monkeypatch.setattr(maintenance, "history_heads", heads)
    monkeypatch.setattr(maintenance, "ledger_of", opened)
    monkeypatch.setattr(maintenance, "read_settings", lambda: None)
    settings = ClientSettings(tenant="asks", user="oscar", task_queue="q", ui_url="")
    caller: Any = SimpleNamespace(connection=connection, settings=settings, tenant="asks")

    behind = await maintenance._find_behind(caller, Epoch(1, 0, 100, "oscar"))

    assert [(one.run_id, one.known) for one in behind] == [(known, True), (unknown, False)]
