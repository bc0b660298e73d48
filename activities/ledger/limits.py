"""Limits over what a tenant's effects come to, judged and counted in the claim's transaction.

Effects that count together have one lock, so of any number at once no more are claimed than may be.
What is under way counts; what is proven not to have happened, or was undone, does not. An effect
counts from its newest claim that went forward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final, Literal

from sqlalchemy import bindparam, func, literal_column

from surehand.activities.ledger.core.engine import lock_name
from surehand.activities.ledger.core.statements import (
    PreparedStatement,
    ours,
    rows_of,
    upsert_row,
)
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import effects, limit_uses
from surehand.workflows.plan.policy import ApprovalPolicy

#: Amounts are kept in these, as whole numbers: they add up exactly in both databases.
MILLIONTHS: Final = 10**6
#: A call that adds more is within no limit; sums of thousands of these fit into the column.
LARGEST_AMOUNT: Final = 10**9


@dataclass(frozen=True)
class LimitUse:
    """What a call adds to a limit, or what it has to come after."""

    name: str
    group: str
    """Hash of what the effects that count together have in common."""
    plain_group: str
    """The same without a key: what was counted before runs were sealed stands there."""
    amount: Decimal | None
    """``None``: it is no number that can be added up, so it is within no limit."""
    most: Decimal | None
    """``None``: it sums up nothing. It comes after an effect, or calls of others after it."""
    within_ms: int
    ask: ApprovalPolicy | None
    """Who can let it through; ``None``: nobody."""
    shadow: bool
    """It stops nothing."""
    approved: bool
    """People are asked about this call as one that is over."""
    after: str | None = None
    """The tool of which an effect has to have happened before, for the same group."""
    by_other: bool = False
    """Whether others have to stand behind that effect than behind the call."""
    at_most: str | None = None
    """What the whole tree of the call's run may have made before (``run_tree.find_highest``)."""


@dataclass(frozen=True)
class Over:
    """A call that would be over a limit."""

    use: LimitUse
    used: Decimal
    why: str = ""
    """What a policy of the user's own has said."""

    def stops(self, *, gated: bool) -> bool:
        """Return whether the call is not made, unless its approval carries it (``gated``)."""
        asked = gated and self.use.ask is not None and self.use.approved
        return not self.use.shadow and not asked

    @property
    def reason(self) -> str:
        """Say it in one clause."""
        use = self.use
        if self.why:
            return self.why
        if use.at_most is not None:
            return f"limit {use.name}: the run has made an effect that is more than {use.at_most}"
        if use.after is not None:
            by = " that others stand behind" if use.by_other else ""
            return f"limit {use.name}: no {use.after}{by} has come before it in time"
        if use.amount is None:
            return f"limit {use.name}: what it adds is no number from 0 to {LARGEST_AMOUNT}"
        return (
            f"limit {use.name}: {self.used:f} of {use.most:f} used, this call adds {use.amount:f}"
        )


#: How a policy of the user's own is called among the limits: none of them can have this name.
OWN_POLICY: Final = "own policy"
Said = Literal["allow", "ask", "refuse", "none"]


@dataclass(frozen=True)
class PolicyAnswer:
    """What a policy of the user's own has said of a call."""

    said: Said
    reasons: str
    version: str
    """Of the policy: its digest, or the revision that it names."""
    about: Mapping[str, Any]
    """What it was told."""


@dataclass(frozen=True)
class PolicyUse:
    """What a policy of the user's own is asked about a call, and what it has answered."""

    facts: Mapping[str, Any]
    ask: ApprovalPolicy | None
    shadow: bool
    approved: bool
    answer: PolicyAnswer | None = None


class PolicySilent(Exception):
    """Nothing says whether a call may be made: its transaction is rolled back."""


def find_not_allowed(policy: PolicyUse, facts: Mapping[str, Any]) -> list[Over]:
    """Return why a call is not made by a policy's answer; ``facts`` are those of the call itself.

    Raises ``PolicySilent``.
    """
    answer = policy.answer
    if answer is None or not facts.items() <= answer.about.items():
        answer = PolicyAnswer("none", "it was asked about another call", "none", facts)
    if answer.said == "allow":
        return []
    why = f"policy {answer.version}: {answer.said}: {answer.reasons}"
    if answer.said == "none" and not policy.shadow:
        raise PolicySilent(why)
    ask = policy.ask if answer.said == "ask" else None
    nothing, how = Decimal(0), (ask, policy.shadow, policy.approved)
    return [Over(LimitUse(OWN_POLICY, "", "", nothing, nothing, 0, *how), nothing, why)]


@cache
def _select_used(limits: int, groups: int) -> PreparedStatement:
    """Return the query of what is used of so many limits that look back equally far.

    A group's hash is of its limit's name, too: none of them can be another limit's.
    """
    names: list[Any] = [bindparam(f"limit_{n}") for n in range(limits)]
    hashes: list[Any] = [bindparam(f"group_{n}") for n in range(groups)]
    return PreparedStatement(
        rows_of(limit_uses, limit_uses.c.limit_name, func.sum(limit_uses.c.amount).label("used"))
        .join(effects, ours(effects, entry_id=limit_uses.c.entry_id))
        .where(
            limit_uses.c.limit_name.in_(names),
            limit_uses.c.group_hash.in_(hashes),
            limit_uses.c.counted_ms > bindparam("after_ms"),
            limit_uses.c.entry_id != bindparam("but_entry"),
            # What did not happen, or was undone, counts no more.
            effects.c.state != literal_column("'failed'"),
            effects.c.state != literal_column("'compensated'"),
        )
        .group_by(limit_uses.c.limit_name)
    )


