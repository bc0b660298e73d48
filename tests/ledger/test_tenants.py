"""Another tenant's run, approval, effect, decision or intervention is not found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import IntegrityError, ProgrammingError

from surehand.activities.ledger.approvals import decisions as decision_rows
from surehand.activities.ledger.approvals import requests as approval_rows
from surehand.activities.ledger.core.statements import PreparedStatement, rows_of
from surehand.activities.ledger.core.store import Ledger, RunNotFound, Transaction
from surehand.activities.ledger.core.tables import ALL, metadata, runs, tenants
from surehand.activities.ledger.effects import (
    claims,
    compensations,
    outcomes,
    resource_leases,
    run_tree,
)
from surehand.activities.ledger.effects.epochs import Epoch
from surehand.activities.ledger.effects.resource_leases import Lease
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.history.audit import RecordedHead
from surehand.activities.ledger.people.principals import PrincipalError
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.runs.keys import add_tenant, cell_of_tenant
from surehand.activities.ledger.steps import attempts
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import ApprovalRefused, Claimed, ClaimRequest, Entry
from surehand.cli import maintenance
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.approvals import Assurance, Decision, VerifyDecision
from surehand.workflows.contracts.base import ChainHead, RunState
from surehand.workflows.contracts.effects import Resolution
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.plan.policy import Needs, Requirement
from tests.ledger.people import administration
from tests.ledger.scene import LEASE, NOW, RUN, UNDOABLE, Scene

#: A run that only the first tenant has; both have one called ``run-1``.
THEIRS = "theirs"


@dataclass(frozen=True)
class Story:
    """A run of one tenant with one of everything."""

    scene: Scene
    gated: ClaimRequest
    entry: Entry
    intervention: str
    lease: Lease


@pytest.fixture
def story(scene: Scene) -> Story:
    scene.open_run(THEIRS)
    call = scene.call(run_id=THEIRS)
    gated = scene.ask_approval(call)
    entry, intervention = scene.asked(scene.call(run_id=THEIRS, step_id="s", key="k"))
    scene.committed(scene.call(run_id=THEIRS, step_id="t", key="t"))
    scene.begin_undo(THEIRS, "undone")
    lease = scene.hold("account:7")
    return Story(scene, gated, entry, intervention, lease)


def everything(scene: Scene) -> dict[str, list[dict[str, Any]]]:
    return {name: scene.rows(metadata.tables[name]) for name in ALL}


def _decision(story: Story, tenant: str) -> VerifyDecision:
    assert story.gated.approval_id is not None
    decision = Decision.model_validate(
        {
            "approval_id": story.gated.approval_id,
            "params_hash": story.gated.params_hash,
            "outcome": "approve",
            "approver": "mallory",
        }
    )
    return VerifyDecision(
        tenant=tenant, run_id=THEIRS, decision_id=f"{THEIRS}#1", decision=decision
    )


Use = Callable[[Transaction, Story], Any]
#: Every function of the ledger that is given a name, and what it says of a name that is not there.
FINDS_NOTHING: dict[str, tuple[Use, Any]] = {
    "approvals.locked": (
        lambda tx, s: approval_rows.lock_approval(tx, s.gated.approval_id or ""), None,
    ),
    "approvals.is_settled": (
        lambda tx, s: approval_rows.is_effect_settled(tx, s.scene.call(step_id="t", key="t")),
        False,
    ),
    "approvals.close": (
        lambda tx, s: approval_rows.close_approval(tx, THEIRS, s.gated.approval_id or "", "void"),
        "void",
    ),
    "leases.renew": (lambda tx, s: resource_leases.renew_resources(tx, [s.lease], LEASE), False),
    "leases.release": (lambda tx, s: resource_leases.release_resources(tx, [s.lease]), None),
    "leases.lost": (
        lambda tx, s: resource_leases.find_lost_resources(tx, [s.lease]),
        ["account:7"],
    ),
    "leases.free_expired": (lambda tx, s: _free_later(tx), 0),
    "outcomes.renew": (lambda tx, s: outcomes.renew_lease(tx, s.entry), False),
    "outcomes.answer_no": (
        lambda tx, s: outcomes.record_no(tx, s.gated, s.entry, "no", "no"), None,
    ),
    "outcomes.fail": (
        lambda tx, s: outcomes.record_failure(tx, s.gated, s.entry, "permanent", "no", delay=None),
        None,
    ),
    "outcomes.leave_in_doubt": (
        lambda tx, s: outcomes.leave_in_doubt(tx, s.gated, s.entry, "?"), None,
    ),
    "outcomes.ask_human": (lambda tx, s: outcomes.ask_human(tx, s.entry, "?"), None),
    "run_tree.remaining": (
        lambda tx, s: run_tree.list_remaining(tx, THEIRS), run_tree.Page([], None),
    ),
    "run_tree.effects_of_tree": (
        lambda tx, s: run_tree.effects_of_tree(tx, THEIRS, 10),
        run_tree.TreeEffects([], 0, [], 0),
    ),
    "run_tree.how_many_remain": (lambda tx, s: run_tree.how_many_remain(tx, THEIRS), 0),
    "run_tree.bar": (lambda tx, s: run_tree.bar_tree(tx, THEIRS), None),
    "run_tree.leave": (
        lambda tx, s: run_tree.note_left(tx, THEIRS, [s.entry.entry_id], "no"),
        None,
    ),
    "steps.failures": (lambda tx, s: attempts.count_failures(tx, _later(s), "in_doubt"), 0),
    "steps.has_ended": (lambda tx, s: attempts.has_ended(tx, s.gated.step_attempt), False),
    "steps.finish": (lambda tx, s: attempts.finish_attempt(tx, _held(s), "failed"), False),
}  # fmt: skip
#: Every function that would write something about that run.
RAISES: dict[str, Use] = {
    "store.event": lambda tx, s: _event(tx),
    "store.lock_chain": lambda tx, s: tx.lock_chain(THEIRS),
    "lifecycle.close_run": lambda tx, s: lifecycle.close_run(
        tx, CloseRun(tenant=tx.tenant, run_id=THEIRS, state=RunState.FAILED)
    ),
    "decisions.verify": lambda tx, s: decision_rows.verify_decision(
        tx,
        _decision(s, tx.tenant),
        assurance=Assurance.OPEN,
        check_edit=lambda *_: "no",
        covers=lambda *_: None,
    ),
    "approvals.request": lambda tx, s: _request(tx, s),
    "claims.claim": lambda tx, s: claims.claim_effect(tx, replace(s.gated, gated=False)),
    "compensations.begin": lambda tx, s: compensations.begin_undo(
        tx, s.entry.entry_id, THEIRS, "refund", lambda _: UNDOABLE
    ),
    "outcomes.note_late_receipt": lambda tx, s: outcomes.note_late_receipt(tx, s.entry, Kept("r")),
}


def _request(tx: Transaction, story: Story) -> None:
    needs = Needs(requirements=(Requirement(),), expires_in=timedelta(days=30))
    approval_rows.request_approval(tx, story.gated, number=2, description="", needs=needs)


def _held(story: Story) -> attempts.StepAttempt:
    return replace(story.gated.step_attempt, holder="somebody")


def _later(story: Story) -> attempts.StepAttempt:
    """Return the attempt after the one that has ended."""
    return replace(story.gated.step_attempt, attempt=2)


def _free_later(tx: Transaction) -> int:
    tx.now_ms += 1_000_000  # long after every lease
    return resource_leases.free_expired(tx, 100)


def _event(tx: Transaction) -> None:
    tx.event(THEIRS, "test.forged")


@pytest.mark.parametrize("name", FINDS_NOTHING)
def test_another_tenants_thing_is_not_found(story: Story, other: Scene, name: str) -> None:
    use, nothing = FINDS_NOTHING[name]
    theirs, ours = everything(story.scene), everything(other)

    with other.tx() as tx:
        found = use(tx, story)

    assert found == nothing
    assert everything(story.scene) == theirs
    assert everything(other) == ours


@pytest.mark.parametrize("name", RAISES)
def test_nothing_is_written_to_another_tenant(story: Story, other: Scene, name: str) -> None:
    theirs, ours = everything(story.scene), everything(other)

    # The run is not found when its chain is looked up, or by the reference that every row has.
    with pytest.raises((RunNotFound, IntegrityError)), other.tx() as tx:
        RAISES[name](tx, story)

    assert everything(story.scene) == theirs
    assert everything(other) == ours


async def test_operators_verbs_find_no_other_tenant(story: Story, other: Scene) -> None:
    ledger = other.ledger
    for look in (reads.effects_of, reads.events_of, reads.interventions_of):
        with pytest.raises(RunNotFound):
            await ledger.transact(other.tenant, look, THEIRS)
        assert await ledger.transact(story.scene.tenant, look, THEIRS)

    assert await ledger.transact(other.tenant, reads.interventions_of) == []
    assert len(await ledger.transact(story.scene.tenant, reads.interventions_of)) == 1


def test_another_tenants_intervention_cannot_be_settled(story: Story, other: Scene) -> None:
    theirs = everything(story.scene)
    other.open_run(THEIRS)
    answer = Resolution.model_validate(
        {"intervention_id": story.intervention, "outcome": "not_happened", "actor": "mallory"}
    )

    accepted, message = other.settle(answer, THEIRS)

    assert not accepted
    assert "no intervention" in message
    assert everything(story.scene) == theirs


def test_a_decision_does_not_reach_another_tenants_approval(story: Story, other: Scene) -> None:
    theirs = everything(story.scene)
    other.open_run(THEIRS)

    verdict = other.decide(story.gated)

    assert (verdict.code, verdict.state) == ("unknown_approval", None)
    assert everything(story.scene) == theirs


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


def test_a_run_id_may_be_used_once_in_each_tenant(story: Story, other: Scene) -> None:
    other.open_run(THEIRS, "another workflow run")

    with pytest.raises(lifecycle.RunIdTaken):
        story.scene.open_run(THEIRS, "another workflow run")


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
