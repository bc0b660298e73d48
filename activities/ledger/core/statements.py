"""Statements on the ledger's tables, each bound to the tenant of the transaction that runs it.

The tenant is a parameter of the statement, which only a ``Transaction`` fills: nothing that is made
here reads or writes another one's rows, and nothing of it runs elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    FromClause,
    Insert,
    Select,
    String,
    Table,
    Update,
    and_,
    bindparam,
    insert,
    select,
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
    return select(*(columns or (table,))).select_from(table).where(ours(table, **equal))


def update_rows(table: Table, /, **equal: Any) -> Update:
    """Return the UPDATE of the tenant's rows whose columns are equal to that."""
    return update(table).where(ours(table, **equal))


def insert_row(table: Table, /, **values: Any) -> Insert:
    """Return the INSERT of a row of the tenant; values may also come when it is run."""
    return insert(table).values(tenant_id=OF_TENANT, **values)


def ours(table: FromClause, /, **equal: Any) -> ColumnElement[bool]:
    """Return the condition that rows are the tenant's, and equal to that: for a table joined."""
    return and_(table.c.tenant_id == OF_TENANT, *(table.c[k] == v for k, v in equal.items()))
