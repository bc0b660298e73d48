"""Statements on the ledger's tables, each bound to the tenant of the transaction that runs it.

The tenant is a parameter of the statement, which only a ``Transaction`` fills: nothing that is made
here reads or writes another one's rows, and nothing of it runs elsewhere. A table without tenants
(``epochs``) is the whole ledger's.

A statement that names the run of its rows is marked with it: sealed cells are that run's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar, cast

from sqlalchemy import (
    BindParameter,
    ClauseElement,
    Column,
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

from surehand.activities.ledger.core.prepared import PreparedStatement

OF_TENANT: Final[BindParameter[str]] = bindparam("of_tenant", type_=String(80))


def rows_of(table: FromClause, /, *columns: Any, **equal: Any) -> Select[Any]:
    """Return the SELECT of the tenant's rows.

    Args:
        columns: What of them; all, if nothing is named.
        equal: What their columns have to be; ``None``: NULL.
    """
    return cast("Select[Any]", _Rows(table, columns, equal))


def update_rows(table: Table, /, **equal: Any) -> Update:
    """Return the UPDATE of the tenant's rows whose columns are equal to that."""
    return cast("Update", _Changes(table, equal, {}))


def delete_rows(table: Table, /, **equal: Any) -> Delete:
    """Return the DELETE of the tenant's rows whose columns are equal to that: retention's alone."""
    return delete(table).where(ours(table, **equal))


def insert_row(table: Table, /, **values: Any) -> Insert:
    """Return the INSERT of a row of the tenant; values may also come when it is run."""
    return cast("Insert", _NewRow(table, values))


@cache
def insert_rows(table: Table, columns: tuple[str, ...], count: int) -> PreparedStatement:
    """Return the INSERT of so many rows of the tenant, whose values come when it is run.

    The values of the first row are named as its columns with ``_0`` behind, and so on.
    """
    rows = [
        {
            "tenant_id": OF_TENANT,
            **{name: bindparam(f"{name}_{n}", type_=table.c[name].type) for name in columns},
        }
        for n in range(count)
    ]
    return PreparedStatement(insert(table).values(rows))


def ours(table: FromClause, /, **equal: Any) -> ColumnElement[bool]:
    """Return the condition that rows are the tenant's, and equal to that: for a table joined."""
    mine = [table.c.tenant_id == OF_TENANT] if "tenant_id" in table.c else []
    return and_(true(), *mine, *(table.c[k] == v for k, v in equal.items()))


class _Plain(ABC):
    """A statement that names columns and values, and nothing else.

    All that have the same shape are one ``PreparedStatement``: none is built anew for its values.
    Whatever more is said of it (``where``, ``returning``) makes it one of SQLAlchemy's.
    """

    #: What SQLAlchemy asks before it takes what `__clause_element__` returns.
    is_clause_element: Final = False

    @abstractmethod
    def __clause_element__(self) -> Any:
        """Return it as SQLAlchemy's."""

    @abstractmethod
    def prepared(self) -> tuple[PreparedStatement, dict[str, Any]] | None:
        """Return what is run, and its values; ``None``: it is no plain one."""

    def __getattr__(self, name: str) -> Any:
        """Return what SQLAlchemy's has by that name."""
        return getattr(self.__clause_element__(), name)


class _Rows(_Plain):
    def __init__(
        self,
        table: FromClause,
        columns: tuple[Any, ...],
        equal: dict[str, Any],
        *,
        locked: bool = False,
    ) -> None:
        self.table, self.columns, self.equal, self.locked = table, columns, equal, locked

    def with_for_update(self, **how: Any) -> Any:
        """Return the same under a lock of its rows."""
        if how:
            return self.__clause_element__().with_for_update(**how)
        return _Rows(self.table, self.columns, self.equal, locked=True)

    def __clause_element__(self) -> Select[Any]:
        chosen = select(*(self.columns or (self.table,))).select_from(self.table)
        chosen = _of_run(chosen.where(ours(self.table, **self.equal)), self.equal)
        return chosen.with_for_update() if self.locked else chosen

    def prepared(self) -> tuple[PreparedStatement, dict[str, Any]] | None:
        shape, values = _shape(self.equal)
        known = isinstance(self.table, Table) and all(isinstance(c, Column) for c in self.columns)
        if shape is None or not known:
            return None
        return _prepared_rows(self.table, self.columns, shape, self.locked), values


