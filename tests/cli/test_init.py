"""``init``: what is written, and that nothing is written over."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surehand.activities.tools.describing import literal_problems
from surehand.activities.tools.toolbox import load_toolbox
from surehand.client.plan_file import load_plan
from surehand.process.children import clean_environment
from surehand.process.exits import ExitCode
from tests.cli.starter import Starter, Verbs

FILES = [".env", "refund.yaml", "refunds.py", "test_refund.py"]


@pytest.fixture
def verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs({"SUREHAND_USER": "ana"}, tmp_path, monkeypatch)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_plan_that_is_written_fits_the_tools_that_are_written(
    verbs: Verbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = verbs("init", "shop", "--json").document()
    folder = tmp_path / "shop"

    assert sorted(written["files"]) == names(folder) == FILES
    monkeypatch.syspath_prepend(folder)
    toolbox = load_toolbox(["refunds"])
    for step in load_plan(str(folder / "refund.yaml"), []).steps:
        tool = toolbox.get(step.tool)
        assert tool is not None
        assert list(literal_problems(tool, step)) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", [pytest.param("my shop", marks=pytest.mark.slow), "."])
def test_what_is_written_can_be_gone_on_with_by_pasting(folder: str, tmp_path: Path) -> None:
    _, *terminals = Starter({}, tmp_path)("init", folder).out.split("\n\n")
    # Nothing is started: each program is found, and says how it is used or what it would run.
    text = "\n".join(f"({terminal.strip().partition(chr(10))[2]})" for terminal in terminals)
    text = re.sub(r"(?m)( dev| --wait)(\)?)$", r"\1 --help\2", text)
    text = text.replace("test_refund.py", "test_refund.py --collect-only")

    done = subprocess.run(
        ["bash", "-ec", f'python() {{ {sys.executable} "$@"; }}\n{text}'],
        cwd=tmp_path,
        env=clean_environment({}),
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done
    assert "test_a_worker_that_dies_right_after_the_call_pays_once" in done.stdout


def test_runs_of_a_folder_are_for_workers_of_that_folder(verbs: Verbs, tmp_path: Path) -> None:
    verbs("init", "my shop")

    assert "\nSUREHAND_TASK_QUEUE=my-shop\n" in (tmp_path / "my shop" / ".env").read_text()


@pytest.mark.parametrize("name", FILES)
def test_init_overwrites_no_file(name: str, verbs: Verbs, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")

    ended = verbs("init")

    assert ended.code == ExitCode.WRONG_USE
    assert ended.line() == f"surehand: nothing is written, because there is already: {name}"
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_said_in_one_line(verbs: Verbs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ended = verbs("init", "file/shop")

    assert ended.code == ExitCode.OUTPUT_LOST
    assert ended.line().startswith("surehand: file/shop")
