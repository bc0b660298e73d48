"""A call that cannot be stopped is noticed, and none other."""

from __future__ import annotations

from datetime import timedelta

import pytest

from surehand.activities.worker.watchdog import GRACE, Watchdog, grace


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
