"""``principal``: who may decide and act, and the public keys that they sign with.

An administrator's verbs: on PostgreSQL only the role that owns the ledger's tables may change
principals. Each verb is one transaction, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform, perform_sync
from cli.exits import ExitCode, NotFound, WrongUse
from cli.ledger_door import administration, ledger_of, read_settings
from cli.principal_input import checked_grants, checked_name, read_public_key
from cli.principal_output import show_all, show_history, shown, tell
from cli.shapes import NewKey, PrincipalChange, PrincipalPart, PrincipalShown
from cli.signing import new_key
from cli.text import command
from workflows.identity import DEFAULT_TENANT

if TYPE_CHECKING:
    from activities.ledger.principals import Kind
    from activities.ledger.store import Transaction

ADD_EXAMPLE: Final = "Example: python starter.py principal add ana --role finance --key ana.pem.pub"
GRANT_EXAMPLE: Final = "Example: python starter.py principal grant ana --permission refunds.make"
REVOKE_EXAMPLE: Final = "Example: python starter.py principal revoke ana --role finance"
KEY_EXAMPLE: Final = "Example: python starter.py principal key ana ana.pem.pub"
LIST_EXAMPLE: Final = "Example: python starter.py principal list ana --history"
KEYGEN_EXAMPLE: Final = "Example: python starter.py principal keygen ana.pem --as ana"

Name = Annotated[str, typer.Argument(metavar="NAME", help="As they name themselves with --as.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="What policies ask for; may be repeated."),
]
Permissions = Annotated[
    list[str] | None,
    typer.Option("--permission", metavar="PERMISSION", help="What tools need; may be repeated."),
]


def add(
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE.pub", help="Their public key, PEM or JWK; - is stdin."),
    ] = None,
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Add a principal, with what they may do and their public key."""

    async def verb(caller: Caller) -> int:
        from activities.ledger import principals

        checked_name(name)
        wanted = checked_grants(role, permission)
        registered = None if key is None else read_public_key(key)
        actor = caller.settings.user
        async with administration(caller.settings.tenant) as tx:
            await principals.add(tx, name, actor)
            parts = [PrincipalPart(kind="principal", what=name, changed=True)]
            parts += await _granted(tx, name, wanted, actor)
            if registered is not None:
                parts.append(await _registered(tx, name, registered, actor))
            now = await _now(tx, name)
        return tell(caller, now, parts, "added", "has {} already")

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


def grant(
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Give roles and permissions; what they have already stays as it is."""

    async def verb(caller: Caller) -> int:
        checked_name(name)
        wanted = checked_grants(role, permission)
        if not wanted:
            raise WrongUse("nothing is granted: name a --role or a --permission")
        async with administration(caller.settings.tenant) as tx:
            parts = await _granted(tx, name, wanted, caller.settings.user)
            now = await _now(tx, name)
        return tell(caller, now, parts, "granted", "has {} already")

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


def revoke(
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KID", help="A key id; it never counts again. May be repeated."
        ),
    ] = None,
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Take roles, permissions and keys away; claims and decisions see it from then on."""

    async def verb(caller: Caller) -> int:
        from activities.ledger import principals

        checked_name(name)
        wanted, kids = checked_grants(role, permission), list(dict.fromkeys(key or ()))
        if not wanted and not kids:
            raise WrongUse("nothing is revoked: name a --role, a --permission or a --key")
        actor, parts = caller.settings.user, []
        async with administration(caller.settings.tenant) as tx:
            for kind, what in wanted:
                changed = await principals.revoke(tx, name, kind, what, actor)
                parts.append(PrincipalPart(kind=kind, what=what, changed=changed))
            for kid in kids:
                changed = await principals.revoke_key(tx, name, kid, actor)
                parts.append(PrincipalPart(kind="key", what=kid, changed=changed))
            now = await _now(tx, name)
        return tell(caller, now, parts, "revoked", "no {} to revoke")

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


def key(
    name: Name,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.pub", help="A public key, PEM or JWK; - is stdin.")
    ],
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Register one more public key of a principal."""

    async def verb(caller: Caller) -> int:
        checked_name(name)
        registered = read_public_key(file)
        async with administration(caller.settings.tenant) as tx:
            part = await _registered(tx, name, registered, caller.settings.user)
            now = await _now(tx, name)
        return tell(caller, now, [part], "registered", "has {} already")

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


def list_principals(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this one; default all.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="What was changed, by whom and when.")
    ] = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Show principals: roles, permissions and ids of the keys that count now."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.principal_history import changes
        from activities.ledger.principals import all_principals

        if name is not None:
            checked_name(name)
        async with (
            ledger_of(read_settings()) as ledger,
            ledger.transaction(caller.settings.tenant) as tx,
        ):
            everybody = await all_principals(tx)
            past = await changes(tx, name) if history else []
        found = [shown(one) for one in everybody if name in (None, one.name)]
        if name is not None and not found:
            raise NotFound(f"there is no principal {name!r}")
        if history:
            show_history(caller, [PrincipalChange.model_validate(vars(one)) for one in past])
        else:
            show_all(caller, found)
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


def keygen(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The private key; FILE.pub is the public one.")
    ],
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Make your key pair: FILE, for you alone, and FILE.pub, which an administrator registers."""

    def verb(caller: Caller) -> int:
        owner = checked_name(caller.settings.user)
        kid = new_key(file)
        public = f"{file}.pub"
        register = command("principal", "key", owner, public, *_tenant(caller.settings.tenant))
        if json_output:
            made = NewKey(
                kid=kid, private_key=str(file), public_key=public, register_command=register
            )
            caller.printer.document(made)
        caller.printer.say(f"Key {kid}: keep {file} to yourself")
        caller.printer.say(f"An administrator registers {public}:")
        caller.printer.say(f"  {register}")
        return ExitCode.DONE

    return perform_sync(verb, json_output=json_output, tenant=tenant, user=user)


async def _granted(
    tx: Transaction, name: str, wanted: Sequence[tuple[Kind, str]], actor: str
) -> list[PrincipalPart]:
    from activities.ledger import principals

    return [
        PrincipalPart(
            kind=kind, what=what, changed=await principals.grant(tx, name, kind, what, actor)
        )
        for kind, what in wanted
    ]


async def _registered(
    tx: Transaction, name: str, registered: tuple[str, dict[str, str]], actor: str
) -> PrincipalPart:
    from activities.ledger import principals

    kid, jwk = registered
    changed = await principals.add_key(tx, name, kid, jwk, actor)
    return PrincipalPart(kind="key", what=kid, changed=changed)


async def _now(tx: Transaction, name: str) -> PrincipalShown:
    from activities.ledger import principals

    return shown((await principals.find(tx, [name]))[name])


def _tenant(tenant: str) -> tuple[str, ...]:
    return () if tenant == DEFAULT_TENANT else ("--tenant", tenant)
