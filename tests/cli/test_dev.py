"""``dev``: server, ledger and worker in one terminal, each of whose ends is said."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.process.children import Child, clean_environment
from surehand.process.dev_server import free_ports
from surehand.process.exits import ExitCode
from tests.cli.starter import ROOT, Starter
from tests.cli.test_demo import running


@pytest.fixture
def settings(temporal_cli: Path) -> dict[str, str]:
    port, ui_port = free_ports(2)
    return {
        "TEMPORAL_CLI_PATH": str(temporal_cli),
        "TEMPORAL_ADDRESS": f"127.0.0.1:{port}",
        "TEMPORAL_UI_URL": f"http://127.0.0.1:{ui_port}",
        "SUREHAND_USER": "ana",
    }


@pytest.fixture
def dev(settings: dict[str, str], tmp_path: Path) -> Iterator[Child]:
    """``dev`` in a folder as ``init`` writes it, with a worker that takes work."""
    folder = tmp_path / "shop"
    assert Starter(settings, tmp_path)("init", "shop").code == ExitCode.DONE
    command = [sys.executable, str(ROOT / "starter.py"), "dev"]
    environment = clean_environment(settings)
    with Child(command, environment=environment, log=folder / "dev.log") as child:
        child.wait_said("worker.ready")
        yield child


def pid_of(dev: Child, program: str) -> int:
    found = running(str(dev.log.parent))
    [pid] = [pid for pid, command in found if program in command and pid != dev.pid]
    return pid


def end_of(dev: Child) -> int | None:
    """The exit code, once there is one; an error's is one, too."""
    os.waitid(os.P_PID, dev.pid, os.WEXITED | os.WNOWAIT)
    return dev.returncode


def test_a_worker_that_is_killed_starts_again_and_ctrl_c_ends_all_of_it(dev: Child) -> None:
    os.kill(pid_of(dev, "surehand.worker"), signal.SIGKILL)

    dev.wait_for(lambda: dev.output().count("worker.ready") == 2)
    assert "surehand: the worker ended by itself with -9: it starts again\n" in dev.output()

    os.kill(dev.pid, signal.SIGINT)
    assert end_of(dev) == ExitCode.DONE
    assert running(str(dev.log.parent)) == []


def test_tools_that_cannot_be_loaded_are_looked_at_again_once_they_change(dev: Child) -> None:
    tools = dev.log.parent / "refunds.py"
    right = tools.read_text()

    tools.write_text("nonsense")
    dev.wait_said("it starts again when a file changes")
    assert "Changed   refunds.py: the worker starts anew\n" in dev.output()
    assert "nonsense" in dev.output()

    tools.write_text(right)
    dev.wait_for(lambda: dev.output().count("worker.ready") == 2)


def test_a_server_that_dies_is_said_and_ends_all_of_it(dev: Child) -> None:
    os.kill(pid_of(dev, "server start-dev"), signal.SIGKILL)

    assert end_of(dev) == ExitCode.NOT_REACHABLE
    assert "surehand: the Temporal server ended by itself; see .surehand/temporal.log\n" in (
        dev.output()
    )
    assert running(str(dev.log.parent)) == []


def test_a_running_server_is_reused(dev: Child, settings: dict[str, str], tmp_path: Path) -> None:
    address = settings["TEMPORAL_ADDRESS"]
    assert Starter(settings, tmp_path)("init", "second").code == ExitCode.DONE
    command = [sys.executable, str(ROOT / "starter.py"), "dev"]
    environment = clean_environment(settings)
    with Child(command, environment=environment, log=tmp_path / "second" / "dev.log") as second:
        second.wait_said("worker.ready")

    assert f"Temporal  {address}, which was there\n" in second.output()
    assert dev.returncode is None
    assert pid_of(dev, "server start-dev")


@pytest.mark.parametrize("address", ["localhost:abc", "127.0.0.1:70000"])
def test_a_bad_address_is_one_line(address: str, settings: dict[str, str], tmp_path: Path) -> None:
    wrong = {"TEMPORAL_ADDRESS": address, "SUREHAND_DATABASE_URL": "sqlite:///ledger.db"}

    ended = Starter({**settings, **wrong}, tmp_path)("dev")

    assert ended.code == ExitCode.WRONG_USE
    assert f"{address} is not a host:port" in ended.line()


def test_without_a_ledger_it_says_how_to_begin(tmp_path: Path) -> None:
    ended = Starter({"SUREHAND_USER": "ana"}, tmp_path)("dev")

    assert ended.code == ExitCode.WRONG_USE
    assert ended.line() == (
        "surehand: no ledger is named: set SUREHAND_DATABASE_URL, or begin with"
        f" `python {ROOT}/starter.py init`"
    )
