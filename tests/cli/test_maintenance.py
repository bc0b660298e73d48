"""``reconcile --every`` and ``unwind``: what is left over, and what a terminated run has done."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from surehand.workflows.identity import unwind_id
from tests.cli.starter import Run, Verbs
from tests.shop_process import ShopProcess

NewRun = Callable[..., Run]


def terminate(settings: dict[str, str], run_id: str) -> None:
    async def by_hand() -> None:
        client = await Client.connect(settings["TEMPORAL_ADDRESS"])
        await client.get_workflow_handle(run_id).terminate("by hand")

    asyncio.run(by_hand())


def test_a_terminated_run_is_undone_by_the_command_that_show_names(
    verbs: Verbs, new_run: NewRun, settings: dict[str, str], shop: ShopProcess
) -> None:
    run = new_run()
    terminate(settings, run.name)
    shown = verbs("show", run.name)
    assert f"python starter.py unwind {run.name}" in shown.out

    undone = verbs("unwind", run.name, "--json")

    assert (undone.code, undone.document()) == (
        0,
        {"run_id": run.name, "undone": [], "left": [], "more_undone": 0, "more_left": 0},
    )


def test_a_run_that_is_open_is_not_unwound(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    refused = verbs("unwind", run.name)

    assert refused.code == 2
    assert "is open: cancel it, and it undoes what it has done" in refused.line()


def test_a_run_that_is_being_unwound_is_not_unwound_a_second_time(
    verbs: Verbs, new_run: NewRun, settings: dict[str, str]
) -> None:
    run = new_run()
    terminate(settings, run.name)

    async def begin() -> None:
        client = await Client.connect(settings["TEMPORAL_ADDRESS"])
        nobody = f"nobody-{uuid.uuid4().hex}"
        await client.start_workflow("Unwind", {}, id=unwind_id(run.name), task_queue=nobody)

    asyncio.run(begin())
    refused = verbs("unwind", run.name)
    terminate(settings, unwind_id(run.name))

    assert refused.code == 2
    assert refused.line() == f"surehand: run {run.name} is being unwound already"


def test_a_run_that_the_ledger_does_not_know_is_not_found(verbs: Verbs) -> None:
    ended = verbs("unwind", "nobody-knows")

    assert (ended.code, ended.line()) == (2, "surehand: run not found: nobody-knows")


def test_nothing_is_undone_nor_left_to_be_undone_where_no_worker_answers(
    lonely: Verbs, settings: dict[str, str]
) -> None:
    name = f"run-{uuid.uuid4().hex[:8]}"

    ended = lonely("unwind", name)

    assert ended.code == 4
    assert "nothing was undone" in ended.line()
    with pytest.raises(RPCError, match="not found"):
        terminate(settings, unwind_id(name))


@pytest.fixture
def tenant() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def test_the_reaper_runs_on_a_schedule_that_can_be_changed(
    verbs: Verbs, settings: dict[str, str], tenant: str
) -> None:
    async def interval() -> float:
        client = await Client.connect(
            settings["TEMPORAL_ADDRESS"], data_converter=pydantic_data_converter
        )
        handle = client.get_schedule_handle(f"surehand-reconcile-{tenant}")
        found = await handle.describe()
        [spec] = found.schedule.spec.intervals
        await handle.trigger()
        while not (ran := (await handle.describe()).info.recent_actions):
            pass
        started = ran[0].action
        await client.get_workflow_handle(started.workflow_id).result()  # type: ignore[attr-defined]
        return spec.every.total_seconds()

    verbs("reconcile", "--every", "1h", "--tenant", tenant)
    changed = verbs("reconcile", "--every", "2h", "--tenant", tenant, "--json")

    assert changed.document()["every_seconds"] == 7200
    assert asyncio.run(interval()) == 7200
