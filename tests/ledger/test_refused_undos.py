"""G4: an undo that may be refused is asked about right before each call, and never on a guess."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.steps.entries import UNASKED, Entry
from surehand.activities.tools.failures import OutcomeUnknown, Permanent, Transient
from surehand.activities.tools.tool import Dedupes, OnlyIf, ToolContext, Undo
from surehand.activities.tools.toolbox import Toolbox, ToolboxError
from surehand.workflows.contracts.effects import (
    CompensationOutcome,
    CompensationReport,
    ResolutionOutcome,
)
from tests.ledger.attempts import Provider, time_passes, undo_attempt, worker_of
from tests.ledger.rows import change
from tests.ledger.scene import Scene, said

pytestmark = pytest.mark.guarantee("G4")


@dataclass
class World:
    """What may stand in an undo's way, and the outside system in which it undoes."""

    answers: list[Any]
    """What its ``only_if`` says, one after the other; an exception is raised."""
    asked: list[tuple[Any, Any, str]] = field(default_factory=list)
    provider: Provider = field(default_factory=lambda: Provider([{"id": "u-1"}]))
    how: dict[str, Any] = field(default_factory=lambda: {"recovery": "human"})
    """How its outcome is settled."""

    async def only_if(self, params: Any, receipt: Any, ctx: ToolContext) -> Any:
        self.asked.append((params, receipt, ctx.idempotency_key))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def toolbox(self, only_if: OnlyIf | None) -> Toolbox:
        undo = Undo("payments.charge", lambda params, _: params, only_if=only_if)
        pay = Provider([{}]).tool(recovery="human", compensate=undo)
        return Toolbox([pay, self.provider.tool(name="payments.charge", **self.how)])

    def committed(self, scene: Scene, *, checked: bool = True) -> Entry:
        toolbox = self.toolbox(self.only_if if checked else None)
        pay = toolbox.get("payments.refund")
        assert pay is not None
        return scene.committed(scene.call(undo=toolbox.undo_spec(pay, approved=False)))

    async def undo(
        self, scene: Scene, entry: Entry, *, attempt: int = 1, checked: bool = True
    ) -> CompensationReport:
        tools = self.toolbox(self.only_if if checked else None)
        worker = replace(worker_of(scene), toolbox=tools)
        return await undo_attempt(worker, scene.tenant, entry, attempt).run()


async def test_only_true_is_a_yes(scene: Scene) -> None:
    world = World([True])
    entry = world.committed(scene)

    report = await world.undo(scene, entry)

    assert (report.outcome, len(world.provider.keys)) == (CompensationOutcome.COMPENSATED, 1)
    [(params, receipt, key)] = world.asked
    assert (params, receipt) == (entry.params, "r-1")
    assert key == world.provider.keys[0]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (False, "its only_if says no"),
        ("the parcel is on its way", "the parcel is on its way"),
        (None, "its only_if says NoneType"),
        (1, "its only_if says int"),
        ("", "its only_if says str"),
        (Permanent("the shop is gone"), "its only_if failed: Permanent: the shop is gone"),
    ],
)
async def test_anything_else_is_put_before_a_human(scene: Scene, answer: Any, told: str) -> None:
    world = World([answer])
    entry = world.committed(scene)

    report = await world.undo(scene, entry)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED and told in report.reason
    assert world.provider.keys == []
    [question] = scene.rows(interventions)
    assert (question["rule"], question["state"]) == ("undo_refused", "open")
    assert scene.entry(entry.entry_id).state == "compensating"


@pytest.mark.in_turns
@pytest.mark.parametrize("error", [Transient("no route"), TimeoutError(), ValueError("a bug")])
async def test_one_that_fails_is_asked_again_and_never_a_yes(
    scene: Scene, error: Exception
) -> None:
    world = World([error, True])
    entry = world.committed(scene)

    with pytest.raises(ApplicationError) as failed:
        await world.undo(scene, entry)
    assert not failed.value.non_retryable and world.provider.keys == []
    report = await world.undo(scene, entry, attempt=2)

    assert (report.outcome, len(world.asked)) == (CompensationOutcome.COMPENSATED, 2)
    assert scene.rows(interventions) == []


async def test_the_answer_undo_asks_the_world_again(scene: Scene) -> None:
    world = World(["shipped", "still shipped", True])
    entry = world.committed(scene)
    report = await world.undo(scene, entry)

    for number, outcome in enumerate([CompensationOutcome.HUMAN_NEEDED, "compensated"], 2):
        accepted, why = scene.settle(
            said(report.intervention_id, ResolutionOutcome.UNDO), resolution_id=f"#{number}"
        )
        assert accepted, why
        report = await world.undo(scene, entry, attempt=number)
        assert report.outcome == outcome

    assert (len(world.asked), len(world.provider.keys)) == (3, 1)
    assert scene.entry(entry.entry_id).state == "compensated"


