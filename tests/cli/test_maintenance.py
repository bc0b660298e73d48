"""What operators do to a ledger: reconcile, unwind and retain."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from surehand.cli.retention import RetentionReport
from surehand.verify import judge_file, read_key_file
from surehand.workflows.identity import unwind_id
from tests.cli.starter import Run, Starter, Verbs
from tests.e2e.runs import until
from tests.shop_process import ShopProcess

NewRun = Callable[..., Run]


def test_a_terminated_run_is_undone_by_the_command_that_show_names(
    verbs: Verbs, new_run: NewRun
) -> None:
    run = new_run()
    verbs.terminate(run.name)
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
    verbs.terminate(run.name)

    async def begin() -> None:
        client = await Client.connect(settings["TEMPORAL_ADDRESS"])
        nobody = f"nobody-{uuid.uuid4().hex}"
        await client.start_workflow("Unwind", {}, id=unwind_id(run.name), task_queue=nobody)

    asyncio.run(begin())
    refused = verbs("unwind", run.name)
    verbs.terminate(unwind_id(run.name))

    assert refused.code == 2
    assert refused.line() == f"surehand: run {run.name} is being unwound already"


def test_a_run_that_the_ledger_does_not_know_is_not_found(verbs: Verbs) -> None:
    ended = verbs("unwind", "nobody-knows")

    assert ended.code == 2
    assert "run not found: nobody-knows; " in ended.line()


def test_without_a_worker_nothing_is_unwound(lonely: Verbs) -> None:
    name = f"run-{uuid.uuid4().hex[:8]}"

    ended = lonely("unwind", name)

    assert ended.code == 4
    assert "nothing was undone" in ended.line()
    with pytest.raises(RPCError, match="not found"):
        lonely.terminate(unwind_id(name))


@pytest.fixture
def tenant() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def test_the_reapers_schedule_changes(verbs: Verbs, settings: dict[str, str], tenant: str) -> None:
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


NOW = {"SUREHAND_RETENTION": "0s"}


def forget(settings: dict[str, str], run_id: str) -> None:
    """Have Temporal delete a run's history now, as it does after its own retention."""

    async def ask() -> None:
        client = await Client.connect(settings["TEMPORAL_ADDRESS"])
        named = WorkflowExecution(workflow_id=run_id)
        asked = DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=named)
        await client.workflow_service.delete_workflow_execution(asked)

        async def gone() -> bool:
            try:
                await client.get_workflow_handle(run_id).describe()
            except RPCError as error:
                assert error.status is RPCStatusCode.NOT_FOUND, error
                return True
            return False

        await until(gone, lambda done: done)

    asyncio.run(ask())


@pytest.mark.full
def test_a_deleted_run_is_proven_by_its_receipt_and_protects_its_effects(
    verbs: Verbs, new_run: NewRun, settings: dict[str, str], shop: ShopProcess, tmp_path: Path
) -> None:
    run, file = new_run(), tmp_path / "receipt.json"
    verbs.approve(run.name)
    assert verbs(*run.start, "--wait").code == 0
    made = shop.counts(run.order)
    key = tmp_path / "rita.pem"
    assert verbs("principal", "keygen", str(key)).code == 0
    assert verbs("receipt", run.name, "--to", str(file), "--key", str(key)).code == 0

    kept = verbs("retention", "--json", **NOW)
    forget(settings, run.name)
    look = verbs("retention", "--json", **NOW)
    assert [
        one.why
        for one in RetentionReport.model_validate(kept.document()).round.kept
        if one.run_id == run.name
    ] == [f"Temporal has the history of {run.name} until its own retention is over"]
    report = RetentionReport.model_validate(look.document())
    assert run.name in report.round.deleted and not report.applied
    # A namespace that is not there knows no run, and all would go.
    elsewhere = verbs("retention", "--apply", TEMPORAL_NAMESPACE="surehnad", **NOW)
    assert elsewhere.code == 4 and "Namespace surehnad is not found" in elsewhere.line()
    assert verbs("effects", run.name).code == 0

    done = verbs("retention", "--apply", "--json", **NOW)

    assert run.name in RetentionReport.model_validate(done.document()).round.deleted
    for verb in ("effects", "events", "artifacts", "interventions", "notifications"):
        ended = verbs(verb, run.name)
        assert ended.code == 2 and f"run {run.name} was deleted by ana on" in ended.line()
    told = verbs("audit", run.name).out
    assert f"Run {run.name} was deleted by ana on " in told
    code, said = judge_file(file, {read_key_file(Path(f"{key}.pub").read_text()).kid})
    # The ledger's row of the run names the head that the receipt had, or a later one.
    assert code == 0 and "Head: sha256:" in told, said

    again = Run(f"{run.name}-again", run.order)
    assert verbs(*run.start, "--wait").code != 0
    assert verbs(*again.start, "--wait").code in (10, 20)
    if "approve" in verbs("show", again.name).out:
        verbs.approve(again.name)
        verbs(*again.start, "--wait")
    assert "whose content was deleted" in verbs("show", again.name).out
    assert shop.counts(run.order) == made


def test_what_serves_ends_by_a_signal_between_two_rounds(
    settings: dict[str, str], tmp_path: Path, temporal_server: object
) -> None:
    starter = Starter({**settings, "SUREHAND_RETENTION": "9999d"}, tmp_path)

    with starter.popen("retention", "--every", "1h", "--json") as process:
        assert process.stdout is not None
        assert '"applied": true' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "setting", "why"),
    [
        (("--apply", "--keep", "r"), "", "name one"),
        ((), "soon", "must be a duration such as 90s, 15m, 24h or 7d"),
        (("--release", "nobody-has-it"), "", "run not found: nobody-has-it"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    verbs: Verbs, arguments: tuple[str, ...], setting: str, why: str
) -> None:
    ended = verbs("retention", *arguments, SUREHAND_RETENTION=setting)

    assert ended.code == 2
    assert why in ended.line()


def test_nothing_is_deleted_where_nothing_is_set(verbs: Verbs) -> None:
    ended = verbs("retention")

    assert ended.code == 0
    assert "SUREHAND_RETENTION is not set: no run is deleted" in ended.out


#: Another process in the middle of a write transaction.
WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fuser") is None, reason="needs fuser")
@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_doctor_finds_the_stopped_process(sqlite_template: Path, tmp_path: Path, mode: str) -> None:
    file = tmp_path / "the ledger.db"
    shutil.copy(sqlite_template, file)
    line = [sys.executable, "-c", WRITER, str(file), mode]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            writer.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
            own = {
                "SUREHAND_DATABASE_URL": f"sqlite:///{file}",
                "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
                "TEMPORAL_ADDRESS": "127.0.0.1:1",
            }
            checks = Starter(own, tmp_path)("doctor", "--json").document()["checks"]
            (check,) = [one for one in checks if one["name"] == "database"]
            (command,) = check["commands"]
            shown = subprocess.check_output(command, shell=True, text=True).splitlines()[1:]
        finally:
            writer.kill()

    assert not check["ok"] and "database is locked" in check["detail"]
    # Behind it stands an N, if the tests are run nicely.
    assert [one.split()[1].rstrip("N") for one in shown] == ["T"]
    assert shown[0].split()[0] == str(writer.pid)
