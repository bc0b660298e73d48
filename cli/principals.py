"""``principal``: who may decide and act, and the public keys that they sign with.

An administrator's verbs: on PostgreSQL only the role that owns the ledger's tables may change
principals. Each verb is one transaction, all of it or nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import (
    Change,
    Kind,
    Principal,
    read_changes,
    read_principals,
)
from surehand.activities.ledger.people.signatures import BadKey, PublicKey, read_key_file
from surehand.cli import options
from surehand.cli.ledger_door import administration, ledger_of, read_settings
from surehand.cli.printer import Reply, shown_time, table_or
from surehand.cli.shapes import Shape
from surehand.client.messages import new_key
from surehand.process.exits import NotFound, WrongUse
from surehand.workflows.contracts.base import LONGEST_NAME
from surehand.workflows.plain_text import plain
from surehand.workflows.plan.policy import ROLE_FORM


class PrincipalShown(Shape):
    """A principal, and what counts for them now."""

    name: str
    roles: list[str]
    permissions: list[str]
    keys: list[str]
    """Key ids, oldest first; revoked ones are in the history only."""
    passkeys: list[str] = []
    """Those of them that are passkeys'."""


class PrincipalList(Shape):
    """``principal list``."""

    principals: list[PrincipalShown]


class PrincipalPart(Shape):
    """One thing that a change of a principal was about."""

    kind: Literal["principal", "role", "permission", "key"]
    what: str
    """A name, or a key id."""
    changed: bool
    """False: it was so already."""


class PrincipalChanged(Shape):
    """``principal add``, ``grant``, ``revoke`` and ``key``: all of it is written."""

    principal: PrincipalShown
    """As it is now."""
    parts: list[PrincipalPart]


class PrincipalHistory(Shape):
    """``principal list --history``, oldest first."""

    changes: list[Change]


class NewKey(Shape):
    """``principal keygen``."""

    kid: str
    private_key: str
    """The file that its owner keeps."""
    public_key: str
    """The file that an administrator registers."""
    register_command: str
    """The command that does it."""


#: In place of a file's name: the key comes from stdin.
STDIN: Final = "-"
#: Bytes; a public key has about 120, a grant 1500.
_LARGEST_FILE: Final = 16_384


def checked_name(name: str) -> str:
    """Return a principal's name, unless somebody could take it for another one."""
    normal = unicodedata.normalize("NFC", name)
    if not 1 <= len(name) <= LONGEST_NAME:
        why = f"a name has 1 to {LONGEST_NAME} characters"
    elif name.strip() != name:
        why = "a name has no blanks before or after it"
    elif plain(name) != name:
        why = "a name has no control characters, nor others that cannot be seen"
    elif normal != name:
        why = f"a name is NFC-normalised, use this spelling of it: {normal!r}"
    else:
        return name
    raise WrongUse(f"principal {name[:40]!r}: {why}")


def checked_grants(
    roles: Sequence[str] | None, permissions: Sequence[str] | None
) -> list[tuple[Kind, str]]:
    """Return roles and permissions, each once."""
    wanted: list[tuple[Kind, str]] = [("role", role) for role in roles or ()]
    wanted += [("permission", permission) for permission in permissions or ()]
    for kind, what in wanted:
        if not re.fullmatch(ROLE_FORM, what):
            raise WrongUse(
                f"{kind} {what[:40]!r}: use 1 to 80 letters, digits, '_', '.', ':' and '-'"
            )
    return list(dict.fromkeys(wanted))


def read_small(file: Path, what: str) -> bytes:
    """Return the content of a small file, or of stdin."""
    try:
        with open(0 if str(file) == STDIN else file, "rb", closefd=str(file) != STDIN) as source:
            content = source.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise WrongUse(f"{what} {file}: {error.strerror}") from error
    if len(content) > _LARGEST_FILE:
        raise WrongUse(f"{what} {file}: it is too large for one")
    return content


def read_public_key(file: Path) -> PublicKey:
    """Return the public key in a file, or on stdin."""
    content = read_small(file, "public key")
    try:
        return read_key_file(content.decode())
    except UnicodeDecodeError as error:
        raise WrongUse(f"public key {file}: it is neither PEM nor a JWK") from error
    except BadKey as error:
        raise WrongUse(f"public key {file}: {error}") from error


def shown(one: Principal) -> PrincipalShown:
    """Return a principal as a document."""
    return PrincipalShown(
        name=one.name,
        roles=sorted(one.roles),
        permissions=sorted(one.permissions),
        keys=list(one.keys),
        passkeys=list(one.passkeys),
    )


def _changed(
    now: PrincipalShown, parts: Sequence[PrincipalPart], done: str, unchanged: str
) -> Reply:
    """Return what became of each part, once the transaction is committed."""
    lines = []
    for part in parts:
        thing = part.kind if part.kind == "principal" else f"{part.kind} {part.what}"
        said = f"{thing} {done}" if part.changed else f"{unchanged.format(thing)}: nothing changed"
        lines.append(f"{now.name}: {said}")
    return Reply(PrincipalChanged(principal=now, parts=list(parts)), lines)


