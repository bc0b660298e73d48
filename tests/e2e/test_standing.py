"""G3 with votes given in advance: whole runs that ask nobody, as often as somebody has granted."""

from __future__ import annotations

import asyncio
from typing import Any

from surehand.activities.ledger.approvals import standing_grants
from surehand.activities.ledger.approvals.standing import Standing
from surehand.activities.ledger.history.audit import unverified_approvers
from surehand.activities.ledger.people import principals
from surehand.activities.tools.toolbox import load_toolbox
from surehand.workflows.contracts.states import RunState
from surehand.workflows.contracts.steering import ResumeRun
from tests.e2e.runs import decision_on, example_plan, timeline
from tests.e2e.stage import SHOP_TOOLS, Stage
from tests.e2e.test_policies import edited, refund
from tests.ledger import standing
from tests.ledger.people import administration, key_of, person


def granted(stage: Stage, granter: str, key: Any = None, **limits: Any) -> Standing:
    """Grant a standing approval of the shop's refund."""
    tool = load_toolbox([SHOP_TOOLS]).get("payments.refund")
    assert tool is not None
    limits = {"version": tool.version, "schema_hash": tool.schema_hash, **limits}
    return standing.granted(stage, granter, key, **limits)


def uses(stage: Stage, one: Standing) -> int:
    with stage.ledger.transaction(stage.tenant) as tx:
        listed = standing_grants.listed(tx, one.standing_id)
    assert listed is not None
    return listed.uses


async def test_a_run_within_a_signed_standing_approval_asks_nobody_and_says_whose_it_was(
    stage: Stage, order_id: str
) -> None:
    person(stage, "ann")
    one = granted(
        stage, "ann", key_of(stage, "ann"), when="amount <= 120", total_of="amount",
        total="150",
    )  # fmt: skip
    umas = key_of(stage, person(stage, "uma"))
    async with stage.worker_here(decisions="signed"):
        run = await stage.start(example_plan("refund.yaml", order_id=order_id), key=umas)

        assert (await run.result()).state is RunState.COMPLETED
        assert stage.shop.counts(order_id)["refunds"] == 1
        told = timeline(await run.view(), "refund")
        assert f"approved by ann's standing approval {one.standing_id}" in told
        assert "waiting for approval" not in told
        assert unverified_approvers(await stage.events(run)) == []

        # 30 of the total are left.
        second = await stage.start(refund(other := stage.shop.new_order()), key=umas)
        request = await second.asks()
        assert request.votes == ()
        assert stage.shop.counts(other)["refunds"] == 0
        assert uses(stage, one) == 1


async def test_a_worker_killed_between_the_approval_and_the_claim_has_used_it_once(
    stage: Stage, order_id: str
) -> None:
    one = granted(stage, "ann", count=1)
    with stage.worker(crash_at="payments.refund:before_claim") as doomed:
        doomed.wait_ready()
        run = await stage.start(refund(order_id))
        doomed.wait_killed()
    assert uses(stage, one) == 1
    async with stage.worker_here():
        assert (await run.result()).state is RunState.COMPLETED

    assert stage.shop.counts(order_id)["refunds"] == 1
    assert uses(stage, one) == 1
    assert len(stage.decision_rows(run)) == 1


async def test_of_runs_at_once_as_many_go_on_as_were_granted(stage: Stage) -> None:
    one = granted(stage, "ann", count=2)
    orders = [stage.shop.new_order() for _ in range(4)]
    async with stage.worker_here():
        runs = [await stage.start(refund(order)) for order in orders]
        ended = [run.until(lambda view: bool(view.pending) or view.result.state == "completed")
                 for run in runs]  # fmt: skip
        states = sorted(view.result.state for view in await asyncio.gather(*ended))

        assert states == ["completed"] * 2 + ["waiting_approval"] * 2
        assert sum(stage.shop.counts(order)["refunds"] for order in orders) == 2
        assert uses(stage, one) == 2


async def test_one_vote_of_two_is_shown_as_given_in_advance_and_an_edit_is_weighed_anew(
    stage: Stage, order_id: str
) -> None:
    for name in ("ann", "bob", "carl"):
        person(stage, name, "manager")
    one = granted(stage, "ann", when="amount > 100")
    async with stage.worker_here():
        run = await stage.start(refund(order_id, quorum=2, roles=["manager"]))
        first = await run.asks()
        assert first.votes == (f"ann's standing approval {one.standing_id} (unverified)",)
        assert uses(stage, one) == 1

        assert (await run.decide(edited(first, "bob", amount="15.00"))).state == "superseded"

        second = await run.asks()
        assert (second.votes, uses(stage, one)) == ((), 0)
        await run.decide(decision_on(second, approver="bob"))
        assert (await run.decide(decision_on(second, approver="carl"))).state == "approved"
        assert (await run.result()).state is RunState.COMPLETED
        assert stage.shop.counts(order_id)["refunds"] == 1


async def test_a_revocation_before_the_call_has_a_human_asked_who_looks_at_it(
    stage: Stage, order_id: str
) -> None:
    one, other = granted(stage, "ann"), granted(stage, "eve")
    person(stage, "uma")
    async with stage.worker_here(tool_modules="tests.variants.refund_strict"):
        # Approved in advance, and paused before the call: its user lacks a permission.
        run = await stage.start(refund(order_id))
        await run.in_state(RunState.PAUSED_PERMISSION)
        used = one if uses(stage, one) else other
        with administration(stage) as tx:
            standing_grants.revoke(tx, used.standing_id, "ann")
            principals.grant(tx, "uma", "permission", "refunds", "root")
        await run.handle.execute_update("resume", ResumeRun(actor="oscar"))

        request = await run.asks()
        # Another one would cover it; but what was refused at the call is looked at.
        assert request.votes == ()
        assert (uses(stage, one), uses(stage, other)) == (0, 0)
        assert stage.shop.counts(order_id)["refunds"] == 0
        await run.decide(decision_on(request, approver="bob"))
        assert (await run.result()).state is RunState.COMPLETED
        assert stage.shop.counts(order_id)["refunds"] == 1
