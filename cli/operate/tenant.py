"""``tenant``: of which cell a tenant is, and its move to another one.

All of it is an administrator's, as ``principal`` is: on PostgreSQL only the role that owns a
ledger's tables may. Each part of a move can be done again: whoever is killed in it calls it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from temporalio.service import RPCError, RPCStatusCode

from surehand.cli.operate.maintenance import schedule_of
from surehand.cli.verb import options
from surehand.cli.verb.caller import Caller
from surehand.cli.verb.ledger_door import administration, ledger_of, read_settings
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.shapes import TenantMoved, TenantShown
from surehand.cli.verb.text import counted
from surehand.client.connection import Connection
from surehand.process.cells import Cells, CellsError, assign, read_cells, routed
from surehand.process.exits import ExitCode, SurehandError, WrongUse
from surehand.process.settings import ClientSettings
from surehand.process.sources import PREFIX

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Ledger

#: Open runs that are named.
_TOLD: Final = 5


async def add(caller: options.Actor) -> Reply:
    """Say that a tenant is a new one, and of the cell that the file of cells names.

    In a cell nothing begins of a tenant that its ledger does not know: another ledger may know its
    keys. The ledgers of the other cells are asked, where the file of cells says where they are.

    Example: python starter.py tenant add --tenant acme
    """
    from surehand.activities.ledger.tenants import moves

    cells, cell = _cells(caller)
    asked = [name for name in cells.cells if name != cell and _says_ledger(caller, cells, name)]
    for name in asked:
        async with _ledger_of_cell(name) as ledger:
            if await ledger.transact(caller.tenant, moves.is_known):
                raise WrongUse(
                    f"tenant {caller.tenant} is no new one: the ledger of cell {name} knows it;"
                    f" move it: {caller.settings.command('tenant', 'move', '--to', cell)}"
                )
    async with administration(caller.tenant) as tx:
        moves.settle(tx, cell, caller.settings.user)
    lines = [f"Tenant {caller.tenant} is of cell {cell} ({cells.file})"]
    unasked = [name for name in cells.cells if name not in (cell, *asked)]
    if unasked:
        lines.append(
            f"Not asked, because nothing says where their ledgers are: {', '.join(unasked)}"
        )
    return Reply(TenantShown(tenant=caller.tenant, cell=cell, state="here", known=True), lines)


def _says_ledger(caller: Caller, cells: Cells, name: str) -> bool:
    return f"{PREFIX}DATABASE_URL" in cells.settings_of(name, caller.environment)


async def show(caller: options.Onlooker) -> Reply:
    """Show of which cell a tenant is, and what the ledger there says of it.

    Example: python starter.py tenant show --tenant acme
    """
    from surehand.activities.ledger.tenants import moves

    _, cell = _cells(caller)
    async with ledger_of(read_settings()) as ledger:
        with ledger.transaction(caller.tenant) as tx:
            found, known = moves.residence_of(tx), moves.is_known(tx)
    state = None if found is None else found.state
    said: str = state or ("known by its runs" if known else "unknown: `tenant add` makes it known")
    if found is not None and found.state != "here":
        said += f", for cell {found.cell}"
    return Reply(
        TenantShown(tenant=caller.tenant, cell=cell, state=state, known=known),
        f"Tenant {caller.tenant} is of cell {cell}; the ledger there: {said}",
    )


async def move(
    caller: options.Actor,
    to: Annotated[str, typer.Option("--to", metavar="CELL", help="Where its runs begin then.")],
    artifacts_copied: Annotated[
        bool,
        typer.Option(
            "--artifacts-copied",
            help="The cells have two artifact stores, and you have copied what is the tenant's.",
        ),
    ] = False,
) -> Reply:
    """Move a tenant to another cell, with all that its ledger knows; call it until it is done.

    From the first call on none of its runs begins. Once those under way have ended, nothing of it
    changes any more where it was, its rows are copied, and the file of cells names the other cell.
    Moved to the cell that it is of, a tenant that leaves stays.

    Example: python starter.py tenant move --tenant acme --to west
    """
    cells, cell = _cells(caller)
    with _wrong_use():
        cells.require(to)
    if to == cell:
        return await _stay(caller, cell)
    _require_one_store(to, copied=artifacts_copied)
    await _require_place(caller, cell, to)
    await _leave(caller, to)
    under_way = await _go(caller)
    if under_way:
        report = TenantMoved(tenant=caller.tenant, cell=cell, to=to, under_way=under_way, rows={})
        lines = [f"Tenant {caller.tenant} leaves cell {cell}: no run of it begins.", *under_way]
        again = caller.settings.command("tenant", "move", "--to", to)
        return Reply(report, [*lines, f"Then again: {again}"], ExitCode.HUMAN_NEEDED)
    schedule = await _without_schedule(await caller.connection(silent=True), caller.settings)
    rows = await _copy(caller, cell, to)
    with _wrong_use():
        assign(cells, caller.tenant, to)
    report = TenantMoved(tenant=caller.tenant, cell=to, to=to, under_way=[], rows=dict(rows))
    copied = f"{counted(rows.total(), 'row')} copied and compared" if rows else "it was there"
    lines = [f"Tenant {caller.tenant} is of cell {to} now: {copied}; {cells.file} says so"]
    if schedule:
        every = caller.settings.command("reconcile", "--every", "60s")
        lines.append(f"Its schedule is gone with cell {cell}: {every}")
    return Reply(report, lines)


async def _stay(caller: Caller, cell: str) -> Reply:
    from surehand.activities.ledger.tenants import moves

    async with administration(caller.tenant) as tx:
        stayed = moves.stay(tx, cell, caller.settings.user)
    said = "stays in" if stayed else "is of"
    report = TenantMoved(tenant=caller.tenant, cell=cell, to=cell, under_way=[], rows={})
    return Reply(report, f"Tenant {caller.tenant} {said} cell {cell}")


def _require_one_store(to: str, *, copied: bool) -> None:
    here = read_settings().artifacts
    with routed(cell=to):
        there = read_settings().artifacts
    if here != there and not copied:
        raise WrongUse(
            f"large values lie in {here}, and cell {to} looks for them in {there}"
            " (SUREHAND_ARTIFACTS): copy those of the tenant, then say so by --artifacts-copied"
        )


async def _require_place(caller: Caller, cell: str, to: str) -> None:
    """See that the other ledger can take the tenant, before it leaves this one."""
    from surehand.activities.ledger.tenants import copies

    with routed(cell=to):
        async with administration(caller.tenant) as tx:
            copies.has_arrived(tx, cell, to)


async def _leave(caller: Caller, to: str) -> None:
    from surehand.activities.ledger.tenants import moves

    async with administration(caller.tenant) as tx:
        moves.leave(tx, to, caller.settings.user)


async def _go(caller: Caller) -> list[str]:
    """Let nothing of the tenant change any more; returns what is under way instead."""
    from surehand.activities.ledger.tenants import moves

    connection = await caller.connection(silent=True)
    # One that the server has and the ledger has not, is refused when it is opened: this only tells.
    open_runs = [
        f"run {run.id} is open"
        async for run in connection.listed("ExecutionStatus = 'Running'", limit=_TOLD)
    ]
    async with administration(caller.tenant) as tx:
        found = moves.residence_of(tx)
        if open_runs and (found is None or found.state != "gone"):
            return open_runs
        return moves.go(tx, caller.settings.user)


async def _without_schedule(connection: Connection, settings: ClientSettings) -> bool:
    """Delete the tenant's schedule, whose rounds the ledger would refuse; says whether it was."""
    name = schedule_of(settings.tenant)
    with connection.translated(""):
        try:
            await connection.client.get_schedule_handle(name).delete()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
    return True