Name = Annotated[str, typer.Argument(metavar="NAME", help="As they name themselves with --as.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="What policies ask for."),
]
Permissions = Annotated[
    list[str] | None,
    typer.Option("--permission", metavar="PERMISSION", help="What tools need."),
]


async def add(
    caller: options.Actor,
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="FILE.pub",
            help="Their public key: PEM, JWK, or a passkey's file; - is stdin.",
        ),
    ] = None,
) -> Reply:
    """Add a principal, with what they may do and their public key.

    Example: python starter.py principal add ana --role finance --key ana.pem.pub
    """
    checked_name(name)
    wanted = checked_grants(role, permission)
    registered = None if key is None else read_public_key(key)
    actor = caller.settings.user
    async with administration(caller.tenant) as tx:
        principals.add_principal(tx, name, actor)
        parts = [PrincipalPart(kind="principal", what=name, changed=True)]
        parts += _granted(tx, name, wanted, actor)
        if registered is not None:
            parts.append(_registered(tx, name, registered, actor))
        now = _now(tx, name)
    return _changed(now, parts, "added", "has {} already")


async def grant(
    caller: options.Actor,
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
) -> Reply:
    """Give roles and permissions; what they have already stays as it is.

    Example: python starter.py principal grant ana --permission refunds.make
    """
    checked_name(name)
    wanted = checked_grants(role, permission)
    if not wanted:
        raise WrongUse("nothing is granted: name a --role or a --permission")
    async with administration(caller.tenant) as tx:
        parts = _granted(tx, name, wanted, caller.settings.user)
        now = _now(tx, name)
    return _changed(now, parts, "granted", "has {} already")


async def revoke(
    caller: options.Actor,
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KID", help="A key id; it never counts again."),
    ] = None,
) -> Reply:
    """Take roles, permissions and keys away; claims and decisions see it from then on.

    Example: python starter.py principal revoke ana --role finance
    """
    checked_name(name)
    wanted, kids = checked_grants(role, permission), list(dict.fromkeys(key or ()))
    if not wanted and not kids:
        raise WrongUse("nothing is revoked: name a --role, a --permission or a --key")
    actor, parts = caller.settings.user, []
    async with administration(caller.tenant) as tx:
        for kind, what in wanted:
            changed = principals.revoke_grant(tx, name, kind, what, actor)
            parts.append(PrincipalPart(kind=kind, what=what, changed=changed))
        for kid in kids:
            changed = principals.revoke_key(tx, name, kid, actor)
            parts.append(PrincipalPart(kind="key", what=kid, changed=changed))
        now = _now(tx, name)
    return _changed(now, parts, "revoked", "no {} to revoke")


async def key(
    caller: options.Actor,
    name: Name,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.pub", help="A public key: PEM, JWK, or a passkey's file; - is stdin."
        ),
    ],
) -> Reply:
    """Register one more public key of a principal.

    Example: python starter.py principal key ana ana.pem.pub
    """
    checked_name(name)
    registered = read_public_key(file)
    async with administration(caller.tenant) as tx:
        part = _registered(tx, name, registered, caller.settings.user)
        now = _now(tx, name)
    return _changed(now, [part], "registered", "has {} already")


async def list_principals(
    caller: options.Onlooker,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this one; default all.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="What was changed, by whom and when.")
    ] = False,
) -> Reply:
    """Show principals: roles, permissions and ids of the keys that count now.

    Example: python starter.py principal list ana --history
    """
    if name is not None:
        checked_name(name)
    async with ledger_of(read_settings()) as ledger:
        with ledger.transaction(caller.tenant) as tx:
            everybody = read_principals(tx)
            past = read_changes(tx, name) if history else []
    found = [shown(one) for one in everybody if name in (None, one.name)]
    if name is not None and not found:
        raise NotFound(f"there is no principal {name!r}")
    if history:
        rows = [
            [shown_time(one.at), one.principal, one.change, one.what, one.actor] for one in past
        ]
        columns: Sequence[str] = ("at", "principal", "change", "what", "by")
        return Reply(PrincipalHistory(changes=past), table_or(columns, rows, "No changes"))
    rows = [
        [one.name, *(", ".join(held) for held in (one.roles, one.permissions, _keys(one)))]
        for one in found
    ]
    columns = ("principal", "roles", "permissions", "keys")
    nothing = f"No principals: {caller.settings.command('principal', 'add', 'NAME')}"
    return Reply(PrincipalList(principals=found), table_or(columns, rows, nothing))


def keygen(
    caller: options.Actor,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub is the public one.")
    ],
) -> Reply:
    """Make your key pair: FILE, for you alone, and FILE.pub, which an administrator registers.

    Example: python starter.py principal keygen ana.pem --as ana
    """
    owner = checked_name(caller.settings.user)
    kid = new_key(file)
    public = f"{file}.pub"
    register = caller.settings.command("principal", "key", owner, public)
    return Reply(
        NewKey(kid=kid, private_key=str(file), public_key=public, register_command=register),
        [
            f"Key {kid}: keep {file} to yourself",
            f"An administrator registers {public}:",
            f"  {register}",
        ],
    )


def _keys(one: PrincipalShown) -> list[str]:
    return [f"{kid} (passkey)" if kid in one.passkeys else kid for kid in one.keys]


def _granted(
    tx: Transaction, name: str, wanted: Sequence[tuple[Kind, str]], actor: str
) -> list[PrincipalPart]:

    return [
        PrincipalPart(
            kind=kind, what=what, changed=principals.give_grant(tx, name, kind, what, actor)
        )
        for kind, what in wanted
    ]


def _registered(tx: Transaction, name: str, registered: PublicKey, actor: str) -> PrincipalPart:

    kid, passkey = registered.kid, registered.passkey
    changed = principals.add_key(tx, name, kid, registered.jwk, actor, passkey=passkey)
    return PrincipalPart(kind="key", what=kid, changed=changed)


def _now(tx: Transaction, name: str) -> PrincipalShown:

    return shown(principals.find_principals(tx, [name])[name])
