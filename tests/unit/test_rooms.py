"""Rooms and statements: what may import what, which SQL names its tenant."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from sqlalchemy import and_, create_engine, func, insert, literal, or_, select, update
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import NullPool

from surehand.activities.ledger.core.statements import insert_row, ours, rows_of, update_rows
from surehand.activities.ledger.core.tables import bars, metadata, runs
from tests.tenant_guard import before_execute, unbound

Node = TypeVar("Node", bound=ast.expr)
REPOSITORY: Final = Path(__file__).parents[2]
#: What a room may import of the others. The ledger is a room of its own inside ``activities``, and
#: ``cli/app.py``, which puts all verbs together, the drill's too, is above the command line.
ARROWS: Final = {
    # It is given to strangers: one file, which nothing of ours goes with.
    "verify": set(),
    "workflows": set(),
    "process": {"workflows", "verify"},
    "activities.ledger": {"process", "workflows", "verify"},
    "activities": {"activities.ledger", "process", "workflows", "verify"},
    "agents": {"activities", "workflows"},
    "examples": {"activities", "agents", "drill", "workflows"},
    "client": {"process", "workflows", "verify"},
    "cli": {"client", "activities", "activities.ledger", "process", "workflows", "verify"},
    "drill": {
        "agents",
        "cli",
        "client",
        "activities",
        "activities.ledger",
        "process",
        "workflows",
        "verify",
    },
    "cli.app": {"cli", "drill", "process", "worker", "workflows"},
    "worker": {"agents", "activities", "activities.ledger", "process", "workflows"},
    "starter": {"cli.app", "process"},
}
#: What a workflow's process must not have imported: effects, and what effects are made with.
OUTSIDE: Final = {
    "sqlalchemy", "alembic", "psycopg", "sqlite3",
    "structlog", "httpx", "httpcore", "requests", "dotenv",
    "typer", "rich", "yaml", "joserfc", "cryptography",
}  # fmt: skip
#: What pure modules may import beside themselves.
PURE: Final = {"surehand", "pydantic", "temporalio", "rfc8785"} | set(sys.stdlib_module_names)
#: Of the standard library: clock, environment, network, files, processes, chance.
IMPURE: Final = {
    "os", "pathlib", "socket", "ssl", "subprocess", "threading", "multiprocessing", "random",
    "secrets", "uuid", "time", "sqlite3", "urllib", "http", "tempfile", "shutil", "logging",
}  # fmt: skip
WORKFLOW_FILES: Final = sorted((REPOSITORY / "workflows").rglob("*.py"))


def folder_of_room(room: str) -> Path:
    """Return where a room lies: at the top, or in the package itself."""
    return REPOSITORY / ("surehand/agents" if room == "agents" else room)


def named_in_package(file: Path) -> Path:
    top = REPOSITORY / "surehand"
    return file.relative_to(top if file.is_relative_to(top) else REPOSITORY)


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its name in it, without ``surehand.``."""
    alone = ("worker.py", "starter.py", "surehand/verify.py")
    files = [REPOSITORY / name for name in alone]
    for room in sorted({room.split(".")[0] for room in ARROWS}):
        files += folder_of_room(room).rglob("*.py")
    relative = {file: named_in_package(file).with_suffix("") for file in files}
    return {".".join(path.parts).removesuffix(".__init__"): file for file, path in relative.items()}


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return all that a file names in its imports, wherever they stand: ``module.name``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def own_imports(path: Path) -> Iterator[str]:
    for name in imports_of(path):
        package, _, inner = name.partition(".")
        module = inner if inner in modules() else inner.rpartition(".")[0]
        if package == "surehand" and module:
            yield module


def room_of(module: str) -> str:
    """Return the room that a module is in: the longest that its name begins with."""
    return max((room for room in ARROWS if f"{module}.".startswith(f"{room}.")), key=len)


def folder_of(module: str) -> str:
    """Return a module's folder; what lies in a room itself, beside its folders, is one alone."""
    folder = module.rpartition(".")[0]
    return module if folder in ("", *ARROWS) else folder


def graph_of(name: str) -> dict[str, set[str]]:
    """Return which modules, or which folders, import which others."""
    of = folder_of if name == "folders" else str
    graph: dict[str, set[str]] = {}
    for module, path in modules().items():
        graph.setdefault(of(module), set()).update(of(other) for other in own_imports(path))
    return {node: others - {node} for node, others in graph.items()}


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return nodes that come back to the first one; none if the arrows go down only."""
    left = {node: set(others) for node, others in graph.items()}
    while bottom := [node for node, others in left.items() if not others & left.keys()]:
        for node in bottom:
            del left[node]
    walk: list[str] = []
    node = min(left, default="")
    while node and node not in walk:
        walk.append(node)
        node = min(left[node] & left.keys())
    return walk[walk.index(node) :] if node else []


def workflow_nodes(kind: type[Node]) -> Iterator[tuple[str, Node]]:
    """Yield what the files of workflows have of a kind of syntax, each with its place."""
    for path in WORKFLOW_FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kind):
                yield f"{path}:{node.lineno}", node


def imported_by(statement: str) -> set[str]:
    """Return the modules of a fresh process after an import."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("room", ARROWS)
