"""Halts: while one stands, no call that it covers begins, whatever the worker and the mode.

A claim, a read and a model's turn share a lock of the tenant for the length of their transaction. A
halt takes that lock alone. So each of them either has committed before the halt, and is listed as
under way, or sees the halt. What has a time limit does not run out while a halt stands:
``stood_still`` says how long that was.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pydantic import Field, JsonValue, ValidationError
from sqlalchemy import (
    BigInteger,
    BindParameter,
    Boolean,
    ColumnElement,
    ScalarSelect,
    bindparam,
    case,
    func,
    or_,
    select,
)

from surehand.activities.ledger.core.statements import PreparedStatement, rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import (
    WITHOUT_OUTCOME,
    approvals,
    effects,
    halts,
    runs,
    steps,
)
from surehand.activities.ledger.people.principals import find_principal
from surehand.activities.ledger.quotas import require_unspent, select_limited
from surehand.process.exits import Refused
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import HaltWait
from surehand.workflows.identity import is_child_of
from surehand.workflows.plan.policy import Quorum, Role, WrittenByPeople

#: How soon a call that is halted looks again.
LOOK: Final = timedelta(seconds=30)
#: What a halt can stop: all calls of the tenant, those of a tool, those of a run.
SCOPES: Final = ("tenant", "tool", "run")


class HaltError(Refused):
    """A halt that cannot be made or lifted; the message says why."""


class LiftPolicy(WrittenByPeople):
    """Who lifts a halt. The role that owns the ledger carries out what they have decided."""

    roles: tuple[Role, ...] = Field(min_length=1)
    """Whose yes counts: principals with one of these roles."""
    quorum: Quorum = 1
    """How many different people have to say yes."""
    four_eyes: bool = False
    """Whoever has halted does not count."""
    proof: Literal["open", "signed", "passkey", "device_passkey"] = "open"
    """What must prove each yes, at least; ``open``: what ``SUREHAND_DECISIONS`` asks for. No chat
    lifts a halt."""


class HaltPolicy(WrittenByPeople):
    """Who halts and who lifts; left out: whoever can write to the ledger, and its owner."""

    may_halt: tuple[Role, ...] = ()
    """Who may halt: principals with one of these roles. Nothing proves the name: no emergency
    waits for a key, and who halts too much does less harm than who cannot."""
    lift: LiftPolicy | None = None


@dataclass(frozen=True)
class Halt:
    """Somebody has stopped calls: all of a tenant's, those of one tool, or those of one run."""

    halt_id: str
    tool: str | None
    """Of this tool alone."""
    run_id: str | None
    """Of this run and its child runs alone."""
    undo_too: bool
    """Whether what undoes effects waits as well."""
    reason: str
    halted_by: str
    halted_ms: int
    needs: LiftPolicy | None = None
    """Who lifts it, as was said where it was made; ``None``: that was not said."""
    lifted_by: str | None = None
    lifted_ms: int | None = None
    """``None``: it stands."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Halt:
        """Return the halt of a row.

        Needs that are none bind nobody: whoever has written them could have left them out.
        """
        needs = None
        with suppress(ValidationError):
            needs = LiftPolicy.model_validate(row["needs"])
        own = [name for name in cls.__dataclass_fields__ if name != "needs"]
        return cls(needs=needs, **{name: row[name] for name in own})

    def covers(self, tool: str | None, run_id: str | None) -> bool:
        """Return whether it is about calls of that tool and run; ``None``: about any of them."""
        if self.tool is not None and self.tool != tool:
            return False
        if self.run_id is None or self.run_id == run_id:
            return True
        return run_id is not None and is_child_of(run_id, self.run_id)

    @property
    def scope(self) -> str:
        """What it stops, in words."""
        what = "all calls" if self.tool is None else f"calls of {self.tool}"
        return what if self.run_id is None else f"{what} of run {self.run_id}"

    @property
    def signed_parts(self) -> list[JsonValue]:
        """What a yes to lifting it is about: the halt as it was made."""
        said = (self.halt_id, self.tool, self.run_id, self.undo_too, self.reason, self.halted_by)
        return [*said, self.halted_ms]

    @property
    def params_hash(self) -> str:
        """What a yes to lifting it is bound to."""
        return digest(self.signed_parts)

    @property
    def as_wait(self) -> HaltWait:
        """What a step that it stops waits for."""
        return HaltWait(
            halt_id=self.halt_id,
            scope=self.scope,
            reason=self.reason,
            halted_by=self.halted_by,
            since=datetime.fromtimestamp(self.halted_ms / 1000, UTC),
            pause=LOOK,
        )


@dataclass(frozen=True)
class Halted:
    """A call may not begin: it is halted. Nothing was claimed."""

    halt: Halt
    tool: str

    def note(self, tx: Transaction, run_id: str, step_id: str | None) -> None:
        """Write that a halt holds up a step: once for each halt, however often it is looked at."""
        told = tx.list_told(run_id, step_id, "call.halted")
        if all(one["halt_id"] != self.halt.halt_id for one in told):
            by, reason = self.halt.halted_by, self.halt.reason
            body = {"halt_id": self.halt.halt_id, "actor": by, "reason": reason}
            tx.event(run_id, "call.halted", step_id=step_id, tool=self.tool, **body)


class HaltStands(Exception):
    """What was to begin is halted: its transaction is rolled back."""

    def __init__(self, found: Halted) -> None:
        super().__init__(found.halt.as_wait.story)
        self.found = found


def _covering(tool: ColumnElement[str], run_id: ColumnElement[str]) -> ColumnElement[bool]:
    below = func.substr(run_id, 1, func.length(halts.c.run_id) + 1) == halts.c.run_id + "~"
    of_run = or_(halts.c.run_id.is_(None), halts.c.run_id == run_id, below)
    return or_(halts.c.tool.is_(None), halts.c.tool == tool) & of_run


def select_halt(
    tool: BindParameter[str], run_id: BindParameter[str], undoes: BindParameter[bool]
) -> ScalarSelect[str]:
    """Return the query of the oldest halt that stops a call; NULL: none does."""
    stops = or_(~undoes, halts.c.undo_too)
    found = rows_of(halts, halts.c.halt_id, lifted_ms=None).where(_covering(tool, run_id), stops)
    return found.order_by(halts.c.halted_ms, halts.c.halt_id).limit(1).scalar_subquery()


_TOOL: Final[BindParameter[str]] = bindparam("of_tool")
_RUN: Final[BindParameter[str]] = bindparam("of_run")
_STOPS_READ: Final = PreparedStatement(
    select(
        select_halt(_TOOL, _RUN, bindparam("of_undoes", type_=Boolean)).label("halted"),
        select_limited().label("limited"),
    )
)
_STANDING: Final = PreparedStatement(
    rows_of(halts, lifted_ms=None)
    .where(_covering(_TOOL, _RUN))
    .order_by(halts.c.halted_ms, halts.c.halt_id)
    .limit(1)
)


def is_halted(tool: ColumnElement[str], run_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that a halt stands which covers a tool and a run."""
    return rows_of(halts, lifted_ms=None).where(_covering(tool, run_id)).exists()


