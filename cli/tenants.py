"""``quota``, ``tenant`` and ``keys``: what an administrator says of tenants.

On PostgreSQL only the role that owns the ledger's tables may write any of it.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.quotas import TenantQuotas, change_limits, read_quotas
from surehand.activities.ledger.runs import keys as rows
from surehand.activities.ledger.runs.keys import add_tenant, cell_of_tenant, knows_tenant
from surehand.activities.run_keys import unwrap, wrap
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.options import Caller, administration, argument, ledger_of, option, read_settings
from surehand.cli.printer import Reply, Shape, Styled, Table, shown_time, table_or, time_of
from surehand.process.ciphers import KeyRing, add_to_file, new_key, read_key_ring
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.settings import KEYS, PREFIX, Cells, read_cells, routed
from surehand.workflows.contracts.base import Quota
from surehand.workflows.payload_codec import KeyUnavailable
from surehand.workflows.plain_text import counted


class TenantShown(Shape):
    """``tenant add`` and ``tenant show``: of which cell a tenant is."""

    tenant: str
    cell: str
    """As the file of cells has it."""
    in_ledger: str | None
    """As the ledger of that cell has it. Only where both are the same, the tenant's runs begin."""


class KeyEncryptionKeyShown(Shape):
    """A key-encryption key, and what it has wrapped in a tenant."""

    id: str
    wraps: bool
    """Whether new keys of runs are wrapped with it."""
    here: bool
    """Whether it is among those that are set here."""
    keys: int
    """Keys of runs that it has wrapped."""


class KeyList(Shape):
    """``keys list``."""

    keys: list[KeyEncryptionKeyShown]
    erased: int
    """Keys of runs that were erased."""


class KeysRotated(Shape):
    """``keys rotate``."""

    key: str
    rotated: int
    left: int
    """Those that changed meanwhile: rotate again."""


class KeyMade(Shape):
    """``keys new``."""

    id: str
    file: str
    keys: int
    """How many keys the file has now."""


#: In place of a number: as much as comes.
NONE: Final = "none"
#: What the ledger's columns take.
_MOST: Final = {
    Quota.OPEN_RUNS: 10**9,
    Quota.EFFECTS: 10**9,
    Quota.APPROVALS: 10**9,
    Quota.TOKENS: 10**18,
    Quota.MONEY: 9 * 10**9,
}
_MONEY: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def checked_limit(quota: Quota, given: str) -> int | str | None:
    """Return a limit as the ledger has it; ``None``: there is none."""
    if given == NONE:
        return None
    option = f"--{quota.replace('_', '-')} {given[:40]!r}"
    most, is_money = _MOST[quota], quota is Quota.MONEY
    if not (_MONEY if is_money else _NUMBER).fullmatch(given) or Decimal(given) > most:
        kind, example = ("decimal", ", such as 12.50") if is_money else ("whole number", "")
        raise WrongUse(f"{option}: use a {kind} of at most {most}{example}, or {NONE}")
    return given if is_money else int(given)


