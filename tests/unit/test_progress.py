"""What a call says of its progress: the newest word counts, and none of it ever fails the call."""

from __future__ import annotations

import pytest

from surehand.activities.tools.call_reports import (
    LARGEST_PROGRESS,
    Progress,
    earlier_progress,
    note_progress,
)
from surehand.activities.worker.attempt import Doing


@pytest.mark.parametrize("odd", ["x" * LARGEST_PROGRESS, {"a": "x" * LARGEST_PROGRESS}])
def test_what_is_too_large_is_left_out_and_what_was_said_before_stays(odd: object) -> None:
    progress = Progress("it")
    progress.note("page 3")
    progress.note(odd)

    assert progress.told() == {"step_id": "it", "progress": "page 3"}


def test_what_the_attempt_before_has_told_is_told_on_until_there_is_news() -> None:
    before = {"step_id": "it", "progress": "page 3"}
    doing = Doing(told_before=before)
    assert doing.details() == ["", before]

    doing.progress = Progress("it", "page 3")
    assert doing.details() == ["", before]
    doing.progress.note("page 4")
    assert doing.details() == ["", {"step_id": "it", "progress": "page 4"}]


def test_outside_of_a_call_nobody_is_told() -> None:
    note_progress("page 3")

    assert earlier_progress() is None