def read_halt(tx: Transaction, halt_id: str) -> Halt:
    """Return a halt; raises ``HaltError`` if there is none of that id."""
    row = tx.one(rows_of(halts, halt_id=halt_id))
    if row is None:
        raise HaltError(f"there is no halt {halt_id!r}")
    return Halt.from_row(row)


def find_halt(tx: Transaction, tool: str, run_id: str) -> Halt | None:
    """Return the oldest halt that stops calls of a tool that go forward in a run."""
    row = tx.one(_STANDING, of_tool=tool, of_run=run_id)
    return None if row is None else Halt.from_row(row)


def require_may_read(tx: Transaction, tool: str, run_id: str) -> None:
    """Make sure that a read may begin; raises ``HaltStands`` and ``QuotaUsedUp``.

    The tenant's calls are to be shared before (``Transaction.share_calls``).
    """
    found = tx.one(_STOPS_READ, of_tool=tool, of_run=run_id, of_undoes=False)
    assert found is not None
    if found["halted"] is not None:
        raise HaltStands(Halted(read_halt(tx, found["halted"]), tool))
    if found["limited"] is not None:
        require_unspent(tx)


def halt_calls(
    tx: Transaction,
    actor: str,
    reason: str,
    tool: str | None = None,
    run_id: str | None = None,
    undo_too: bool = False,
    policy: HaltPolicy | None = None,
) -> Halt:
    """Stop calls: none that is covered begins once this transaction has committed.

    It waits for the claims that are being made, each of which takes milliseconds. One that waits
    for the entry of a transactional tool's call under way takes up to the ledger's patience. Raises
    ``HaltError`` if the actor may not.
    """
    policy = policy or HaltPolicy()
    if policy.may_halt and find_principal(tx, actor).roles.isdisjoint(policy.may_halt):
        raise HaltError(f"{actor} has no role {' or '.join(policy.may_halt)}, and may not halt")
    tx.lock_calls()
    made_up = (f"halt-{uuid.uuid4().hex[:12]}", tool, run_id, undo_too, reason, actor, tx.now_ms)
    halt = Halt(*made_up, needs=policy.lift)
    # Without what says that it was lifted: no worker may write that.
    made = {name: value for name, value in vars(halt).items() if not name.startswith("lifted_")}
    needs = policy.lift and policy.lift.model_dump(mode="json")
    tx.insert_row(halts, **made | {"needs": needs})
    return halt


