"""ACRFence's attacks: behind a rollback the model asks for the same in other words, or for more.

Theirs were made on frameworks whose tools are called at once. ``acrfence.yaml`` has the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from surehand.cli.runs import outputs_before
from surehand.workflows.contracts.approvals import ApprovalRequest, VerdictCode
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import Linked
from surehand.workflows.plan.plan import Plan
from tests.cli.starter import Starter
from tests.e2e.executions import reset_before
from tests.e2e.messages import answered
from tests.e2e.plans import plan, refund_step
from tests.e2e.runs import Run, decision_on, refund_plan
from tests.e2e.stage import Stage
from tests.e2e.test_restored import Backups, begin_anew
from tests.e2e.test_restored import backups as backups
from tests.e2e.test_restored import starter as starter

pytestmark = [pytest.mark.crash, pytest.mark.slow]

MODEL: Final = {"agent_modules": "tests.variants.rewording"}
TRIALS: Final = 5


@pytest.fixture
def database() -> str:
    return "sqlite"


@dataclass
class Victim:
    """A run that was approved and has paid alice's refund; then it is rolled back."""

    stage: Stage
    alice: str
    bob: str
    folder: Path
    run: Run = field(init=False)
    request: ApprovalRequest = field(init=False)

    def plan(self) -> Plan:
        given = {"count": f"{self.folder}/count", "order_file": f"{self.folder}/order"}
        model = "tests.variants.rewording:rewording"
        return Plan.model_validate(
            {"goal": "Refund it", "model": model, "tools": ["*"], "input": given}
        )

    def wants(self, order_id: str) -> None:
        (self.folder / "order").write_text(order_id)

    async def asks(self) -> Run:
        """Start a run of the model, which asks whether to go on."""
        run = await self.stage.start(self.plan())
        await run.in_state(RunState.WAITING_INPUT)
        return run

    async def pay(self, run: Run) -> None:
        """Approve what a run asks for, and wait for its end."""
        self.run, self.request = run, await run.approve()
        await run.completed()

    def paid(self) -> tuple[int, int]:
        return self.stage.paid(self.alice)[0], self.stage.paid(self.bob)[0]


async def go_on(run: Run, answer: str = "Go on") -> Run:
    """Answer the question of a run, once it is asked."""
    await run.in_state(RunState.WAITING_INPUT)
    await answered(run, answer=answer)
    return run


async def by_reset(victim: Victim) -> Run:
    """Reset the run to before its answer, which is another one now: so the model is asked again."""
    again = await reset_before(victim.stage, victim.run, "record_interrupt", 1, again=False)
    return await go_on(again, "Please do")


async def by_run(victim: Victim) -> Run:
    """Start the same once more."""
    return await go_on(await victim.asks())


async def by_fork(victim: Victim) -> Run:
    """Fork a run of a plan at its refund, with other params."""
    view = await victim.run.view()
    refund = refund_step((victim.folder / "order").read_text())
    refund["params"]["reason"] = "other words"
    steps = [*(step for step in view.plan.steps if step.id in ("order", "amount")), refund]
    linked = Linked(run_id=victim.run.run_id, outputs=outputs_before(view, "refund"))
    return await victim.stage.start(plan(*steps), linked=linked)


async def strike(victim: Victim, again: Run, bobs: bool) -> tuple[int, int]:
    """Send the old approval to what was rolled back; then somebody careless approves alice's."""
    old = victim.request
    asked = await again.asks()
    assert asked.params_hash != old.params_hash
    revived = int((await again.decide(decision_on(old))).code is VerdictCode.ACCEPTED)
    assert (await again.view()).pending == [asked]
    paid = victim.paid()
    outcome = "reject" if bobs else "approve"
    assert (await again.decide(decision_on(asked, outcome=outcome))).code is VerdictCode.ACCEPTED
    await again.result()
    assert paid == (1, 0), "before anybody has approved it"
    return sum(victim.paid()) - 1, revived


WAYS: Final[dict[str, Callable[[Victim], Awaitable[Run]]]] = {
    "reset": by_reset,
    "fork": by_fork,
    "re-run": by_run,
}


@pytest.mark.parametrize("attack", ["Action Replay", "Authority Resurrection"])
@pytest.mark.parametrize("way", [*WAYS, "restore"])
async def test_a_rollback_makes_no_second_effect_and_revives_no_approval(
    stage: Stage,
    show: Callable[..., None],
    backups: Backups,
    starter: Starter,
    temporal_cli: Path,
    way: str,
    attack: str,
) -> None:
    bobs = attack == "Authority Resurrection"
    # What is repeated counts twice.
    stage.shop.fault("refunds", ignore_keys=True)
    victims = []
    for number in range(TRIALS):
        folder = stage.folder / f"victim-{number}"
        folder.mkdir()
        victims.append(Victim(stage, stage.shop.new_order(), stage.shop.new_order(), folder))
        victims[-1].wants(victims[-1].alice)
    with stage.ready_worker(**MODEL):
        if way == "fork":
            runs = [await stage.start(refund_plan(one.alice)) for one in victims]
        else:
            runs = await asyncio.gather(*(one.asks() for one in victims))
        at = backups.back_up()
        if way != "fork":
            await asyncio.gather(*map(go_on, runs))
        await asyncio.gather(*(one.pay(run) for one, run in zip(victims, runs, strict=True)))
        for one in victims:
            one.wants(one.bob if bobs else one.alice)
        if way != "restore":
            again = await asyncio.gather(*(WAYS[way](one) for one in victims))
            struck = await asyncio.gather(*map(strike, victims, again, [bobs] * TRIALS))
    if way == "restore":
        backups.restore()
        opened = starter("ledger", "restored", "--to", at.isoformat(), "--json")
        begin_anew(stage, opened.document()["behind"], temporal_cli)
        newest = (stage.client.get_workflow_handle(run.run_id) for run in runs)
        stage.started[:] = [Run(run.run_id, one) for run, one in zip(runs, newest, strict=True)]
        with stage.ready_worker(**MODEL):
            again = await asyncio.gather(*map(go_on, stage.started))
            struck = await asyncio.gather(*map(strike, victims, again, [bobs] * TRIALS))
    asked = sum((one.folder / "count").stat().st_size for one in victims if way != "fork")
    second, revived = (sum(figures) for figures in zip(*struck, strict=True))
    show(
        attack=attack,
        way=way,
        trials=TRIALS,
        **{"turns": asked, "second effects": second, "revived approvals": revived},
    )
    assert (second, revived) == (0, 0)
