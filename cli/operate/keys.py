"""``keys``: key-encryption keys, with which the keys of runs are wrapped.

An administrator's verbs: on PostgreSQL only the role that owns the ledger's tables may wrap keys
anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from surehand.cli.verb import options
from surehand.cli.verb.ledger_door import ledger_of, read_settings
from surehand.cli.verb.printer import Reply, table_or
from surehand.cli.verb.shapes import KeyEncryptionKeyShown, KeyList, KeyMade, KeysRotated
from surehand.cli.verb.text import counted
from surehand.process.exits import NotReachable, WrongUse
from surehand.process.settings import KEYS
from surehand.workflows.encryption import KeyUnavailable

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Ledger
    from surehand.activities.worker.settings import Settings
    from surehand.process.ciphers import KeyRing

#: Keys of runs that a rotation cannot read before it takes whatever has wrapped them for away.
MOST_LOST: Final = 5


def new(
    caller: options.Anybody,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Made for you alone, or added to at its top.")
    ],
    id_: Annotated[str, typer.Option("--id", metavar="ID", help="Its name, such as 2026-11.")],
) -> Reply:
    """Make a key-encryption key: the first one of FILE, which wraps from then on.

    Example: python starter.py keys new keys --id 2026-11
    """
    from surehand.process.ciphers import add_to_file, new_key

    there = add_to_file(file, new_key(id_))
    lines = [
        f"Key {id_} wraps from now on; {file} has {counted(there, 'key')}",
        f"Keep {file} to yourself, with a copy elsewhere: without it nobody reads the runs.",
    ]
    return Reply(KeyMade(id=id_, file=str(file), keys=there), lines)


async def list_keys(caller: options.Onlooker) -> Reply:
    """Show the key-encryption keys, and how many keys of the tenant's runs each has wrapped.

    Example: python starter.py keys list
    """
    from surehand.activities.ledger.runs import keys as rows

    settings = read_settings()
    ring = _ring(settings)
    async with ledger_of(settings) as ledger:
        found = await ledger.transact(caller.tenant, rows.counts)
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
    """Wrap all keys of a tenant's runs anew, with the first key-encryption key.

    Runs go on meanwhile, and nothing that they have sent is touched. It may be broken off, and done
    again.

    Example: python starter.py keys rotate
    """
    settings = read_settings()
    ring = _ring(settings)
    async with ledger_of(settings) as ledger:
        rotated, left = await _rotated(ledger, ring, caller.tenant)
    lines = [f"{counted(rotated, 'key')} of runs wrapped anew, with {ring.first.id}."]
    if left:
        lines.append(f"{counted(left, 'key')} changed meanwhile: rotate again.")
    done = KeysRotated(key=ring.first.id, rotated=rotated, left=left)
    return Reply(done, lines)


async def _rotated(ledger: Ledger, ring: KeyRing, tenant: str) -> tuple[int, int]:
    from surehand.activities.ledger.people.principals import PrincipalError, administration
    from surehand.activities.ledger.runs import keys as rows
    from surehand.activities.run_keys import unwrap, wrap

    rotated = left = 0
    lost: list[KeyUnavailable] = []
    after: str | None = None
    try:
        while page := await ledger.transact(tenant, rows.wrapped_otherwise, ring.first.id, after):
            # Outside of a transaction: a key management service may take its time.
            fresh = []
            for old in page:
                try:
                    fresh.append((old, wrap(ring, old.run_id, unwrap(ring, old))))
                except KeyUnavailable as error:
                    lost.append(error)
                    if len(lost) == MOST_LOST:
                        raise
            with administration(ledger, tenant) as tx:
                changed = rows.wrap_all_anew(tx, fresh)
            rotated, left = rotated + changed, left + len(fresh) - changed
            after = page[-1].run_id
        if lost:
            raise lost[-1]
    except PrincipalError as error:
        raise WrongUse(str(error)) from error
    except KeyUnavailable as error:
        raise NotReachable(
            f"{counted(len(lost), 'key')} of runs cannot be read, {rotated} wrapped anew: {error}"
        ) from error
    return rotated, left


def _ring(settings: Settings) -> KeyRing:
    from surehand.process.ciphers import read_key_ring

    ring = read_key_ring(settings.key_encryption_keys.get_secret_value())
    if ring is None:
        raise WrongUse(f"{KEYS} is not set: nothing is encrypted")
    return ring
