"""Without the virtual environment there is one line to read, and not a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surehand.process import VERSION

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["starter.py", "list"],
        ["worker.py"],
        ["devserver.py"],
        ["-m", "surehand.cli.migrate"],
    ],
    ids=" ".join,
)
def test_a_program_without_packages_says_how_to_get_them(
    arguments: list[str],
) -> None:
    # -S: as an interpreter that has no packages at all.
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=ROOT,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("surehand: its packages are not installed for ")
    assert line.endswith("`source .venv/bin/activate`, or `make venv` first")


def test_the_version_is_that_of_the_package() -> None:
    written = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert re.findall(r'^version = "(.+)"', written, flags=re.MULTILINE) == [VERSION]
