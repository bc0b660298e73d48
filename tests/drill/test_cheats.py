"""Tools that are worse than they say are found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.starter import Starter

pytestmark = pytest.mark.crash

PLAN = """\
name: notes
input: {file: none}
steps:
  - {id: note, tool: cheats.TOOL, params: {file: "${input.file}", text: hello}}
"""
OURS = ("--world", "tests.variants.cheats:world", "--fresh", "tests.variants.cheats:fresh")


def drilled(settings: dict[str, str], folder: Path, tool: str, points: str, *more: str) -> Any:
    """Drill a plan with one of the tools, which is found out; returns the report."""
    plan = folder / "notes.yaml"
    plan.write_text(PLAN.replace("TOOL", tool))
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.cheats", "TMPDIR": str(folder)}
    ended = Starter({**settings, **tools}, folder)(
        "drill", str(plan), *OURS, "--points", points, "--json", *more
    )
    assert ended.code == 3
    return ended.document()


def test_a_human_is_asked_about_one_call_and_nothing_else_may_differ(
    settings: dict[str, str], tmp_path: Path
) -> None:
    [cell] = drilled(settings, tmp_path, "otherwise", "after_call")["cells"]

    assert (cell["outcome"], bool(cell["question"])) == ("differs", True)
    assert cell["differences"] == ['world.notes[0]: "otherwise", expected "hello"']


def test_a_tool_that_says_that_it_settles_its_outcome_may_not_leave_it_to_a_human(
    settings: dict[str, str], tmp_path: Path
) -> None:
    [cell] = drilled(settings, tmp_path, "helpless", "after_call")["cells"]

    assert (cell["outcome"], bool(cell["question"])) == ("differs", True)
    assert "cheats.helpless says that it settles this by itself" in cell["differences"][0]


def test_what_arrives_when_the_run_is_over_is_counted_too(
    settings: dict[str, str], tmp_path: Path
) -> None:
    [cell] = drilled(settings, tmp_path, "late", "after_call")["cells"]

    assert cell["effects"] == 2
    assert "world.effects.notes: 2, expected 1" in cell["differences"]


def test_what_arrived_late_is_not_forgotten_by_a_drill_that_goes_on(
    settings: dict[str, str], tmp_path: Path
) -> None:
    [late] = drilled(settings, tmp_path, "late", "after_call")["cells"]
    cells = drilled(settings, tmp_path, "late", "before_claim,after_call", "--resume")["cells"]

    assert late["outcome"] == "differs"
    assert late in cells


def test_a_call_that_goes_on_when_its_worker_is_thawed_is_found_out(
    settings: dict[str, str], tmp_path: Path
) -> None:
    [cell] = drilled(settings, tmp_path, "threaded", "freeze")["cells"]

    assert "world.effects.notes: 2, expected 1" in cell["differences"]


def test_what_is_doubled_in_each_run_is_found_in_the_fault_free_ones(
    settings: dict[str, str], tmp_path: Path
) -> None:
    report = drilled(settings, tmp_path, "twice", "terminate")

    assert report["fault_free"]["violations"] == [
        "the world counts 2 effects, the ledger 1",
        "the world counts 2 effects, the ledger 1",
    ]
