"""``standing``: votes that are given in advance, for calls within a scope.

Granting and revoking are an administrator's, as ``principal`` is: on PostgreSQL only the role that
owns the ledger's tables may write. A granter who is none prints a signed grant for one.
"""

from __future__ import annotations

import re
import secrets
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from surehand.activities.effects.prepare import scope_problem
from surehand.activities.ledger.approvals import standing_grants
from surehand.activities.ledger.approvals.standing_grants import Listed, all_standing
from surehand.activities.tools.toolbox import Toolbox
from surehand.activities.worker.settings import Settings
from surehand.cli import options
from surehand.cli.ledger_door import administration, ledger_of, read_settings
from surehand.cli.options import Caller
from surehand.cli.principals import checked_name, read_small
from surehand.cli.printer import Reply, counted, shown_time, table_or
from surehand.cli.shapes import Shape
from surehand.cli.tools import named_tools
from surehand.client.messages import NONCE, USUAL_SIGNATURE, read_key, sign
from surehand.process.exits import ExitCode, NotFound, WrongUse
from surehand.workflows.contracts.approvals import (
    DECIMAL_FORM,
    LONGEST_REASON,
    LONGEST_STANDING,
    MOST_USES,
    PATH_FORM,
    Scope,
    StandingClaims,
    StandingGrant,
    audience,
)
from surehand.workflows.plain_text import reasons
from surehand.workflows.plan.policy import parse_duration

StandingState = Literal["active", "used_up", "over", "revoked", "worthless"]


class StandingShown(Shape):
    """A standing approval: its scope, and what is left of it."""

    standing_id: str
    granter: str
    tool: str
    version: str
    when: str | None
    count: int | None
    uses: int
    uses_left: int | None
    total_of: str | None
    total: str | None
    total_left: str | None
    """A decimal as text."""
    foreign: bool
    """Also in runs that have read content from outside."""
    until: datetime
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
    """Return when something ends: ``30d`` from now, at the end of a day, or at a time."""
    try:
        length = parse_duration(text)
        until = now + length if isinstance(length, timedelta) else _moment(text, now)
    except (ValueError, OverflowError) as error:
        raise WrongUse(
            f"--until {text[:40]!r}: write a time from now such as 30d or 12h, a day such as"
            " 2026-12-31 (to its end), or a time such as 2026-12-31T12:00"
        ) from error
    if until <= now:
        raise WrongUse(f"--until {text[:40]!r}: is over")
    if until - now > LONGEST_STANDING:
        raise WrongUse(f"--until {text[:40]!r}: at most {LONGEST_STANDING.days} d from now")
    return until


def parse_total(text: str) -> tuple[str, str]:
    """Return the param and the limit of ``amount=500``."""
    path, equals, limit = text.partition("=")
    if not equals or not re.fullmatch(PATH_FORM, path) or not re.fullmatch(DECIMAL_FORM, limit):
        raise WrongUse(
            f"--total {text[:60]!r}: write a param and the most its sum may come to, such as"
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
    """Return a scope of a tool as it is loaded here."""
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


def _moment(text: str, now: datetime) -> datetime:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        following = date.fromisoformat(text) + timedelta(days=1)
        return datetime(following.year, following.month, following.day, tzinfo=now.tzinfo)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)


_COLUMNS = ("id", "granted by", "tool", "when", "uses left", "total left", "until", "state")


def _shown(one: Listed, settings: Settings) -> StandingShown:
    """Return a standing approval as a document."""
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
        tool=scope.tool,
        version=scope.version,
        when=scope.when,
        count=scope.count,
        uses=one.uses,
        uses_left=uses_left,
        total_of=scope.total_of,
        total=scope.total,
        total_left=None if total_left is None else f"{total_left:f}",
        foreign=scope.foreign,
        until=_time(scope.until * 1000),
        reason=standing.reason,
        signed=standing.signed,
        state=state,
        worthless=worthless,
        granted_at=_time(standing.granted_ms),
        revoked_at=None if standing.revoked_ms is None else _time(standing.revoked_ms),
        revoked_by=standing.revoked_by,
    )


def _row(one: StandingShown) -> list[str]:
    mark = "" if one.signed else " (unverified)"
    why = f": {one.worthless}" if one.state == "worthless" else ""
    total = "" if one.total_left is None else f"{one.total_left} of {one.total} {one.total_of}"
    uses = "any" if one.uses_left is None else f"{one.uses_left} of {one.count}"
    return [
        one.standing_id,
        f"{one.granter}{mark}",
        f"{one.tool} (version {one.version})",
        " and ".join([one.when or "any params", *(["foreign content"] if one.foreign else [])]),
        uses,
        total or "any",
        shown_time(one.until),
        f"{one.state}{why}",
    ]


def _scope_lines(one: StandingShown) -> list[str]:
    lines = [f"tool   {one.tool} (version {one.version})"]
    if one.when is not None:
        lines.append(f"when   {one.when}")
    if one.count is not None:
        lines.append(f"count  {counted(one.count, 'call')}")
    if one.total is not None:
        lines.append(f"total  {one.total_of} up to {one.total}")
    if one.foreign:
        lines.append("runs   also those that have read content from outside")
    return [*lines, f"until  {shown_time(one.until)}"]


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


