"""All rows of a tenant from one ledger into another one, in one transaction there.

Nothing changes meanwhile in the first one, because the tenant is gone from it. In the second one
all of it is there at once, with the row that lets the tenant's runs begin; or nothing of it is.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Table, tuple_

from surehand.activities.ledger.core.schema import metadata
from surehand.activities.ledger.core.sealed import as_stored
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import effects, epochs, runs, tenants
from surehand.activities.ledger.history.audit import verify_chain
from surehand.activities.ledger.history.reads import chain_of
from surehand.activities.ledger.people.principals import PrincipalError, administration
from surehand.activities.ledger.retention.hiding import is_deleted
from surehand.activities.ledger.steps.entries import continue_numbers
from surehand.activities.ledger.tenants.moves import arrive, hold, residence_of, settle

#: Rows that are read and written at once.
_PAGE: Final = 200
#: What is copied, in an order in which each row's references are there before it.
COPIED: Final = tuple(
    as_stored(table)  # Nobody needs the keys of runs for it.
    for table in metadata.sorted_tables
    if table is not tenants and table is not epochs
)
#: Epochs are counted by each ledger: one that opens in the second one doubts all that was copied.
_OF_NO_EPOCH: Final = {effects.name: {"epoch": 0}}


class CopyDiffers(Exception):
    """What the second ledger has is not what the first one has: nothing of it was committed."""


@dataclass
class Contents:
    """How many rows each table has of a tenant, and what they come to."""

    rows: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    """Of the rows' digests: the same in whatever order they are read."""

    def take(self, table: Table, rows: list[dict[str, Any]]) -> None:
        """Count rows in."""
        for row in rows:
            text = json.dumps(row, sort_keys=True, default=_as_text).encode()
            self.rows[table.name] += 1
            self.sums[table.name] += int.from_bytes(hashlib.sha256(text).digest())


def copy(
    source: Ledger, target: Ledger, tenant: str, cells: tuple[str, str], actor: str
) -> Counter[str]:
    """Have the second ledger know all that the first one knows of a tenant, and let it run there.

    Done again after it was done, it copies nothing.

    Args:
        source: Which the tenant is gone from.
        target: Which gets it.
        tenant: Whose rows.
        cells: The names of both.
        actor: Who has it done.

    Returns:
        The number of rows by table; nothing, if they were there already.

    Raises:
        PrincipalError: The target has rows of this tenant that nobody has copied from there.
        CopyDiffers: What was written is not what was read.
    """
    read, (came_from, cell) = Contents(), cells
    with administration(target, tenant) as tx:
        hold(tx)
        if has_arrived(tx, *cells):
            return read.rows
        arrive(tx, cell, actor)
        for table in COPIED:
            with source.transaction(tenant) as reading:
                for page in pages(reading, table):
                    read.take(table, page)
                    tx.insert_new(table, *page)
        _compare(tx, read)
        _verify(tx)
        continue_numbers(tx)
        settle(tx, cell, actor, came_from=came_from)
    return read.rows


def has_arrived(tx: Transaction, came_from: str, cell: str) -> bool:
    """Return whether a tenant was copied into this ledger already.

    Raises:
        PrincipalError: It cannot be: the ledger has a history of its own of this tenant.
    """
    found = residence_of(tx)
    if found is not None and found.state != "here":
        raise PrincipalError(
            f"tenant {tx.tenant} has left cell {cell} once: a tenant does not come back to a"
            " ledger that it has left"
        )
    if found is not None and found.came_from == came_from:
        return True
    for table in COPIED:
        if tx.one(rows_of(table).limit(1)) is not None:
            raise PrincipalError(
                f"cell {cell} has rows of tenant {tx.tenant} in {table.name} that nobody has"
                f" copied from {came_from}: two histories cannot become one"
            )
    return False


def pages(tx: Transaction, table: Table) -> Iterator[list[dict[str, Any]]]:
    """Yield a tenant's rows of a table by its key, some at a time, without the tenant."""
    key = [column for column in table.primary_key if column.name != "tenant_id"]
    after: tuple[Any, ...] | None = None
    while True:
        query = rows_of(table).order_by(*key).limit(_PAGE)
        if after is not None:
            query = query.where(tuple_(*key) > tuple_(*after))
        found = [
            {name: value for name, value in row.items() if name != "tenant_id"}
            | _OF_NO_EPOCH.get(table.name, {})
            for row in tx.all(query)
        ]
        if found:
            yield found
        if len(found) < _PAGE or not key:
            return
        after = tuple(found[-1][column.name] for column in key)


def _compare(tx: Transaction, read: Contents) -> None:
    here = Contents()
    for table in COPIED:
        for page in pages(tx, table):
            here.take(table, page)
        name = table.name
        if (here.rows[name], here.sums[name]) != (read.rows[name], read.sums[name]):
            raise CopyDiffers(
                f"{name}: {read.rows[name]} rows were read and {here.rows[name]} are there, or"
                " they differ; nothing was kept"
            )


def _verify(tx: Transaction) -> None:
    # Of what was deleted there is no chain any more, only where it ended.
    for run in tx.all(rows_of(runs, runs.c.run_id).where(~is_deleted())):
        events, _, head = chain_of(tx, run["run_id"])
        broken = verify_chain(events, [head])
        if broken is not None:
            raise CopyDiffers(f"run {run['run_id']}: {broken}; nothing was kept")


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