def test_a_room_imports_only_from_the_rooms_below_it(room: str) -> None:
    found = {
        (module, other)
        for module, path in modules().items()
        if room_of(module) == room
        for other in own_imports(path)
        if room_of(other) not in ARROWS[room] | {room}
    }

    assert found == set()


def test_no_two_rooms_may_import_from_each_other() -> None:
    assert circle(ARROWS) == []


def test_no_folders_import_each_other_round() -> None:
    assert circle(graph_of("folders")) == []


def test_no_modules_import_each_other_round() -> None:
    assert circle(graph_of("modules")) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_workflow_imports_nothing_of_the_other_rooms_and_nothing_effects_are_made_with() -> None:
    found = imported_by("import surehand.workflows.run.agent_run")

    rooms = {".".join(name.split(".")[:2]) for name in found if name.startswith("surehand.")}
    assert rooms == {"surehand.workflows"}
    assert found & OUTSIDE == set()


def test_the_users_api_is_light() -> None:
    found = imported_by("import surehand.activities.tools.toolbox")

    assert found & {"sqlalchemy", "alembic", "httpx", "surehand.workflows.run"} == set()


def test_models_as_workflows_bring_along_nothing_effects_are_made_with() -> None:
    found = imported_by("import surehand.agents.model_run")

    assert found & {"sqlalchemy", "psycopg", "httpx", "temporalio.worker"} == set()


def test_workflow_files_name_pure_modules_only_also_inside_functions() -> None:
    for path in WORKFLOW_FILES:
        named = {name.split(".")[0] for name in imports_of(path)}

        assert named - PURE == set(), path
        assert named & IMPURE == set(), path


def test_workflow_files_ask_no_clock_but_temporals() -> None:
    clocks = {"utcnow", "today", "monotonic", "time_ns", "perf_counter", "getenv", "environ"}
    for place, node in workflow_nodes(ast.Attribute):
        assert node.attr not in clocks, place
        if node.attr == "now":
            assert ast.unparse(node) == "workflow.now", place


def test_workflow_files_wait_in_the_same_way_on_every_python() -> None:
    for place, node in workflow_nodes(ast.Call):
        called = ast.unparse(node.func)
        assert called not in {"asyncio.wait_for", "asyncio.timeout"}, place
        timed = any(one.arg == "timeout" for one in node.keywords)
        assert not (called.endswith("wait_condition") and timed), place


def test_the_ledger_is_the_only_room_with_sql() -> None:
    for module, path in modules().items():
        if room_of(module) != "activities.ledger":
            named = {name.split(".")[0] for name in imports_of(path)}
            assert named & {"sqlalchemy", "alembic"} == set(), module


LEDGER: Final = Path(__file__).parents[2] / "activities" / "ledger"
#: Migrations come before all tenants; ``statements.py`` is the place for all others.
SOURCES: Final = sorted(
    path
    for path in LEDGER.rglob("*.py")
    if path.name != "statements.py" and "migrations" not in path.parts
)
MAKERS: Final = {"rows_of", "update_rows", "insert_row", "ours"}
#: What stays by hand, and why.
BY_HAND: Final = {
    "core/engine.py": "text",  # locks and what a server says of itself: of no table
    "core/migrate.py": "text",  # what a server says of its roles and functions
    "core/tables.py": "text",  # conditions of indexes
    # ON CONFLICT is a dialect's own; the tenant is a value of each row.
    "core/transaction.py": "dialect.insert(table)",
}
BAR: Final = {"run_id": "r", "step_id": "s", "barred_ms": 1}
TABLES: Final = frozenset(metadata.tables)


def by_hand(module: Path) -> Iterator[str]:
    """Yield what a module makes on a table without saying of which tenant."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "sqlalchemy":
            for name in node.names:
                if name.name in ("update", "insert", "delete", "exists", "text"):
                    yield f"line {node.lineno}: {name.name}"
        if isinstance(node, ast.Call) and _tables(node):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else None
            if method in ("select", "update", "insert", "delete") or _root(node) == "select":
                yield f"line {node.lineno}: {ast.unparse(node)}"


def _root(node: ast.expr) -> str | None:
    """Return the function that a chain of calls begins with."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _tables(node: ast.AST) -> set[str]:
    """Return the tables that a chain names, but for those in statements that are made well."""
    if isinstance(node, ast.Call) and _root(node) in MAKERS:
        return set()
    mine = {node.id} & TABLES if isinstance(node, ast.Name) else set()
    return mine.union(*map(_tables, ast.iter_child_nodes(node)))


