"""The timeline as it goes on, and versions of the workers."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from surehand.cli.doctor import Check, DoctorReport
from surehand.cli.printer import Printer
from surehand.cli.render import describe_outcome
from surehand.cli.runs import TimelineWatch
from surehand.client import outcome
from surehand.client.connection import Connection, Polling
from surehand.process.dev_server import find_cli
from surehand.workflows.contracts.base import StepState
from surehand.workflows.contracts.runs import RunView, StepView, TimelineLine
from tests.cli.starter import ROOT, Run, Starter, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

NewRun = Callable[..., Run]


def test_a_timeline_ends_with_its_run(starter: Starter, verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    with starter.popen("show", run.name, "--follow", "--json") as following:
        assert following.stdout is not None
        lines = [following.stdout.readline()]  # it came while the run still waits
        verbs.approve(run.name)
        lines += following.stdout.readlines()
        code = following.wait()

    timeline = verbs("show", run.name, "--json").document()["timeline"]
    assert [json.loads(line) for line in lines] == timeline
    assert len(timeline) > 2
    assert code == 0


def test_on_a_terminal_what_the_run_waits_for_comes_with_its_commands(
    starter: Starter, verbs: Verbs, new_run: NewRun
) -> None:
    run = new_run()
    terminal, its_end = os.openpty()
    command = starter.command("show", run.name, "--follow")
    with subprocess.Popen(command, env=starter.environment, stdout=its_end) as following:
        os.close(its_end)
        said = b""
        while f"approve {run.name}/".encode() not in said:
            said += os.read(terminal, 4096)  # it raises once the command has ended
        verbs.approve(run.name)

    os.close(terminal)
    assert following.returncode == 0


def test_ctrl_c_leaves_the_run_alone(starter: Starter, verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    with starter.popen("show", run.name, "--follow", "--json") as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.send_signal(signal.SIGINT)
        _, err = following.communicate()

    assert following.returncode == 130
    assert f"run {run.name} goes on" in err
    assert verbs("show", run.name, "--json").document()["state"] == "waiting_approval"


def test_an_approval_has_no_timeline(verbs: Verbs) -> None:
    ended = verbs("show", "r/s/1", "--follow", "--json")

    assert ended.code == 2
    assert "--follow takes a RUN" in ended.document()["error"]


def test_a_shortened_timeline_goes_on_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    def line(number: int) -> TimelineLine:
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        return TimelineLine(at=at, text=f"line {number}")

    def view(*numbers: int) -> RunView:
        return RunView.model_construct(timeline=[line(number) for number in numbers])

    printer = Printer(json_output=True)
    printer.one_a_line = True
    watch = TimelineWatch(printer)
    for seen in (view(), view(1, 2, 3), view(1, 2, 3), view(2, 3, 4), view(7, 8, 9)):
        watch.show(seen)

    captured = capsys.readouterr()
    told = [json.loads(text)["text"] for text in captured.out.splitlines()]
    assert told == [f"line {number}" for number in (1, 2, 3, 4, 7, 8, 9)]
    assert captured.err.count("Lines are missing here") == 1


# A worker dies in a call, and the next one finds out what became of it: `show` tells the story.
DIED = "{} was interrupted: nobody knew whether it had happened"
ASKED = "the outside system was asked: payments.refund had"


@pytest.mark.crash
@pytest.mark.parametrize(
    ("crash_at", "told"),
    [
        (
            "payments.refund:after_call",
            [DIED.format("payments.refund"), f"{ASKED} happened; it was not called again"],
        ),
        (
            "payments.refund:after_claim",
            [DIED.format("payments.refund"), f"{ASKED} not happened; it was called again"],
        ),
        (
            "mail.send:after_call",
            [
                "mail.send had no recorded outcome; it was called again with the same key, which"
                " its provider recognises"
            ],
        ),
    ],
    ids=["found", "not found", "repeated"],
)
def test_show_tells_that_a_worker_died_in_a_call_and_how_its_outcome_was_found_out(
    crash_at: str,
    told: list[str],
    settings: dict[str, str],
    shop: ShopProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unique = uuid.uuid4().hex[:8]
    own = {**settings, "SUREHAND_TASK_QUEUE": f"killed-{unique}", "SUREHAND_TENANT": f"t{unique}"}
    verbs, run = Verbs(own, tmp_path, monkeypatch), Run(f"run-{unique}", shop.new_order())
    armed = {**own, "SUREHAND_CRASH_AT": crash_at}
    with WorkerProcess(armed, tmp_path / "first") as first:
        first.wait_ready()
        assert verbs(*run.start, "--wait").code == 10
        verbs.approve(run.name, "--leave")
        first.wait_killed()
    with WorkerProcess(own, tmp_path / "second") as second:
        second.wait_ready()
        assert verbs(*run.start, "--wait").code == 0
        story = verbs("show", run.name, "--json").document()["timeline"]

    assert shop.counts(run.order)["refunds"] == 1
    step = "mail" if crash_at.startswith("mail") else "refund"
    found = [line["text"] for line in story if line["step_id"] == step]
    assert found[-len(told) - 1 :] == [*told, "done"]


# What a step's row says of its outcome.
@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"output": {"refund_id": "r-1"}}, '{"refund_id": "r-1"}'),
        (
            {"output": {"refund_id": "r-1"}, "undone": "by payments.cancel"},
            "undone by payments.cancel",
        ),
        ({"output": 1, "replayed": True}, "recorded before: 1"),
        ({"state": StepState.SKIPPED, "error": "not called: cancelled"}, "not called: cancelled"),
        ({"state": StepState.SKIPPED}, ""),
    ],
)
def test_undone_or_uncalled_steps_look_different(changes: dict[str, Any], outcome: str) -> None:
    view = StepView(id="refund", tool="payments.refund", state=StepState.SUCCEEDED)

    assert describe_outcome(view.model_copy(update=changes)) == outcome


def test_a_long_error_keeps_its_end_which_names_the_line_of_the_users_code() -> None:
    error = f"payments.refund: ValueError: {'x' * 200} (acme/billing.py:12)"
    view = StepView(id="refund", tool="payments.refund", state=StepState.FAILED, error=error)

    outcome = describe_outcome(view)

    assert outcome.startswith("payments.refund: ValueError: ")
    assert outcome.endswith(" (acme/billing.py:12)")


LATE_ORDERS = str(ROOT / "examples" / "late_orders.yaml")


@pytest.fixture
def versioned(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Verbs, Callable[[str], WorkerProcess]]:
    """The verbs for a deployment of its own, and its workers by their build id."""
    unique = uuid.uuid4().hex[:8]
    own = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"versioned-{unique}",
        "SUREHAND_TENANT": f"t{unique}",
        "SUREHAND_DEPLOYMENT_NAME": f"deployment-{unique}",
        "SUREHAND_WORKFLOW_MODULES": "surehand.examples.late_orders",
    }

    def worker(build_id: str) -> WorkerProcess:
        return WorkerProcess({**own, "SUREHAND_BUILD_ID": build_id}, tmp_path / build_id)

    return Verbs(own, tmp_path, monkeypatch), worker


def check_of(verbs: Verbs, name: str = "worker") -> Check:
    report = DoctorReport.model_validate(verbs("doctor", "--json").document())
    return next(check for check in report.checks if check.name == name)


def use(line: str) -> None:
    """Do as a line says that makes a version current."""
    program, *words = shlex.split(line)
    assert program == "temporal"
    subprocess.run([str(find_cli()), *words], check=True, timeout=60)


def test_while_no_version_is_current_it_is_said_why_runs_wait_and_what_to_do(
    versioned: tuple[Verbs, Callable[[str], WorkerProcess]],
    shop: ShopProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verbs, worker = versioned
    run = Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())
    monkeypatch.setattr(outcome, "TAKEN_UP_WITHIN", timedelta(seconds=1))
    with worker("1") as first:
        first.wait_ready()
        # Given a run that nobody takes up
        waiting = verbs(*run.start)
        assert (waiting.code, "workers poll there" in waiting.out) == (0, True)
        check = check_of(verbs)
        assert "workers of version 1 poll it, and none is current" in check.detail

        # When the line that was given is followed
        [line] = check.commands
        use(line)

        # Then the run goes on to its approval
        monkeypatch.undo()
        assert verbs(*run.start, "--wait").code == 10
        assert check_of(verbs).ok
        assert check_of(verbs, "worker versions").detail == "1 (1 run)"

    # And when its workers are gone, that is said, too
    check = check_of(verbs)
    assert "version 1 is current, and no worker of it answers" in check.detail
    assert check.commands == ["SUREHAND_BUILD_ID=1 python starter.py worker &"]
    assert shop.counts(run.order)["refunds"] == 0


def test_doctor_names_the_version_whose_runs_have_no_worker(
    versioned: tuple[Verbs, Callable[[str], WorkerProcess]],
    shop: ShopProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verbs, worker = versioned
    run = Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())
    with worker("1") as first:
        first.wait_ready()
        use(check_of(verbs).commands[0])
        assert verbs(*run.start, "--wait").code == 10
        # Whose steps are made by code, too.
        orders = ["--set", f"input.orders={json.dumps([shop.new_order()])}"]
        assert verbs("start", LATE_ORDERS, *orders, "--wait").code == 10
    with worker("2") as second:
        second.wait_ready()

        # The server keeps dead pollers for minutes; by then they are no pollers any more.
        polling = Polling(current="2", seen=["2"], newest=None)
        monkeypatch.setattr(Connection, "polling", AsyncMock(return_value=polling))
        check = check_of(verbs, "worker versions")

    assert "no worker polls for 2 runs of version 1" in check.detail
    assert check.commands == ["SUREHAND_BUILD_ID=1 python starter.py worker &"]
