"""Versions of the workers: what is current, and what is said while none is."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from surehand.cli import workers
from surehand.cli.doctor import Check, DoctorReport
from surehand.cli.workers import VersionList
from surehand.client import launch
from tests.cli.starter import ROOT, Run, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

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


def test_while_no_version_is_current_it_is_said_why_runs_wait_and_what_to_do(
    versioned: tuple[Verbs, Callable[[str], WorkerProcess]],
    shop: ShopProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verbs, worker = versioned
    run = Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())
    monkeypatch.setattr(launch, "TAKEN_UP_WITHIN", timedelta(seconds=1))
    assert "any worker takes any run" in verbs("versions").out
    with worker("1") as first:
        first.wait_ready()
        # Given a run that nobody takes up
        waiting = verbs(*run.start)
        assert (waiting.code, "workers poll there" in waiting.out) == (0, True)
        check = check_of(verbs)
        assert (check.ok, check.commands) == (False, ["python starter.py versions --use 1"])
        assert "workers of version 1 poll it, and none is current" in check.detail
        assert "None is current, so new runs wait" in verbs("versions").out

        # When the line that was given is followed, also twice
        for _ in range(2):
            assert verbs("versions", "--use", "1").code == 0

        # Then the run goes on to its approval
        monkeypatch.undo()
        assert verbs(*run.start, "--wait").code == 10
        assert check_of(verbs).ok
        [only] = VersionList.model_validate(verbs("versions", "--json").document()).versions
        assert (only.build_id, only.status, only.open_runs) == ("1", "current", 1)

    # And when its workers are gone, that is said, too
    check = check_of(verbs)
    assert "version 1 is current, and no worker of it answers" in check.detail
    assert check.commands == ["SUREHAND_BUILD_ID=1 python worker.py &"]
    assert shop.counts(run.order)["refunds"] == 0


def test_the_line_that_is_given_while_no_version_is_current_makes_the_newest_current(
    versioned: tuple[Verbs, Callable[[str], WorkerProcess]],
) -> None:
    verbs, worker = versioned

    def known(child: WorkerProcess, count: int) -> None:
        child.wait_for(lambda: verbs("versions").out.count(" inactive ") == count)

    with worker("1") as first:
        known(first, 1)
    with worker("2") as second:
        known(second, 2)
        [line] = [line for line in verbs("versions").out.splitlines() if "--use" in line]
        said, _, pasted = line.partition(": python starter.py ")
        assert said == "None is current, so new runs wait for workers without a version"

        used = verbs(*shlex.split(pasted))

        assert "None is current" not in used.out
        found = VersionList.model_validate(verbs("versions", "--json").document()).versions
        assert [(one.build_id, one.status) for one in found] == [
            ("2", "current"),
            ("1", "inactive"),
        ]


def test_a_version_of_which_no_worker_has_polled_does_not_become_current(
    versioned: tuple[Verbs, Callable[[str], WorkerProcess]], monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs, _ = versioned
    monkeypatch.setattr(workers, "KNOWN_WITHIN", timedelta())

    refused = verbs("versions", "--use", "9")

    assert refused.code == 4
    assert "start a worker with SUREHAND_BUILD_ID=9" in refused.line()


def test_doctor_names_the_version_whose_runs_have_no_worker(
    versioned: tuple[Verbs, Callable[[str], WorkerProcess]],
    shop: ShopProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verbs, worker = versioned
    run = Run(f"run-{uuid.uuid4().hex[:8]}", shop.new_order())
    with worker("1") as first:
        first.wait_ready()
        assert verbs("versions", "--use", "1").code == 0
        assert verbs(*run.start, "--wait").code == 10
        # Whose steps are made by code, too.
        orders = ["--set", f"input.orders={json.dumps([shop.new_order()])}"]
        assert verbs("start", LATE_ORDERS, *orders, "--wait").code == 10
    with worker("2") as second:
        second.wait_ready()
        shown = verbs("versions", "--use", "2")
        assert "Keep workers of 1 until its runs have ended" in shown.out

        # The server keeps dead pollers for minutes; by then they are no pollers any more.
        polling = workers.Polling(current="2", seen=["2"])
        monkeypatch.setattr(workers, "polling", AsyncMock(return_value=polling))
        check = check_of(verbs, "worker versions")

    assert "no worker polls for 2 runs of version 1" in check.detail
    assert check.commands == ["SUREHAND_BUILD_ID=1 python worker.py &"]
