"""Two rooms, one arrow: ``activities`` may import from ``workflows``, never the reverse."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: What a workflow's process must not have imported: effects, and what effects are made with.
OUTSIDE = {
    "activities", "examples", "cli", "starter", "worker", "devserver",
    "sqlalchemy", "alembic", "aiosqlite", "asyncpg", "sqlite3",
    "structlog", "httpx", "httpcore", "requests", "dotenv", "pydantic_settings",
    "typer", "rich", "yaml", "joserfc", "cryptography",
}  # fmt: skip
#: What pure modules may import beside themselves.
PURE = {"workflows", "pydantic", "temporalio", "rfc8785"} | set(sys.stdlib_module_names)
#: Of the standard library: clock, environment, network, files, processes, chance.
IMPURE = {
    "os", "pathlib", "socket", "ssl", "subprocess", "threading", "multiprocessing", "random",
    "secrets", "uuid", "time", "sqlite3", "urllib", "http", "tempfile", "shutil", "logging",
}  # fmt: skip
WORKFLOW_FILES = sorted((REPOSITORY / "workflows").rglob("*.py"))


def imported_by(statement: str) -> set[str]:
    """Return the top-level modules of a fresh process after an import."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_a_workflow_imports_nothing_of_the_other_room_and_nothing_effects_are_made_with() -> None:
    found = imported_by("import workflows.agent_run")

    assert "workflows" in found
    assert found & OUTSIDE == set()


def test_the_users_api_is_light() -> None:
    assert imported_by("import activities.toolbox") & {"sqlalchemy", "alembic", "httpx"} == set()


def imports_of(path: Path) -> set[str]:
    """Return the top-level modules that a file names in its imports, wherever they stand."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("path", WORKFLOW_FILES, ids=lambda path: path.name)
def test_a_workflow_file_names_pure_modules_only_also_inside_functions(path: Path) -> None:
    assert imports_of(path) - PURE == set()
    assert imports_of(path) & IMPURE == set()


@pytest.mark.parametrize("path", WORKFLOW_FILES, ids=lambda path: path.name)
def test_a_workflow_file_asks_no_clock_but_temporals(path: Path) -> None:
    clocks = {"utcnow", "today", "monotonic", "time_ns", "perf_counter", "getenv", "environ"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in clocks, f"line {node.lineno}"
            if node.attr == "now":
                assert ast.unparse(node) == "workflow.now", f"line {node.lineno}"


def test_the_ledger_is_the_only_room_with_sql() -> None:
    for room in ("activities", "cli"):
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            if "ledger" not in path.relative_to(REPOSITORY / room).parts[:-1]:
                assert imports_of(path) & {"sqlalchemy", "alembic"} == set(), path
