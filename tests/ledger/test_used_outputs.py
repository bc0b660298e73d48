"""G4: an effect whose output others have used is undone with them, or after a human has agreed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.ledger.core.tables import effects, interventions
from surehand.activities.ledger.effects import outcomes
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.steps.entries import Committed, Entry
from surehand.activities.tools.tool import No, OnlyIf, ToolContext, Undo
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.context import WorkerContext
from surehand.workflows.contracts.effects import (
    CompensationOutcome,
    CompensationReport,
    ResolutionOutcome,
    UnwindRun,
    Unwound,
)
from surehand.workflows.contracts.runs import AmendRun, Parent
from surehand.workflows.plan.plan import Plan
from tests.ledger.attempts import Provider, undo_attempt, worker_of
from tests.ledger.scene import OTHER_RUN, SPEC, Scene, said

pytestmark = pytest.mark.guarantee("G4")

OWN = "own"
STEPS: list[dict[str, Any]] = [
    {"id": "pay", "tool": SPEC.name},
    {"id": "look", "tool": SPEC.name, "params": {"id": "${pay.id}"}},
    {"id": "mail", "tool": SPEC.name, "params": {"about": "${look.line}"}},
    {"id": "other", "tool": SPEC.name, "params": {"about": "the weather"}},
    {"id": "each", "tool": SPEC.name, "for_each": "${pay.lines}", "params": {"to": "${item}"}},
]


@dataclass
class Shop:
    """A run that pays, and writes mails about that: payments are undone, mails are not."""

    scene: Scene
    steps: list[dict[str, Any]] = field(default_factory=lambda: STEPS)
    undoing: Provider = field(default_factory=lambda: Provider([{"id": "u-1"}]))
    mails_are_undone: bool = False
    only_if: OnlyIf | None = None
    """Of what undoes a mail."""
    number: int = 0

    def __post_init__(self) -> None:
        self.scene.open_run(OWN, start=self.scene.start(OWN, plan=Plan.model_validate(self.steps)))

    def made(self, step_id: str, tool: str = "mail.send", run_id: str = OWN) -> Entry:
        self.number += 1
        key = f"{tool}:{self.number}"
        return self.scene.committed(
            self.scene.call(run_id=run_id, step_id=step_id, tool=tool, key=key)
        )

    def paid(self, run_id: str = OWN) -> Entry:
        return self.made("pay", "payments.refund", run_id)

    def worker(self) -> WorkerContext:
        back = Undo("payments.charge", lambda params, _: params, only_if=self.only_if)
        undo = Undo("payments.charge", lambda params, _: params)
        pay = Provider([{}]).tool(recovery="human", compensate=undo, cleanup=undo)
        how: dict[str, Any] = {"compensate": back} if self.mails_are_undone else {}
        mail = Provider([{}]).tool(name="mail.send", recovery="human", **how)
        tools = Toolbox([pay, mail, self.undoing.tool(name="payments.charge", recovery="human")])
        return replace(worker_of(self.scene), toolbox=tools)

    async def undo(self, entry: Entry, attempt: int = 1, **how: Any) -> CompensationReport:
        return await undo_attempt(self.worker(), self.scene.tenant, entry, attempt, **how).run()

    async def preview(self, *, check: bool = False) -> Unwound:
        asked = UnwindRun(
            tenant=self.scene.tenant, run_id=OWN, actor="ada", dry_run=True, check=check
        )
        activities = CompensationActivities(self.worker())
        return await ActivityEnvironment().run(activities.preview_unwind, asked)


@pytest.fixture
def shop(scene: Scene) -> Shop:
    return Shop(scene)


@pytest.mark.parametrize("user", ["mail", "each[3]"])
async def test_what_was_used_is_not_undone_before_a_human_agrees(shop: Shop, user: str) -> None:
    """Through a read, or as the items of a list."""
    paid, mail = shop.paid(), shop.made(user)
    assert (await shop.undo(mail)).outcome is CompensationOutcome.UNCOMPENSATED

    report = await shop.undo(paid)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert f"mail.send of step {user} ({mail.entry_id}) used what it returned" in report.reason
    assert shop.undoing.keys == []
    assert shop.scene.row(interventions)["rule"] == "undo_refused"
    accepted, why = shop.scene.settle(said(report.intervention_id, ResolutionOutcome.UNDO), OWN)
    assert accepted, why
    assert (await shop.undo(paid, 2)).outcome is CompensationOutcome.COMPENSATED


async def test_an_agreement_is_about_the_effects_that_were_named(shop: Shop) -> None:
    paid, _ = shop.paid(), shop.made("mail")
    report = await shop.undo(paid)
    assert shop.scene.settle(said(report.intervention_id, ResolutionOutcome.UNDO), OWN)[0]
    shop.made("each[0]")

    again = await shop.undo(paid, 2)

    assert again.outcome is CompensationOutcome.HUMAN_NEEDED and "each[0]" in again.reason
    assert shop.undoing.keys == []


async def test_users_that_are_undone_or_have_used_nothing_stand_in_no_ones_way(shop: Shop) -> None:
    shop.mails_are_undone = True
    before, paid, _, mail = shop.made("mail"), shop.paid(), shop.made("other"), shop.made("mail")
    assert before.commit_no < paid.commit_no  # of an earlier life: it has used another payment
    assert (await shop.undo(mail)).outcome is CompensationOutcome.COMPENSATED

    assert (await shop.undo(paid)).outcome is CompensationOutcome.COMPENSATED


async def test_a_question_about_a_user_is_waited_for(shop: Shop) -> None:
    shop.mails_are_undone, shop.undoing = True, Provider([No("gone"), {"id": "u-1"}])
    paid, mail = shop.paid(), shop.made("mail")
    asked = await shop.undo(mail)

    waits = await shop.undo(paid)

    assert waits.outcome is asked.outcome is CompensationOutcome.HUMAN_NEEDED
    assert waits.intervention_id == asked.intervention_id
    assert shop.scene.settle(said(asked.intervention_id, ResolutionOutcome.COMPENSATED), OWN)[0]
    assert (await shop.undo(paid, 2)).outcome is CompensationOutcome.COMPENSATED


async def test_later_steps_have_used_the_newest_output(shop: Shop) -> None:
    """A run that was reset has paid twice; its mail is about the second payment."""
    first, second, _ = shop.paid(), shop.paid(), shop.made("mail")

    assert (await shop.undo(first)).outcome is CompensationOutcome.COMPENSATED
    assert (await shop.undo(second)).outcome is CompensationOutcome.HUMAN_NEEDED


@pytest.mark.parametrize("settled", [True, False])
async def test_a_user_in_doubt_has_used_what_was_there_when_it_was_claimed(
    shop: Shop, settled: bool
) -> None:
    """Of a run that was reset meanwhile: whatever number it gets, or none."""
    scene, first = shop.scene, shop.paid()
    call = scene.call(run_id=OWN, step_id="mail", tool="mail.send", key="doubted")
    mail = scene.claimed(call)
    with scene.tx() as tx:
        question = outcomes.ask_human(tx, mail, "Did it?")
    time.sleep(0.002)  # a claim's time is in milliseconds
    second = shop.paid()
    if settled:
        assert scene.settle(said(str(question), ResolutionOutcome.HAPPENED), OWN)[0]
        assert scene.entry(mail.entry_id).commit_no > second.commit_no

    report = await shop.undo(first)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert shop.undoing.keys == []
    if not settled:
        assert report.intervention_id == question


async def test_what_an_earlier_plan_has_used_counts(shop: Shop) -> None:
    paid, _ = shop.paid(), shop.made("mail")
    plan = Plan.model_validate(STEPS[:1])
    amended = AmendRun(
        tenant=shop.scene.tenant, run_id=OWN, plan_version=2, plan=plan, steering_id="s"
    )
    with shop.scene.tx() as tx:
        lifecycle.amend_run(tx, amended, {SPEC.name: SPEC})

    assert (await shop.undo(paid)).outcome is CompensationOutcome.HUMAN_NEEDED


async def test_a_cleanup_takes_away_what_is_temporary(shop: Shop) -> None:
    paid, _ = shop.paid(), shop.made("mail")

    report = await shop.undo(paid, cleanup=True)

    assert report.outcome is CompensationOutcome.COMPENSATED


async def test_what_another_run_relies_on_is_not_undone_before_a_human_agrees(shop: Shop) -> None:
    scene, paid = shop.scene, shop.paid()
    scene.open_run(OTHER_RUN)
    scene.claim(scene.call(run_id=OTHER_RUN, tool=paid.tool, key=paid.key, step_id="refund"))

    report = await shop.undo(paid)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert f"step refund of run {OTHER_RUN} used what it returned" in report.reason
    assert shop.undoing.keys == []


@pytest.mark.parametrize("user", ["mail", "other"])
async def test_whoever_has_used_a_replay_in_the_same_run_has_used_the_effect(
    scene: Scene, user: str
) -> None:
    """Two steps that make one and the same payment: later steps may refer to either."""
    steps = [*STEPS[:1], {**STEPS[0], "id": "again"}, dict(STEPS[2]), STEPS[3]]
    steps[2]["params"] = {"about": "${again.id}"}
    shop = Shop(scene, steps)
    paid = shop.paid()
    same = {"tool": paid.tool, "key": paid.key, "run_id": OWN, "step_id": "again"}
    assert isinstance(scene.claim(scene.call(**same)), Committed)
    mail = shop.made(user)

    report = await shop.undo(paid)

    if user == "other":
        assert report.outcome is CompensationOutcome.COMPENSATED
    else:
        assert report.outcome is CompensationOutcome.HUMAN_NEEDED
        assert mail.entry_id in report.reason and shop.undoing.keys == []


async def test_whoever_has_used_a_replay_in_a_child_run_has_used_the_effect(scene: Scene) -> None:
    child, steps = (
        f"{OWN}~child",
        [
            STEPS[0],
            {"id": "child", "plan": {"steps": STEPS[:1]}},
            {"id": "mail", "tool": SPEC.name, "params": {"about": "${child.pay.id}"}},
        ],
    )
    shop = Shop(scene, steps)
    parent = Parent(run_id=OWN, step_id="child")
    start = scene.start(child, plan=Plan.model_validate(STEPS[:1]), parent=parent)
    scene.open_run(child, start=start)
    paid = shop.paid()
    same = {"tool": paid.tool, "key": paid.key, "run_id": child, "step_id": "pay"}
    assert isinstance(scene.claim(scene.call(**same)), Committed)
    mail = shop.made("mail")

    report = await shop.undo(paid)

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert mail.entry_id in report.reason and shop.undoing.keys == []


async def test_runs_above_have_used_what_their_child_run_returned(shop: Shop) -> None:
    scene, child = shop.scene, "above~child"
    steps = [
        {"id": "child", "plan": {"steps": STEPS[:1]}},
        {"id": "mail", "tool": SPEC.name, "params": {"about": "${child.pay.id}"}},
    ]
    scene.open_run("above", start=scene.start("above", plan=Plan.model_validate(steps)))
    parent = Parent(run_id="above", step_id="child")
    start = scene.start(child, plan=Plan.model_validate(STEPS[:1]), parent=parent)
    scene.open_run(child, start=start)
    paid, mail = shop.paid(child), shop.made("mail", run_id="above")

    report = await shop.undo(paid, within="above")

    assert report.outcome is CompensationOutcome.HUMAN_NEEDED
    assert mail.entry_id in report.reason


async def test_a_dry_run_says_what_an_undo_does_and_touches_nothing(shop: Shop) -> None:
    """Each reason once, in the order of undoing; and what it says is what then happens."""
    scene = shop.scene
    undone, stands = (shop.made(step, "payments.refund") for step in ("other", "more"))
    assert (await shop.undo(undone)).outcome is CompensationOutcome.COMPENSATED
    used, mail = shop.paid(), shop.made("mail")
    doubted = scene.in_doubt(scene.call(run_id=OWN, step_id="look", key="d", settle=None))
    before = scene.rows(effects), scene.events(OWN)

    told = await shop.preview()

    assert told.undone == [stands.step_id]
    assert [(one.step_id, one.reason.split(" waits ")[0]) for one in told.left] == [
        (doubted.step_id, "payments.refund: in doubt: first it is found out whether it happened"),
        ("mail", "mail.send: irreversible"),
        ("pay", f"payments.refund: undoing payments.refund {used.key}"),
        ("other", "payments.refund: already undone"),
    ]
    assert (scene.rows(effects), scene.events(OWN)) == before
    keys = len(shop.undoing.keys)
    assert (await shop.undo(mail)).outcome is CompensationOutcome.UNCOMPENSATED
    assert (await shop.undo(used)).outcome is CompensationOutcome.HUMAN_NEEDED
    assert (await shop.undo(stands)).outcome is CompensationOutcome.COMPENSATED
    assert len(shop.undoing.keys) == keys + 1


async def test_what_would_be_undone_before_it_stands_in_no_ones_way(shop: Shop) -> None:
    shop.mails_are_undone = True
    shop.paid(), shop.made("mail")

    assert (await shop.preview()).undone == ["mail", "pay"]


async def test_only_a_check_asks_the_world_and_a_no_counts_for_what_is_below(shop: Shop) -> None:
    shop.mails_are_undone, shop.only_if = True, _on_its_way
    shop.paid(), shop.made("mail")

    assert (await shop.preview()).undone == ["mail", "pay"]
    checked = await shop.preview(check=True)

    assert checked.undone == [] and shop.undoing.keys == []
    assert [one.reason.split(" waits ")[0] for one in checked.left] == [
        "mail.send: on its way",
        "payments.refund: undoing payments.refund payments.refund:1",
    ]


async def _on_its_way(params: Any, receipt: Any, ctx: ToolContext) -> str:
    return "on its way"
