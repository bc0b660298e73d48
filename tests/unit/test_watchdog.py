"""A call that cannot be stopped is noticed, and none other."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from surehand.activities.worker.watchdog import EXIT_CODE, GRACE, Watchdog, grace


def test_a_call_past_its_deadline_is_named_until_it_ends() -> None:
    watchdog = Watchdog()

    with watchdog.watching("early", lambda: 10.0), watchdog.watching("late", lambda: 20.0):
        assert watchdog.overdue(9.9) is None
        assert watchdog.overdue(10.0) == "early"

    assert watchdog.overdue(30.0) is None


def test_a_deadline_that_is_moved_while_the_call_lasts_counts_as_it_stands() -> None:
    watchdog, deadlines = Watchdog(), [10.0]

    with watchdog.watching("renewed", lambda: deadlines[-1]):
        deadlines.append(20.0)
        assert watchdog.overdue(10.0) is None
        assert watchdog.overdue(20.0) == "renewed"


#: Blocks in a call that should have ended, with a log that nobody reads.
_HANGS = """
import os, sys
from surehand.activities.worker.watchdog import Watchdog

os.set_blocking(2, False)
try:
    while True:
        os.write(2, bytes(4096))
except BlockingIOError:
    os.set_blocking(2, True)
watchdog = Watchdog()
with watchdog.watching("a call", lambda: {deadline}):
    watchdog.start()
    sys.stdin.read()
"""


@pytest.mark.parametrize("deadline", ["0.0", "1 / 0"], ids=["over", "broken"])
def test_a_worker_whose_log_nobody_reads_is_ended_all_the_same(deadline: str) -> None:
    program = [sys.executable, "-c", _HANGS.format(deadline=deadline)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        try:
            assert worker.wait(timeout=30) == EXIT_CODE
        finally:
            worker.kill()


@pytest.mark.parametrize(
    ("settle", "expected"),
    [
        (None, GRACE),
        (timedelta(hours=1), GRACE),
        (timedelta(seconds=1), timedelta(milliseconds=500)),
    ],
)
def test_the_grace_ends_before_the_settle_time_does(
    settle: timedelta | None, expected: timedelta
) -> None:
    assert grace(settle) == expected
