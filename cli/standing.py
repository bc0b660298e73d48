"""``standing``: votes that are given in advance, for calls within a scope.

Granting and revoking are an administrator's, as ``principal`` is: on PostgreSQL only the role that
owns the ledger's tables may write. A granter who is none prints a signed grant for one.
"""

from __future__ import annotations

import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform
from cli.exits import ExitCode, NotFound, WrongUse
from cli.ledger_door import administration, ledger_of, read_settings
from cli.principal_input import checked_name
from cli.shapes import StandingChanged, StandingShown
from cli.signing import NONCE, USUAL_SIGNATURE, read_key, sign
from cli.standing_input import parse_until, read_grant, scope_for
from cli.standing_output import show_all, shown, tell_granted
from cli.toolcheck import named_tools
from workflows.contracts.signing import audience
from workflows.contracts.standing import (
    LONGEST_REASON,
    MOST_USES,
    Scope,
    StandingClaims,
    StandingGrant,
)

if TYPE_CHECKING:
    from activities.ledger.standing_grants import Listed
    from activities.settings import Settings

GRANT_EXAMPLE: Final = (
    "Example: python starter.py standing grant --tool payments.refund --when 'amount <= 50'"
    " --count 20 --total amount=500 --until 30d --as ana --key ana.pem"
)
ADD_EXAMPLE: Final = "Example: python starter.py standing add grant.json"
LIST_EXAMPLE: Final = "Example: python starter.py standing list"
REVOKE_EXAMPLE: Final = "Example: python starter.py standing revoke SA-6cc43f858fbb"

Id = Annotated[str, typer.Argument(metavar="ID", help="As `standing list` shows it: SA-...")]


def grant(
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
    only_print: Annotated[
        bool,
        typer.Option("--print", help="Print the grant; an administrator adds it within minutes."),
    ] = False,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Approve calls within a scope in advance, in your own name."""

    async def verb(caller: Caller) -> int:
        granter = checked_name(caller.settings.user)
        if len(reason) > LONGEST_REASON:
            raise WrongUse(f"--reason: at most {LONGEST_REASON} characters")
        ends = parse_until(until, datetime.now().astimezone())
        toolbox = named_tools(caller)
        if toolbox is None:
            raise WrongUse("name the modules with your tools in SUREHAND_TOOL_MODULES")
        scope = scope_for(toolbox, tool, when=when, count=count, total=total, until=ends)
        given = _given(caller, granter, scope, reason)
        if only_print:
            print(given.model_dump_json(exclude_none=True))
            return ExitCode.DONE
        return await _add(caller, read_settings(), given)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def add(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What `standing grant --print` says; - is stdin."),
    ],
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Add what somebody has granted with `standing grant --print`."""

    async def verb(caller: Caller) -> int:
        given = read_grant(file)
        checked_name(given.granter)
        return await _add(caller, read_settings(), given)

    return perform(verb, json_output=json_output, tenant=tenant)


def list_standing(tenant: options.Tenant = None, json_output: options.Json = False) -> int:
    """Show standing approvals: their scope, what is left of them, who has granted them."""

    async def verb(caller: Caller) -> int:
        from activities.ledger.standing_grants import all_standing

        settings = read_settings()
        async with (
            ledger_of(settings) as ledger,
            ledger.transaction(caller.settings.tenant) as tx,
        ):
            found = await all_standing(tx)
        show_all(caller, [_shown(one, settings) for one in found])
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant)


def revoke(
    standing_id: Id,
    user: options.Actor = None,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Revoke a standing approval for good; what it has approved and nobody has called is asked."""

    async def verb(caller: Caller) -> int:
        from activities.ledger import standing_grants

        actor = checked_name(caller.settings.user)
        settings = read_settings()
        async with administration(caller.settings.tenant) as tx:
            changed = await standing_grants.revoke(tx, standing_id, actor)
            now = await standing_grants.listed(tx, standing_id)
        if now is None:
            raise NotFound(f"there is no standing approval {standing_id!r}")
        if json_output:
            one = _shown(now, settings)
            caller.printer.document(StandingChanged(standing=one, changed=changed))
        said = "revoked" if changed else "was revoked already: nothing changed"
        caller.printer.say(f"{now.standing.label}: {said}")
        return ExitCode.DONE

    return perform(verb, json_output=json_output, tenant=tenant, user=user)


def _given(caller: Caller, granter: str, scope: Scope, reason: str) -> StandingGrant:
    """Return the grant, signed if there is a key."""
    nonce, now, file = secrets.token_urlsafe(NONCE), int(time.time()), caller.settings.key
    signature = None
    if file is not None:
        claims = StandingClaims(
            aud=audience(caller.settings.tenant),
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


async def _add(caller: Caller, settings: Settings, given: StandingGrant) -> int:
    from activities.ledger import standing_grants

    if settings.decisions == "signed" and given.signature is None:
        raise WrongUse("only signed standing approvals count here: name your --key")
    async with administration(caller.settings.tenant) as tx:
        standing = await standing_grants.grant(tx, given)
        now = await standing_grants.listed(tx, standing.standing_id)
    assert now is not None, "it was written in that transaction"
    return tell_granted(caller, _shown(now, settings))


def _shown(one: Listed, settings: Settings) -> StandingShown:
    return shown(one, strict=settings.decisions == "signed")
