"""Fails a test whose statement reaches rows of the ledger without saying of which tenant."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Hashable, Iterator
from typing import Any, Final

from sqlalchemy import BindParameter, Delete, Insert, Select, Update
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, Grouping
from sqlalchemy.sql.selectable import Alias, FromClause, Join, TableClause

from surehand.activities.ledger.core.statements import as_sqlalchemy
from surehand.activities.ledger.core.tables import metadata

#: Statements that name their tenants, as SQLAlchemy tells their shapes apart: without values.
_BOUND: Final = set[Hashable]()


def before_execute(_connection: Any, statement: Any, many: Any, one: Any, _options: Any) -> None:
    """Check a statement that is about to be run; for SQLAlchemy's event of this name."""
    given = {name for row in ([one] if one else many) for name in row}
    shape = as_sqlalchemy(statement)._generate_cache_key()
    judged = None if shape is None else (shape.key, frozenset(given))
    if judged in _BOUND:
        return
    found = sorted(unbound(statement, given=given))
    if found:
        with warnings.catch_warnings():
            # SQLAlchemy, too, says of an insert that its key lacks the tenant.
            warnings.simplefilter("ignore")
            raise AssertionError(f"no tenant for {', '.join(found)} in: {statement}")
    if judged is not None:
        _BOUND.add(judged)


def unbound(
    statement: Any, bound: frozenset[FromClause] = frozenset(), given: set[str] = frozenset()
) -> set[str]:
    """Return the ledger's tables in a statement whose ``tenant_id`` it does not compare.

    Args:
        statement: The statement.
        bound: Tables around it whose ``tenant_id`` is compared there: a subquery may use them.
        given: Columns whose values come beside the statement.
    """
    found, statement = set[str](), as_sqlalchemy(statement)
    if isinstance(statement, Insert):
        rows = [dict(statement._values or {}), *itertools.chain(*statement._multi_values)]
        names = given | {str(getattr(name, "key", name)) for row in rows for name in row}
        if "tenant_id" not in names:
            found = {table.name for table in _ledgers(statement.table)}
    elif isinstance(statement, Select | Update | Delete):
        froms = statement.get_final_froms() if isinstance(statement, Select) else [statement.table]
        conditions = list(statement._where_criteria)
        conditions += [join.onclause for one in froms for join in _joins(one)]
        bound |= {table for one in conditions for table in _compared(one)}
        found = {table.name for one in froms for table in _ledgers(one) if table not in bound}
    for part in statement.get_children():
        found |= unbound(part, bound)
    return found


def _joins(source: FromClause) -> Iterator[Join]:
    return (one for one in visitors.iterate(source) if isinstance(one, Join))


def _ledgers(source: FromClause) -> Iterator[FromClause]:
    """Return the ledger's tables that a FROM names itself, not in a subquery."""
    if isinstance(source, Join):
        yield from (*_ledgers(source.left), *_ledgers(source.right))
    elif isinstance(source, TableClause) and source.name in metadata.tables:
        if "tenant_id" in source.c:  # else it is the whole ledger's
            yield source
    elif isinstance(source, Alias):
        yield from (source for _ in _ledgers(source.element))


def _compared(condition: Any) -> Iterator[FromClause]:
    """Return the tables whose ``tenant_id`` a condition holds to something, come what may."""
    if isinstance(condition, Grouping):
        yield from _compared(condition.element)
    elif isinstance(condition, BooleanClauseList) and condition.operator is operators.and_:
        for one in condition.clauses:
            yield from _compared(one)
    elif isinstance(condition, BinaryExpression) and condition.operator is operators.eq:
        column, value = condition.left, condition.right
        if isinstance(value, BindParameter) and getattr(column, "name", None) == "tenant_id":
            yield column.table