async def set_quota(
    caller: options.Actor,
    open_runs: Annotated[
        str | None, option("Runs that take steps at a time, or none.", metavar="N")
    ] = None,
    effects_per_hour: Annotated[
        str | None, option("Effects in a clock hour, or none.", metavar="N")
    ] = None,
    pending_approvals: Annotated[
        str | None, option("Requests that wait at a time, or none.", metavar="N")
    ] = None,
    tokens_per_day: Annotated[
        str | None, option("Tokens in a day of UTC, or none.", metavar="N")
    ] = None,
    money_per_day: Annotated[
        str | None, option("Money in a day of UTC, or none.", metavar="AMOUNT")
    ] = None,
    over: Annotated[
        Literal["queue", "reject"] | None, option("What is over waits (the default), or fails.")
    ] = None,
    weight: Annotated[
        float | None, option("Turns it has for each of another tenant, 0.001 to 1000.")
    ] = None,
) -> Reply:
    """Set what a tenant may use; what is not named stays as it is.

    Example: surehand quota set --tenant acme --open-runs 20 --effects-per-hour 500
    """
    given = {
        Quota.OPEN_RUNS: open_runs,
        Quota.EFFECTS: effects_per_hour,
        Quota.APPROVALS: pending_approvals,
        Quota.TOKENS: tokens_per_day,
        Quota.MONEY: money_per_day,
    }
    changes: dict[str, Any] = {
        quota.value: checked_limit(quota, text) for quota, text in given.items() if text is not None
    }
    if over is not None:
        changes["over"] = over
    if weight is not None:
        if not 0.001 <= weight <= 1000:
            raise WrongUse(f"--weight {weight:g}: use 0.001 to 1000")
        changes["weight"] = weight
    if not changes:
        raise WrongUse("nothing is set: name a quota, --over or --weight")
    async with administration(caller.tenant) as tx:
        change_limits(tx, caller.settings.user, **changes)
        now = read_quotas(tx)
    return _reply_quota(now)


async def show_quota(caller: options.Onlooker) -> Reply:
    """Show what a tenant may use, has used, and when that starts again; and how many runs wait.

    Example: surehand quota show --tenant acme
    """
    return _reply_quota(await caller.do_transaction(read_quotas))


def _reply_quota(now: TenantQuotas) -> Reply:
    rows = [
        [
            one.quota,
            "" if one.used is None else one.used,
            NONE if one.limit is None else one.limit,
            "" if one.until is None else shown_time(one.until),
        ]
        for one in now.uses
    ]
    limits = now.limits
    waits = {"queue": "waits", "reject": "is rejected"}[limits.over]
    lines: list[str | Styled | Table] = [
        Table(("quota", "used", "limit", "starts again"), rows),
        "",
        f"Tenant {now.tenant}: what is over {waits}; weight {limits.weight:g}",
        f"{counted(now.queued_runs, 'run')} in the queue",
    ]
    if limits.set_by is not None and limits.set_ms is not None:
        lines.append(f"Set by {limits.set_by}, {shown_time(time_of(limits.set_ms))}")
    return Reply(now, lines)


async def add(caller: options.Actor) -> Reply:
    """Say that a tenant is a new one, and of the cell that the file of cells names.

    In a cell nothing begins of a tenant that its ledger does not know: another ledger may know its
    keys. The ledgers of the other cells are asked, where the file of cells says where they are.

    Example: surehand tenant add --tenant acme
    """
    cells, cell = _find_cell(caller)
    added = await caller.do_transaction(cell_of_tenant) == cell
    others = [] if added else [name for name in cells.cells if name != cell]
    url = f"{PREFIX}DATABASE_URL"
    asked = [name for name in others if url in cells.settings_of(name, caller.environment)]
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


async def show(caller: options.Onlooker) -> Reply:
    """Show of which cell a tenant is, and what the ledger there says of it.

    Example: surehand tenant show --tenant acme
    """
    _, cell = _find_cell(caller)
    named = await caller.do_transaction(cell_of_tenant)
    said = "it is unknown: `tenant add` adds it" if named is None else f"it is of cell {named}"
    return Reply(
        TenantShown(tenant=caller.tenant, cell=cell, in_ledger=named),
        f"Tenant {caller.tenant} is of cell {cell}; the ledger there says: {said}",
    )


def _find_cell(caller: Caller) -> tuple[Cells, str]:
    """Return the file of cells, and the one that the caller's tenant is of."""
    file = caller.environment.get(f"{PREFIX}CELLS")
    if not file:
        raise WrongUse("there is one cell: SUREHAND_CELLS names no file")
    cells = read_cells(Path(file))
    return cells, cells.cell_of(caller.tenant)


#: Keys of runs that a rotation cannot read before it takes whatever has wrapped them for away.
MOST_LOST: Final = 5


