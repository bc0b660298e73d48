"""What users import is in ``surehand`` itself, and is loaded only when it is asked for."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel, JsonValue

import surehand
from tests.docstrings import OF_A_RUN, play, public_names

ROOT: Final = Path(__file__).parents[2]
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


def test_the_names_of_tools_load_neither_sql_nor_an_http_client() -> None:
    found = loaded_by("from surehand import WRITE, Dedupes, Permanent, ToolContext, tool")

    assert "surehand.activities.tools.toolbox" in found
    assert not found & {"sqlalchemy", "alembic", "httpx"}


def test_the_names_of_workflows_load_nothing_of_the_room_of_effects() -> None:
    found = loaded_by(
        "from surehand import ApprovalPolicy, CodeRun, RunResult, StartRun, StepMaker"
    )

    assert "surehand.workflows.run.code_run" in found
    assert "surehand.activities" not in found


#: What nobody has to name: protocols, rows that are only read, and the connection below a client.
UNNAMED: Final = {
    *("Seen", "Watch", "PendingHeld", "PendingQuestion", "Waiting", "ClientSettings", "Connection"),
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
