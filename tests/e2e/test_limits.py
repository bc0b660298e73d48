"""Limits in whole runs: a call that would be over is refused, asked about, or only recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.plan import Plan
from tests.e2e.plans import mail_step, plan
from tests.e2e.runs import states, step
from tests.e2e.stage import Stage


def limits_file(folder: Path, **changes: object) -> str:
    limit = {
        "name": "mails",
        "tools": ["mail.send"],
        "per": ["order_id"],
        "most": 1,
        "within": "10m",
        **changes,
    }
    file = folder / "limits.yaml"
    file.write_text(yaml.safe_dump({"limits": [limit]}))
    return str(file)


def two_mails(order_id: str) -> Plan:
    return plan(mail_step(order_id, "one"), mail_step(order_id, "two"))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_call_over_a_limit_fails_its_step_and_is_not_made(
    stage: Stage, order_id: str, durability: str
) -> None:
    _, result = await stage.play(
        two_mails(order_id), durability=durability, limits=limits_file(stage.folder)
    )

    assert result.state is RunState.FAILED
    assert "limit mails: 1 of 1 used, this call adds 1" in (step(result, "two").error or "")
    assert stage.shop.counts(order_id)["mails"] == 1


async def test_after_an_effect_that_nothing_undoes_a_run_makes_no_more(
    stage: Stage, order_id: str
) -> None:
    file = stage.folder / "limits.yaml"
    chain = {"name": "chain", "tools": ["mail.send"], "run_at_most": "undoable"}
    file.write_text(yaml.safe_dump({"limits": [chain]}))
    _, result = await stage.play(two_mails(order_id), limits=str(file))

    assert result.state is RunState.FAILED
    assert "the run has made an effect that is more than undoable" in (
        step(result, "two").error or ""
    )
    assert stage.shop.counts(order_id)["mails"] == 1


@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_people_let_a_call_through_that_is_over(
    stage: Stage, order_id: str, durability: str
) -> None:
    file = limits_file(stage.folder, ask={"expires_in": "1h"})
    async with stage.worker_here(limits=file):
        run = await stage.start(two_mails(order_id), durability=durability)
        request = await run.asks("two")
        before = stage.shop.counts(order_id)["mails"]
        await run.approve()
        result = await run.result()

    assert before == 1
    assert request.description.endswith(" (over limit: mails)")
    assert result.state is RunState.COMPLETED
    assert stage.shop.counts(order_id)["mails"] == 2
    [told] = await stage.events(run, "limit.exceeded")
    assert (told["step_id"], told["body"]["allowed"]) == ("two", "approval")


async def test_of_runs_at_once_no_more_calls_are_made_than_the_limit_lets(
    stage: Stage, order_id: str
) -> None:
    file = limits_file(stage.folder, most=3)
    async with stage.worker_here(limits=file):
        runs = [await stage.start(plan(mail_step(order_id, f"m{n}"))) for n in range(8)]
        ends = await asyncio.gather(*(run.result() for run in runs))

    sent = [one for one in ends if "succeeded" in states(one).values()]
    assert len(sent) == 3
    assert stage.shop.counts(order_id)["mails"] == 3
