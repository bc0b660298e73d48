"""Who may decide: ``principal``, people with roles and keys; ``standing``, votes given in advance.

Verbs of an administrator: on PostgreSQL only the role that owns the ledger's tables may write. Each
is one transaction, all of it or nothing. A granter who is no administrator prints a signed grant.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import ValidationError

from surehand.activities.effects.prepare import scope_problem
from surehand.activities.ledger.approvals import standing as standing_rows
from surehand.activities.ledger.approvals.standing import Listed
from surehand.activities.ledger.people import principals
from surehand.activities.ledger.people.principals import Change, Deputy, Kind, Principal
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.options import Caller, administration, argument, flag, option, read_settings
from surehand.cli.printer import Reply, Shape, shown_time, table_or, time_of
from surehand.cli.tools import named_tools
from surehand.client.messages import fresh_claims, new_key, read_key, sign
from surehand.process.exits import ExitCode, NotFound, WrongUse
from surehand.verify import BadKey, PublicKey, read_key_file
from surehand.workflows.contracts.approvals import (
    CHAT,
    DECIMAL_FORM,
    LONGEST_REASON,
    LONGEST_STANDING,
    MOST_USES,
    PATH_FORM,
    Scope,
    StandingClaims,
    StandingGrant,
)
from surehand.workflows.contracts.base import LONGEST_NAME
from surehand.workflows.plain_text import plain, reasons
from surehand.workflows.plan.policy import ROLE_FORM, parse_duration


class PrincipalList(Shape):
    """``principal list``."""

    principals: list[Principal]


class PrincipalPart(Shape):
    """One thing that a change of a principal was about."""

    kind: Literal["principal", "role", "permission", "key"]
    what: str
    """A name, or a key id."""
    changed: bool
    """False: it was so already."""


class PrincipalChanged(Shape):
    """``principal add``, ``grant`` and ``revoke``: all of it is written."""

    principal: Principal
    """As it is now."""
    parts: list[PrincipalPart]


class PrincipalHistory(Shape):
    """``principal list --history``, oldest first."""

    changes: list[Change]


class DeputyList(Shape):
    """``principal deputies``, oldest first."""

    deputies: list[Deputy]


class DeputyChanged(Shape):
    """``principal name-deputy`` and ``revoke-deputy``."""

    deputy: Deputy
    changed: bool
    """False: it was revoked already."""


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


def check_name(name: str) -> str:
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


def parse_grants(
    roles: Sequence[str] | None, permissions: Sequence[str] | None
) -> list[tuple[Kind, str]]:
    wanted: list[tuple[Kind, str]] = [("role", role) for role in roles or ()]
    wanted += [("permission", permission) for permission in permissions or ()]
    for kind, what in wanted:
        if not re.fullmatch(ROLE_FORM, what):
            raise WrongUse(
                f"{kind} {what[:40]!r}: use 1 to 80 letters, digits, '_', '.', ':' and '-'"
            )
    return list(dict.fromkeys(wanted))


def read_small(file: Path, what: str) -> bytes:
    try:
        with open(0 if str(file) == STDIN else file, "rb", closefd=str(file) != STDIN) as source:
            content = source.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise WrongUse(f"{what} {file}: {error.strerror}") from error
    if len(content) > _LARGEST_FILE:
        raise WrongUse(f"{what} {file}: it is too large for one")
    return content


def read_public_key(file: Path) -> PublicKey:
    content = read_small(file, "public key")
    try:
        return read_key_file(content.decode())
    except UnicodeDecodeError as error:
        raise WrongUse(f"public key {file}: it is neither PEM nor a JWK") from error
    except BadKey as error:
        raise WrongUse(f"public key {file}: {error}") from error


def _reply_changed(
    now: Principal, parts: Sequence[PrincipalPart], done: str, unchanged: str
) -> Reply:
    lines = []
    for part in parts:
        thing = part.kind if part.kind == "principal" else f"{part.kind} {part.what}"
        said = f"{thing} {done}" if part.changed else f"{unchanged.format(thing)}: nothing changed"
        lines.append(f"{now.name}: {said}")
    return Reply(PrincipalChanged(principal=now, parts=list(parts)), lines)


Name = Annotated[str, argument("NAME", "As they name themselves with --as.")]
Roles = Annotated[list[str] | None, option("What policies ask for.", metavar="ROLE")]
Permissions = Annotated[list[str] | None, option("What tools need.", metavar="PERMISSION")]
PublicKeyFile = Annotated[
    Path | None,
    option(
        "A public key of theirs: PEM, JWK, or a passkey's file; - is stdin.", metavar="FILE.pub"
    ),
]


async def add_principal(
    caller: options.Actor,
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: PublicKeyFile = None,
) -> Reply:
    """Add a principal, with what they may do and their public key.

    Example: surehand principal add ana --role finance --key ana.pem.pub
    """
    return await _give_all(caller, name, role, permission, key, new=True)


async def grant_principal(
    caller: options.Actor,
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: PublicKeyFile = None,
) -> Reply:
    """Give roles, permissions and one more public key; what they have already stays as it is.

    Example: surehand principal grant ana --permission refunds.make
    """
    if not (role or permission or key):
        raise WrongUse("nothing is granted: name a --role, a --permission or a --key")
    return await _give_all(caller, name, role, permission, key, new=False)


async def _give_all(
    caller: Caller,
    name: str,
    roles: list[str] | None,
    permissions: list[str] | None,
    file: Path | None,
    *,
    new: bool,
) -> Reply:
    check_name(name)
    wanted, actor = parse_grants(roles, permissions), caller.settings.user
    if name == CHAT and wanted:
        raise WrongUse(f"{CHAT} signs presses, and nothing else: it has no roles or permissions")
    key = None if file is None else read_public_key(file)
    parts = list[PrincipalPart]()
    async with administration(caller.tenant) as tx:
        if new:
            principals.add_principal(tx, name, actor)
            parts.append(PrincipalPart(kind="principal", what=name, changed=True))
        for kind, what in wanted:
            changed = principals.give_grant(tx, name, kind, what, actor)
            parts.append(PrincipalPart(kind=kind, what=what, changed=changed))
        if key is not None:
            changed = principals.add_key(tx, name, key.kid, key.jwk, actor, passkey=key.passkey)
            parts.append(PrincipalPart(kind="key", what=key.kid, changed=changed))
        now = principals.find_principal(tx, name)
    return _reply_changed(now, parts, "added" if new else "granted", "has {} already")


async def revoke_principal(
    caller: options.Actor,
    name: Name,
    role: Roles = None,
    permission: Permissions = None,
    key: Annotated[
        list[str] | None, option("A key id; it never counts again.", metavar="KID")
    ] = None,
) -> Reply:
    """Take roles, permissions and keys away; claims and decisions see it from then on.

    Example: surehand principal revoke ana --role finance
    """
    check_name(name)
    wanted, kids = parse_grants(role, permission), list(dict.fromkeys(key or ()))
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
        now = principals.find_principal(tx, name)
    return _reply_changed(now, parts, "revoked", "no {} to revoke")


async def list_principals(
    caller: options.Onlooker,
    name: Annotated[str | None, argument("NAME", "Only this one; default all.")] = None,
    history: Annotated[bool, flag("What was changed, by whom and when.")] = False,
) -> Reply:
    """Show principals: roles, permissions and ids of the keys that count now.

    Example: surehand principal list ana --history
    """
    if name is not None:
        check_name(name)
    known = await caller.do_transaction(principals.read_principals)
    found = [one for one in known if name in (None, one.name)]
    if name is not None and not found:
        raise NotFound(
            f"there is no principal {name!r}; all: `{caller.settings.command('principal', 'list')}`"
        )
    if history:
        past = await caller.do_transaction(principals.read_changes, name)
        rows = [[shown_time(c.at), c.principal, c.change, c.what, c.actor] for c in past]
        columns: Sequence[str] = ("at", "principal", "change", "what", "by")
        return Reply(PrincipalHistory(changes=past), table_or(columns, rows, "No changes"))
    rows = [
        [one.name, *(", ".join(sorted(held)) for held in (one.roles, one.permissions)), _keys(one)]
        for one in found
    ]
    columns = ("principal", "roles", "permissions", "keys")
    nothing = f"No principals: {caller.settings.command('principal', 'add', 'NAME')}"
    return Reply(PrincipalList(principals=found), table_or(columns, rows, nothing))


async def name_deputy(
    caller: options.Actor,
    name: Name,
    deputy: Annotated[str, option("Whose votes count in that one's place.", metavar="NAME")],
    until: Annotated[str, option("Until when: 14d, or a time.", metavar="T")],
    tool: Annotated[list[str] | None, option("Only calls of this tool.", metavar="TOOL")] = None,
    most: Annotated[
        str | None, option("Only calls whose param is at most that.", metavar="PARAM=N")
    ] = None,
) -> Reply:
    """Let somebody vote in a principal's place, for a time. Both names are kept.

    Example: surehand principal name-deputy ana --deputy bob --until 14d --most amount=500
    """
    check_name(name)
    check_name(deputy)
    end, actor = parse_until(until, datetime.now(UTC)), caller.settings.user
    amount = None if most is None else parse_total(most, "--most")
    async with administration(caller.tenant) as tx:
        named = [
            principals.name_deputy(tx, name, deputy, end, actor, tool=one, amount=amount)
            for one in (list(dict.fromkeys(tool)) if tool else [None])
        ]
    lines = [f"{one.deputy_id}: {_deputy_line(one)}" for one in named]
    return Reply(DeputyList(deputies=named), lines)


async def revoke_deputy(
    caller: options.Actor,
    deputy_id: Annotated[str, argument("ID", "As `deputies` lists it.")],
) -> Reply:
    """Let a deputy's votes count no more, also those that no call has used yet.

    Example: surehand principal revoke-deputy de-...
    """
    async with administration(caller.tenant) as tx:
        found, changed = principals.revoke_deputy(tx, deputy_id, caller.settings.user)
    said = "revoked" if changed else "was revoked already"
    return Reply(DeputyChanged(deputy=found, changed=changed), f"{deputy_id}: {said}")


async def list_deputies(caller: options.Onlooker) -> Reply:
    """Show who may vote in whose place, for which calls, and until when.

    Example: surehand principal deputies
    """
    found = await caller.do_transaction(principals.read_deputies)
    rows = [
        [one.deputy_id, _deputy_line(one), one.named_by, "revoked" if one.revoked else ""]
        for one in found
    ]
    columns = ("id", "deputy", "named by", "state")
    return Reply(DeputyList(deputies=found), table_or(columns, rows, "No deputies"))


def _deputy_line(one: Deputy) -> str:
    calls = "all calls" if one.tool is None else f"calls of {one.tool}"
    limit = "" if one.most is None else f" with {one.amount_of} up to {one.most}"
    return f"{one.deputy} for {one.principal}, {calls}{limit}, until {shown_time(one.until)}"


def make_key_pair(
    caller: options.Actor,
    file: Annotated[Path, argument("FILE", "The private key; FILE.pub is the public one.")],
) -> Reply:
    """Make your key pair: FILE, for you alone, and FILE.pub, which an administrator registers.

    Example: surehand principal keygen ana.pem --as ana
    """
    owner = check_name(caller.settings.user)
    kid = new_key(file)
    public = f"{file}.pub"
    register = caller.settings.command("principal", "grant", owner, "--key", public)
    return Reply(
        NewKey(kid=kid, private_key=str(file), public_key=public, register_command=register),
        [
            f"Key {kid}: keep {file} to yourself",
            f"An administrator registers {public}:",
            f"  {register}",
        ],
    )


def _keys(one: Principal) -> str:
    return ", ".join(f"{kid} (passkey)" if kid in one.passkeys else kid for kid in one.keys)


StandingState = Literal["active", "used_up", "over", "revoked", "worthless"]


class StandingShown(Shape):
    """A standing approval: its scope, and what is left of it."""

    standing_id: str
    granter: str
    scope: Scope
    uses: int
    uses_left: int | None
    total_left: str | None
    """A decimal as text."""
    reason: str
    signed: bool
    state: StandingState
    worthless: str | None
    """Why it does not count now, whatever is left of it."""
    granted_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None


class StandingList(Shape):
    """``standing list``, oldest first."""

    standing: list[StandingShown]


class StandingChanged(Shape):
    """``standing grant``, ``add`` and ``revoke``."""

    standing: StandingShown
    """As it is now."""
    changed: bool
    """False: it was revoked already."""


def parse_until(text: str, now: datetime) -> datetime:
    """Return when something ends: ``30d`` from now, or at a time."""
    try:
        length = parse_duration(text)
        until = now + length if isinstance(length, timedelta) else options.parse_moment(text)
    except (ValueError, OverflowError) as error:
        raise WrongUse(
            f"--until {text[:40]!r}: write a time from now such as 30d or 12h, or a time with its"
            " zone, such as 2026-12-31T12:00:00Z"
        ) from error
    if until <= now:
        raise WrongUse(f"--until {text[:40]!r}: is over")
    if until - now > LONGEST_STANDING:
        raise WrongUse(f"--until {text[:40]!r}: at most {LONGEST_STANDING.days} d from now")
    return until


def parse_total(text: str, option: str = "--total") -> tuple[str, str]:
    """Return the param and the limit of ``amount=500``."""
    path, equals, limit = text.partition("=")
    most_of = "its sum" if option == "--total" else "it"
    if not equals or not re.fullmatch(PATH_FORM, path) or not re.fullmatch(DECIMAL_FORM, limit):
        raise WrongUse(
            f"{option} {text[:60]!r}: write a param and the most {most_of} may come to, such as"
            " amount=500 or order.amount=99.50"
        )
    return path, limit


def scope_for(
    toolbox: Toolbox,
    tool: str,
    *,
    when: str | None,
    count: int | None,
    total: str | None,
    until: datetime,
    foreign: bool,
) -> Scope:
    loaded = toolbox.get(tool)
    if loaded is None:
        known = ", ".join(toolbox.names())
        raise WrongUse(f"--tool {tool[:60]!r}: not among the tools named here: {known}")
    total_of, most = (None, None) if total is None else parse_total(total)
    try:
        scope = Scope(
            tool=loaded.name,
            version=loaded.version,
            schema_hash=loaded.schema_hash,
            when=when,
            count=count,
            total_of=total_of,
            total=most,
            foreign=foreign,
            until=int(until.timestamp()),
        )
    except ValidationError as error:
        raise WrongUse("; ".join(reasons(error, "scope"))) from error
    found = scope_problem(scope, loaded)
    if found is not None:
        raise WrongUse(f"{tool}: {found}")
    return scope


def read_grant(file: Path) -> StandingGrant:
    """Return the grant that ``standing grant --print`` has made, from a file or from stdin."""
    try:
        return StandingGrant.model_validate_json(read_small(file, "grant"))
    except ValidationError as error:
        raise WrongUse(f"grant {file}: {'; '.join(reasons(error, 'grant'))}") from error


def _show_standing(one: Listed, settings: Settings) -> StandingShown:
    standing, scope = one.standing, one.standing.scope
    uses_left = None if scope.count is None else max(scope.count - one.uses, 0)
    total_left = None if scope.total is None else Decimal(scope.total) - one.total
    worthless = one.worthless
    if worthless is None and settings.decisions == "signed" and not standing.signed:
        worthless = "it is not signed"
    state: StandingState = "active"
    if standing.revoked_ms is not None:
        state = "revoked"
    elif one.over:
        state = "over"
    elif worthless is not None:
        state = "worthless"
    elif uses_left == 0 or total_left == 0:
        state = "used_up"
    return StandingShown(
        standing_id=standing.standing_id,
        granter=standing.granter,
        scope=scope,
        uses=one.uses,
        uses_left=uses_left,
        total_left=None if total_left is None else f"{total_left:f}",
        reason=standing.reason,
        signed=standing.signed,
        state=state,
        worthless=worthless,
        granted_at=time_of(standing.granted_ms),
        revoked_at=None if standing.revoked_ms is None else time_of(standing.revoked_ms),
        revoked_by=standing.revoked_by,
    )


_STANDING_COLUMNS: Final = (
    *("id", "granted by", "tool", "when", "uses left", "total left", "until", "state"),
)


def _standing_row(one: StandingShown) -> list[str]:
    mark = "" if one.signed else " (unverified)"
    why = f": {one.worthless}" if one.state == "worthless" else ""
    scope, left = one.scope, one.total_left
    when = [scope.when or "any params", *(["foreign content"] if scope.foreign else [])]
    return [
        one.standing_id,
        f"{one.granter}{mark}",
        f"{scope.tool} (version {scope.version})",
        " and ".join(when),
        "any" if one.uses_left is None else f"{one.uses_left} of {scope.count}",
        "any" if left is None else f"{left} of {scope.total} {scope.total_of}",
        shown_time(time_of(scope.until * 1000)),
        f"{one.state}{why}",
    ]


async def grant_standing(
    caller: options.Sender,
    tool: Annotated[str, option("The tool, as it is loaded here; later versions are not.")],
    until: Annotated[str, option("30d, or a time with its zone; then it is over.")],
    when: Annotated[
        str | None, option("What has to be true of the params, such as 'amount <= 50'.")
    ] = None,
    count: Annotated[int | None, option("Most calls; default any.", min=1, max=MOST_USES)] = None,
    total: Annotated[
        str | None, option("Most that a param may add up to.", metavar="PARAM=LIMIT")
    ] = None,
    foreign: Annotated[bool, flag("Also in runs that have read content from outside.")] = False,
    only_print: Annotated[
        bool, flag("Print the grant; an administrator adds it within minutes.", "--print")
    ] = False,
    reason: options.Reason = "",
) -> Reply | ExitCode:
    r"""Approve calls within a scope in advance, in your own name.

    Example: surehand standing grant --tool payments.refund --when 'amount <= 50' \
      --count 20 --total amount=500 --until 30d --as ana --key ana.pem
    """
    granter = check_name(caller.settings.user)
    if len(reason) > LONGEST_REASON:
        raise WrongUse(f"--reason: at most {LONGEST_REASON} characters")
    ends = parse_until(until, datetime.now(UTC))
    toolbox = named_tools(caller)
    if toolbox is None:
        raise WrongUse("name the modules with your tools in SUREHAND_TOOL_MODULES")
    scope = scope_for(
        *(toolbox, tool), when=when, count=count, total=total, until=ends, foreign=foreign
    )
    given = _compose_grant(caller, granter, scope, reason)
    if only_print:
        print(given.model_dump_json(exclude_none=True))
        return ExitCode.DONE
    return await _add_standing(caller, read_settings(), given)


async def add_standing(
    caller: options.Onlooker,
    file: Annotated[Path, argument("FILE", "What `standing grant --print` says; - is stdin.")],
) -> Reply:
    """Add what somebody has granted with `standing grant --print`.

    Example: surehand standing add grant.json
    """
    given = read_grant(file)
    check_name(given.granter)
    return await _add_standing(caller, read_settings(), given)


async def list_standing(caller: options.Onlooker) -> Reply:
    """Show standing approvals: their scope, what is left of them, who has granted them.

    Example: surehand standing list
    """
    settings, found = read_settings(), await caller.do_transaction(standing_rows.list_granted)
    standing = [_show_standing(one, settings) for one in found]
    rows = [_standing_row(one) for one in standing]
    table = table_or(_STANDING_COLUMNS, rows, "No standing approvals")
    return Reply(StandingList(standing=standing), table)


async def revoke_standing(
    caller: options.Actor,
    standing_id: Annotated[str, argument("ID", "As `standing list` shows it: SA-...")],
) -> Reply:
    """Revoke a standing approval forever; calls that it approved and nobody made are asked about.

    Example: surehand standing revoke SA-6cc43f858fbb
    """
    actor = check_name(caller.settings.user)
    settings = read_settings()
    async with administration(caller.tenant) as tx:
        changed = standing_rows.revoke_standing(tx, standing_id, actor)
        now = standing_rows.describe_standing(tx, standing_id)
    if now is None:
        raise NotFound(f"there is no standing approval {standing_id!r}")
    said = "revoked" if changed else "was revoked already: nothing changed"
    return Reply(
        StandingChanged(standing=_show_standing(now, settings), changed=changed),
        f"{now.standing.label}: {said}",
    )


def _compose_grant(caller: Caller, granter: str, scope: Scope, reason: str) -> StandingGrant:
    claims = StandingClaims(**fresh_claims(granter, caller.tenant, int(time.time())), scope=scope)
    file = caller.settings.key
    signature = None if file is None else sign(read_key(file), claims)
    return StandingGrant(
        granter=granter, scope=scope, nonce=claims.jti, signature=signature, reason=reason
    )


async def _add_standing(caller: Caller, settings: Settings, given: StandingGrant) -> Reply:
    if settings.decisions == "signed" and given.signature is None:
        raise WrongUse("only signed standing approvals count here: name your --key")
    async with administration(caller.tenant) as tx:
        standing = standing_rows.grant_standing(tx, given)
        now = standing_rows.describe_standing(tx, standing.standing_id)
    assert now is not None, "it was written in that transaction"
    one = _show_standing(now, settings)
    revoke = caller.settings.command("standing", "revoke", one.standing_id)
    row = zip(_STANDING_COLUMNS[1:], _standing_row(one)[1:], strict=True)
    return Reply(
        StandingChanged(standing=one, changed=True),
        [
            f"Standing approval {one.standing_id}: granted",
            *(f"  {name:<10}  {text}" for name, text in row),
            f"  {revoke}",
        ],
    )
