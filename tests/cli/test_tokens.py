"""``show --follow --tokens``: what models say, as far as it counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surehand.cli.printer import Printer
from surehand.cli.show import TokenWatch
from surehand.client.outcome import Tokens
from surehand.workflows.contracts.runs import RunResult, RunView, StepView
from surehand.workflows.contracts.states import StepState
from tests.cli.starter import Verbs

LINE = "Once upon a time."


def view(state: StepState, attempts: int = 1) -> RunView:
    output = {"line": LINE} if state is StepState.SUCCEEDED else None
    turn = StepView(id="turn-1", tool="model", state=state, attempts=attempts, output=output)
    return RunView.model_construct(result=RunResult.model_construct(steps=[turn]), timeline=[])


def said(text: str, *, attempt: int = 1, before: int = 0) -> dict[str, Tokens]:
    return {"turn-1": Tokens(attempt, before, text)}


def watch(*, json_output: bool = True) -> TokenWatch:
    printer = Printer(json_output=json_output)
    printer.one_a_line = True
    return TokenWatch(printer)


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [{k: v for k, v in line.items() if v not in ("", False, None)} for line in lines]


def test_each_word_comes_once_and_what_was_left_out_is_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    following = watch()
    for now in (said("Once "), said("Once "), said("Once upon "), said("time.", before=12)):
        following.hear(now)
    following.show(view(StepState.RUNNING))
    following.show(view(StepState.SUCCEEDED))
    following.show(view(StepState.SUCCEEDED))

    turn = {"step_id": "turn-1", "attempt": 1}
    texts = ["Once ", "upon ", "[...] time."]
    assert told(capsys) == [*({**turn, "text": text} for text in texts), {**turn, "said": LINE}]


def test_what_was_shown_of_a_turn_that_is_asked_again_is_void(
    capsys: pytest.CaptureFixture[str],
) -> None:
    following = watch()
    for now in (said("Once "), said("There ", attempt=2)):
        following.hear(now)
    following.show(view(StepState.SUCCEEDED, attempts=3))

    assert told(capsys) == [
        {"step_id": "turn-1", "attempt": 1, "text": "Once "},
        {"step_id": "turn-1", "attempt": 1, "void": True},
        {"step_id": "turn-1", "attempt": 2, "text": "There "},
        {"step_id": "turn-1", "attempt": 2, "void": True},
        {"step_id": "turn-1", "attempt": 3, "said": LINE},
    ]


def test_a_turn_that_fails_leaves_nothing_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    following = watch(json_output=False)
    following.hear(said("Once "))
    following.show(view(StepState.FAILED))

    assert capsys.readouterr().out.splitlines() == [
        "turn-1 | Once ",
        "-- turn-1: the turn has failed; what was shown of it is void --",
    ]


def test_tokens_are_shown_to_whoever_follows(verbs: Verbs) -> None:
    ended = verbs("show", "r", "--tokens", "--json")

    assert ended.code == 2
    assert "add --follow" in ended.document()["error"]