def new(
    caller: options.Anybody,
    file: Annotated[Path, argument("FILE", "Made for you alone, or added to at its top.")],
    id_: Annotated[str, option("Its name, such as 2026-11.", "--id", metavar="ID")],
) -> Reply:
    """Make a key-encryption key: the first one of FILE, which wraps from then on.

    Example: surehand keys new keys --id 2026-11
    """
    there = add_to_file(file, new_key(id_))
    lines = [
        f"Key {id_} wraps from now on; {file} has {counted(there, 'key')}",
        f"Keep {file} to yourself, with a copy elsewhere: without it nobody reads the runs.",
    ]
    return Reply(KeyMade(id=id_, file=str(file), keys=there), lines)


async def list_keys(caller: options.Onlooker) -> Reply:
    """Show the key-encryption keys, and how many keys of the tenant's runs each has wrapped.

    Example: surehand keys list
    """
    ring = _require_ring(read_settings())
    found = await caller.do_transaction(rows.count_keys)
    wrapped = {one.kek_id: one.keys for one in found if one.kek_id is not None}
    shown = [
        KeyEncryptionKeyShown(
            id=id_, wraps=id_ == ring.first.id, here=id_ in ring.ids, keys=wrapped.get(id_, 0)
        )
        for id_ in dict.fromkeys([*ring.ids, *wrapped])
    ]
    erased = sum(one.keys for one in found if one.kek_id is None)
    table = [
        [one.id, "wraps" if one.wraps else "unwraps" if one.here else "not here", str(one.keys)]
        for one in shown
    ]
    lines = [*table_or(("key", "does", "keys of runs"), table, "No keys")]
    if erased:
        lines.append(f"{counted(erased, 'key')} of runs erased.")
    return Reply(KeyList(keys=shown, erased=erased), lines)


async def rotate(caller: options.Onlooker) -> Reply:
    """Wrap all keys of a tenant's runs again, with the first key-encryption key.

    Runs go on meanwhile, and nothing that they have sent is touched. It may be broken off, and done
    again.

    Example: surehand keys rotate
    """
    settings = read_settings()
    ring = _require_ring(settings)
    async with ledger_of(settings) as ledger:
        rotated, left = await _rewrap_keys(ledger, ring, caller.tenant)
    lines = [f"{counted(rotated, 'key')} of runs wrapped again, with {ring.first.id}."]
    if left:
        lines.append(f"{counted(left, 'key')} changed meanwhile: rotate again.")
    done = KeysRotated(key=ring.first.id, rotated=rotated, left=left)
    return Reply(done, lines)


async def _rewrap_keys(ledger: Ledger, ring: KeyRing, tenant: str) -> tuple[int, int]:
    rotated = left = 0
    lost: list[KeyUnavailable] = []
    after: str | None = None
    try:
        while page := await ledger.transact(
            tenant, rows.list_wrapped_otherwise, ring.first.id, after
        ):
            # Outside of a transaction: a key management service may take its time.
            fresh = []
            for old in page:
                try:
                    fresh.append((old, wrap(ring, old.run_id, unwrap(ring, old))))
                except KeyUnavailable as error:
                    lost.append(error)
                    if len(lost) == MOST_LOST:
                        raise
            with principals.open_administration(ledger, tenant) as tx:
                changed = rows.rewrap_keys(tx, fresh)
            rotated, left = rotated + changed, left + len(fresh) - changed
            after = page[-1].run_id
        if lost:
            raise lost[-1]
    except KeyUnavailable as error:
        raise NotReachable(
            f"{counted(len(lost), 'key')} of runs cannot be read, {rotated} wrapped again: {error}"
        ) from error
    return rotated, left


def _require_ring(settings: Settings) -> KeyRing:
    ring = read_key_ring(settings.key_encryption_keys.get_secret_value())
    if ring is None:
        raise WrongUse(f"{KEYS} is not set: nothing is encrypted")
    return ring
