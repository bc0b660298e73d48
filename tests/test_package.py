"""One import package, ``surehand``: nothing of ours has another name, in a checkout or a wheel."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.examples.bank import Bank
from surehand.process.children import Child, clean_environment
from surehand.process.dev_server import DevServer, free_ports
from tests.docs.pages import blocks
from tests.installed_wheel import AT_THE_TOP

ROOT: Final = Path(__file__).parent.parent
NAMES: Final = {name.removesuffix(".py") for name in AT_THE_TOP}

#: How somebody brings an agent of their own.
AGENT_PAGE: Final = ROOT / "docs" / "howto" / "bring-an-agent.md"


def imported(*arguments: str, folder: Path, environment: dict[str, str]) -> set[str]:
    """Return the first part of the name of every module that a program imports."""
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = (line for line in ended.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize(
    "program",
    [
        [str(ROOT / "worker.py"), "--check"],
        [str(ROOT / "starter.py"), "list"],
        [str(ROOT / "starter.py"), "tools"],
        [str(ROOT / "starter.py"), "server", "--print-cli"],
    ],
    ids=lambda program: " ".join(Path(word).name for word in program),
)
def test_nothing_is_loaded_by_a_name_without_surehand(
    program: list[str], temporal_server: DevServer, sqlite_template: Path, tmp_path: Path
) -> None:
    environment = clean_environment(
        {
            "TEMPORAL_ADDRESS": temporal_server.address,
            "SUREHAND_DATABASE_URL": f"sqlite:///{sqlite_template}",
            "SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools",
            "SUREHAND_WORKFLOW_MODULES": "surehand.examples.late_orders",
        }
    )
    found = imported(*program, folder=tmp_path, environment=environment)

    assert "surehand" in found
    assert found & NAMES == set()


IMPORT_EACH: Final = """
import sys
for room in sys.argv[1:]:
    try:
        __import__(room)
    except ImportError as error:
        print(error)
