"""Statements on the ledger's tables, each bound to the tenant of the transaction that runs it.

The tenant is a parameter of the statement, which only a ``Transaction`` fills: nothing that is made
here reads or writes another one's rows, and nothing of it runs elsewhere. A table without tenants
(``epochs``) is the whole ledger's.

A statement that names the run of its rows is marked with it: sealed cells are that run's.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    Select,
    String,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    insert,
    select,
    true,
    update,
)

OF_TENANT: Final[BindParameter[str]] = bindparam("of_tenant", type_=String(80))


def rows_of(table: FromClause, /, *columns: Any, **equal: Any) -> Select[Any]:
    """Return the SELECT of the tenant's rows.

    Args:
        table: Where they lie.
        columns: What of them; all, if nothing is named.
        equal: What their columns have to be; ``None``: NULL.
    """
    chosen = select(*(columns or (table,))).select_from(table).where(ours(table, **equal))
    return chosen.execution_options(of_run=equal["run_id"]) if "run_id" in equal else chosen


def update_rows(table: Table, /, **equal: Any) -> Update:
    """Return the UPDATE of the tenant's rows whose columns are equal to that."""
    changed = update(table).where(ours(table, **equal))
    return changed.execution_options(of_run=equal["run_id"]) if "run_id" in equal else changed


def delete_rows(table: Table, /, **equal: Any) -> Delete:
    """Return the DELETE of the tenant's rows whose columns are equal to that: retention's alone."""
    return delete(table).where(ours(table, **equal))


def insert_row(table: Table, /, **values: Any) -> Insert:
    """Return the INSERT of a row of the tenant; values may also come when it is run."""
    mine = {"tenant_id": OF_TENANT} if "tenant_id" in table.c else {}
    made = insert(table).values(**mine, **values)
    return made.execution_options(of_run=values["run_id"]) if "run_id" in values else made


def ours(table: FromClause, /, **equal: Any) -> ColumnElement[bool]:
    """Return the condition that rows are the tenant's, and equal to that: for a table joined."""
    mine = [table.c.tenant_id == OF_TENANT] if "tenant_id" in table.c else []
    return and_(true(), *mine, *(table.c[k] == v for k, v in equal.items()))