class _Changes(_Plain):
    def __init__(self, table: Table, equal: dict[str, Any], changed: dict[str, Any]) -> None:
        self.table, self.equal, self.changed = table, equal, changed

    def values(self, values: Mapping[str, Any] | None = None, **changed: Any) -> Any:
        """Return the same with values to be set."""
        return _Changes(self.table, self.equal, {**self.changed, **(values or {}), **changed})

    def __clause_element__(self) -> Update:
        made = _of_run(update(self.table).where(ours(self.table, **self.equal)), self.equal)
        return made.values(self.changed) if self.changed else made

    def prepared(self) -> tuple[PreparedStatement, dict[str, Any]] | None:
        shape, values = _shape(self.equal)
        if shape is None or not self.changed or not _are_plain(self.changed):
            return None
        return _prepared_changes(self.table, shape, tuple(self.changed)), {**values, **self.changed}


class _NewRow(_Plain):
    def __init__(self, table: Table, given: dict[str, Any]) -> None:
        self.table, self.given = table, given

    def __clause_element__(self) -> Insert:
        mine = {"tenant_id": OF_TENANT} if "tenant_id" in self.table.c else {}
        return _of_run(insert(self.table).values(**mine, **self.given), self.given)

    def prepared(self) -> tuple[PreparedStatement, dict[str, Any]] | None:
        if not self.given or not _are_plain(self.given):
            return None
        return _prepared_new_row(self.table, tuple(self.given)), self.given


def plain(statement: Any) -> tuple[PreparedStatement, dict[str, Any]] | None:
    """Return what a statement is run as, if it only names columns and values."""
    return statement.prepared() if isinstance(statement, _Plain) else None


def as_sqlalchemy(statement: Any) -> Any:
    """Return a statement as SQLAlchemy's own."""
    return statement.__clause_element__() if isinstance(statement, _Plain) else statement


_Shape = tuple[tuple[str, bool], ...]
_Made = TypeVar("_Made", Select[Any], Update, Insert)


def _of_run(made: _Made, given: Mapping[str, Any]) -> _Made:
    return made.execution_options(of_run=given["run_id"]) if "run_id" in given else made


def _are_plain(values: Mapping[str, Any]) -> bool:
    return not any(
        hasattr(value, "__clause_element__") or isinstance(value, ClauseElement)
        for value in values.values()
    )


def _shape(equal: Mapping[str, Any]) -> tuple[_Shape | None, dict[str, Any]]:
    """Return the columns of a condition, each with whether it is NULL, and the values by name."""
    if not _are_plain(equal):
        return None, {}
    shape = tuple((name, value is None) for name, value in equal.items())
    return shape, {f"of_{name}": value for name, value in equal.items() if value is not None}


def _bound(shape: _Shape) -> dict[str, Any]:
    return {name: None if is_null else bindparam(f"of_{name}") for name, is_null in shape}


@cache
def _prepared_rows(
    table: Table, columns: tuple[Any, ...], shape: _Shape, locked: bool
) -> PreparedStatement:
    made = _Rows(table, columns, _bound(shape), locked=locked)
    return PreparedStatement(made.__clause_element__())


@cache
def _prepared_changes(table: Table, shape: _Shape, columns: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_Changes(table, _bound(shape), {}).__clause_element__(), columns)


@cache
def _prepared_new_row(table: Table, columns: tuple[str, ...]) -> PreparedStatement:
    return PreparedStatement(_NewRow(table, {}).__clause_element__(), columns)