"""


def test_no_room_can_be_imported_by_another_name() -> None:
    rooms = ["workflows", "activities", "process", "client", "cli", "drill", "examples"]
    command = [sys.executable, "-c", IMPORT_EACH, *rooms]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert ended.stdout.splitlines() == [
        f"{room} is surehand.{room} here: import that" for room in rooms
    ]


def test_docker_is_given_all_that_the_dockerfile_copies() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copies = re.findall(r"^COPY (?!--)(.+) \S+$", dockerfile, re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    given = {line[1:] for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert {name for line in copies for name in line.split()} == given


@pytest.mark.slow
def test_a_wheels_only_name_at_the_top_is_surehand(wheel_programs: Path) -> None:
    [packages] = (wheel_programs.parent / "lib").glob("python*/site-packages")
    names = {path.name for path in packages.iterdir()} - {"needed.pth"}

    assert {name for name in names if not name.endswith(".dist-info")} == {"surehand"}
    assert not any(path.is_symlink() for path in (packages / "surehand").rglob("*"))


@pytest.mark.slow
def test_a_wheel_has_each_file_of_the_rooms_and_no_other(wheel: Path) -> None:
    listed = ["git", "ls-files", "surehand", *AT_THE_TOP]
    tracked = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    files = {name for name in tracked.stdout.split() if not (ROOT / name).is_symlink()}
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}

    assert packed == {f"surehand/{name.removeprefix('surehand/')}" for name in files}


class User:
    """Somebody who has installed the wheel, in a folder of theirs; no setting is made for them.

    They have ports of their own, and the Temporal CLI that is here already.
    """

    def __init__(self, programs: Path, folder: Path, cli: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(programs), os.environ["PATH"]])
        own = {"TEMPORAL_CLI_PATH": str(cli), "PATH": path, "TMPDIR": str(folder.parent)}
        self.alone = clean_environment(own)
        address, ui = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.served = {**self.alone, "TEMPORAL_ADDRESS": address, "TEMPORAL_UI_URL": f"http://{ui}"}

    def dev(self) -> Child:
        log = self.folder / "dev.log"
        return Child(["surehand", "dev"], environment=self.served, log=log)

    def run(self, line: str, settings: dict[str, str] | None = None) -> str:
        ended = subprocess.run(
            shlex.split(line),
            cwd=self.folder,
            env=settings or self.served,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def approve(self, dev: Child, approval: str) -> None:
        """Paste the line that `dev` shows."""
        line = rf"^  (surehand approve {approval} --params-hash \S+)$"
        self.run(dev.wait_for(lambda: re.search(line, dev.output(), re.MULTILINE))[1])


@pytest.mark.crash
@pytest.mark.full
@pytest.mark.guarantee("G2")
def test_a_wheels_agent_pays_once(wheel_programs: Path, temporal_cli: Path, tmp_path: Path) -> None:
    page = blocks(AGENT_PAGE)
    for block in page:
        if block.title:
            (tmp_path / block.title).write_text(block.text)
    dev_line, typed = (block.text.splitlines() for block in page if block.not_run)
    user, said = User(wheel_programs, tmp_path, temporal_cli), ""

    assert dev_line == ["surehand dev"]
    with user.dev() as dev:
        dev.wait_said("worker.ready")
        for line in typed:
            match line.split():
                case ["surehand", "approve", approval, *_]:
                    user.approve(dev, approval)
                case ["kill", "-9", "PID"]:
                    dev.wait_for(lambda: not (tmp_path / "hang").exists())
                    os.kill(
                        int(re.findall(r"^Worker    process (\d+)$", dev.output(), re.M)[-1]), 9
                    )
                case _:
                    said += user.run(line)

    assert 'Returned: "paid"' in said
    assert Bank(tmp_path / ".surehand" / "bank.sqlite").counts() == {"refund": 1}


def test_an_empty_folder_gets_tested(
    wheel_programs: Path, temporal_cli: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "refunds"
    folder.mkdir()
    user = User(wheel_programs, folder, temporal_cli)

    def complete(start: str) -> dict[str, Any]:
        """Start a run as it was said, approve it as it is said, and return its output."""
        name = shlex.split(start)[shlex.split(start).index("--run-id") + 1]
        user.run(start.replace(" --wait", ""))
        user.approve(dev, f"{name}/refund/1")
        document = json.loads(user.run(f"{start} --json"))
        assert document["state"] == "completed"
        output: dict[str, Any] = document["steps"][0]["output"]
        return output

    said = user.run("surehand init")
    [start] = re.findall(r"^  (surehand start .*)$", said, re.MULTILINE)
    [test] = re.findall(r"^  (python -m pytest .*)$", said, re.MULTILINE)
    with user.dev() as dev:
        dev.wait_said("worker.ready")
        assert complete(start)["amount"] == "12.50"

        tools = folder / "refunds.py"
        tools.write_text(tools.read_text().replace("params.amount, key", "2 * params.amount, key"))
        dev.wait_for(lambda: dev.output().count("worker.ready") == 2)
        again = start.replace("refund-1", "refund-2") + " --set input.order_id=order-2"
        assert complete(again)["amount"] == "25.00"

        os.kill(dev.pid, signal.SIGINT)
        dev.wait_done()
    assert "1 passed" in user.run(test, user.alone)


@pytest.mark.full
@pytest.mark.parametrize("agent", ["pydantic-ai", "openai", "langgraph"])
def test_a_new_agent_pays_as_approved(
    wheel_programs: Path, temporal_cli: Path, tmp_path: Path, agent: str
) -> None:
    user = User(wheel_programs, tmp_path, temporal_cli)

    said = user.run(f"surehand init --agent {agent}")
    [start] = re.findall(r"^  (surehand start .*)$", said, re.MULTILINE)
    with user.dev() as dev:
        dev.wait_said("worker.ready")
        user.run(start.replace(" --wait", ""))
        user.approve(dev, "clerk-1/turn-1.1/1")
        ended = json.loads(user.run(f"{start} --json"))

    assert (ended["state"], ended["output"]) == ("completed", "paid")
    assert Bank(tmp_path / ".surehand" / "bank.sqlite").counts() == {"refund": 1}
