"""``quota``: what a tenant may use, and has used.

Setting it is an administrator's, as ``principal`` is: on PostgreSQL only the role that owns the
ledger's tables may.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from surehand.cli.verb import options
from surehand.cli.verb.ledger_door import administration, ledger_of, read_settings
from surehand.cli.verb.printer import Reply, Styled, Table
from surehand.cli.verb.shapes import QuotaShown, QuotaUse
from surehand.cli.verb.text import counted, shown_time
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.quotas import Quota

if TYPE_CHECKING:
    from surehand.activities.ledger.core.store import Transaction

#: In place of a number: as much as comes.
NONE: Final = "none"
#: What the ledger's columns take.
_MOST: Final = {
    Quota.OPEN_RUNS: 10**9,
    Quota.EFFECTS: 10**9,
    Quota.APPROVALS: 10**9,
    Quota.TOKENS: 10**18,
    Quota.MONEY: 9 * 10**9,
}
_MONEY: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def checked_limit(quota: Quota, given: str) -> int | str | None:
    """Return a limit as the ledger has it; ``None``: there is none.

    Raises:
        WrongUse: It is none.
    """
    if given == NONE:
        return None
    option = f"--{quota.replace('_', '-')} {given[:40]!r}"
    if quota is Quota.MONEY:
        if not _MONEY.fullmatch(given) or Decimal(given) > _MOST[quota]:
            raise WrongUse(
                f"{option}: use a decimal of at most {_MOST[quota]}, such as 12.50, or {NONE}"
            )
        return given
    if not _NUMBER.fullmatch(given) or int(given) > _MOST[quota]:
        raise WrongUse(f"{option}: use a whole number of at most {_MOST[quota]}, or {NONE}")
    return int(given)


async def set_quota(
    caller: options.Actor,
    open_runs: Annotated[
        str | None,
        typer.Option("--open-runs", metavar="N", help="Runs that take steps at a time, or none."),
    ] = None,
    effects_per_hour: Annotated[
        str | None,
        typer.Option("--effects-per-hour", metavar="N", help="Effects in a clock hour, or none."),
    ] = None,
    pending_approvals: Annotated[
        str | None,
        typer.Option(
            "--pending-approvals", metavar="N", help="Requests that wait at a time, or none."
        ),
    ] = None,
    tokens_per_day: Annotated[
        str | None,
        typer.Option("--tokens-per-day", metavar="N", help="Tokens in a day of UTC, or none."),
    ] = None,
    money_per_day: Annotated[
        str | None,
        typer.Option("--money-per-day", metavar="AMOUNT", help="Money in a day of UTC, or none."),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            "--over", metavar="queue|reject", help="What is over waits (the default), or fails."
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option("--weight", help="Turns it has for each of another tenant, 0.001 to 1000."),
    ] = None,
) -> Reply:
    """Set what a tenant may use; what is not named stays as it is.

    Example: python starter.py quota set --tenant acme --open-runs 20 --effects-per-hour 500
    """
    from surehand.activities.ledger.quotas import limits

    given = {
        Quota.OPEN_RUNS: open_runs,
        Quota.EFFECTS: effects_per_hour,
        Quota.APPROVALS: pending_approvals,
        Quota.TOKENS: tokens_per_day,
        Quota.MONEY: money_per_day,
    }
    changes: dict[str, Any] = {
        quota.value: checked_limit(quota, text) for quota, text in given.items() if text is not None
    }
    if over is not None:
        changes["over"] = _over(over)
    if weight is not None:
        if not 0.001 <= weight <= 1000:
            raise WrongUse(f"--weight {weight:g}: use 0.001 to 1000")
        changes["weight"] = weight
    if not changes:
        raise WrongUse("nothing is set: name a quota, --over or --weight")
    async with administration(caller.tenant) as tx:
        limits.change_limits(tx, caller.settings.user, **changes)
        now = _shown(tx)
    return _reply(now)


async def show_quota(caller: options.Onlooker) -> Reply:
    """Show what a tenant may use, has used, and when that begins anew; and how many runs wait.

    Example: python starter.py quota show --tenant acme
    """
    async with ledger_of(read_settings()) as ledger:
        with ledger.transaction(caller.tenant) as tx:
            now = _shown(tx)
    return _reply(now)


def _over(given: str) -> Literal["queue", "reject"]:
    if given == "queue":
        return "queue"
    if given == "reject":
        return "reject"
    raise WrongUse(f"--over {given[:40]!r}: use queue or reject")


def _shown(tx: Transaction) -> QuotaShown:
    from surehand.activities.ledger.quotas.reads import overview

    found = overview(tx)
    limits = found.limits
    set_at = None if limits.set_ms is None else datetime.fromtimestamp(limits.set_ms / 1000, UTC)
    return QuotaShown(
        tenant=tx.tenant,
        quotas=[QuotaUse.model_validate(vars(use)) for use in found.uses],
        over=limits.over,
        weight=limits.weight,
        queued_runs=found.queued_runs,
        set_by=limits.set_by,
        set_at=set_at,
    )


def _reply(now: QuotaShown) -> Reply:
    rows = [
        [
            one.quota,
            "" if one.used is None else one.used,
            NONE if one.limit is None else one.limit,
            "" if one.until is None else shown_time(one.until),
        ]
        for one in now.quotas
    ]
    waits = {"queue": "waits", "reject": "is rejected"}[now.over]
    lines: list[str | Styled | Table] = [
        Table(("quota", "used", "limit", "begins anew"), rows),
        "",
        f"Tenant {now.tenant}: what is over {waits}; weight {now.weight:g}",
        f"{counted(now.queued_runs, 'run')} in the queue",
    ]
    if now.set_by is not None and now.set_at is not None:
        lines.append(f"Set by {now.set_by}, {shown_time(now.set_at)}")
    return Reply(now, lines)
