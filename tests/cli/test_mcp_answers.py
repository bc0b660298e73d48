"""What an assistant is told has an end, and what a person has to do is told whole."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from surehand.cli.mcp_server.runs import LARGEST_ANSWER, LONGEST_ERROR, bounded, error_line
from surehand.process.exits import SurehandError

COMMAND: Final = f"  python starter.py show {'r' * 120}/refund/1 --tenant {'t' * 60}"
FIELDS: Final = {str(number): "y" * 999 for number in range(99)}
ITEM: Final[dict[str, Any]] = {"kind": "approval", "id": "x", "a_person_has_to": ["x", COMMAND]}


@pytest.mark.parametrize(
    "more",
    [
        {"output": "y" * 1_000_000},
        {"steps": [{"id": f"s{number}", "output": FIELDS} for number in range(99)]},
        {"output": [[["y" * 500] * 200] * 200]},
    ],
    ids=["a long text", "many steps", "lists in lists"],
)
def test_however_much_a_run_says_the_command_for_the_person_is_whole(more: dict[str, Any]) -> None:
    shown, text = bounded({"run_id": "r", "waiting_for": [ITEM], **more}, LARGEST_ANSWER)
    assert len(text) <= LARGEST_ANSWER and json.loads(text) == shown
    assert shown["waiting_for"] == [ITEM]


def test_of_many_runs_that_wait_fewer_are_told_and_their_commands_are_whole() -> None:
    runs = [{"run_id": f"r{number}", "waiting_for": [ITEM]} for number in range(200)]
    shown, text = bounded({"runs": runs}, LARGEST_ANSWER)
    assert len(text) <= LARGEST_ANSWER
    assert shown["runs"][-1].endswith(" more")
    told = shown["runs"][:-1]
    assert told
    assert all(one["waiting_for"] == [ITEM] for one in told)


def test_what_is_too_much_in_every_way_is_said_to_be() -> None:
    deep: Any = "y" * 20
    for _ in range(9):
        deep = {str(number): deep for number in range(3)}
    shown, text = bounded({"run_id": "r", "output": deep}, LARGEST_ANSWER)
    assert shown["run_id"] == "r" and "look with the command line" in shown["too_large"]
    assert len(text) < 200


def test_nothing_in_it_is_unseen_and_lines_stay_lines() -> None:
    shown, _ = bounded({"output": {"\u202ekey": "one\ntwo\x1b[2J\U000e0041"}}, LARGEST_ANSWER)
    assert shown == {"output": {"\\u202ekey": "one\ntwo\\u001b[2J\\ue0041"}}


def test_an_error_is_one_line_with_an_end() -> None:
    assert error_line(SurehandError("a\n\tb\x1b")) == "a b\\u001b"
    assert len(error_line(SurehandError("x" * 1_000_000))) == LONGEST_ERROR
