"""A drill names a tool and a point, and perhaps a step; anything else is refused at start."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from surehand.activities.worker.crash_points import (
    Crash,
    CrashPoint,
    CrashSettingError,
)


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What would have been killed, with which signal."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    return killed


DEATH = (os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_setting_names_a_tool_and_one_of_its_points(point: CrashPoint) -> None:
    assert Crash.parse(f"payments.refund:{point}") == Crash("payments.refund", point)
    assert Crash.parse(f"a:b@c:{point}@refund") == Crash("a:b@c", point, "refund")


def test_without_a_setting_nothing_ever_dies() -> None:
    crash = Crash.parse("")

    for point in CrashPoint:
        crash.at("", "", point)
        crash.at("payments.refund", "refund", point)


def test_only_the_named_tool_dies_at_the_named_point(
    kills: list[tuple[int, int]],
) -> None:
    crash = Crash.parse("payments.refund:after_call@refund")

    crash.at("mail.send", "refund", CrashPoint.AFTER_CALL)
    crash.at("payments.refund", "refund", CrashPoint.BEFORE_CLAIM)
    crash.at("payments.refund", "refund-2", CrashPoint.AFTER_CALL)
    assert not kills
    crash.at("payments.refund", "refund", CrashPoint.AFTER_CALL)
    assert kills == [DEATH]


def test_of_many_workers_the_first_dies(kills: list[tuple[int, int]], tmp_path: Path) -> None:
    once = str(tmp_path / "crashed")
    first, second = (Crash.parse("mail.send:after_call", once) for _ in range(2))

    for crash in (first, second, first):
        crash.at("mail.send", "mail", CrashPoint.AFTER_CALL)

    assert kills == [DEATH]


async def test_a_call_that_ends_early_dies_at_its_end(
    kills: list[tuple[int, int]],
) -> None:
    with Crash.parse("mail.send:during_call").during("mail.send", "mail"):
        await asyncio.sleep(0)
        assert not kills
    assert kills == [DEATH]


async def test_a_call_that_lasts_dies_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    died = asyncio.Event()
    monkeypatch.setattr(os, "kill", lambda *_: died.set())
    with Crash.parse("mail.send:during_call").during("mail.send", "mail"):
        await died.wait()


@pytest.mark.parametrize(
    "setting",
    ["payments.refund", "payments.refund:later", ":after_call", "payments.refund:after_call@"],
)
def test_what_is_no_point_is_refused_with_the_points_there_are(setting: str) -> None:
    with pytest.raises(CrashSettingError) as refused:
        Crash.parse(setting)

    assert str(refused.value).startswith(f"{setting!r} is not tool:point")
    assert all(point in str(refused.value) for point in CrashPoint)