def test_no_module_of_the_ledger_makes_a_statement_on_a_table_by_hand() -> None:
    found = [(str(path.relative_to(LEDGER)), one) for path in SOURCES for one in by_hand(path)]

    assert [(name, one) for name, one in found if BY_HAND.get(name, "\n") not in one] == []


@pytest.mark.parametrize(
    "source",
    [
        "select(runs)",
        "select(runs.c.run_id).where(runs.c.run_id == run_id)",
        "select(func.count()).select_from(runs)",
        "select(found.c.run_id).join(runs, runs.c.run_id == found.c.run_id)",
        "runs.update().values(state='failed')",
        "from sqlalchemy import update",
    ],
)
def test_what_is_made_by_hand_is_found(source: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(source, encoding="utf-8")

    assert list(by_hand(module))


@pytest.mark.parametrize(
    "statement",
    [
        select(runs),
        select(runs).where(runs.c.run_id == "r"),
        select(runs).where(or_(runs.c.tenant_id == "t", runs.c.run_id == "r")),
        select(runs).where(runs.c.tenant_id == runs.c.user_id),
        select(func.count()).select_from(runs.alias("child")),
        rows_of(runs).join(bars, bars.c.run_id == runs.c.run_id),
        rows_of(bars).where(select(runs).where(runs.c.run_id == bars.c.run_id).exists()),
        rows_of(bars).union(select(bars)),
        select(select(runs).cte("all").c.run_id),
        select(literal(1)).where(bars.c.step_id == "s"),
        update(runs).values(state="failed"),
        update(runs).where(runs.c.run_id.in_(select(bars.c.run_id))),
        insert(runs).values(run_id="r"),
        runs.delete(),
    ],
)
def test_the_guard_of_the_tests_sees_a_missing_tenant(statement: Any) -> None:
    assert unbound(statement)
    for _ in range(2):
        with pytest.raises(AssertionError, match="no tenant for"):
            before_execute(None, statement, [], {}, {})


def test_the_guard_judges_a_statement_by_what_comes_beside_it_each_time() -> None:
    for given, missing in (({"tenant_id": "t"}, False), ({"run_id": "r"}, True)) * 2:
        told = pytest.raises(AssertionError) if missing else nullcontext()
        with told:
            before_execute(None, insert(runs), [given], {}, {})


@pytest.mark.parametrize(
    "statement",
    [
        rows_of(runs, runs.c.seq, run_id="r"),
        rows_of(runs.alias("child"), parent_run_id="r"),
        rows_of(runs, func.count()).join(bars, ours(bars, run_id=runs.c.run_id)),
        rows_of(bars).where(rows_of(runs, run_id=bars.c.run_id).exists()),
        rows_of(bars).union(rows_of(bars)),
        select(rows_of(runs).cte("mine").c.run_id),
        select(literal(1)).where(rows_of(bars, run_id="r").exists()),
        select(runs).where(and_(runs.c.tenant_id == "t", runs.c.run_id == "r")),
        update_rows(runs, run_id="r").values(state="failed"),
        insert_row(runs, run_id="r"),
    ],
)
def test_what_statements_makes_names_its_tenant_everywhere(statement: Any) -> None:
    assert not unbound(statement)
    for _ in range(2):
        before_execute(None, statement, [], {}, {})


@pytest.mark.parametrize(
    "statement", [rows_of(bars), update_rows(bars).values(barred_ms=1), insert_row(bars, **BAR)]
)
def test_a_statement_of_a_tenant_runs_nowhere_but_in_a_transaction(statement: Any) -> None:
    # Without a pool: it ends with the block.
    with create_engine("sqlite://", poolclass=NullPool).connect() as connection:
        metadata.create_all(connection, [bars, runs])
        with pytest.raises(StatementError, match="of_tenant"):
            connection.execute(statement)


FOUND: Final = '{"dependencies": [{"name": "jinja2", "vulns": [{"id": "PYSEC-2014-8"}]}]}'
#: What it answers a mirror's user, who is told nothing of anything.
NOTHING: Final = '{"dependencies": [{"name": "jinja2", "skip_reason": "not found on PyPI"}]}'


@pytest.mark.parametrize(
    ("of_control", "of_lock", "advisories", "ends_with", "says"),
    [
        (FOUND, 0, "", 0, "Advisories of pypi"),
        (FOUND, 1, "", 1, "Advisories of pypi"),
        (NOTHING, 0, "", 0, "NOTHING WAS AUDITED"),
        (NOTHING, 0, "required", 1, "NOTHING WAS AUDITED"),
    ],
)
def test_a_service_that_misses_what_is_known_audits_nothing(
    tmp_path: Path, of_control: str, of_lock: int, advisories: str, ends_with: int, says: str
) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *requirements-runtime.lock*) exit {of_lock};; esac\n'
        f"echo '{of_control}'\n"
    )
    program.chmod(0o700)

    done = subprocess.run(
        [REPOSITORY / ".ci/audit", program],
        env={**os.environ, "ADVISORIES": advisories},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, says in done.stdout) == (ends_with, True), done.stdout
