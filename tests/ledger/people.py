"""Principals as an administrator makes them: workers may only read who they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from activities.ledger import principals
from activities.ledger.principals import Kind
from activities.ledger.store import Transaction, open_ledger
from tests.ledger.scene import Scene
from tests.ledger_databases import OWNER

ADMINISTRATOR: Final = "root"
#: A public key of the right form that nobody has the private part of.
SOMEBODYS_KEY: Final = {
    "crv": "Ed25519",
    "kty": "OKP",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}


@asynccontextmanager
async def administration(scene: Scene) -> AsyncIterator[Transaction]:
    """Open a transaction of the role that owns the tables."""
    url = scene.ledger.engine.url
    if url.get_backend_name() == "postgresql":
        url = url.set(username=OWNER)
    text = url.render_as_string(hide_password=False)
    async with open_ledger(text) as ledger, ledger.transaction(scene.tenant) as tx:
        yield tx


async def person(scene: Scene, name: str, *roles: str, permissions: tuple[str, ...] = ()) -> str:
    """Register somebody and return the name."""
    granted: list[tuple[Kind, str]] = [("role", role) for role in roles]
    granted += [("permission", permission) for permission in permissions]
    async with administration(scene) as tx:
        await principals.add(tx, name, ADMINISTRATOR)
        for kind, what in granted:
            assert await principals.grant(tx, name, kind, what, ADMINISTRATOR)
    return name


async def revoked(scene: Scene, name: str, kind: Kind, what: str) -> None:
    """Take a role or a permission away."""
    async with administration(scene) as tx:
        assert await principals.revoke(tx, name, kind, what, ADMINISTRATOR)
