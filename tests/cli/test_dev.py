"""``init`` and ``dev``: how one begins, and server, ledger and worker in one terminal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehand.activities.tools.describing import literal_problems
from surehand.activities.tools.toolbox import load_toolbox
from surehand.cli.dev import _choose_address, _files_named, _stamp_files
from surehand.cli.options import Caller
from surehand.cli.printer import Printer
from surehand.client.plan_file import load_plan
from surehand.process import dev_server
from surehand.process.children import Child, clean_environment
from surehand.process.connect import find_target
from surehand.process.dev_server import free_ports
from surehand.process.exits import ExitCode
from surehand.process.settings import client_settings, read_environment
from tests.cli.starter import ROOT, Starter, Verbs
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
    assert f"Worker    process {pid_of(dev, 'surehand.worker')}\n" in dev.output()
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
    assert "Changed   refunds.py: the worker restarts\n" in dev.output()
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


def test_a_server_that_nobody_named_is_left_alone_and_verbs_find_our_own(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_UI_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/dev/null")
    (tmp_path / ".env").write_text("SUREHAND_TASK_QUEUE=mine")
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(dev_server, "DEFAULT_PORT", other.getsockname()[1])
        environment = read_environment()
        caller = Caller(client_settings(environment), Printer(json_output=False), environment)
        chosen = _choose_address(caller)

    address = find_target(chosen.environment).address
    assert address == find_target(read_environment()).address
    assert dev_server.is_free(port := dev_server.local_port(address) or 0)
    assert chosen.settings.ui_url == f"http://localhost:{port + 1000}"
    assert chosen.settings.task_queue == "mine"
    # It is there for each later start.
    assert _choose_address(chosen) is chosen


def test_what_is_no_temporal_server_is_said_before_anything_is_made(
    settings: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        named = {"TEMPORAL_ADDRESS": address, "SUREHAND_DATABASE_URL": "sqlite:///ledger.db"}
        ended = Starter({**settings, **named}, tmp_path)("dev")

    assert ended.code == ExitCode.NOT_REACHABLE
    assert f"no Temporal server answers at {address}" in ended.line()
    assert "if another program has that port, set TEMPORAL_ADDRESS=127.0.0.1:" in ended.line()
    assert not (tmp_path / "ledger.db").exists()


def test_the_files_that_settings_name_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("limits.yaml", "mcp.yaml", "mcp.pins.json", "other.yaml"):
        Path(name).touch()

    seen = _stamp_files(
        _files_named({"SUREHAND_LIMITS": "limits.yaml", "SUREHAND_MCP": "mcp.yaml"})
    )

    assert sorted(map(str, seen)) == ["limits.yaml", "mcp.pins.json", "mcp.yaml"]


@pytest.mark.parametrize(
    ("address", "ui"),
    [("127.0.0.1:20001", "localhost:21001"), ("temporal.example.com:7000", "localhost:8233")],
)
def test_links_lead_to_the_web_ui_of_the_server_that_is_named(address: str, ui: str) -> None:
    found = client_settings({"TEMPORAL_ADDRESS": address, "SUREHAND_USER": "ana"})
    assert found.ui_url == f"http://{ui}"


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


def test_an_agent_of_a_framework_nobody_knows_is_one_line(verbs: Verbs, tmp_path: Path) -> None:
    ended = verbs("init", "shop", "--agent", "crew")

    assert ended.code == ExitCode.WRONG_USE
    assert ended.line() == ("surehand: --agent 'crew': use plan, pydantic-ai, openai, langgraph")
    assert names(tmp_path) == []
