from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from surehand.process.children import Child, Forked, ForkServer, fork_server
from tests.worker_process import ROOT

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


def test_without_its_server_a_process_ends(servers: list[ForkServer], tmp_path: Path) -> None:
    server = ForkServer(servers[0].module)
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