#: Effects that have come before, of which the newest are looked at: who stands behind each.
_MOST_BEFORE: Final = 20
_BEFORE: Final = PreparedStatement(
    rows_of(
        limit_uses,
        effects.c.run_id,
        effects.c.approval_id,
        limit_name=bindparam("of_limit"),
    )
    .join(effects, ours(effects, entry_id=limit_uses.c.entry_id))
    .where(
        limit_uses.c.group_hash.in_((bindparam("of_group"), bindparam("of_plain_group"))),
        limit_uses.c.counted_ms > bindparam("after_ms"),
        effects.c.tool == bindparam("of_tool"),
        # It stands: neither under way, nor unknown, nor being undone.
        effects.c.state == literal_column("'committed'"),
    )
    .order_by(limit_uses.c.counted_ms.desc())
    .limit(_MOST_BEFORE)
)


@cache
def _count_together(count: int) -> PreparedStatement:
    """Return the statement that counts a claim for so many limits."""
    same, own = ("entry_id", "counted_ms"), ("limit_name", "group_hash", "amount")
    rows: list[dict[str, Any]] = [
        {name: bindparam(name) for name in same} | {name: bindparam(f"{name}_{n}") for name in own}
        for n in range(count)
    ]
    changed = ("group_hash", "amount", "counted_ms")
    return upsert_row(limit_uses, lambda new: {name: new[name] for name in changed}, rows=rows)


def lock_limits(tx: Transaction, uses: Sequence[LimitUse]) -> None:
    """Let nothing else that counts together be claimed meanwhile.

    The locks are taken in order of names, behind those of the call and of quotas.
    """
    if uses:
        names = sorted(f"limit:{tx.tenant}:{use.name}:{use.group}" for use in uses)
        tx.now_ms = max(tx.now_ms, lock_name(tx.connection, *names))


def find_over(
    tx: Transaction,
    uses: Sequence[LimitUse],
    entry_id: str,
    is_by_other: Callable[[Mapping[str, Any]], bool],
    is_higher: Callable[[str], bool],
    *,
    judged: bool,
) -> list[Over]:
    """Return the limits that an entry's claim would be over; they are locked.

    Unless it is to be ``judged``, only those where others may have the room for which the entry was
    counted before. ``is_by_other`` says whether others stand behind an effect than behind the call,
    ``is_higher`` whether its run has made more than that.
    """
    found, used_by = list[Over](), _read_used(tx, uses, entry_id)
    for use in uses:
        if use.after is not None:
            before = tx.all(
                _BEFORE,
                of_limit=use.name,
                of_group=use.group,
                of_plain_group=use.plain_group,
                after_ms=tx.now_ms - use.within_ms,
                of_tool=use.after,
            )
            met = any(map(is_by_other, before)) if use.by_other else bool(before)
            if not met and (judged or _has_lapsed(tx, use, entry_id)):
                found.append(Over(use, Decimal(0)))
            continue
        if use.at_most is not None and judged and is_higher(use.at_most):
            found.append(Over(use, Decimal(0)))
        if use.most is None:
            continue
        used = Decimal(used_by.get(use.name, 0)) / MILLIONTHS
        over = use.amount is None or used + use.amount > use.most
        if over and (judged or _has_lapsed(tx, use, entry_id)):
            found.append(Over(use, used))
    return found


def _read_used(tx: Transaction, uses: Sequence[LimitUse], entry_id: str) -> dict[str, int]:
    """Return by limit what other entries use of it, in millionths; nothing: none does."""
    alike = defaultdict[int, list[LimitUse]](list)
    for use in uses:
        if use.most is not None:
            alike[use.within_ms].append(use)
    used = dict[str, int]()
    for within_ms, some in alike.items():
        values = {"but_entry": entry_id, "after_ms": tx.now_ms - within_ms}
        groups = {group for use in some for group in (use.group, use.plain_group)}
        values |= {f"limit_{n}": use.name for n, use in enumerate(some)}
        values |= {f"group_{n}": group for n, group in enumerate(groups)}
        rows = tx.all(_select_used(len(some), len(groups)), **values)
        used |= {row["limit_name"]: int(row["used"]) for row in rows}
    return used


def _has_lapsed(tx: Transaction, use: LimitUse, entry_id: str) -> bool:
    """Return whether an entry was counted so long ago that others may have its room now."""
    counted = tx.value(rows_of(limit_uses, "counted_ms", entry_id=entry_id, limit_name=use.name))
    return counted is not None and counted <= tx.now_ms - use.within_ms


def count_uses(tx: Transaction, uses: Sequence[LimitUse], entry_id: str) -> None:
    """Count a claim that goes forward; what a run may make at most is told by its effects alone."""
    uses = [use for use in uses if use.at_most is None]
    values: dict[str, Any] = {"entry_id": entry_id, "counted_ms": tx.now_ms}
    for n, use in enumerate(uses):
        values |= {f"limit_name_{n}": use.name, f"group_hash_{n}": use.group}
        values[f"amount_{n}"] = int((use.amount or Decimal(0)) * MILLIONTHS)
    if uses:
        tx.send(_count_together(len(uses)), **values)
