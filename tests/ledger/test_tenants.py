"""Another tenant's run, approval, effect, decision or intervention is not found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from activities.ledger import approvals as approval_rows
from activities.ledger import claims, compensations, leases, outcomes, reads, run_tree, runs, steps
from activities.ledger import decisions as decision_rows
from activities.ledger.artifacts import Kept
from activities.ledger.entries import ApprovalRefused, Claimed, ClaimRequest, Entry
from activities.ledger.leases import Lease
from activities.ledger.store import RunNotFound, Transaction
from activities.ledger.tables import metadata
from tests.ledger.scene import LEASE, NOW, Scene
from workflows.contracts import (
    Assurance,
    CloseRun,
    Decision,
    Resolution,
    RunState,
    VerifyDecision,
)
from workflows.policy import Needs, Requirement

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
async def story(scene: Scene) -> Story:
    await scene.open_run(THEIRS)
    call = scene.call(run_id=THEIRS)
    gated = await scene.ask_approval(call)
    entry, intervention = await scene.asked(scene.call(run_id=THEIRS, step_id="s", key="k"))
    await scene.committed(scene.call(run_id=THEIRS, step_id="t", key="t"))
    await scene.begin_undo(THEIRS, "undone")
    lease = await scene.hold("account:7")
    return Story(scene, gated, entry, intervention, lease)


async def everything(scene: Scene) -> dict[str, list[dict[str, Any]]]:
    return {table.name: await scene.rows(table) for table in metadata.sorted_tables}


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


Use = Callable[[Transaction, Story], Awaitable[Any]]

#: Every function of the ledger that is given a name, and what it says of a name that is not there.
FINDS_NOTHING: dict[str, tuple[Use, Any]] = {
    "approvals.locked": (
        lambda tx, s: approval_rows.locked(tx, s.gated.approval_id or ""), None,
    ),
    "approvals.is_settled": (
        lambda tx, s: approval_rows.is_settled(tx, s.scene.call(step_id="t", key="t")), False,
    ),
    "approvals.close": (
        lambda tx, s: approval_rows.close(tx, THEIRS, s.gated.approval_id or "", "void"), "void",
    ),
    "leases.renew": (lambda tx, s: leases.renew(tx, [s.lease], LEASE), False),
    "leases.release": (lambda tx, s: leases.release(tx, [s.lease]), None),
    "leases.lost": (lambda tx, s: leases.lost(tx, [s.lease]), ["account:7"]),
    "leases.sweep": (lambda tx, s: _sweep_later(tx), 0),
    "outcomes.renew": (lambda tx, s: outcomes.renew(tx, s.entry), False),
    "outcomes.answer_no": (
        lambda tx, s: outcomes.answer_no(tx, s.gated, s.entry, "no", "no"), False,
    ),
    "outcomes.fail": (
        lambda tx, s: outcomes.fail(tx, s.gated, s.entry, "permanent", "no", delay=None), None,
    ),
    "outcomes.leave_in_doubt": (
        lambda tx, s: outcomes.leave_in_doubt(tx, s.gated, s.entry, "?"), None,
    ),
    "outcomes.ask_human": (lambda tx, s: outcomes.ask_human(tx, s.entry, "?"), None),
    "runs.set_state": (lambda tx, s: runs.set_state(tx, THEIRS, "compensating"), None),
    "runs.close_run": (
        lambda tx, s: runs.close_run(
            tx, CloseRun(tenant=tx.tenant, run_id=THEIRS, state=RunState.FAILED)
        ),
        None,
    ),
    "run_tree.standing": (
        lambda tx, s: run_tree.standing(tx, THEIRS), run_tree.Page([], None),
    ),
    "run_tree.how_many_stand": (lambda tx, s: run_tree.how_many_stand(tx, THEIRS), 0),
    "run_tree.bar": (lambda tx, s: run_tree.bar(tx, THEIRS), None),
    "run_tree.leave": (lambda tx, s: run_tree.leave(tx, [s.entry.entry_id], "no"), None),
    "steps.failures": (lambda tx, s: steps.failures(tx, THEIRS, "s", "in_doubt"), 0),
    "steps.finish": (lambda tx, s: steps.finish(tx, s.gated.step_attempt, "failed"), False),
}  # fmt: skip
#: Every function that would write something about that run.
RAISES: dict[str, Use] = {
    "store.event": lambda tx, s: _event(tx),
    "store.lock_chain": lambda tx, s: tx.lock_chain(THEIRS),
    "decisions.verify": lambda tx, s: decision_rows.verify(
        tx, _decision(s, tx.tenant), assurance=Assurance.OPEN, check_edit=lambda *_: "no"
    ),
    "approvals.request": lambda tx, s: _request(tx, s),
    "claims.claim": lambda tx, s: claims.claim(tx, replace(s.gated, gated=False)),
    "compensations.begin": lambda tx, s: compensations.begin(
        tx, s.entry.entry_id, THEIRS, "refund"
    ),
    "outcomes.note_late_receipt": lambda tx, s: outcomes.note_late_receipt(tx, s.entry, Kept("r")),
    "runs.effect_views": lambda tx, s: runs.effect_views(tx, THEIRS, 10),
}


async def _request(tx: Transaction, story: Story) -> None:
    needs = Needs(requirements=(Requirement(),), expires_in=timedelta(days=30))
    await approval_rows.request(
        tx, story.gated, approval_id=f"{THEIRS}/s/2", description="", undo="", needs=needs
    )


async def _sweep_later(tx: Transaction) -> int:
    tx.now_ms += 1_000_000  # long after every lease
    return await leases.sweep(tx, 100)


async def _event(tx: Transaction) -> None:
    tx.event(THEIRS, "test.forged")


@pytest.mark.parametrize("name", FINDS_NOTHING)
async def test_another_tenants_thing_is_not_found_and_not_touched(
    story: Story, other: Scene, name: str
) -> None:
    use, nothing = FINDS_NOTHING[name]
    theirs, ours = await everything(story.scene), await everything(other)

    async with other.tx() as tx:
        found = await use(tx, story)

    assert found == nothing
    assert await everything(story.scene) == theirs
    assert await everything(other) == ours


@pytest.mark.parametrize("name", RAISES)
async def test_nothing_is_written_about_another_tenants_run(
    story: Story, other: Scene, name: str
) -> None:
    theirs, ours = await everything(story.scene), await everything(other)

    # The run is not found when its chain is looked up, or by the reference that every row has.
    with pytest.raises((RunNotFound, IntegrityError)):
        async with other.tx() as tx:
            await RAISES[name](tx, story)

    assert await everything(story.scene) == theirs
    assert await everything(other) == ours


async def test_the_operators_verbs_do_not_find_another_tenants_run(
    story: Story, other: Scene
) -> None:
    ledger = other.ledger
    for look in (reads.effects_of, reads.events_of, reads.interventions_of):
        with pytest.raises(RunNotFound):
            await look(ledger, other.tenant, THEIRS)
        assert await look(ledger, story.scene.tenant, THEIRS)

    assert await reads.interventions_of(ledger, other.tenant) == []
    assert len(await reads.interventions_of(ledger, story.scene.tenant)) == 1


async def test_another_tenants_intervention_cannot_be_settled(story: Story, other: Scene) -> None:
    theirs = await everything(story.scene)
    await other.open_run(THEIRS)
    answer = Resolution.model_validate(
        {"intervention_id": story.intervention, "outcome": "not_happened", "actor": "mallory"}
    )

    accepted, message = await other.settle(answer, THEIRS)

    assert not accepted
    assert "no intervention" in message
    assert await everything(story.scene) == theirs


async def test_a_decision_in_one_tenant_does_not_reach_the_same_approval_id_of_another(
    story: Story, other: Scene
) -> None:
    theirs = await everything(story.scene)
    await other.open_run(THEIRS)

    verdict = await other.decide(story.gated)

    assert (verdict.code, verdict.state) == ("unknown_approval", None)
    assert await everything(story.scene) == theirs


async def test_another_tenants_approval_lets_nothing_through(scene: Scene, other: Scene) -> None:
    gated = await scene.approved(scene.call())

    result = await other.claim(other.call(gated=True, approval_id=gated.approval_id))

    assert isinstance(result, ApprovalRefused)
    assert "there is no approval" in result.reason
    assert isinstance(await scene.claim(gated), Claimed)


async def test_two_tenants_with_the_same_run_step_tool_and_key_make_two_effects(
    scene: Scene, other: Scene
) -> None:
    ours = await scene.committed(scene.call())

    theirs = await other.claimed(other.call())

    assert theirs.entry_id != ours.entry_id
    assert theirs.provider_key != ours.provider_key


async def test_undoing_in_one_tenant_bars_nothing_in_another(scene: Scene, other: Scene) -> None:
    await scene.committed(scene.call())
    await other.begin_undo()

    assert isinstance(await scene.begin_undo(after=NOW), compensations.ToUndo)


async def test_a_run_id_may_be_used_once_in_each_tenant(story: Story, other: Scene) -> None:
    await other.open_run(THEIRS, "another workflow run")

    with pytest.raises(runs.RunIdTaken):
        await story.scene.open_run(THEIRS, "another workflow run")
