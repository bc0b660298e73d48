"""What people are told, and what is sent, while no worker answers."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from surehand.cli.approvals import PendingList
from surehand.cli.doctor import DoctorReport
from surehand.cli.options import Steered
from surehand.cli.runs import ShownRun, UnansweredRun
from surehand.client import client, connection, outcome
from tests.cli.starter import Run, Verbs
from tests.e2e import code_hopeless
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess


@dataclass
class Deserted:
    """A run that waits for an approval, on a task queue whose worker was killed."""

    verbs: Verbs
    run: Run
    settings: dict[str, str]
    folder: Path
    decision: tuple[str, str, str]

    @property
    def queue(self) -> str:
        return self.settings["SUREHAND_TASK_QUEUE"]

    @contextmanager
    def worker(self) -> Iterator[WorkerProcess]:
        with WorkerProcess(self.settings, self.folder) as process:
            yield process.wait_ready()

    def ended(self) -> int:
        """Have a worker bring the run to its end; the exit code says how it ended."""
        with self.worker():
            return self.verbs(*self.run.start, "--wait").code

    def events(self, type_: str) -> list[Any]:
        rows = self.verbs("events", self.run.name, "--json").document()["rows"]
        return [row["body"] for row in rows if row["type"] == type_]


@pytest.fixture
def deserted(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Deserted:
    unique = uuid.uuid4().hex[:8]
    own = {**settings, "SUREHAND_TASK_QUEUE": f"deserted-{unique}", "SUREHAND_TENANT": f"t{unique}"}
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run(f"run-{unique}", shop.new_order())
    with WorkerProcess(own, tmp_path / "first") as first:
        first.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        decision = verbs.asked(run.name)
    monkeypatch.setattr(connection, "ANSWER_TIME", timedelta(seconds=1))
    monkeypatch.setattr(client, "ONE_OF_MANY", timedelta(seconds=1))
    return Deserted(verbs, run, own, tmp_path / "later", decision)


@pytest.fixture
def patient(deserted: Deserted, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Gives workers the usual time again."""
    return lambda: monkeypatch.setattr(connection, "ANSWER_TIME", timedelta(seconds=15))


def test_a_decision_is_not_sent_while_no_worker_answers_so_that_the_other_one_counts(
    deserted: Deserted, patient: Callable[[], None], shop: ShopProcess
) -> None:
    refused = deserted.verbs("approve", *deserted.decision, SUREHAND_TASK_QUEUE="callers-own")

    assert refused.code == 4
    assert f"(task queue {deserted.queue})" in refused.line()
    assert "nothing was sent" in refused.line()
    patient()
    with deserted.worker():
        assert deserted.verbs("reject", *deserted.decision).code == 0
        assert deserted.verbs(*deserted.run.start, "--wait").code == 20
    assert shop.counts(deserted.run.order)["refunds"] == 0
    assert len(deserted.events("decision.accepted")) == 1
    assert deserted.events("decision.refused") == []


def test_a_decision_that_is_left_with_the_server_counts_once_however_often_it_is_left(
    deserted: Deserted, patient: Callable[[], None], shop: ShopProcess
) -> None:
    for _ in range(2):
        left = deserted.verbs("approve", *deserted.decision, "--leave")
        assert left.code == 0
        assert connection.LEFT in left.out
    Steered.model_validate(
        deserted.verbs("approve", *deserted.decision, "--leave", "--json").document()
    )

    patient()
    assert deserted.ended() == 0
    assert shop.counts(deserted.run.order)["refunds"] == 1
    assert len(deserted.events("decision.accepted")) == 1
    assert deserted.events("decision.refused") == []


