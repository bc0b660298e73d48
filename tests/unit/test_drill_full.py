"""``make drill-full``: what it plays, what it remembers, and how it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from surehand.activities.worker.crash_points import READ_POINTS
from surehand.drill.points import Operation
from surehand.workflows.plan.durability import Durability
from tests.drill_courses import COURSES, OPERATED, PLANS, READS, Course, round_of
from tests.drill_full import DIFFERS, DONE, INTERRUPTED, FullDrill, Kept
from tests.worker_process import ROOT

#: Rounds end at once here, so any length of soak that is over after a few of them will do.
SOAK_S = 0.02


class Player:
    """Plays nothing; ends courses as it is told."""

    def __init__(self, code_of: Callable[[Course, int], int] = lambda course, number: DONE) -> None:
        self.code_of = code_of
        self.played: list[Course] = []

    def __call__(self, course: Course, resume: bool) -> int:
        self.played.append(course)
        return self.code_of(course, len(self.played))


def drill(file: Path, player: Player) -> FullDrill:
    return FullDrill(file, player, print)


@pytest.mark.parametrize("plan", [*PLANS, *OPERATED])
def test_every_step_of_a_plan_is_drilled(plan: str) -> None:
    steps = yaml.safe_load((ROOT / plan).read_text())["steps"]

    listed, _ = {**PLANS, **OPERATED}[plan]
    assert listed == tuple(step["id"] for step in steps)
    assert any(course.plan == plan and course.steps == listed for course in COURSES)


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.name)
def test_a_course_that_names_no_points_leaves_the_choice_out(course: Course) -> None:
    # `--points ""` is refused: it names nothing.
    assert "" not in course.arguments()
    assert ("--points" in course.arguments()) == bool(course.points)


def test_what_operators_do_is_drilled_in_every_mode_and_with_child_runs() -> None:
    played = {
        (course.plan, mode, point)
        for course in COURSES
        for mode in course.modes or [Durability.SYNC]
        for point in course.points or Operation
    }

    assert {*itertools.product((*PLANS, *OPERATED), Durability, Operation)} <= played
    assert len({course.name for course in COURSES}) == len(COURSES)


def test_a_drill_that_was_ended_goes_on_and_remembers_what_differed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "full.json"
    first = Player(lambda course, number: {2: DIFFERS, 4: INTERRUPTED}.get(number, DONE))

    assert drill(file, first).run(SOAK_S) == INTERRUPTED
    assert first.played == COURSES[:4]

    second = Player()
    assert drill(file, second).run(SOAK_S) == DIFFERS
    assert second.played[: len(COURSES) - 3] == COURSES[3:]
    assert len(second.played) > len(COURSES) - 3
    said = capsys.readouterr().out
    assert f"not the same world: {COURSES[1].name}" in said
    assert "Going on" in said

    third = Player()  # all was done, so it begins anew
    assert drill(file, third).run(0) == DONE
    assert third.played == COURSES


def test_a_round_that_differs_says_how_it_is_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "full.json"
    file.write_text(Kept(seed=4711, courses={c.name: DONE for c in COURSES}).model_dump_json())
    player = Player(lambda course, number: DIFFERS if number == 2 else DONE)

    assert drill(file, player).run(SOAK_S) == DIFFERS
    assert player.played[1] == round_of(4711, 2)
    said = capsys.readouterr().out
    assert "make drill-full ROUND=4711-2\n" in said
    assert "not the same world: round 4711-2\n" in said


def test_rounds_play_every_call_at_its_own_points_only() -> None:
    rounds = [round_of(1, number) for number in range(1000)]

    assert {(course.plan, *course.steps) for course in rounds} == {
        (plan, step) for plan, (steps, _) in PLANS.items() for step in steps
    }
    for course in rounds:
        assert course.steps[0] not in READS or course.points[0] in READ_POINTS
