"""G3, G4: the undo that runs is the one that people have approved with its step, or agree to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from surehand.activities.effects.compensation import UndoAttempt
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.steps.entries import ApprovalRefused, ClaimRequest, Entry
from surehand.activities.tools.tool import No, Tool, Undo
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import Attempt, WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    Resolution,
    ResolutionOutcome,
)
from tests.ledger.attempts import Provider
from tests.ledger.scene import LEASE, LEASE_OVER, NOW, OTHER_RUN, RUN, Scene
from tests.ledger.test_asked_first import audited, close

pytestmark = [pytest.mark.guarantee("G3"), pytest.mark.guarantee("G4")]


@dataclass
class Deploy:
    """A worker's tools, as one deploy loads them."""

    by: str | None = "payments.charge"
    cleaned_up_by: str | None = None
    version: str = "1"
    undo_version: str = "1"
    params_version: str = ""
    undo_schema: str | None = None
    called: Provider = field(default_factory=lambda: Provider([{"id": "u-1"}]))
    """The outside system in which it undoes."""

    def toolbox(self) -> tuple[Toolbox, Tool]:
        """Return all its tools, and the one whose effects are undone."""
        compensate, cleanup = map(self._undo, (self.by, self.cleaned_up_by))
        how: dict[str, Any] = {"recovery": "human", "version": self.version, "cleanup": cleanup}
        if compensate is not None:
            how["compensate"] = compensate
        pay = Provider([{}]).tool(**how)
        undoing = [
            self.called.tool(name=name, recovery="human", version=self.undo_version)
            for name in ("payments.charge", "payments.seize")
        ]
        if self.undo_schema is not None:
            undoing = [replace(one, schema_hash=self.undo_schema) for one in undoing]
        return Toolbox([pay, *undoing]), pay

    def _undo(self, name: str | None) -> Undo | None:
        return name and Undo(name, lambda params, receipt: params, self.params_version)

    def request(self, scene: Scene, *, approved: bool) -> ClaimRequest:
        toolbox, pay = self.toolbox()
        spec = toolbox.undo_spec(pay, approved=approved)
        asked = scene.call(undo=spec, tool_version=self.version)
        return scene.approved(asked) if approved else asked

    async def undo(
        self, scene: Scene, entry: Entry, *, cleanup: bool = False, attempt: int = 1
    ) -> CompensationReport:
        store, tools = scene.artifacts, self.toolbox()[0]
        context = WorkerContext(scene.ledger, tools, store, Crash(), LEASE, LEASE / 3)
        asked = Compensate(
            tenant=scene.tenant,
            run_id=entry.run_id,
            step_id=entry.step_id,
            entry_id=entry.entry_id,
            user="ada",
            cleanup=cleanup,
        )
        mine = Attempt(attempt, "undo", f"undo:{attempt}")
        return await UndoAttempt(context, asked, mine).run()


SHOWN = Deploy(cleaned_up_by="payments.charge")
CHANGES = {
    "another tool": Deploy(by="payments.seize"),
    "another version of it": Deploy(undo_version="2"),
    "other params of it": Deploy(undo_schema="sha256:1"),
    "made by another version": Deploy(version="2"),
    "params made by another template": Deploy(params_version="sha256:2"),
    "none any more": Deploy(by=None, version="2"),
    "another cleanup": Deploy(cleaned_up_by="payments.seize"),
    "no cleanup any more": Deploy(),
}


def said(report: CompensationReport, outcome: ResolutionOutcome) -> Resolution:
    assert report.intervention_id is not None
    return Resolution(
        intervention_id=report.intervention_id, outcome=outcome, actor="ann", evidence="looked"
    )


@pytest.mark.parametrize("change", CHANGES)
async def test_an_undo_nobody_was_shown_does_not_run(scene: Scene, change: str) -> None:
    entry = scene.committed(SHOWN.request(scene, approved=True))
    loaded = CHANGES[change]

    report = await loaded.undo(scene, entry, cleanup="cleanup" in change)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert "payments.charge (version 1)" in report.reason
    assert "is undone by " in report.reason
    [question] = scene.rows(interventions)
    assert (question["rule"], question["state"]) == ("undo_changed", "open")
    assert loaded.called.keys == []
    assert [row["state"] for row in scene.rows(effects)] == ["compensating"]


async def test_what_could_not_be_undone_is_not_undone_without_asking(scene: Scene) -> None:
    entry = scene.committed(Deploy(by=None).request(scene, approved=True))
    loaded = Deploy()

    report = await loaded.undo(scene, entry)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert "was undone by nothing" in report.reason
    assert loaded.called.keys == []


async def test_a_change_of_the_other_undo_asks_nobody(scene: Scene) -> None:
    entry = scene.committed(SHOWN.request(scene, approved=True))
    loaded = Deploy(cleaned_up_by="payments.seize")

    report = await loaded.undo(scene, entry)

    assert (report.outcome, len(loaded.called.keys)) == (CompensationOutcome.COMPENSATED, 1)
    assert scene.rows(interventions) == []


