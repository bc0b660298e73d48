"""Turns stream what a model says to whoever follows; what counts is what is recorded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from surehand.client.outcome import StreamedText, call_progress
from surehand.workflows.contracts.states import RunState
from tests.cli.starter import Starter
from tests.e2e.runs import Run, step, until
from tests.e2e.stage import Stage
from tests.e2e.test_agents import EACH, driven, settings, turns

STORY = "Once upon a time."


async def tokens(run: Run) -> dict[str, StreamedText]:
    return (await call_progress(await run.handle.describe())).tokens


@pytest.mark.crash
@EACH
async def test_a_turn_that_a_kill_has_cut_short_is_asked_again_and_recorded_whole(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    streams: dict[str, Any] = {**settings(framework), "stream_turns": "yes"}
    with stage.worker(**streams) as doomed:
        run = await stage.start(driven(framework, "storyteller", order_id, count))
        said = await until(lambda: tokens(run), bool)
        doomed.kill()
    with stage.worker(**streams):
        result = await run.result()

    assert said == {"turn-1": StreamedText(attempt=1, before=0, text="Once upon ")}
    assert result.state is RunState.COMPLETED, result.error
    assert (result.output, step(result, "turn-1").output["line"]) == (STORY, STORY)
    assert (step(result, "turn-1").attempts, turns(count)) == (2, 2)


@pytest.mark.crash
async def test_show_prints_tokens_while_a_turn_is_under_way_and_voids_those_that_a_kill_cut_short(
    stage: Stage, order_id: str, count: Path
) -> None:
    streams: dict[str, Any] = {**settings("pydantic-ai"), "stream_turns": "yes"}
    starter = Starter(stage.environment(), stage.folder)
    told = list[dict[str, Any]]()
    with stage.worker(**streams) as doomed:
        doomed.wait_ready()
        run = await stage.start(driven("pydantic-ai", "storyteller", order_id, count))
        with starter.popen("show", run.run_id, "--follow", "--tokens", "--json") as following:
            assert following.stdout is not None
            # Its model says no more before its worker is killed: the turn is under way.
            while shown(told, attempt=1) != "Once upon ":
                told.append(json.loads(await asyncio.to_thread(following.stdout.readline)))
            doomed.kill()
            with stage.worker(**streams):
                result = await run.result()
                rest = await asyncio.to_thread(following.stdout.readlines)
                code = following.wait()

    assert (result.state, result.output, code) == (RunState.COMPLETED, STORY, 0)
    after = [one for line in rest if "attempt" in (one := json.loads(line))]
    # Before anything else is said of the turn, what was shown of it is void.
    assert [(one["attempt"], one["void"]) for one in after[:1]] == [(1, True)]
    assert {(one["attempt"], one["void"]) for one in after[1:]} == {(2, False)}
    assert shown(after, attempt=2) in ("", STORY)
    assert [one["said"] for one in after if one["said"]] == [STORY]


def shown(told: list[dict[str, Any]], *, attempt: int) -> str:
    """What was printed of a turn's attempt, put together."""
    return "".join(one["text"] for one in told if one.get("attempt") == attempt)


@EACH
async def test_a_model_is_not_asked_to_stream_where_nobody_wants_it(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    # Its stream would stop in its middle.
    async with stage.worker_here(**settings(framework)):
        run = await stage.start(driven(framework, "storyteller", order_id, count))
        result = await run.result()

    assert (result.output, turns(count)) == (STORY, 1)


@EACH
async def test_a_model_that_cannot_stream_is_asked_as_ever(
    stage: Stage, order_id: str, count: Path, framework: str
) -> None:
    async with stage.worker_here(**settings(framework), stream_turns="yes"):
        run = await stage.start(driven(framework, "refunds", order_id, count))
        await run.asks("turn-2.1")

    assert turns(count) == 2
