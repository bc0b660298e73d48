"""The keys of runs, from the ledger, and the hashes of params that are made with them.

A key is unwrapped here, and kept in memory for a short time only. Where runs have keys, no hash can
be guessed once its run is erased.

- A params hash covers a salt that is made of the params by the run's key. So it is the same at
  each retry, and nobody makes it without the key. Approvers are shown it with the params.
- An identity hash is compared between runs. So it is keyed with a key of the tenant, and goes from
  the entry with the key of its run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from surehand.activities.ledger.core.sealed import KeyNeeded
from surehand.activities.ledger.core.store import Ledger, LedgerUnavailable
from surehand.activities.ledger.runs import keys as rows
from surehand.activities.ledger.runs.keys import KeyRow
from surehand.process import ciphers
from surehand.verify import shown_time
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.identity import identity_hash, owner_of, params_hash, root_run_id, upkeep_id
from surehand.workflows.payload_codec import KeyErased, KeyUnavailable, NotDecrypted

#: How long a process remembers a key that it has unwrapped: for so long after its key was erased,
#: a run may still be read by those who have read it just before.
REMEMBERED: Final = timedelta(seconds=60)
#: Keys that it remembers at most.
MOST: Final = 2000


@dataclass(eq=False)
class LedgerKeys:
    """The keys in one ledger, unwrapped by the key-encryption keys of this process."""

    ledger: Callable[[], Ledger]
    ring: ciphers.KeyRing
    clock: Callable[[], float] = time.monotonic
    _known: OrderedDict[str, tuple[float, ciphers.RunKey]] = field(default_factory=OrderedDict)

    @classmethod
    def of(cls, keys: str, ledger: Callable[[], Ledger]) -> LedgerKeys | None:
        """Return the keys that a setting opens; ``None``: it is empty, and nothing is encrypted."""
        ring = ciphers.read_key_ring(keys)
        return None if ring is None else cls(ledger, ring)

    async def key_of(self, root: str, *, make: bool) -> ciphers.RunKey:
        now = self.clock()
        while self._known and next(iter(self._known.values()))[0] <= now:
            self._known.popitem(last=False)
        # One that was slow to come is filed behind others that are remembered for longer.
        if (known := self.known(root)) is not None:
            return known
        key = await self._fetched(root, make=make)
        self._known[root] = (now + REMEMBERED.total_seconds(), key)
        self._known.move_to_end(root)  # two may have asked for it at once
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return key

    def known(self, root: str) -> ciphers.RunKey | None:
        """Return the key of a run, as ``RunKeys`` says; any thread may ask."""
        found = self._known.get(root)
        return None if found is None or found[0] <= self.clock() else found[1]

    async def _fetched(self, root: str, *, make: bool) -> ciphers.RunKey:
        tenant, ledger = owner_of(root), self.ledger()
        try:
            row = await ledger.transact(tenant, rows.find_key, root)
            if row is None and make:
                secret = secrets.token_bytes(ciphers.KEY_BYTES)
                new = await asyncio.to_thread(wrap, self.ring, root, secret)
                row = await ledger.transact(tenant, rows.add_key, root, new)
        except LedgerUnavailable as error:
            raise KeyUnavailable(f"the key of run {root[:200]!r}: {error}") from error
        if row is None:
            raise NotDecrypted(f"the ledger has no key of run {root[:200]!r}")
        return ciphers.RunKey.of(await asyncio.to_thread(unwrap, self.ring, row))


def wrap(ring: ciphers.KeyRing, root: str, key: bytes) -> ciphers.Wrapped:
    """Return a run's key, wrapped for this run alone. Raises ``KeyUnavailable``."""
    return ring.wrap(key, _about(root))


def unwrap(ring: ciphers.KeyRing, row: KeyRow) -> bytes:
    """Return a run's key. Raises ``KeyErased`` or ``KeyUnavailable``."""
    if row.wrapped is None:
        erased_at = shown_time((row.erased_ms or 0) // 1000)
        raise KeyErased(row.run_id, str(row.erased_by), erased_at)
    return ring.unwrap(ciphers.Wrapped(row.kek_id, row.wrapped), _about(row.run_id))


def _about(root: str) -> bytes:
    """Return what a key is bound to: a row that is copied to another run is worthless there."""
    return canonical_json(["surehand run key", owner_of(root), root])


_KEYED: Final = "hmac:"


@dataclass(frozen=True)
class ParamsHash:
    """The hash of a call's params."""

    hash: str
    salt: str | None
    """What is hashed with them; ``None``: nothing is sealed."""


class Hashes:
    """Makes the hashes of a worker's calls."""

    def __init__(self, keys: ciphers.RememberedKeys | None) -> None:
        self._keys = keys

    def of_params(
        self,
        run_id: str,
        tool: str,
        version: str,
        params: Mapping[str, Any],
        answers: Sequence[Any] = (),
    ) -> ParamsHash:
        """Return the hash that an approval is bound to.

        Raises ``NotCanonical`` or ``KeyNeeded``.
        """
        plain = params_hash(tool, version, params, answers)
        if self._keys is None:
            return ParamsHash(plain, None)
        salt = self._key(root_run_id(run_id)).salt_of(plain.encode())
        return ParamsHash(params_hash(tool, version, params, answers, salt), salt)

    def of_identity(self, tenant: str, tool: str, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the hashes that an entry may be known by; a new one is written with the first.

        The last one is that of entries from before runs had keys. Raises ``KeyNeeded``.
        """
        plain = identity_hash(tool, params)
        if self._keys is None:
            return (plain,)
        key = self._key(root_run_id(upkeep_id(tenant, "")))
        return (_KEYED + key.digest_of(plain.removeprefix("sha256:")), plain)

    def _key(self, root: str) -> ciphers.RunKey:
        assert self._keys is not None
        key = self._keys.known(root)
        if key is None:
            raise KeyNeeded([root], make=True)
        return key