@pytest.mark.parametrize(
    ("outcome", "state", "calls"),
    [
        (ResolutionOutcome.UNDO, "compensated", 1),
        (ResolutionOutcome.COMPENSATED, "compensated", 0),
        (ResolutionOutcome.GIVE_UP, "committed", 0),
    ],
)
async def test_a_human_says_what_becomes_of_a_changed_undo(
    scene: Scene, outcome: ResolutionOutcome, state: str, calls: int
) -> None:
    entry, loaded = scene.committed(SHOWN.request(scene, approved=True)), Deploy("payments.seize")
    report = await loaded.undo(scene, entry)

    accepted, why = scene.settle(said(report, outcome))
    assert accepted, why
    await loaded.undo(scene, entry, attempt=2)

    assert scene.entry(entry.entry_id).state == state
    assert len(loaded.called.keys) == calls
    assert len(scene.rows(interventions)) == 1
    accepted, _ = scene.settle(said(report, ResolutionOutcome.UNDO), resolution_id="#late")
    assert not accepted
    await audited(scene, RUN)


async def test_a_human_agrees_to_the_undo_of_the_question_alone(scene: Scene) -> None:
    entry = scene.committed(SHOWN.request(scene, approved=True))
    report = await Deploy("payments.seize").undo(scene, entry)
    assert scene.settle(said(report, ResolutionOutcome.UNDO))[0]
    newer = Deploy("payments.seize", undo_version="2")

    again = await newer.undo(scene, entry, attempt=2)
    # A worker of before the deploy is as wrong: its undo is not what was agreed to either.
    older = await SHOWN.undo(scene, entry, attempt=3)

    assert again.outcome is older.outcome is CompensationOutcome.HUMAN_NEEDED
    assert again.intervention_id == older.intervention_id != report.intervention_id
    assert newer.called.keys == SHOWN.called.keys == []


async def test_the_answer_may_come_through_the_run_above_that_undoes_it(scene: Scene) -> None:
    entry, loaded = scene.committed(SHOWN.request(scene, approved=True)), Deploy("payments.seize")
    report = await loaded.undo(scene, entry)
    scene.open_run(OTHER_RUN)
    close(scene)

    assert scene.settle(said(report, ResolutionOutcome.UNDO), OTHER_RUN)[0]
    report = await loaded.undo(scene, entry, attempt=2)

    assert (report.outcome, len(loaded.called.keys)) == (CompensationOutcome.COMPENSATED, 1)


async def test_a_failed_undo_cannot_be_agreed_to(scene: Scene) -> None:
    entry = scene.committed(SHOWN.request(scene, approved=True))
    report = await replace(SHOWN, called=Provider([No("closed")])).undo(scene, entry)

    accepted, why = scene.settle(said(report, ResolutionOutcome.UNDO), can_undo=True)

    assert not accepted and "compensated" in why


async def test_an_undo_that_nobody_approved_runs_as_loaded_and_says_so(scene: Scene) -> None:
    entry, loaded = scene.committed(SHOWN.request(scene, approved=False)), Deploy("payments.seize")

    report = await loaded.undo(scene, entry)

    assert (report.outcome, len(loaded.called.keys)) == (CompensationOutcome.COMPENSATED, 1)
    kept = scene.entry(entry.entry_id).undo
    assert kept is not None and kept["compensate"]["name"] == "payments.charge"
    *_, undoing = scene.events(type_="effect.claimed")
    assert "payments.charge (version 1)" in undoing["body"]["instead_of"]


@pytest.mark.parametrize("approved", [True, False])
async def test_another_undo_waits_for_the_one_under_way(scene: Scene, approved: bool) -> None:
    entry, loaded = (
        scene.committed(SHOWN.request(scene, approved=approved)),
        Deploy("payments.seize"),
    )
    begun = scene.undo(entry)
    claimed = scene.claimed(begun, after=-LEASE_OVER)
    with scene.tx() as tx:
        assert outcomes.leave_in_doubt(tx, begun, claimed, "cut off") is not None

    report = await loaded.undo(scene, entry)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    [question] = scene.rows(interventions)
    assert (question["entry_id"], question["rule"]) == (claimed.entry_id, "unknown")
    assert loaded.called.keys == []


def test_a_call_with_a_changed_undo_is_asked_about_again(scene: Scene) -> None:
    approved = SHOWN.request(scene, approved=True)
    toolbox, pay = Deploy("payments.seize").toolbox()

    changed = replace(approved, undo=toolbox.undo_spec(pay, approved=True))
    refused = scene.claim(changed, NOW)

    assert isinstance(refused, ApprovalRefused)
    assert "payments.seize (version 1)" in refused.reason
    assert scene.rows(effects) == []
    assert scene.claimed(approved).undo is not None
