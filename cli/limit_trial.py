"""``limits try``: what a file of limits would have stopped, from the effects of the past."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import ValidationError

from surehand.activities.effects.prepare import limit_amount
from surehand.activities.ledger.approvals.requests import find_others
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.effects.run_tree import has_made_more
from surehand.activities.ledger.history.reads import list_made
from surehand.activities.limits_file import Limit, group_values, read_limits
from surehand.activities.tools.toolbox import Toolbox
from surehand.cli import options
from surehand.cli.options import argument, duration_option, ledger_of, read_settings, read_toolbox
from surehand.cli.printer import Reply, Shape, Table, time_of
from surehand.process.exits import WrongUse
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.plain_text import counted

_MS: Final = timedelta(milliseconds=1)
#: Calls that are named for each limit, newest last.
_NAMED: Final = 20


class StoppedCall(Shape):
    """A call of the past that would have been over a limit."""

    run_id: str
    step_id: str
    tool: str
    used: str
    """What the calls before it came to."""


class LimitTried(Shape):
    """What one limit would have done."""

    limit: str
    calls: int
    """Of its tools, in that time."""
    over: int
    """Of these, those that it would have refused, or asked about."""
    asks: bool
    """Whether it asks; else it refuses."""
    shadow: bool
    """Whether it only records."""
    days: dict[str, int]
    """Those that were over, by day (UTC)."""
    newest: list[StoppedCall]


class LimitsTried(Shape):
    """``limits try``."""

    since_days: float
    unread: int
    """Calls whose params cannot be read here, or that their tool takes no more."""
    limits: list[LimitTried]


async def try_limits(
    caller: options.Onlooker,
    file: Annotated[Path, argument("FILE", "A file of limits.")],
    since: Annotated[
        timedelta, duration_option("How far to look back.", show_default="30d")
    ] = timedelta(days=30),
) -> Reply:
    """Say which calls of the past a file of limits would have refused, or asked about.

    Example: surehand limits try limits.yaml --since 30d
    """
    settings = read_settings()
    toolbox = read_toolbox(settings.tool_modules, settings.mcp)
    limits = read_limits(str(file), toolbox)
    if not limits:
        raise WrongUse(f"limits file {file}: it names no limits: list at least one in `limits`")
    how = toolbox, since, Assurance(settings.decisions)
    async with ledger_of(settings) as ledger:
        trials = [await ledger.transact(caller.tenant, _try_limit, one, *how) for one in limits]
    tried = LimitsTried(
        since_days=since / timedelta(days=1),
        unread=sum(one.unread for one in trials),
        limits=[one.result() for one in trials],
    )
    rows = [
        [
            one.limit,
            str(one.calls),
            f"{one.over} {'recorded' if one.shadow else 'asked about' if one.asks else 'refused'}",
            str(max(one.days.values(), default=0)),
        ]
        for one in tried.limits
    ]
    lines: list[str | Table] = [Table(("limit", "calls", "would be", "most a day"), rows)]
    for one in tried.limits:
        lines += [
            f"{one.limit}: {call.tool} of {call.run_id} {call.step_id}, {call.used} used before it"
            for call in one.newest
        ]
    if tried.unread:
        lines.append(f"{counted(tried.unread, 'call')} could not be read here.")
    elif not any(one.calls for one in tried.limits):
        lines = ["Their tools made no call in that time: look further back with --since."]
    return Reply(tried, lines)


def _try_limit(
    tx: Transaction, limit: Limit, toolbox: Toolbox, since: timedelta, assurance: Assurance
) -> _Trial:
    trial = _Trial(limit, toolbox)
    for row in list_made(tx, limit.counted, (since + limit.within) // _MS):
        if limit.run_at_most is not None:
            call = row["run_id"], limit.run_at_most, row["entry_id"], row["claimed_ms"]
            trial.add_of_run(row, has_made_more(tx, *call))
            continue
        others = find_others(tx, row["run_id"], row["approval_id"], assurance)
        trial.add(row, others, begun=row["age_ms"] <= since // _MS)
    return trial


class _Trial:
    """One limit over the calls of the past, oldest first."""

    def __init__(self, limit: Limit, toolbox: Toolbox) -> None:
        self._limit = limit
        self._toolbox = toolbox
        self._counted: dict[bytes, deque[tuple[int, Decimal]]] = defaultdict(deque)
        self._before: dict[bytes, deque[Mapping[str, Any]]] = defaultdict(deque)
        self._days = Counter[str]()
        self._over = list[StoppedCall]()
        self._calls = 0
        self.unread = 0

    def add(
        self, row: Mapping[str, Any], is_by_other: Callable[[Any], bool], *, begun: bool
    ) -> None:
        """Take one call; ``begun``: it lies in the time that is looked at."""
        limit, tool = self._limit, self._toolbox.get(row["tool"])
        try:
            assert tool is not None, "the file was checked"
            params = tool.validate(row["params"])
            group = canonical_json(group_values(limit, params.model_dump(mode="json")))
        except (ValidationError, TypeError, ValueError):
            self.unread += 1
            return
        if limit.after is not None and row["tool"] == limit.after.tool:
            self._before[group].append(row)
            return
        self._calls += begun
        if limit.after is not None:
            earlier = self._before[group]
            while earlier and earlier[0]["claimed_ms"] <= row["claimed_ms"] - limit.within // _MS:
                earlier.popleft()
            before = [one for one in earlier if one["state"] == "committed"]
            if not (any(map(is_by_other, before)) if limit.after.by_other else before) and begun:
                self._note_over(row, Decimal(0))
            return
        amount, counted_ = limit_amount(limit, params), self._counted[group]
        while counted_ and counted_[0][0] <= row["claimed_ms"] - limit.within // _MS:
            counted_.popleft()
        used = sum((one for _, one in counted_), Decimal(0))
        over = amount is None or used + amount > Decimal(limit.most or 0)
        if amount is not None and (not over or limit.ask is not None or limit.shadow):
            counted_.append((row["claimed_ms"], amount))
        if over and begun:
            self._note_over(row, used)

    def add_of_run(self, row: Mapping[str, Any], is_over: bool) -> None:
        """Take one call of which its run decides."""
        self._calls += 1
        if is_over:
            self._note_over(row, Decimal(0))

    def _note_over(self, row: Mapping[str, Any], used: Decimal) -> None:
        self._days[time_of(row["claimed_ms"]).date().isoformat()] += 1
        where = {name: row[name] for name in ("run_id", "step_id", "tool")}
        self._over.append(StoppedCall(**where, used=f"{used.normalize():f}"))

    def result(self) -> LimitTried:
        """Return what it would have done."""
        return LimitTried(
            limit=self._limit.name,
            calls=self._calls,
            over=len(self._over),
            asks=self._limit.ask is not None,
            shadow=self._limit.shadow,
            days=dict(sorted(self._days.items())),
            newest=self._over[-_NAMED:],
        )
