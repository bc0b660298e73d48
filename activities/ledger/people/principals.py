"""Principals: who may decide and act, their public keys, and what was changed about them.

Only an administrator's role writes here; the claims and verdicts of workers read what holds *now*.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from operator import itemgetter
from typing import Annotated, Any, Final, Literal

from pydantic import PlainSerializer
from sqlalchemy import case
from sqlalchemy.exc import DBAPIError

from surehand.activities.ledger.core.statements import OfRow, rows_of, update_rows
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import (
    deputies,
    grants,
    principal_changes,
    principal_keys,
    principals,
)
from surehand.process.exits import WrongUse
from surehand.verify import Passkey
from surehand.workflows.plan.references import value_at

Kind = Literal["role", "permission"]


_Sorted = Annotated[frozenset[str], PlainSerializer(sorted, return_type=list[str])]


class PrincipalError(WrongUse):
    """A change of principals that cannot be made; the message says why."""


@dataclass(frozen=True)
class Principal:
    """One person or service, and what it may do now."""

    name: str
    roles: _Sorted = frozenset()
    permissions: _Sorted = frozenset()
    keys: tuple[str, ...] = ()
    """Key ids, oldest first; revoked ones are in the history only."""
    passkeys: tuple[str, ...] = ()
    """Those of the keys that are passkeys'."""


@dataclass(frozen=True)
class Key:
    """A public key of a principal."""

    kid: str
    principal: str
    public_key: Mapping[str, Any]
    revoked_ms: int | None = None
    passkey: Passkey | None = None
    """``None``: it signs JWS."""

    @property
    def revoked(self) -> bool:
        return self.revoked_ms is not None


def add_principal(tx: Transaction, name: str, actor: str) -> None:
    tx.take_turn("principals")
    if has_principal(tx, name):
        raise PrincipalError(f"there is a principal {name!r} already: use `principal grant`")
    tx.insert_row(principals, principal=name, added_ms=tx.now_ms)
    _note_change(tx, name, "added", "", actor)


def give_grant(tx: Transaction, name: str, kind: Kind, what: str, actor: str) -> bool:
    """Give a role or a permission; returns whether that changed anything."""
    _require_principal(tx, name)
    its = {"principal": name, "kind": kind, "name": what}
    row = tx.one(rows_of(grants, **its).with_for_update())
    if row is not None and row["revoked_ms"] is None:
        return False
    if row is None:
        tx.insert_row(grants, **its, granted_ms=tx.now_ms)
    else:
        tx.execute(update_rows(grants, **its).values(granted_ms=tx.now_ms, revoked_ms=None))
    _note_change(tx, name, f"{kind}_granted", what, actor)
    return True


def revoke_grant(tx: Transaction, name: str, kind: Kind, what: str, actor: str) -> bool:
    """Take a role or a permission away; returns whether that changed anything."""
    _require_principal(tx, name)
    live = update_rows(grants, principal=name, kind=kind, name=what, revoked_ms=None)
    touched = tx.execute(live.values(revoked_ms=tx.now_ms))
    if touched:
        _note_change(tx, name, f"{kind}_revoked", what, actor)
    return bool(touched)


def add_key(
    tx: Transaction,
    name: str,
    kid: str,
    public_key: Mapping[str, Any],
    actor: str,
    *,
    passkey: Passkey | None = None,
) -> bool:
    """Register a public key; returns whether that changed anything."""
    _require_principal(tx, name)
    known = find_key(tx, kid)
    if known is not None and known.principal != name:
        raise PrincipalError(f"key {kid} belongs to {known.principal!r}: one key, one person")
    if known is not None and known.revoked:
        raise PrincipalError(f"key {kid} was revoked: a revoked key never counts again")
    if known is not None and known.passkey != passkey:
        raise PrincipalError(f"key {kid} is registered as another kind of key, or otherwise")
    if known is not None:
        return False
    values = {
        "kid": kid,
        "principal": name,
        "public_key": dict(public_key),
        "passkey": None if passkey is None else asdict(passkey),
    }
    tx.insert_row(principal_keys, added_ms=tx.now_ms, **values)
    _note_change(tx, name, "key_added", kid, actor)
    return True


