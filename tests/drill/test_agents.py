"""A few cases of drills of agents, whose models are scripts; ``make drill-full`` plays all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.starter import ROOT, Starter
from tests.drill.test_drill import cells, outcomes
from tests.drill_selections import AGENT_PLAN, AGENTS, Selection

pytestmark = pytest.mark.crash


def drilled(framework: str, steps: str, points: str) -> list[str]:
    chosen = Selection(AGENT_PLAN, framework, tuple(steps.split(",")), tuple(points.split(",")))
    return ["drill", str(ROOT / AGENT_PLAN), *chosen.arguments()[1:], "--json"]


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=() if name == "pydantic-ai" else pytest.mark.exhaustive)
        for name in AGENTS
    ],
)
def test_an_agent_is_drilled_by_its_turns_and_calls_and_no_recorded_turn_is_asked_again(
    settings: dict[str, str], tmp_path: Path, framework: str
) -> None:
    own = {**settings, **Selection(AGENT_PLAN, framework).variables, "TMPDIR": str(tmp_path)}
    starter = Starter(own, tmp_path)
    ended = starter(*drilled(framework, "turn-2,turn-2.1", "after_call,before_report"))

    assert ended.code == 0, ended
    points = ("after_call", "before_report")
    places = {(step, point) for step in ("turn-2", "turn-2.1") for point in points}
    assert outcomes(ended) == dict.fromkeys(places, "same world")
    found = cells(ended)
    # Of a call that is killed behind its answer nobody knows what was said; of no other.
    turns = {"asked": 4, "recorded": 3, "unrecorded": 1, "asked_again": 0}
    assert found["turn-2", "after_call"]["turns"] == turns
    others = [one["turns"]["asked"] for place, one in found.items() if place[1] != "after_call"]
    assert set(others) == {3}
    assert ended.document()["model_turns"]["asked_again"] == 0
    consistency = ended.document()["approval_consistency"]
    assert consistency["as_approved"] == consistency["gated"] == 2 + len(places)
