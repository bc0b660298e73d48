"""Principals as an administrator makes them: workers may only read who they are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import OKPKey

from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import Kind
from surehand.activities.ledger.steps.entries import ClaimRequest
from surehand.client.messages import claims_for, sign
from surehand.verify import kid_of, read_key_file, read_public_key
from surehand.workflows.contracts.approvals import Decision, DecisionOutcome
from tests.ledger_databases import OWNER
from tests.passkeys import Authenticator

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


#: Of a ledger that is open for many tests: the same one, as the role that owns its tables sees it.
OWNED: Final[dict[Ledger, Ledger]] = {}


@contextmanager
def owned(ledger: Ledger) -> Iterator[Ledger]:
    """Open a ledger for the role that owns its tables."""
    url = ledger.engine.url
    if url.get_backend_name() == "postgresql":
        url = url.set(username=OWNER)
    with closing(Ledger(make_engine(url.render_as_string(hide_password=False)))) as own:
        yield own


@contextmanager
def administration(scene: Place) -> Iterator[Transaction]:
    """Open a transaction of the role that owns the tables."""
    with ExitStack() as stack:
        own = OWNED.get(scene.ledger) or stack.enter_context(owned(scene.ledger))
        yield stack.enter_context(own.transaction(scene.tenant))


def person(scene: Place, name: str, *roles: str, permissions: tuple[str, ...] = ()) -> str:
    granted: list[tuple[Kind, str]] = [("role", role) for role in roles]
    granted += [("permission", permission) for permission in permissions]
    with administration(scene) as tx:
        principals.add_principal(tx, name, ADMINISTRATOR)
        for kind, what in granted:
            assert principals.give_grant(tx, name, kind, what, ADMINISTRATOR)
    return name


def revoked(scene: Place, name: str, kind: Kind, what: str) -> None:
    with administration(scene) as tx:
        assert principals.revoke_grant(tx, name, kind, what, ADMINISTRATOR)


def granted(scene: Place, name: str, permission: str) -> None:
    with administration(scene) as tx:
        assert principals.give_grant(tx, name, "permission", permission, ADMINISTRATOR)


def key_of(scene: Place, name: str) -> Ed25519PrivateKey:
    """Register a new key of somebody who is registered, and return its private half."""
    private = Ed25519PrivateKey.generate()
    public = read_public_key(json.dumps(OKPKey.import_key(private.public_key()).as_dict()))
    with administration(scene) as tx:
        assert principals.add_key(tx, name, kid_of(public), public, ADMINISTRATOR)
    return private


def signature(
    scene: Place,
    key: Ed25519PrivateKey,
    gated: ClaimRequest,
    *,
    edited: str | None = None,
    **changes: Any,
) -> str:
    """Sign a decision on a call's approval; ann's yes, unless it is said."""
    values = {
        "approval_id": gated.approval_id,
        "params_hash": gated.params_hash,
        "outcome": DecisionOutcome.APPROVE,
        "approver": "ann",
        **changes,
    }
    now = int(time.time())
    claims = claims_for(Decision(**values), scene.tenant, gated.run_id, now, edited=edited)
    return sign(key, claims)


def passkey_of(scene: Place, name: str, passkey: Authenticator | None = None) -> Authenticator:
    """Register a passkey of somebody who is registered, by the file that a page offers."""
    made = passkey or Authenticator()
    known = read_key_file(json.dumps(made.file))
    how = (name, known.kid, known.jwk, ADMINISTRATOR)
    with administration(scene) as tx:
        assert principals.add_key(tx, *how, passkey=known.passkey)
    return made