def revoke_key(tx: Transaction, name: str, kid: str, actor: str) -> bool:
    """Revoke a key: it never counts again. Returns whether that changed anything."""
    _require_principal(tx, name)
    known = find_key(tx, kid)
    if known is None or known.principal != name:
        raise PrincipalError(f"{name!r} has no key {kid}")
    live = update_rows(principal_keys, kid=kid, revoked_ms=None)
    touched = tx.execute(live.values(revoked_ms=tx.now_ms))
    if touched:
        _note_change(tx, name, "key_revoked", kid, actor)
    return bool(touched)


def find_key(tx: Transaction, kid: str) -> Key | None:
    row = tx.one(rows_of(principal_keys, kid=kid))
    if row is None:
        return None
    passkey = None if row["passkey"] is None else Passkey.of(row["passkey"])
    return Key(kid, row["principal"], row["public_key"], row["revoked_ms"], passkey)


def read_principals(tx: Transaction) -> list[Principal]:
    """Return everybody, by name."""
    names = tx.read_column(rows_of(principals, "principal").order_by(principals.c.principal))
    return [find_principal(tx, name) for name in names]


def find_principal(tx: Transaction, name: str) -> Principal:
    """Return what somebody may do now; a name that nobody has registered may do nothing."""
    held = tx.all(rows_of(grants, "kind", "name", principal=name, revoked_ms=None))
    live = rows_of(principal_keys, "kid", "passkey", "added_ms", principal=name, revoked_ms=None)
    keys = sorted(tx.all(live), key=itemgetter("added_ms", "kid"))
    return Principal(
        name,
        frozenset(row["name"] for row in held if row["kind"] == "role"),
        frozenset(row["name"] for row in held if row["kind"] == "permission"),
        tuple(row["kid"] for row in keys),
        tuple(row["kid"] for row in keys if row["passkey"]),
    )


def find_lacking(tx: Transaction, user: str, permissions: Collection[str]) -> str | None:
    """Return a permission that the user does not have now, or ``None``."""
    if not permissions:
        return None
    return min(set(permissions) - find_principal(tx, user).permissions, default=None)


def has_principal(tx: Transaction, name: str) -> bool:
    return tx.has(rows_of(principals, "principal", principal=name))


def _require_principal(tx: Transaction, name: str) -> None:
    tx.take_turn("principals")
    if not has_principal(tx, name):
        raise PrincipalError(f"there is no principal {name!r}: `principal add` makes one")


def _note_change(tx: Transaction, name: str, change: str, what: str, actor: str) -> None:
    tx.insert_row(
        principal_changes,
        change_id=uuid.uuid4().hex,
        principal=name,
        change=change,
        what=what,
        actor=actor,
        at_ms=tx.now_ms,
    )


@dataclass(frozen=True)
class Deputy(OfRow):
    """Somebody whose votes count in a principal's place."""

    deputy_id: str
    principal: str
    deputy: str
    tool: str | None
    """Only for calls of this tool."""
    amount_of: str | None
    """The param that is limited."""
    most: str | None
    """The most that it may be: a decimal as text."""
    until: datetime
    named_by: str
    revoked: bool


def name_deputy(
    tx: Transaction,
    principal: str,
    deputy: str,
    until: datetime,
    actor: str,
    *,
    tool: str | None = None,
    amount: tuple[str, str] | None = None,
) -> Deputy:
    """Let somebody's votes count in a principal's place, for a time."""
    _require_principal(tx, principal)
    if not has_principal(tx, deputy):
        raise PrincipalError(f"there is no principal {deputy!r}")
    if deputy == principal:
        raise PrincipalError(f"{deputy!r} cannot be a deputy of their own")
    amount_of, most = amount or (None, None)
    deputy_id = f"de-{uuid.uuid4().hex[:12]}"
    values = {
        "deputy_id": deputy_id,
        "principal": principal,
        "deputy": deputy,
        "tool": tool,
        "amount_of": amount_of,
        "most": most,
        "until_ms": int(until.timestamp() * 1000),
        "named_by": actor,
    }
    tx.insert_row(deputies, named_ms=tx.now_ms, **values)
    _note_change(tx, principal, "deputy_named", deputy_id, actor)
    return _read_deputy({**values, "revoked_ms": None})