async def _copy(caller: Caller, cell: str, to: str) -> Counter[str]:
    from surehand.activities.ledger.people.principals import PrincipalError
    from surehand.activities.ledger.tenants import copies

    async with ledger_of(read_settings()) as source, _ledger_of_cell(to) as target:
        try:
            return copies.copy(source, target, caller.tenant, (cell, to), caller.settings.user)
        except PrincipalError as error:
            raise WrongUse(str(error)) from error
        except copies.CopyDiffers as error:
            raise SurehandError(
                f"the copy is not the same: {error}", code=ExitCode.BROKEN
            ) from error


@asynccontextmanager
async def _ledger_of_cell(cell: str) -> AsyncIterator[Ledger]:
    with routed(cell=cell):
        settings = read_settings()
    async with ledger_of(settings) as ledger:
        yield ledger


def _cells(caller: Caller) -> tuple[Cells, str]:
    """Return the file of cells, and the one that the caller's tenant is of.

    Raises:
        WrongUse: There are no cells, or none of the tenant's.
    """
    file = caller.environment.get(f"{PREFIX}CELLS")
    if not file:
        raise WrongUse("there is one cell: SUREHAND_CELLS names no file")
    with _wrong_use():
        cells = read_cells(Path(file))
        return cells, cells.cell_of(caller.tenant)


@contextmanager
def _wrong_use() -> Iterator[None]:
    try:
        yield
    except CellsError as error:
        raise WrongUse(str(error)) from error
