"""No statement of the ledger reaches another tenant's rows: none is made but by ``statements``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import and_, create_engine, func, insert, literal, or_, select, update
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import NullPool

from surehand.activities.ledger.core.statements import insert_row, ours, rows_of, update_rows
from surehand.activities.ledger.core.tables import bars, metadata, runs
from tests.tenant_guard import before_execute, unbound

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
    "core/standbys.py": "text",  # what a server says of its standbys
    "core/tables.py": "text",  # conditions of indexes
    "core/people_tables.py": "text",
    "core/tenant_tables.py": "text",
    # ON CONFLICT is a dialect's own; the tenant is a value of each row.
    "core/transaction.py": "dialect.insert(table)",
    "steps/attempts.py": ".insert(steps)",
    "quotas/usage.py": ".insert(quota_usage)",
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