def revoke_deputy(tx: Transaction, deputy_id: str, actor: str) -> tuple[Deputy, bool]:
    """Let a deputy's votes count no more; returns it, and whether that changed anything."""
    tx.take_turn("principals")
    row = tx.one(rows_of(deputies, deputy_id=deputy_id))
    if row is None:
        raise PrincipalError(f"there is no deputy {deputy_id!r}")
    live = update_rows(deputies, deputy_id=deputy_id, revoked_ms=None)
    changed = tx.execute(live.values(revoked_ms=tx.now_ms, revoked_by=actor))
    if changed:
        _note_change(tx, row["principal"], "deputy_revoked", deputy_id, actor)
    return _read_deputy({**row, "revoked_ms": tx.now_ms}), bool(changed)


def read_deputies(tx: Transaction) -> list[Deputy]:
    """Return all deputies, oldest first, also those of the past."""
    query = rows_of(deputies).order_by(deputies.c.named_ms, deputies.c.deputy_id)
    return [_read_deputy(row) for row in tx.all(query)]


def _read_deputy(row: Mapping[str, Any]) -> Deputy:
    until = datetime.fromtimestamp(row["until_ms"] / 1000, UTC)
    return Deputy.from_row(row, until=until, revoked=row["revoked_ms"] is not None)


def find_represented(
    tx: Transaction, deputy: str, call: Mapping[str, Any] | None = None
) -> list[str]:
    """Return in whose place somebody may vote now, by name.

    ``call`` is the row of a request, with its params; without it, at any call at all. A deputy of a
    deputy is not among them.
    """
    live = rows_of(deputies, deputy=deputy, revoked_ms=None)
    rows = tx.all(live.where(deputies.c.until_ms > tx.now_ms))
    return sorted({row["principal"] for row in rows if call is None or _covers(row, call)})


def find_voter(tx: Transaction, name: str) -> Principal:
    """Return what somebody may do now, with the roles of those whose deputy they are."""
    lent = [find_principal(tx, one).roles for one in find_represented(tx, name)]
    found = find_principal(tx, name)
    return replace(found, roles=found.roles.union(*lent))


def _covers(row: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Return whether a deputy may vote on a call: what cannot be read as an amount is too much."""
    if row["tool"] not in (None, call["tool"]):
        return False
    if row["amount_of"] is None:
        return True
    value = value_at(call["params"], row["amount_of"])
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    try:
        amount = Decimal(value)
    except InvalidOperation:
        return False
    return amount.is_finite() and 0 <= amount <= Decimal(row["most"])


#: PostgreSQL's SQLSTATE insufficient_privilege.
_DENIED: Final = "42501"


@contextmanager
def open_administration(ledger: Ledger, tenant: str) -> Iterator[Transaction]:
    """Open a transaction of an administrator's: all of it is written, or nothing."""
    try:
        with ledger.transaction(tenant) as tx:
            yield tx
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _DENIED:
            raise
        raise PrincipalError(
            f"permission denied: database role {ledger.engine.url.username!r} may not change"
            " principals, standing approvals, quotas, halts, keys of runs, epochs or a tenant's"
            " cell; name the role that owns the ledger's tables in SUREHAND_DATABASE_URL"
        ) from error


@dataclass(frozen=True)
class Change(OfRow):
    """One change of a principal; the rows are never rewritten."""

    principal: str
    change: str
    """``added``, ``role_granted``, ``permission_revoked``, ``key_added``, ..."""
    what: str
    """The role, permission or key id."""
    actor: str
    """Who made it, as they named themselves."""
    at: datetime


def read_changes(tx: Transaction, name: str | None = None) -> list[Change]:
    """Return the changes of everybody, or of one principal, oldest first."""
    columns = principal_changes.c
    query = rows_of(principal_changes)
    if name is not None:
        query = query.where(columns.principal == name)
    # Changes of one millisecond may be told in any order, only nobody is given anything before
    # being added.
    added_first = case((columns.change == "added", 0), else_=1)
    order = (columns.at_ms, added_first, columns.principal, columns.change, columns.what)
    return [
        Change.from_row(row, at=datetime.fromtimestamp(row["at_ms"] / 1000, UTC))
        for row in tx.all(query.order_by(*order))
    ]