def test_an_answer_that_is_left_with_the_server_counts_once_a_worker_is_back(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {**settings, "SUREHAND_TASK_QUEUE": f"deserted-{uuid.uuid4().hex[:8]}"}
    verbs, run = Verbs(own, tmp_path, monkeypatch), f"asks-{uuid.uuid4().hex[:8]}"
    (tmp_path / "asks.yaml").write_text("steps: [{id: why, ask: 'Why?'}, {id: who, ask: 'Who?'}]")
    start = ("start", "asks.yaml", "--run-id", run, "--wait")
    with WorkerProcess(own, tmp_path / "first") as first:
        first.wait_ready()
        assert verbs(*start).code == 10
    with monkeypatch.context() as impatient:
        impatient.setattr(connection, "ANSWER_TIME", timedelta(seconds=1))
        refused = verbs("answer", run, "why.1=sent twice")
        left = verbs("answer", run, "why.1=sent twice", "--leave")
        paused = verbs("pause", run)

    assert (refused.code, left.code, paused.code) == (4, 0, 4)
    assert connection.LEFT in left.out
    assert "nothing was sent" in paused.line() and "leave" not in paused.line()
    with WorkerProcess(own, tmp_path / "second") as second:
        second.wait_ready()
        assert verbs(*start).code == 10
        [why, who] = verbs("show", run, "--json").document()["result"]["steps"]
    assert (why["output"], who["state"]) == ("sent twice", "waiting_input")


@pytest.mark.parametrize(
    "arguments",
    [("edit", "r/refund/1", "--set", "amount=50"), ("resume", "r", "--set", "amount=50")],
    ids=["edit", "resume"],
)
def test_nothing_is_sent_whose_params_are_unseen(lonely: Verbs, arguments: tuple[str, ...]) -> None:
    refused = lonely(*arguments, "--leave")

    assert refused.code == 2
    assert "--leave" in refused.line()


def test_a_missing_worker_is_told_once(deserted: Deserted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SAID_AFTER", timedelta(milliseconds=100))
    for line in (["show", deserted.run.name], ["approve", *deserted.decision], ["pending"]):
        ended = deserted.verbs(*line)

        [waits] = [said for said in ended.err.splitlines() if "waiting for a worker" in said]
        assert deserted.run.name in waits
        assert "waiting for a worker" not in ended.out


def test_a_slow_ledger_is_not_missed(deserted: Deserted, monkeypatch: pytest.MonkeyPatch) -> None:
    file = deserted.settings["SUREHAND_DATABASE_URL"].partition("///")[2]
    monkeypatch.setattr(connection, "ANSWER_TIME", timedelta(seconds=10))
    with deserted.worker(), contextlib.closing(sqlite3.connect(file)) as taken:
        taken.execute("BEGIN IMMEDIATE")
        unanswered = deserted.verbs("approve", *deserted.decision)
        taken.rollback()

    assert unanswered.code == 5, unanswered
    assert "has not recorded it yet (its log says whether the ledger is away)" in unanswered.err
    assert "no worker" not in unanswered.err


def test_cancel_and_resolve_send_nothing_either(deserted: Deserted) -> None:
    for arguments in (
        ["cancel", deserted.run.name],
        ["resolve", "iv-1", "happened", "--run", deserted.run.name],
    ):
        refused = deserted.verbs(*arguments)
        assert refused.code == 4
        assert "nothing was sent; `--leave`" in refused.line()
        assert f"(task queue {deserted.queue})" in refused.line()


def test_pending_names_silent_runs(deserted: Deserted, shop: ShopProcess, tmp_path: Path) -> None:
    queue = f"alive-{uuid.uuid4().hex[:8]}"
    alive = {**deserted.settings, "SUREHAND_TASK_QUEUE": queue}
    run = Run("alive", shop.new_order())
    with WorkerProcess(alive, tmp_path / "alive") as worker:
        worker.wait_ready()
        assert deserted.verbs(*run.start, "--wait", SUREHAND_TASK_QUEUE=queue).code == 10

        shown = deserted.verbs("pending")
        document = deserted.verbs("pending", "--json")

    assert (shown.code, document.code) == (4, 4)
    assert "alive/refund/1" in shown.out
    assert f"run {deserted.settings['SUREHAND_TENANT']}/{deserted.run.name}" in shown.line()
    assert f"(task queue {deserted.queue})" in shown.line()
    listed = PendingList.model_validate(document.document())
    names = [one.run_id.rpartition("/")[2] for one in listed.approvals]
    assert names == ["alive", deserted.run.name]  # the ledger knows of that one
    [silent] = listed.silent
    assert (silent.task_queue, silent.state) == (deserted.queue, "waiting_approval")
    assert silent.open_items == 1


def test_show_works_without_a_worker(deserted: Deserted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIME", timedelta(hours=1))  # nobody waits for that
    approval = deserted.decision[0]

    shown = deserted.verbs("show", deserted.run.name)
    one = deserted.verbs("show", approval)

    assert (shown.code, one.code) == (4, 4)
    for ended in (shown, one):
        assert f"(task queue {deserted.queue})" in ended.err
        assert f"approve {approval} --params-hash {deserted.decision[2]}" in ended.out
    assert "this is what the ledger knows" in shown.out
    assert "waiting_approval" in shown.out.splitlines()[1]
    told = [line.split()[3:] for line in shown.out.splitlines() if "step succeeded" in line]
    assert told == [
        ["order", "step", "succeeded:", "orders.read"],
        ["amount", "step", "succeeded:", "refunds.calculate"],
    ]


def test_json_works_without_a_worker(deserted: Deserted, patient: Callable[[], None]) -> None:
    recorded = deserted.verbs("show", deserted.run.name, "--json")
    point = deserted.verbs("checkpoint", deserted.run.name, "--json")
    patient()
    with deserted.worker():
        live = deserted.verbs("show", deserted.run.name, "--json").document()

    assert (recorded.code, point.code) == (4, 4)
    found = recorded.document()
    assert (found.pop("recorded"), live.pop("recorded")) == (True, False)
    ShownRun.model_validate(found)
    for name in ("state", "plan", "user", "tenant", "pending"):
        for request in (*found["pending"], *live["pending"]):
            request["resources"] = request["program"] = None  # which a worker adds
        assert found[name] == live[name], name
    outputs = [
        [step[key] for key in ("id", "tool", "state", "output")] for step in live["result"]["steps"]
    ]
    assert outputs == [
        [step[key] for key in ("id", "tool", "state", "output")]
        for step in found["result"]["steps"]
    ]
    assert point.document()["pending_approvals"] == [deserted.decision[0]]


@pytest.mark.parametrize("verb", ["show", "checkpoint", "cancel"])
def test_if_nobody_polls_a_run_s_task_queue_no_verb_waits_for_an_answer(
    lonely: Verbs, verb: str, shop: ShopProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIME", timedelta(hours=1))
    monkeypatch.setattr(outcome, "TAKEN_UP_WITHIN", timedelta(seconds=0.2))
    run = Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())
    assert "no worker has taken it up yet (task queue " in lonely(*run.start).out.splitlines()[0]

    ended = lonely(verb, run.name, "--json")

    assert ended.code == 4
    assert "no worker answers" in ended.err
    if verb == "show":  # the ledger does not know of it, either
        known = UnansweredRun.model_validate(ended.document())
        assert (known.state, known.plan.partition(":")[0]) == ("running", "refund")


async def wait_unknown(address: str, workflow_id: str) -> None:
    """Return once the server does not know a workflow any more; it deletes in the background."""
    handle = (await Client.connect(address)).get_workflow_handle(workflow_id)
    with pytest.raises(RPCError, match="not found"):
        while True:
            await handle.describe()


def test_doctor_notices_at_once_that_the_worker_is_dead_and_leaves_nothing_behind(
    deserted: Deserted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pings, upkeep_id = list[str](), connection.upkeep_id
    monkeypatch.setattr(
        connection, "upkeep_id", lambda *of: pings.append(upkeep_id(*of)) or pings[-1]
    )
    ill = DoctorReport.model_validate(deserted.verbs("doctor", "--json").document())
    with deserted.worker():
        well = DoctorReport.model_validate(deserted.verbs("doctor", "--json").document())

    assert [check.ok for check in ill.checks if check.name == "worker"] == [False]
    assert [check.ok for check in well.checks if check.name == "worker"] == [True]
    assert len(pings) == 2
    for ping in pings:
        asyncio.run(wait_unknown(deserted.settings["TEMPORAL_ADDRESS"], ping))


def test_a_terminated_run_is_shown_as_that_with_what_to_do(deserted: Deserted) -> None:
    run_id = f"{deserted.settings['SUREHAND_TENANT']}/{deserted.run.name}"
    deserted.verbs.terminate(run_id)

    shown = deserted.verbs("show", deserted.run.name)
    document = deserted.verbs("show", deserted.run.name, "--json").document()

    assert shown.code == 0
    assert "The server has ended this run (terminated)." in shown.out
    assert "python starter.py reconcile" in shown.out
    found = ShownRun.model_validate(document)
    assert (found.state, found.result.state) == ("terminated", "waiting_approval")
    assert found.as_it_stood and found.recorded and found.pending == []
    bare = deserted.verbs("show", deserted.run.name, "--json", SUREHAND_DATABASE_URL="")
    known = UnansweredRun.model_validate(bare.document())
    assert (known.state, known.last_known_state) == ("terminated", "waiting_approval")
    assert deserted.verbs(*deserted.run.start, "--wait").code == 20
    [listed] = deserted.verbs("list", "--state", "terminated", "--json").document()["runs"]
    assert listed["open_items"] == 0
    for arguments in (["approve", *deserted.decision], ["cancel", deserted.run.name]):
        refused = deserted.verbs(*arguments)
        assert refused.code == 2
        assert "was terminated from outside" in refused.line()
        assert "python starter.py reconcile" in refused.line()
    assert "was terminated from outside" in deserted.verbs("checkpoint", deserted.run.name).line()


def test_a_run_whose_code_fails_says_why_and_not_that_no_worker_answers(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unique = uuid.uuid4().hex[:8]
    own = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"hopeless-{unique}",
        "SUREHAND_WORKFLOW_MODULES": "tests.e2e.code_hopeless",
    }
    verbs, run = Verbs(own, tmp_path, monkeypatch), f"hopeless-{unique}"
    (tmp_path / "hopeless.yaml").write_text("code: Hopeless")
    (tmp_path / "unborn.yaml").write_text("code: Unborn")
    with WorkerProcess(own, tmp_path / "worker") as worker:
        worker.wait_ready()
        started = verbs("start", "unborn.yaml", "--run-id", f"unborn-{unique}")
        waited = verbs(*("start", "hopeless.yaml", "--run-id", run, "--wait", "--timeout", "20s"))
        shown = verbs("show", run)

    assert started.code == 0
    assert "started, but its workflow task fails: RuntimeError: never begun (" in started.out
    told = f"run {run} does not go on: its workflow task fails: RuntimeError: no account\\u001b[2J"
    assert waited.code == 124, waited
    assert shown.code == 4, shown
    for said in (waited.err, shown.err):
        [line] = [line for line in said.splitlines() if told in line]
        assert f"({code_hopeless.__file__}:" in line
        assert "no worker answers" not in said.lower()
