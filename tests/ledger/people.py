"""Principals as an administrator makes them: workers may only read who they are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from activities.ledger import principals
from activities.ledger.principals import Kind
from activities.ledger.store import Ledger, Transaction, open_ledger
from activities.public_keys import kid_of, public_key
from tests.ledger_databases import OWNER

ADMINISTRATOR: Final = "root"
#: A public key of the right form that nobody has the private part of.
SOMEBODYS_KEY: Final = {
    "crv": "Ed25519",
    "kty": "OKP",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}


class Place(Protocol):
    """A tenant's part of a ledger."""

    @property
    def ledger(self) -> Ledger:
        """The ledger, as workers see it."""

    @property
    def tenant(self) -> str:
        """Whose part."""


@asynccontextmanager
async def administration(scene: Place) -> AsyncIterator[Transaction]:
    """Open a transaction of the role that owns the tables."""
    url = scene.ledger.engine.url
    if url.get_backend_name() == "postgresql":
        url = url.set(username=OWNER)
    text = url.render_as_string(hide_password=False)
    async with open_ledger(text) as ledger, ledger.transaction(scene.tenant) as tx:
        yield tx


async def person(scene: Place, name: str, *roles: str, permissions: tuple[str, ...] = ()) -> str:
    """Register somebody and return the name."""
    granted: list[tuple[Kind, str]] = [("role", role) for role in roles]
    granted += [("permission", permission) for permission in permissions]
    async with administration(scene) as tx:
        await principals.add(tx, name, ADMINISTRATOR)
        for kind, what in granted:
            assert await principals.grant(tx, name, kind, what, ADMINISTRATOR)
    return name


async def revoked(scene: Place, name: str, kind: Kind, what: str) -> None:
    """Take a role or a permission away."""
    async with administration(scene) as tx:
        assert await principals.revoke(tx, name, kind, what, ADMINISTRATOR)


async def granted(scene: Place, name: str, permission: str) -> None:
    """Give a permission."""
    async with administration(scene) as tx:
        assert await principals.grant(tx, name, "permission", permission, ADMINISTRATOR)


async def key_of(scene: Place, name: str) -> Ed25519PrivateKey:
    """Register a new key of somebody who is registered, and return its private half."""
    private = Ed25519PrivateKey.generate()
    public = public_key(json.dumps(OKPKey.import_key(private.public_key()).as_dict()))
    async with administration(scene) as tx:
        assert await principals.add_key(tx, name, kid_of(public), public, ADMINISTRATOR)
    return private
