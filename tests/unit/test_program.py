"""How programs are called here, in commands that people paste."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from surehand.cli import app
from surehand.process import program as module
from surehand.process.program import CALLED_AS, command, migrate_command, program
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.run.views import how_to_decide

ROOT: Final = Path(__file__).parents[2]
PROGRAMS = ["starter", "worker", "devserver"]


def test_from_a_checkout_commands_name_its_files() -> None:
    assert [program(name) for name in PROGRAMS] == [
        "python starter.py",
        "python worker.py",
        "python devserver.py",
    ]
    assert command("show", "a run") == "python starter.py show 'a run'"


@pytest.mark.parametrize(
    ("called", "folder", "prefix"),
    [
        ("starter.py", "", ""),
        ("../check out/worker.py", "../check out/", f"PYTHONPATH={ROOT} "),
        ("/opt/starter.py", "/opt/", f"PYTHONPATH={ROOT} "),
        ("/home/ana/own.py", f"{ROOT}/", f"PYTHONPATH={ROOT} "),
    ],
)
def test_commands_name_the_files_by_the_path_by_which_one_of_them_was_called(
    called: str, folder: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.chdir(tmp_path)

    assert [shlex.split(program(name)) for name in PROGRAMS] == [
        ["python", f"{folder}{name}.py"] for name in PROGRAMS
    ]
    assert migrate_command() == f"{prefix}python -m surehand.cli.migrate"
    assert shlex.split(program(elsewhere=True))[1] == str(Path(f"{folder}starter.py").absolute())


def test_another_program_names_the_checkouts_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/ana/own.py"])
    monkeypatch.chdir(ROOT)

    assert command("show", "refund-1") == "python starter.py show refund-1"


@pytest.mark.parametrize("called", ["/usr/bin/surehand", "/site-packages/surehand/worker.py"])
def test_installed_commands_are_on_the_path(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(module, "CHECKOUT", called.endswith("surehand"))

    assert [program(name) for name in PROGRAMS] == (
        ["surehand", "surehand worker", "python -m surehand.devserver"]
    )
    assert command("show", "refund-1") == "surehand show refund-1"


def test_a_command_started_worker_names_that_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/checkout/surehand/worker.py"])
    monkeypatch.setenv(CALLED_AS, "/venv/bin/surehand")

    assert command("show", "refund-1") == "surehand show refund-1"


def test_the_help_of_an_installed_command_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "CHECKOUT", False)

    app.run(["plan", "check", "--help"])

    text = capsys.readouterr().out
    assert "Usage: surehand plan check" in text
    assert "Example: surehand plan check examples/refund.yaml" in text
    assert "starter.py" not in text


def test_the_web_ui_shows_the_command_as_it_is_called_where_the_worker_is() -> None:
    request = ApprovalRequest(
        approval_id="refund-1/refund/1",
        step_id="refund",
        tool="payments.refund",
        version="1",
        params={},
        params_hash="sha256:1",
        description="Refund",
        requested_by="ana",
        expires_at=datetime(2027, 1, 1, tzinfo=UTC),
        undo="",
        assurance=Assurance.SIGNED,
        program="surehand",
    )

    lines = how_to_decide("refund-1", request)

    [line] = [line for line in lines if " sign " in line]
    assert line.startswith("surehand sign refund-1/refund/1 --params-hash sha256:1 ")


def test_whatever_is_said_to_be_run_as_a_module_is_a_program() -> None:
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    readable = [ROOT / file for file in files if (ROOT / file).suffix in (".md", ".py", ".yml")]
    texts = [file.read_text(encoding="utf-8") for file in readable if file.is_file()]
    named = {name for text in texts for name in re.findall(r"python -m (surehand[\w.]+)", text)}

    assert "surehand.cli.migrate" in named
    for name in named:
        found = importlib.util.find_spec(name.rstrip("."))
        assert found is not None and found.origin is not None, name
        file = Path(found.origin)
        program = file.with_name("__main__.py") if file.name == "__init__.py" else file
        assert "__main__" in program.name or '"__main__"' in program.read_text(), name
