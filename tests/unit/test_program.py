"""How programs are called here, and what users import by which name."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel, JsonValue

import surehand
from surehand.cli import app
from surehand.process import program as module
from surehand.process.program import CALLED_AS, command, program
from surehand.process.program import module as run_module
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance
from surehand.workflows.run.run_views import how_to_decide
from tests.docstrings import OF_A_RUN, play, public_names

ROOT: Final = Path(__file__).parents[2]


def test_from_a_checkout_commands_name_its_file() -> None:
    assert program() == "python starter.py"
    assert command("show", "a run") == "python starter.py show 'a run'"


@pytest.mark.parametrize(
    ("called", "folder", "path"),
    [
        ("starter.py", "", ""),
        ("../check out/worker.py", "../check out/", f"PYTHONPATH={ROOT} "),
        ("/opt/starter.py", "/opt/", f"PYTHONPATH={ROOT} "),
        ("/home/ana/own.py", f"{ROOT}/", f"PYTHONPATH={ROOT} "),
    ],
)
def test_commands_name_the_file_by_the_path_by_which_a_program_was_called(
    called: str, folder: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.chdir(tmp_path)

    assert shlex.split(program()) == ["python", f"{folder}starter.py"]
    assert run_module("pytest") == f"{path}python -m pytest"
    assert shlex.split(program(elsewhere=True))[1] == str(Path(f"{folder}starter.py").absolute())


def test_another_program_names_the_checkouts_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/ana/own.py"])
    monkeypatch.chdir(ROOT)

    assert command("show", "refund-1") == "python starter.py show refund-1"


@pytest.mark.parametrize("called", ["/usr/bin/surehand", "/site-packages/surehand/worker.py"])
def test_installed_commands_are_on_the_path(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(module, "CHECKOUT", called.endswith("surehand"))

    assert program() == "surehand"
    assert command("show", "refund-1") == "surehand show refund-1"


def test_a_command_started_worker_names_that_command(monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert "surehand.examples.shop" in named
    for name in named:
        found = importlib.util.find_spec(name.rstrip("."))
        assert found is not None and found.origin is not None, name
        file = Path(found.origin)
        program = file.with_name("__main__.py") if file.name == "__init__.py" else file
        assert "__main__" in program.name or '"__main__"' in program.read_text(), name


EXAMPLES: Final = sorted((ROOT / "examples").rglob("*.py"))


def loaded_by(statement: str) -> set[str]:
    """Return the modules of a fresh process after a statement."""
    program = f"import json, sys; {statement}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def for_type_checkers() -> dict[str, str]:
    """Return what type checkers are told: names, and the modules that define them."""
    tree = ast.parse(Path(surehand.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: str(node.module).removeprefix("surehand.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_are_told_of_the_same_names_as_programs_get() -> None:
    assert for_type_checkers() == surehand._DEFINED_IN
    assert set(surehand.__all__) == set(surehand._DEFINED_IN)
    assert dir(surehand) == sorted(surehand.__all__)


def test_each_public_name_is_there_and_has_an_example() -> None:
    told = set(surehand.__all__) - {"READ", "WRITE", "LookupAnswer"}

    assert None not in [getattr(surehand, name) for name in surehand.__all__]
    assert [n for n in told if ">>>" not in (inspect.getdoc(getattr(surehand, n)) or "")] == []


class Order(BaseModel):
    """Params of the tools in examples."""

    order_id: str


def example_names() -> dict[str, Any]:
    """Return what examples of tools, notifiers and plans have at hand."""
    return {
        **public_names(),
        "JsonValue": JsonValue,
        "Order": Order,
        "timedelta": timedelta,
        "ctx": surehand.ToolContext("default", "refund-7", "refund", "uma", 1, "key-1"),
        "notification": surehand.Notification(
            what="Refund 20.00 EUR for order-7",
            delivery_id="no-1",
            kind="approval.requested",
            tenant="default",
            run_id="refund-7",
            step_id="refund",
            subject="refund-7/refund/1",
            number=0,
            at=datetime(2026, 11, 22, tzinfo=UTC),
        ),
    }


@pytest.mark.parametrize("name", sorted(set(surehand.__all__) - OF_A_RUN))
async def test_an_example_of_a_public_name_does_what_it_says(name: str) -> None:
    await play(inspect.getdoc(getattr(surehand, name)) or "", example_names())


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'surehand' has no attribute 'tolo'"):
        _ = surehand.tolo


def test_importing_the_package_loads_none_of_its_rooms() -> None:
    assert not [name for name in loaded_by("import surehand") if name.startswith("surehand.")]


def test_the_names_of_tools_load_pydantic_and_little_else() -> None:
    found = loaded_by("from surehand import WRITE, Dedupes, Permanent, ToolContext, tool")

    assert "surehand.activities.tools.toolbox" in found
    assert not found & {"temporalio", "structlog", "jsonschema", "sqlalchemy", "httpx", "rich"}
    assert len([name for name in found if name.startswith("surehand.")]) <= 24
    others = {name.partition(".")[0] for name in found} - set(sys.stdlib_module_names)
    assert {name for name in others if name[0] != "_"} <= {
        *("surehand", "pydantic", "pydantic_core", "rfc8785"),
        *("annotated_types", "typing_extensions", "typing_inspection"),
    }


def test_the_names_of_workflows_load_nothing_of_the_room_of_effects() -> None:
    found = loaded_by(
        "from surehand import ApprovalPolicy, CodeRun, RunResult, StartRun, StepMaker"
    )

    assert "surehand.workflows.run.code_run" in found
    assert "surehand.activities" not in found


def test_judging_settings_loads_no_database() -> None:
    found = loaded_by("import surehand.activities.worker.settings")

    assert not found & {"sqlalchemy", "psycopg", "alembic"}


#: What nobody has to name: protocols, rows that are only read, and the connection below a client.
UNNAMED: Final = {
    *("Seen", "Watch", "PendingHeld", "PendingQuestion", "Waiting", "ClientSettings", "Connection")
}


def of_signatures(one: type) -> set[str]:
    """Return the names of the product that the public methods of a class speak of."""
    found: set[str] = set()
    for name, member in vars(one).items():
        body = inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))
        if name.startswith("_") or not inspect.isfunction(body):
            continue
        found |= set(re.findall(r"[A-Z]\w+", " ".join(map(str, body.__annotations__.values()))))
        raises = (inspect.getdoc(body) or "").partition("Raises:")[2].partition("Example:")[0]
        found |= set(re.findall(r"^\s*([A-Z]\w+):", raises, re.MULTILINE))
    modules = [vars(sys.modules[base.__module__]) for base in one.__mro__]
    ours = {name: next((m[name] for m in modules if name in m), None) for name in found}
    return {n for n, v in ours.items() if str(getattr(v, "__module__", "")).startswith("surehand.")}


@pytest.mark.parametrize("name", ["Client", "Run", "StepMaker", "ToolContext", "Pending"])
def test_all_that_the_methods_of_a_public_class_take_return_and_raise_is_public(name: str) -> None:
    assert of_signatures(getattr(surehand, name)) <= {*surehand.__all__, *UNNAMED}


def test_examples_import_public_names_only() -> None:
    public = ("surehand.examples", "surehand.agents.")
    for path in EXAMPLES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("surehand."):
                assert str(node.module).startswith(public), f"{path}:{node.lineno}"
