"""``make drill-full``: what it plays, what it remembers, and how it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from surehand.activities.worker.crash_points import READ_POINTS, CrashPoint
from surehand.drill.report import Operation
from surehand.workflows.plan.plan import Durability
from tests.drill_full import DIFFERS, DONE, INTERRUPTED, FullDrill, Kept
from tests.drill_selections import (
    AGENT_PLAN,
    AGENTS,
    OPERATED,
    PLANS,
    READS,
    SELECTIONS,
    Selection,
    round_of,
)
from tests.pairwise import Case, pairs_of, pairwise
from tests.worker_process import ROOT

#: Rounds end at once here, so any length of soak that is over after a few of them will do.
SOAK_S = 0.02


class Player:
    """Plays nothing; ends selections as it is told."""

    def __init__(
        self, code_of: Callable[[Selection, int], int] = lambda selection, number: DONE
    ) -> None:
        self.code_of = code_of
        self.played: list[Selection] = []

    def __call__(self, selection: Selection, name: str) -> int:
        self.played.append(selection)
        return self.code_of(selection, len(self.played))


def drill(file: Path, player: Player) -> FullDrill:
    return FullDrill(file, player, print)


@pytest.mark.parametrize("plan", [*PLANS, *OPERATED])
def test_every_step_of_a_plan_is_drilled(plan: str) -> None:
    steps = yaml.safe_load((ROOT / plan).read_text())["steps"]

    listed, _ = {**PLANS, **OPERATED}[plan]
    assert listed == tuple(step["id"] for step in steps)
    assert any(selection.plan == plan and selection.steps == listed for selection in SELECTIONS)


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda selection: selection.name)
def test_a_selection_that_names_no_points_leaves_the_choice_out(selection: Selection) -> None:
    # `--points ""` is refused: it names nothing.
    assert "" not in selection.arguments()
    assert ("--points" in selection.arguments()) == bool(selection.points)


def test_what_operators_do_is_drilled_in_every_mode_and_with_child_runs() -> None:
    played = {
        (selection.plan, mode, point)
        for selection in SELECTIONS
        for mode in selection.modes or [Durability.SYNC]
        for point in selection.points or Operation
    }

    assert {*itertools.product((*PLANS, *OPERATED), Durability, Operation)} <= played
    assert len({selection.name for selection in SELECTIONS}) == len(SELECTIONS)


def test_an_agent_of_each_framework_is_killed_at_each_point_in_each_mode() -> None:
    killed = {
        (selection.kind, mode, point)
        for selection in SELECTIONS
        if selection.plan == AGENT_PLAN and not selection.steps
        for mode in selection.modes
        for point in selection.points
    }

    assert {*itertools.product(AGENTS, Durability, CrashPoint)} <= killed


def test_an_ended_drill_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "full.json"
    first = Player(lambda selection, number: {2: DIFFERS, 4: INTERRUPTED}.get(number, DONE))

    assert drill(file, first).run(SOAK_S) == INTERRUPTED
    assert first.played == SELECTIONS[:4]

    left = [SELECTIONS[1], *SELECTIONS[3:]]
    second = Player(lambda selection, number: DIFFERS if number == 2 else DONE)
    assert drill(file, second).run(SOAK_S) == DIFFERS
    assert second.played[: len(left)] == left
    assert len(second.played) > len(left)
    said = capsys.readouterr().out
    assert f"It differed, and is played again: {SELECTIONS[1].name}\n" in said
    assert f"not the same world: {SELECTIONS[3].name}\n" in said
    assert "Going on" in said

    third = Player()  # all was done, so it begins anew
    assert drill(file, third).run(0) == DONE
    assert third.played == SELECTIONS


def test_a_round_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "full.json"
    file.write_text(
        Kept(seed=4711, selections={c.name: DONE for c in SELECTIONS}).model_dump_json()
    )
    player = Player(lambda selection, number: DIFFERS if number == 2 else DONE)

    assert drill(file, player).run(SOAK_S) == DIFFERS
    assert player.played[1] == round_of(4711, 2)
    said = capsys.readouterr().out
    assert "make drill-full ROUND=4711-2\n" in said
    assert "not the same world: round 4711-2\n" in said


def test_rounds_play_every_call_at_its_own_points_only() -> None:
    rounds = [round_of(1, number) for number in range(1000)]

    assert {(selection.plan, *selection.steps) for selection in rounds} == {
        (plan, step) for plan, (steps, _) in PLANS.items() for step in steps
    }
    for selection in rounds:
        assert selection.steps[0] not in READS or selection.points[0] in READ_POINTS


FACTORS = [("a", "b", "c"), (1, 2, 3, 4), (True, False), ("x", "y")]


def possible(case: Case) -> bool:
    return case[:2] != ("c", 4)


def test_every_two_values_that_can_meet_meet_in_a_case_that_can_be() -> None:
    cases = pairwise(FACTORS, possible)

    every = [case for case in itertools.product(*FACTORS) if possible(case)]
    assert set(cases) <= set(every)
    met = {pair for case in cases for pair in pairs_of(case)}
    assert met == {pair for case in every for pair in pairs_of(case)}
    assert len(cases) < len(every) / 3
    assert cases == pairwise(FACTORS, possible)


def test_pairs_that_are_covered_elsewhere_get_no_case() -> None:
    elsewhere = list(itertools.product(FACTORS[0], FACTORS[1], (True,), ("x",)))

    cases = pairwise(FACTORS, covered_by=elsewhere)

    met = {pair for case in [*elsewhere, *cases] for pair in pairs_of(case)}
    assert met == {pair for case in itertools.product(*FACTORS) for pair in pairs_of(case)}
    # Only (True, "x") is there: each of the four numbers needs False and "y", and then there are
    # (False, "x") and (True, "y").
    assert len(cases) <= 6
    assert pairwise(FACTORS, covered_by=itertools.product(*FACTORS)) == []
