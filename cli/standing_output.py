"""What the verbs of ``standing`` print."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from cli.caller import Caller
from cli.exits import ExitCode
from cli.shapes import StandingChanged, StandingList, StandingShown, StandingState
from cli.text import command, counted, shown_time
from workflows.identity import DEFAULT_TENANT

if TYPE_CHECKING:
    from activities.ledger.standing_grants import Listed

_COLUMNS = ("id", "granted by", "tool", "when", "uses left", "total left", "until", "state")


def shown(one: Listed, *, strict: bool) -> StandingShown:
    """Return a standing approval as a document.

    Args:
        one: As the ledger has it.
        strict: Whether only signed ones count.
    """
    standing, scope = one.standing, one.standing.scope
    uses_left = None if scope.count is None else max(scope.count - one.uses, 0)
    total_left = None if scope.total is None else Decimal(scope.total) - one.total
    worthless = one.worthless
    if worthless is None and strict and not standing.signed:
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
        until=_time(scope.until * 1000),
        reason=standing.reason,
        signed=standing.signed,
        state=state,
        worthless=worthless,
        granted_at=_time(standing.granted_ms),
        revoked_at=None if standing.revoked_ms is None else _time(standing.revoked_ms),
        revoked_by=standing.revoked_by,
    )


def tell_granted(caller: Caller, now: StandingShown) -> int:
    """Say what has been granted, and how it is taken back."""
    if caller.printer.json_output:
        caller.printer.document(StandingChanged(standing=now, changed=True))
    mark = "" if now.signed else " (unverified)"
    caller.printer.say(f"{now.granter}'s standing approval {now.standing_id}{mark}: granted")
    for line in _scope_lines(now):
        caller.printer.say(f"  {line}")
    tenant = caller.settings.tenant
    elsewhere = () if tenant == DEFAULT_TENANT else ("--tenant", tenant)
    caller.printer.say(f"  {command('standing', 'revoke', now.standing_id, *elsewhere)}")
    return ExitCode.DONE


def show_all(caller: Caller, found: list[StandingShown]) -> None:
    """Print standing approvals."""
    if caller.printer.json_output:
        caller.printer.document(StandingList(standing=found))
    elif not found:
        caller.printer.say("No standing approvals")
    else:
        caller.printer.table(_COLUMNS, [_row(one) for one in found])


def _row(one: StandingShown) -> list[str]:
    mark = "" if one.signed else " (unverified)"
    why = f": {one.worthless}" if one.state == "worthless" else ""
    total = "" if one.total_left is None else f"{one.total_left} of {one.total} {one.total_of}"
    uses = "any" if one.uses_left is None else f"{one.uses_left} of {one.count}"
    return [
        one.standing_id,
        f"{one.granter}{mark}",
        f"{one.tool} (version {one.version})",
        one.when or "any params",
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
    return [*lines, f"until  {shown_time(one.until)}"]


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
