from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from surehand.process.children import Child, clean_environment
from surehand.process.exits import SurehandError

ROOT = Path(__file__).parent.parent.parent
#: Starts a process of its own group, says which, and waits.
PARENT = "sleep 60 & echo started $!; wait"
#: Starts a child that waits, says which, and waits for its own end.
PROGRAM = """
import os, sys, time
from pathlib import Path
from surehand.process.children import Child
one = Child(["sleep", "60"], environment=os.environ, log=Path(sys.argv[1]))
print(one.pid, flush=True)
time.sleep(60)
"""


def shell(script: str, log: Path) -> Child:
    return Child(["/bin/sh", "-c", script], environment=os.environ, log=log)


def ended(pid: int) -> Callable[[], bool]:
    """Whether a process has ended; one that nobody has waited for has."""

    def look() -> bool:
        try:
            return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            return True

    return look


def test_what_a_child_has_started_is_killed_with_it(tmp_path: Path) -> None:
    with shell(PARENT, tmp_path / "parent.log") as one:
        one.wait_for(lambda: one.output().endswith("\n"))
        grandchild = int(one.output().split()[1])

        one.kill()

        assert one.returncode == -signal.SIGKILL
        with shell("sleep 60", tmp_path / "other.log") as other:
            other.wait_for(ended(grandchild))


def test_a_child_ends_with_the_program_that_started_it_however_that_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "child.log")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        program.kill()

    with shell("sleep 60", tmp_path / "other.log") as other:
        other.wait_for(ended(pid))


def test_a_childs_output_is_its_own_in_a_log_that_others_have_written(tmp_path: Path) -> None:
    log = tmp_path / "it.log"
    with shell("echo before", log) as first:
        assert first.wait() == 0
    with shell("echo after", log) as second:
        assert second.wait() == 0

        assert (second.output(), second.last_line()) == ("after\n", "after")
    assert log.read_text() == "before\nafter\n"


def test_a_child_that_does_not_end_in_good_order_is_killed(tmp_path: Path) -> None:
    with shell("trap '' TERM; echo deaf; while :; do sleep 1; done", tmp_path / "it.log") as one:
        one.wait_for(lambda: one.output() == "deaf\n")

        assert one.stop(within=0.1) == -signal.SIGKILL


def test_a_clean_environment_has_no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUREHAND_USER", "TEMPORAL_ADDRESS", "SHOP_URL"):
        monkeypatch.setenv(name, "mine")

    environment = clean_environment({"SUREHAND_USER": "ana"})

    assert environment["SUREHAND_USER"] == "ana"
    assert "mine" not in environment.values()
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("code", [0, 2])
def test_a_child_that_ends_early_is_told_with_its_last_line(tmp_path: Path, code: int) -> None:
    told = pytest.raises(SurehandError, match=f"it ended with {code}: nothing here")
    with shell(f"echo nothing here; exit {code}", tmp_path / "it.log") as one, told:
        one.wait_said("ready")
