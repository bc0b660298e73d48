"""``tenant``: of which cell a tenant is.

To add one is an administrator's, as ``principal`` is: on PostgreSQL only the role that owns a
ledger's tables may.
"""

from __future__ import annotations

from pathlib import Path

from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import administration, ledger_of, read_settings
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.shapes import TenantShown
from surehand.process.exits import WrongUse
from surehand.process.settings import PREFIX, Cells, CellsError, read_cells, routed


async def add(caller: options.Actor) -> Reply:
    """Say that a tenant is a new one, and of the cell that the file of cells names.

    In a cell nothing begins of a tenant that its ledger does not know: another ledger may know its
    keys. The ledgers of the other cells are asked, where the file of cells says where they are.

    Example: python starter.py tenant add --tenant acme
    """
    from surehand.activities.ledger.runs.tenant_cell import add_tenant, cell_of_tenant, knows_tenant

    cells, cell = _cells(caller)
    async with ledger_of(read_settings()) as ledger:
        added = await ledger.transact(caller.tenant, cell_of_tenant) == cell
    others = [] if added else [name for name in cells.cells if name != cell]
    asked = [name for name in others if _says_ledger(caller, cells, name)]
    for name in asked:
        with routed(cell=name):
            settings = read_settings()
        async with ledger_of(settings) as ledger:
            if await ledger.transact(caller.tenant, knows_tenant):
                raise WrongUse(
                    f"tenant {caller.tenant} is no new one: the ledger of cell {name} knows it"
                )
    async with administration(caller.tenant) as tx:
        add_tenant(tx, cell, caller.settings.user)
    lines = [f"Tenant {caller.tenant} is of cell {cell} ({cells.file})"]
    unasked = [name for name in others if name not in asked]
    if unasked:
        lines.append(
            f"Not asked, because nothing says where their ledgers are: {', '.join(unasked)}"
        )
    return Reply(TenantShown(tenant=caller.tenant, cell=cell, in_ledger=cell), lines)


def _says_ledger(caller: Caller, cells: Cells, name: str) -> bool:
    return f"{PREFIX}DATABASE_URL" in cells.settings_of(name, caller.environment)


async def show(caller: options.Onlooker) -> Reply:
    """Show of which cell a tenant is, and what the ledger there says of it.

    Example: python starter.py tenant show --tenant acme
    """
    from surehand.activities.ledger.runs.tenant_cell import cell_of_tenant

    _, cell = _cells(caller)
    async with ledger_of(read_settings()) as ledger:
        named = await ledger.transact(caller.tenant, cell_of_tenant)
    said = "it is unknown: `tenant add` adds it" if named is None else f"it is of cell {named}"
    return Reply(
        TenantShown(tenant=caller.tenant, cell=cell, in_ledger=named),
        f"Tenant {caller.tenant} is of cell {cell}; the ledger there says: {said}",
    )


def _cells(caller: Caller) -> tuple[Cells, str]:
    """Return the file of cells, and the one that the caller's tenant is of.

    Raises:
        WrongUse: There are no cells, or none of the tenant's.
    """
    file = caller.environment.get(f"{PREFIX}CELLS")
    if not file:
        raise WrongUse("there is one cell: SUREHAND_CELLS names no file")
    try:
        cells = read_cells(Path(file))
        return cells, cells.cell_of(caller.tenant)
    except CellsError as error:
        raise WrongUse(str(error)) from error
