"""What the verbs of ``standing`` are given: scopes, limits, times, and grants made elsewhere."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from cli.exits import WrongUse
from cli.principal_input import STDIN
from workflows.contracts.standing import (
    DECIMAL_FORM,
    LONGEST_STANDING,
    PATH_FORM,
    Scope,
    StandingGrant,
)
from workflows.policy import parse_duration
from workflows.wording import reasons

if TYPE_CHECKING:
    from activities.toolbox import Toolbox

#: Bytes; a grant has about 1500.
_LARGEST_FILE: Final = 16_384


def parse_until(text: str, now: datetime) -> datetime:
    """Return when something ends: ``30d`` from now, at the end of a day, or at a time.

    Args:
        text: As it was given.
        now: With the time zone that days and times without one are of.

    Raises:
        WrongUse: It is none of these, is over, or is too far ahead.
    """
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
    """Return the param and the limit of ``amount=500``.

    Raises:
        WrongUse: It has not that form.
    """
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
) -> Scope:
    """Return a scope of a tool as it is loaded here.

    Raises:
        WrongUse: There is no such tool, or its params have nothing of the kind.
    """
    from activities.standing import scope_problem

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
            until=int(until.timestamp()),
        )
    except ValidationError as error:
        raise WrongUse("; ".join(reasons(error, "scope"))) from error
    found = scope_problem(scope, loaded)
    if found is not None:
        raise WrongUse(f"{tool}: {found}")
    return scope


def read_grant(file: Path) -> StandingGrant:
    """Return the grant that ``standing grant --print`` has made, from a file or from stdin.

    Raises:
        WrongUse: It cannot be read, or is none.
    """
    try:
        with open(0 if str(file) == STDIN else file, "rb", closefd=str(file) != STDIN) as source:
            content = source.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise WrongUse(f"grant {file}: {error.strerror}") from error
    if len(content) > _LARGEST_FILE:
        raise WrongUse(f"grant {file}: it is too large for one")
    try:
        return StandingGrant.model_validate_json(content)
    except ValidationError as error:
        raise WrongUse(f"grant {file}: {'; '.join(reasons(error, 'grant'))}") from error


def _moment(text: str, now: datetime) -> datetime:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        following = date.fromisoformat(text) + timedelta(days=1)
        return datetime.combine(following, time(), now.tzinfo)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)