Id = Annotated[str, typer.Argument(metavar="ID", help="As `standing list` shows it: SA-...")]


async def grant(
    caller: options.Sender,
    tool: Annotated[
        str, typer.Option("--tool", help="The tool, as it is loaded here; later versions are not.")
    ],
    until: Annotated[
        str, typer.Option("--until", help="30d, a day (to its end), or a time; then it is over.")
    ],
    when: Annotated[
        str | None,
        typer.Option("--when", help="What has to be true of the params, such as 'amount <= 50'."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, max=MOST_USES, help="Most calls; default any.")
    ] = None,
    total: Annotated[
        str | None,
        typer.Option("--total", metavar="PARAM=LIMIT", help="Most that a param may add up to."),
    ] = None,
    foreign: Annotated[
        bool,
        typer.Option("--foreign", help="Also in runs that have read content from outside."),
    ] = False,
    only_print: Annotated[
        bool,
        typer.Option("--print", help="Print the grant; an administrator adds it within minutes."),
    ] = False,
    reason: options.Reason = "",
) -> Reply | ExitCode:
    r"""Approve calls within a scope in advance, in your own name.

    Example: python starter.py standing grant --tool payments.refund --when 'amount <= 50' \
      --count 20 --total amount=500 --until 30d --as ana --key ana.pem
    """
    granter = checked_name(caller.settings.user)
    if len(reason) > LONGEST_REASON:
        raise WrongUse(f"--reason: at most {LONGEST_REASON} characters")
    ends = parse_until(until, datetime.now().astimezone())
    toolbox = named_tools(caller)
    if toolbox is None:
        raise WrongUse("name the modules with your tools in SUREHAND_TOOL_MODULES")
    scope = scope_for(
        *(toolbox, tool), when=when, count=count, total=total, until=ends, foreign=foreign
    )
    given = _given(caller, granter, scope, reason)
    if only_print:
        print(given.model_dump_json(exclude_none=True))
        return ExitCode.DONE
    return await _add(caller, read_settings(), given)


async def add(
    caller: options.Onlooker,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What `standing grant --print` says; - is stdin."),
    ],
) -> Reply:
    """Add what somebody has granted with `standing grant --print`.

    Example: python starter.py standing add grant.json
    """
    given = read_grant(file)
    checked_name(given.granter)
    return await _add(caller, read_settings(), given)


async def list_standing(
    caller: options.Onlooker,
) -> Reply:
    """Show standing approvals: their scope, what is left of them, who has granted them.

    Example: python starter.py standing list
    """
    settings = read_settings()
    async with ledger_of(settings) as ledger:
        with ledger.transaction(caller.tenant) as tx:
            found = all_standing(tx)
    standing = [_shown(one, settings) for one in found]
    rows = [_row(one) for one in standing]
    return Reply(StandingList(standing=standing), table_or(_COLUMNS, rows, "No standing approvals"))


async def revoke(
    caller: options.Actor,
    standing_id: Id,
) -> Reply:
    """Revoke a standing approval for good; what it has approved and nobody has called is asked.

    Example: python starter.py standing revoke SA-6cc43f858fbb
    """
    actor = checked_name(caller.settings.user)
    settings = read_settings()
    async with administration(caller.tenant) as tx:
        changed = standing_grants.revoke(tx, standing_id, actor)
        now = standing_grants.listed(tx, standing_id)
    if now is None:
        raise NotFound(f"there is no standing approval {standing_id!r}")
    said = "revoked" if changed else "was revoked already: nothing changed"
    return Reply(
        StandingChanged(standing=_shown(now, settings), changed=changed),
        f"{now.standing.label}: {said}",
    )


def _given(caller: Caller, granter: str, scope: Scope, reason: str) -> StandingGrant:
    """Return the grant, signed if there is a key."""
    nonce, now, file = secrets.token_urlsafe(NONCE), int(time.time()), caller.settings.key
    signature = None
    if file is not None:
        claims = StandingClaims(
            aud=audience(caller.tenant),
            sub=granter,
            iat=now,
            exp=now + int(USUAL_SIGNATURE.total_seconds()),
            jti=nonce,
            scope=scope,
        )
        signature = sign(read_key(file), claims)
    return StandingGrant(
        granter=granter, scope=scope, nonce=nonce, signature=signature, reason=reason
    )


async def _add(caller: Caller, settings: Settings, given: StandingGrant) -> Reply:

    if settings.decisions == "signed" and given.signature is None:
        raise WrongUse("only signed standing approvals count here: name your --key")
    async with administration(caller.tenant) as tx:
        standing = standing_grants.grant(tx, given)
        now = standing_grants.listed(tx, standing.standing_id)
    assert now is not None, "it was written in that transaction"
    one = _shown(now, settings)
    mark = "" if one.signed else " (unverified)"
    revoke_command = caller.settings.command("standing", "revoke", one.standing_id)
    return Reply(
        StandingChanged(standing=one, changed=True),
        [
            f"{one.granter}'s standing approval {one.standing_id}{mark}: granted",
            *(f"  {line}" for line in (*_scope_lines(one), revoke_command)),
        ],
    )
