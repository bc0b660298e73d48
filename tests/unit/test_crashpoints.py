"""A drill names a tool and a point; anything else is refused at start."""

from __future__ import annotations

import pytest

from activities.crashpoints import Crash, CrashPoint, CrashSettingError


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_setting_names_a_tool_and_one_of_its_points(point: CrashPoint) -> None:
    assert Crash.parse(f"payments.refund:{point}") == Crash("payments.refund", point)


def test_without_a_setting_nothing_ever_dies() -> None:
    crash = Crash.parse("")

    for point in CrashPoint:
        crash.at("", point)
        crash.at("payments.refund", point)


def test_only_the_named_tool_dies_and_only_at_the_named_point() -> None:
    crash = Crash.parse("payments.refund:after_call")

    crash.at("mail.send", CrashPoint.AFTER_CALL)
    crash.at("payments.refund", CrashPoint.BEFORE_CLAIM)


@pytest.mark.parametrize("setting", ["payments.refund", "payments.refund:later", ":after_call"])
def test_what_is_no_point_is_refused_with_the_points_there_are(setting: str) -> None:
    with pytest.raises(CrashSettingError) as refused:
        Crash.parse(setting)

    assert "SUREHAND_CRASH_AT" in str(refused.value)
    assert all(point in str(refused.value) for point in CrashPoint)
