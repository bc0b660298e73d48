"""``show --follow``: the timeline as it goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from surehand.cli.printer import Printer
from surehand.cli.show import TimelineWatch
from surehand.workflows.contracts.runs import RunView, TimelineLine
from tests.cli.starter import Run, Starter, Verbs

NewRun = Callable[..., Run]


def approve(verbs: Verbs, run: Run) -> None:
    [waiting] = verbs("show", run.name, "--json").document()["result"]["waiting_for"]
    verbs("approve", waiting["id"], "--params-hash", waiting["params_hash"])


def test_each_line_of_the_timeline_comes_once_and_the_end_of_the_run_ends_it(
    starter: Starter, verbs: Verbs, new_run: NewRun
) -> None:
    run = new_run()
    with starter.popen("show", run.name, "--follow", "--json") as following:
        assert following.stdout is not None
        lines = [following.stdout.readline()]  # it came while the run still waits
        approve(verbs, run)
        lines += following.stdout.readlines()
        code = following.wait()

    timeline = verbs("show", run.name, "--json").document()["timeline"]
    assert [json.loads(line) for line in lines] == timeline
    assert len(timeline) > 2
    assert code == 0


def test_ctrl_c_leaves_the_run_alone_and_says_so(
    starter: Starter, verbs: Verbs, new_run: NewRun
) -> None:
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


def test_a_timeline_that_has_lost_its_oldest_lines_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