def list_halts(tx: Transaction, *, standing: bool = False) -> list[Halt]:
    """Return halts, oldest first; ``standing``: only those that were not lifted."""
    wanted = {"lifted_ms": None} if standing else {}
    rows = tx.all(rows_of(halts, **wanted).order_by(halts.c.halted_ms, halts.c.halt_id))
    return [Halt.from_row(row) for row in rows]


def count_halts(tx: Transaction) -> dict[str, int]:
    """Return how many halts stand, by what they stop (``SCOPES``)."""
    standing = [
        "run" if one.run_id is not None else "tool" if one.tool is not None else "tenant"
        for one in list_halts(tx, standing=True)
    ]
    return {scope: standing.count(scope) for scope in SCOPES}


def stood_still(
    tx: Transaction,
    tool: str | None,
    run_id: str | None,
    since_ms: int,
    until_ms: int | None = None,
    *,
    undoes: bool = False,
) -> int:
    """Return for how many milliseconds since then a halt has stood that covers a tool and a run.

    What waits for a person or a date waits so much longer. Halts that overlap count once.
    ``until_ms``: now, if it is not said. ``undoes``: only those that stop what undoes effects.
    """
    still, upto = 0, since_ms
    latest = tx.now_ms if until_ms is None else until_ms
    for one in list_halts(tx):
        if not one.covers(tool, run_id) or (undoes and not one.undo_too):
            continue
        end = latest if one.lifted_ms is None else min(latest, one.lifted_ms)
        begin = max(one.halted_ms, upto)
        if end > begin:
            still, upto = still + end - begin, end
    return still


def request_clock(tx: Transaction, row: Mapping[str, Any]) -> int:
    """Return the time by which an approval request runs out, without what halts have stood.

    ``row`` is of ``approvals``. Where the request's time is not over yet, it is the ledger's clock.
    """
    if row["expires_ms"] > tx.now_ms:
        return tx.now_ms
    return tx.now_ms - stood_still(tx, row["tool"], row["run_id"], row["requested_ms"])


def select_longest_still(now_ms: BindParameter[int]) -> ScalarSelect[int]:
    """Return the query of the longest time for which halts may have kept anything waiting.

    Whatever they cover, and as if none had stood beside another: a bound for what is read by index.
    """
    end = func.coalesce(halts.c.lifted_ms, now_ms)
    stood = case((end > halts.c.halted_ms, end - halts.c.halted_ms), else_=0)
    return rows_of(halts, func.coalesce(func.sum(stood), 0)).scalar_subquery()


_LONGEST_STILL: Final = PreparedStatement(
    select(select_longest_still(bindparam("now_ms", type_=BigInteger)).label("still"))
)


def earliest_clock(tx: Transaction, now_ms: int) -> int:
    """Return up to when requests have run out at ``now_ms``, whatever halts have stood."""
    return now_ms - tx.count(_LONGEST_STILL, now_ms=now_ms)


def list_under_way(tx: Transaction, halt: Halt) -> list[dict[str, Any]]:
    """Return the entries that a halt covers and that have no outcome yet, oldest claim first."""
    columns = ("entry_id", "tool", "key", "run_id", "step_id", "state", "undoes")
    query = rows_of(effects, *columns).where(WITHOUT_OUTCOME)
    query = query.order_by(effects.c.claimed_ms, effects.c.entry_id)
    rows = tx.all(query.execution_options(sealed="stored"))
    return [row for row in rows if halt.covers(row["tool"], row["run_id"])]


def read_entry_states(tx: Transaction, entry_ids: Iterable[str]) -> dict[str, str]:
    """Return the state of each of these entries."""
    of_them = effects.c.entry_id.in_(list(entry_ids))
    return {
        row["entry_id"]: row["state"]
        for row in tx.all(rows_of(effects, "entry_id", "state").where(of_them))
    }


def find_unknown_scope(tx: Transaction, run_id: str | None, tool: str | None) -> list[str]:
    """Return what of a halt's scope nothing is recorded of: it may be misspelt."""
    unknown = list[str]()
    if run_id is not None and not tx.has(rows_of(runs, "run_id", run_id=run_id)):
        unknown.append(f"run {run_id}")
    if tool is not None:
        used = (rows_of(table, "tool", tool=tool) for table in (effects, approvals, steps))
        if not any(tx.has(query.limit(1)) for query in used):
            unknown.append(f"call of {tool}")
    return unknown
