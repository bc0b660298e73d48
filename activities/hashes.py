"""Hashes of params: what an approval is bound to, and what the calls of a business key share.

Where runs have keys, neither can be guessed once the run is erased.

- A params hash covers a salt that is made of the params by the run's key. So it is the same at
  each retry, and nobody makes it without the key. Approvers are shown it with the params.
- An identity hash is compared between runs. So it is keyed with a key of the tenant, and goes from
  the entry with the key of its run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from surehand.activities.ledger.core.sealed import KeyNeeded
from surehand.process.ciphers import RememberedKeys, RunKey
from surehand.workflows.identity import (
    identity_hash,
    params_hash,
    root_run_id,
    upkeep_id,
)

_KEYED: Final = "hmac:"


@dataclass(frozen=True)
class ParamsHash:
    """The hash of a call's params."""

    hash: str
    salt: str | None
    """What is hashed with them; ``None``: nothing is sealed."""


class Hashes:
    """Makes the hashes of a worker's calls."""

    def __init__(self, keys: RememberedKeys | None) -> None:
        """Make it; without keys nothing is salted."""
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

        Raises:
            NotCanonical: A number in them may have lost digits on its way.
            KeyNeeded: The run's key is not at hand.
        """
        plain = params_hash(tool, version, params, answers)
        if self._keys is None:
            return ParamsHash(plain, None)
        salt = self._key(root_run_id(run_id)).salt_of(plain.encode())
        return ParamsHash(params_hash(tool, version, params, answers, salt), salt)

    def of_identity(self, tenant: str, tool: str, params: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the hashes that an entry may be known by; a new one is written with the first.

        The last one is that of entries from before runs had keys.

        Raises:
            KeyNeeded: The tenant's key is not at hand.
        """
        plain = identity_hash(tool, params)
        if self._keys is None:
            return (plain,)
        key = self._key(root_run_id(upkeep_id(tenant, "")))
        return (_KEYED + key.digest_of(plain.removeprefix("sha256:")), plain)

    def _key(self, root: str) -> RunKey:
        assert self._keys is not None
        key = self._keys.known(root)
        if key is None:
            raise KeyNeeded([root], make=True)
        return key