@pytest.mark.parametrize("answered", [True, False])
async def test_the_answer_undo_has_it_retried_as_long_as_at_first(
    scene: Scene, answered: bool
) -> None:
    provider = Provider([Transient("no route"), {"id": "u-1"}])
    world = World(["shipped", True, True], provider=provider)
    entry = world.committed(scene)
    report = await world.undo(scene, entry)
    answer = said(report.intervention_id, ResolutionOutcome.UNDO)
    assert scene.settle(answer, after=timedelta(0))[0]
    hour_ms = timedelta(hours=1) // timedelta(milliseconds=1)
    for table in (effects,) if answered else (effects, interventions):
        column = "first_call_ms" if table is effects else "settled_ms"
        with scene.tx() as tx:
            known = table.c[column].is_not(None)
            before = {column: tx.now_ms - hour_ms}
            tx.execute(update_rows(table).where(known).values(before))

    if not answered:
        report = await world.undo(scene, entry, attempt=2)
        assert report.outcome is CompensationOutcome.HUMAN_NEEDED
        return
    with pytest.raises(ApplicationError) as failed:
        await world.undo(scene, entry, attempt=2)
    assert not failed.value.non_retryable
    report = await world.undo(scene, entry, attempt=3)
    assert report.outcome is CompensationOutcome.COMPENSATED


class Died(BaseException):
    """The worker is gone, and has said nothing."""


async def test_a_yes_is_not_remembered_after_a_crash(scene: Scene) -> None:
    """Its attempt dies with the yes, before the call: nothing is in doubt, and it asks again."""
    world = World([Died(), "shipped meanwhile"])
    entry = world.committed(scene)
    with pytest.raises(Died):
        await world.undo(scene, entry)
    [undo] = scene.rows(effects, undoes=entry.entry_id)
    assert undo["observed"] == UNASKED
    time_passes(scene)
    change(scene, effects, {"entry_id": undo["entry_id"]}, lease_until_ms=1)

    report = await world.undo(scene, entry, attempt=2)

    assert "shipped meanwhile" in report.reason and world.provider.keys == []
    [question] = scene.rows(interventions)
    assert (question["entry_id"], question["rule"]) == (entry.entry_id, "undo_refused")


async def test_a_no_after_a_call_that_was_cut_off_proves_nothing(scene: Scene) -> None:
    """The first call may have made it so: nobody may take the no for "it was not undone"."""
    provider = Provider([OutcomeUnknown("cut off"), {"id": "u-1"}])
    how = {"dedupes": Dedupes(timedelta(hours=1))}
    world = World([True, "it is undone already"], provider=provider, how=how)
    entry = world.committed(scene)
    with pytest.raises(ApplicationError):
        await world.undo(scene, entry)

    report = await world.undo(scene, entry, attempt=2)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    [question] = scene.rows(interventions)
    assert question["rule"] == "unknown" and question["entry_id"] != entry.entry_id
    assert len(provider.keys) == 1


async def test_a_condition_that_an_undo_gains_while_it_is_made_is_asked(scene: Scene) -> None:
    provider = Provider([OutcomeUnknown("cut off"), {"id": "u-1"}])
    world = World([True], provider=provider, how={"dedupes": Dedupes(timedelta(hours=1))})
    entry = world.committed(scene, checked=False)
    with pytest.raises(ApplicationError):
        await world.undo(scene, entry, checked=False)

    report = await world.undo(scene, entry, attempt=2)

    assert (report.outcome, len(world.asked)) == (CompensationOutcome.COMPENSATED, 1)
    assert len(provider.keys) == 2


async def test_a_worker_that_has_no_only_if_does_not_undo_without_it(scene: Scene) -> None:
    world = World([])
    entry = world.committed(scene)

    report = await world.undo(scene, entry, checked=False)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert "if the world allows it" in report.reason and world.provider.keys == []


def test_approvers_see_that_an_undo_may_be_refused() -> None:
    world = World([])
    toolbox = world.toolbox(world.only_if)
    pay = toolbox.get("payments.refund")
    assert pay is not None
    spec = toolbox.undo_spec(pay, approved=True)
    assert spec.compensate is not None
    assert spec.compensate.as_text() == "payments.charge (version 1, if the world allows it)"
    assert replace(world, answers=[]).toolbox(None).undo_spec(pay, approved=True) == spec


def test_an_only_if_is_async_and_takes_three() -> None:
    for wrong in (lambda params, receipt, ctx: True, _takes_too_few):
        undo = Undo("payments.charge", lambda params, _: params, only_if=wrong)
        with pytest.raises(ToolboxError, match="only_if= is an async function"):
            Provider([{}]).tool(recovery="human", compensate=undo)


async def _takes_too_few(params: Any, receipt: Any) -> bool:
    return True
