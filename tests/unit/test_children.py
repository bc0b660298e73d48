from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from surehand.process.children import Child, Forked, ForkServer, clean_environment, fork_server
from surehand.process.exits import SurehandError
from tests.worker_process import ROOT

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


#: What a process says of itself, and how it ends.
TELLS: Final = """
import os, sys

def main(arguments):
    print(os.getcwd(), os.environ.get("WHOSE"), sys.argv, sys.path[:2], flush=True)
    print("sid", os.getsid(0) == os.getpid(), "fds", len(os.listdir("/proc/self/fd")), flush=True)
    print("order", list({str(n) for n in range(9)}), flush=True)
    how = arguments[0] if arguments else "0"
    if how == "waits":
        while True:
            os.read(0, 1) or __import__("time").sleep(60)
    if how == "raises":
        raise RuntimeError("it is broken")
    return int(how)
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ForkServer]]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "tells.py").write_text(TELLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield [fork_server("tells") for _ in range(3)]


def child(
    server: ForkServer, folder: Path, *arguments: str, more: Mapping[str, str] | None = None
) -> Child:
    return Child(
        [sys.executable, "-m", "tells", *arguments],
        environment={**os.environ, "WHOSE": "mine", **(more or {})},
        log=folder / "it.log",
        server=server,
    )


def test_a_forked_process_has_its_own_place(servers: list[ForkServer], tmp_path: Path) -> None:
    more = {"PYTHONPATH": "/own/modules"}
    with child(servers[0], tmp_path, "7", more=more) as one:
        assert one.wait(60) == 7

        assert isinstance(one._process, Forked)
        said = one.output().splitlines()
        assert said[0] == (f"{tmp_path} mine ['tells', '7'] ['{tmp_path}', '/own/modules']")
        # Its three streams, and the folder that it lists.
        assert said[1] == "sid True fds 4"


def test_a_forked_process_is_killed_with_all(servers: list[ForkServer], tmp_path: Path) -> None:
    with child(servers[0], tmp_path, "waits") as one:
        one.wait_said("order")
        with pytest.raises(subprocess.TimeoutExpired):
            one.wait(0.01)

        one.kill()

        assert one.returncode == -signal.SIGKILL
        one.signal(signal.SIGTERM)  # no-op: it has ended


def test_a_forked_processs_error_is_logged(servers: list[ForkServer], tmp_path: Path) -> None:
    with child(servers[0], tmp_path, "raises") as one:
        assert one.wait(60) == 1

        assert one.last_line() == "RuntimeError: it is broken"


def test_processes_have_sets_in_another_order(servers: list[ForkServer], tmp_path: Path) -> None:
    orders = []
    for number, server in enumerate(servers):
        folder = tmp_path / str(number)
        folder.mkdir()
        with child(server, folder) as one:
            assert one.wait(60) == 0
            orders.append(one.last_line())

    assert servers[0] is servers[2]
    assert (orders[0] == orders[2], orders[0] == orders[1]) == (True, False)


def test_interpreter_options_are_not_forked(servers: list[ForkServer], tmp_path: Path) -> None:
    with child(servers[0], tmp_path, "0", more={"PYTHONHASHSEED": "0", "PYTHONPATH": ""}) as one:
        one.wait(60)

        assert isinstance(one._process, subprocess.Popen)


def test_a_fork_server_runs_whichever_of_its_modules_is_named(
    servers: list[ForkServer], tmp_path: Path
) -> None:
    server = ForkServer("timeit", "not.there", *servers[0].modules)
    with child(server, tmp_path, "7") as one:
        assert one.wait(60) == 7
    server.close()


def test_without_its_server_a_process_ends(servers: list[ForkServer], tmp_path: Path) -> None:
    server = ForkServer(*servers[0].modules)
    with child(server, tmp_path, "waits") as one:
        one.wait_said("order")
        server.close()
        assert one.wait(60) == 255
        with pytest.raises(OSError):
            child(server, tmp_path)
        os.kill(one.pid, signal.SIGKILL)


def test_a_worker_that_is_loaded_has_one_thread_so_that_it_can_be_forked(tmp_path: Path) -> None:
    code = "import os, surehand.worker; print(len(os.listdir('/proc/self/task')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)

    assert done.stdout == "1\n", done.stderr
