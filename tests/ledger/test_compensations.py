"""G3, G4: what is undone stays undone, once, and by the undo that people have approved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from surehand.activities.ledger.core.tables import bars, effects, interventions
from surehand.activities.ledger.effects import compensations, outcomes, reconcile, run_tree
from surehand.activities.ledger.effects.compensations import NothingToUndo, ToUndo
from surehand.activities.ledger.steps import entries
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import ApprovalRefused, ClaimRequest, Entry
from surehand.activities.tools.tool import No, Tool, Undo
from surehand.activities.tools.toolbox import Toolbox
from surehand.workflows.contracts.effects import (
    CompensationOutcome,
    CompensationReport,
)
from surehand.workflows.contracts.tools import Recovery
from surehand.workflows.identity import forward_key, step_key
from tests.ledger.attempts import Provider, undo_attempt, worker_of
from tests.ledger.scene import AT_ONCE, LEASE_OVER, NOW, OTHER_RUN, RUN, STEP, WINDOW, Scene, said

pytestmark = [pytest.mark.guarantee("G3"), pytest.mark.guarantee("G4")]


def test_undoing_what_never_happened_is_recorded_and_bars_a_late_attempt(scene: Scene) -> None:
    assert isinstance(scene.begin_undo(), NothingToUndo)

    assert isinstance(scene.claim(scene.call()), entries.Barred)

    assert scene.rows(effects) == []
    bar = scene.row(bars)
    assert (bar["run_id"], bar["step_id"]) == (RUN, STEP)
    types = [event["type"] for event in scene.events()][-2:]
    assert types == ["step.barred", "effect.refused"]


def test_a_bar_binds_its_step_and_not_the_business_key(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    scene.begin_undo()

    assert isinstance(scene.claim(scene.call(key="another key")), entries.Barred)
    assert isinstance(scene.claim(scene.call(run_id=OTHER_RUN)), entries.Claimed)


@pytest.mark.in_turns
@pytest.mark.parametrize("recovery", list(Recovery))
def test_a_bar_stops_failed_and_doubtful_entries(scene: Scene, recovery: Recovery) -> None:
    how = {"recovery": recovery, "window": WINDOW}
    scene.failed(scene.call(**how))
    doubted = scene.call(**how, step_id="doubted", key="doubted")
    scene.in_doubt(doubted)
    for step in (STEP, "doubted"):
        scene.begin_undo(step_id=step)

    assert isinstance(scene.claim(scene.call(**how, attempt=2)), entries.Barred)
    later = scene.claim(replace(doubted, attempt=2, holder="later"))
    # Where nothing but a question could settle it, the late attempt may ask; it may not call.
    by_calling = recovery in (Recovery.DEDUPES, Recovery.TRANSACTIONAL)
    assert isinstance(later, entries.Barred if by_calling else entries.Doubtful)
    assert [row["calls"] for row in scene.rows(effects)] == [1, 1]


def test_the_commit_of_an_undo_marks_its_original_in_the_same_transaction(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    undo = scene.undo(committed)
    undoing = scene.claimed(undo)

    with pytest.raises(ZeroDivisionError), scene.tx() as tx:
        assert outcomes.commit_effect(tx, undo, undoing, Kept("u-1")) is not None
        raise ZeroDivisionError
    states = {row["state"] for row in scene.rows(effects)}
    assert states == {"compensating", "claimed"}

    scene.commit(undo, undoing, "u-1")
    original = scene.row(effects, entry_id=committed.entry_id)
    assert (original["state"], original["receipt"]) == ("compensated", "r-1")
    assert (scene.entry(undoing.entry_id)).state == "committed"
    compensated, *_ = scene.events(type_="effect.compensated")
    by = {"tool": undoing.tool, "by": undoing.entry_id}
    assert compensated["body"] == {"entry_id": committed.entry_id, **by}
    _, committed_undo = scene.events(type_="effect.committed")
    assert compensated["seq"] == committed_undo["seq"] + 1


def test_an_undo_needs_no_approval_and_is_not_barred_by_the_bar_of_its_step(scene: Scene) -> None:
    committed = scene.committed(scene.approved(scene.call()))
    scene.begin_undo()

    assert isinstance(scene.claim(scene.undo(committed)), entries.Claimed)


def test_a_run_that_only_replayed_an_effect_does_not_undo_it(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    scene.open_run(OTHER_RUN)
    assert scene.claim(scene.call(run_id=OTHER_RUN)) == entries.Committed(committed)

    assert isinstance(scene.begin_undo(OTHER_RUN), NothingToUndo)

    assert scene.entry(committed.entry_id) == committed


def test_a_failed_undo_is_put_in_front_of_a_human_once_and_keeps_the_key(scene: Scene) -> None:
    committed = scene.committed(scene.call())
    with scene.tx() as tx:
        first = compensations.ask_about_undo(tx, committed, "the bank says no")
    with scene.tx() as tx:
        again = compensations.ask_about_undo(tx, committed, "again")

    original = scene.entry(committed.entry_id)
    assert original.state == "compensating"
    assert scene.begin_undo() == first
    assert isinstance(first, entries.Asked) and isinstance(again, entries.Asked)
    assert first.intervention_id == again.intervention_id
    assert len(scene.rows(interventions)) == 1
    assert len(scene.events(type_="intervention.opened")) == 1


@pytest.mark.parametrize("params", [{"refund": "r-1"}, {"refund": "r-1", "note": "newer code"}])
def test_a_failed_undo_is_claimed_with_other_params(scene: Scene, params: dict[str, str]) -> None:
    committed = scene.committed(scene.call())
    scene.failed(scene.undo(committed))

    again = scene.undo(committed, params=params, attempt=2)
    scene.commit(again, scene.claimed(again))

    assert (scene.entry(committed.entry_id)).state == "compensated"


def test_a_forward_call_never_meets_an_undo(scene: Scene) -> None:
    """A run called ``undo`` has a step that is called like the entry to come."""
    entry_id = entries.entry_id_for(scene.tenant, "payments.refund", "refund:order-1001", 1)
    scene.open_run("undo")
    key = forward_key(step_key("undo", entry_id))
    early = scene.call(
        run_id="undo", step_id=entry_id, tool="payments.charge", key=key, params={"refund": "r-1"}
    )
    scene.committed(early)
    committed = scene.committed(scene.call())

    undo = scene.undo(committed)
    assert (committed.entry_id, undo.key) == (entry_id, f"undo:{entry_id}")
    scene.commit(undo, scene.claimed(undo))

    assert (scene.entry(entry_id)).state == "compensated"


@pytest.mark.parametrize("settled", [True, False])
def test_a_claim_that_undoes_something_else_is_a_mismatch(scene: Scene, settled: bool) -> None:
    committed = scene.committed(scene.call())
    undo = scene.undo(committed)
    entry = scene.claimed(undo)
    if settled:
        scene.commit(undo, entry)

    for undoes in (None, "ef-another"):
        found = scene.claim(scene.undo(committed, undoes=undoes, attempt=2))
        assert isinstance(found, entries.Mismatch), found
    assert (scene.entry(entry.entry_id)).fencing_token == entry.fencing_token


def test_a_step_of_an_undone_run_does_not_wait_for_its_undo(scene: Scene) -> None:
    entry = scene.compensating(scene.call())
    assert isinstance(scene.claim(scene.call()), entries.Held)

    with scene.tx() as tx:
        run_tree.bar_tree(tx, RUN)

    # Its run was reset: nobody else undoes it but this life, once the step has ended.
    assert isinstance(scene.claim(scene.call()), entries.Barred)
    assert isinstance(scene.begin_undo(), ToUndo)
    assert (scene.entry(entry.entry_id)).state == "compensating"


def test_what_others_have_settled_meanwhile_is_not_nothing(scene: Scene) -> None:
    call = scene.call(timeout=NOW, settle=AT_ONCE)
    scene.in_doubt(call)
    doubted = scene.begin_undo()
    assert isinstance(doubted, entries.Doubtful)
    # The reaper has looked, too, and has found it.
    with scene.tx() as tx:
        done = reconcile.take_over(tx, doubted.entry)
    assert done is not None
    scene.commit(call, done)

    with scene.tx(LEASE_OVER) as tx:
        found = reconcile.after_not_found(tx, call, doubted.entry, forward=False)

    assert isinstance(found, entries.Held)
    assert isinstance(scene.begin_undo(), ToUndo)


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
        context = replace(worker_of(scene), toolbox=self.toolbox()[0])
        return await undo_attempt(context, scene.tenant, entry, attempt, cleanup=cleanup).run()


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


@pytest.mark.in_turns
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
        ("undo", "compensated", 1),
        ("compensated", "compensated", 0),
        ("give_up", "committed", 0),
    ],
)
async def test_a_human_says_what_becomes_of_a_changed_undo(
    scene: Scene, outcome: str, state: str, calls: int
) -> None:
    entry, loaded = scene.committed(SHOWN.request(scene, approved=True)), Deploy("payments.seize")
    report = await loaded.undo(scene, entry)

    accepted, why = scene.settle(said(report.intervention_id, outcome))
    assert accepted, why
    await loaded.undo(scene, entry, attempt=2)

    assert scene.entry(entry.entry_id).state == state
    assert len(loaded.called.keys) == calls
    assert len(scene.rows(interventions)) == 1
    accepted, _ = scene.settle(said(report.intervention_id, "undo"), resolution_id="#late")
    assert not accepted
    await scene.audited()


async def test_a_human_agrees_to_the_undo_of_the_question_alone(scene: Scene) -> None:
    entry = scene.committed(SHOWN.request(scene, approved=True))
    report = await Deploy("payments.seize").undo(scene, entry)
    assert scene.settle(said(report.intervention_id, "undo"))[0]
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
    scene.end()

    assert scene.settle(said(report.intervention_id, "undo"), OTHER_RUN)[0]
    report = await loaded.undo(scene, entry, attempt=2)

    assert (report.outcome, len(loaded.called.keys)) == (CompensationOutcome.COMPENSATED, 1)


async def test_a_failed_undo_cannot_be_agreed_to(scene: Scene) -> None:
    entry = scene.committed(SHOWN.request(scene, approved=True))
    report = await replace(SHOWN, called=Provider([No("closed")])).undo(scene, entry)

    accepted, why = scene.settle(said(report.intervention_id, "undo"), can_undo=True)

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
