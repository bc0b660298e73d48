"""G3 for reads: what is read is what was approved, by who may, while the approval was valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import PauseRun, ResumeRun
from surehand.workflows.plan.plan import Plan
from tests.e2e.plans import plan
from tests.e2e.runs import Run, decision_on
from tests.e2e.stage import Stage
from tests.ledger.people import granted, person, revoked

TOOLS = "tests.variants.prices_gated"
OLGA = "olga"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What the read returns; a file beside it counts how often it was made."""
    found = tmp_path / "price.txt"
    found.write_text("12.00")
    return found


def reading(file: Path, **approval: object) -> Plan:
    step = {"id": "look", "tool": "prices.secret", "params": {"file": str(file)}}
    return plan(step | ({"approval": approval} if approval else {}))


def calls(file: Path) -> int:
    counted = file.with_suffix(".secret")
    return len(counted.read_text()) if counted.exists() else 0


async def approved_and_paused(run: Run, approver: str = "ann") -> ApprovalRequest:
    """Have the read approved while the run is paused, so that it is not made yet."""
    request = await run.asks()
    await run.handle.execute_update("pause", PauseRun(actor=OLGA))
    assert (await run.decide(decision_on(request, approver=approver))).state == "approved"
    return request


async def asks_again(run: Run, before: ApprovalRequest) -> ApprovalRequest:
    def others(view: RunView) -> list[ApprovalRequest]:
        return [one for one in view.pending if one.approval_id != before.approval_id]

    await run.handle.execute_update("resume", ResumeRun(actor=OLGA))
    return others(await run.until(lambda view: bool(others(view))))[0]


async def ends(stage: Stage, run: Run, request: ApprovalRequest, file: Path) -> None:
    """Nothing was read so far; once it is approved, it is read."""
    assert calls(file) == 0
    [refused] = await stage.events(run, "effect.refused")
    assert refused["body"]["rule"] == "ApprovalRefused"
    await run.decide(decision_on(request, approver="bob"))
    assert (await run.result()).state is RunState.COMPLETED
    assert calls(file) == 1
    assert await stage.events(run, "approval.consumed") == []


async def test_an_approval_that_has_expired_before_the_read_is_asked_for_again(
    stage: Stage, file: Path
) -> None:
    person(stage, "uma", permissions=("prices",))
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(reading(file))
        first = await approved_and_paused(run)
        stage.expire(first)

        await ends(stage, run, await asks_again(run, first), file)


async def test_a_role_that_is_revoked_before_the_read_takes_the_vote_with_it(
    stage: Stage, file: Path
) -> None:
    person(stage, "uma", permissions=("prices",))
    person(stage, "ann", "manager")
    person(stage, "bob", "manager")
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(reading(file, roles=["manager"]))
        first = await approved_and_paused(run)
        revoked(stage, "ann", "role", "manager")

        await ends(stage, run, await asks_again(run, first), file)


async def test_a_permission_that_is_revoked_before_the_read_pauses_it_and_the_approval_stays(
    stage: Stage, file: Path
) -> None:
    person(stage, "uma", permissions=("prices",))
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(reading(file))
        await approved_and_paused(run)
        revoked(stage, "uma", "permission", "prices")
        await run.handle.execute_update("resume", ResumeRun(actor=OLGA))
        await run.in_state(RunState.PAUSED_PERMISSION)
        assert calls(file) == 0

        granted(stage, "uma", "prices")
        await run.handle.execute_update("resume", ResumeRun(actor=OLGA))
        assert (await run.result()).state is RunState.COMPLETED
    assert calls(file) == 1
    assert len(stage.approval_rows(run)) == 1


async def test_a_read_that_its_user_may_not_make_is_skipped_when_its_run_is_cancelled(
    stage: Stage, file: Path
) -> None:
    async with stage.worker_here(tool_modules=TOOLS):
        run = await stage.start(reading(file))
        await run.decide(decision_on(await run.asks()))
        await run.in_state(RunState.PAUSED_PERMISSION)
        await run.cancel()
        result = await run.result()

    assert [view.state for view in result.steps] == ["skipped"]
    assert calls(file) == 0
