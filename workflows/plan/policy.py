"""Approval policies as data: who has to say yes to a call, how many of them, and until when.

Several policies may apply to one call (the plan's, the tool's as recorded at the run's start, the
tool's as loaded now). All of them have to be satisfied, so that none can weaken another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

#: Far beyond any approval's use, and well before dates and timers end.
LONGEST_APPROVAL: Final = timedelta(days=3650)


def some_time(value: timedelta) -> timedelta:
    """Return a duration that is longer than nothing, and ends; else ``ValueError``."""
    if not timedelta(0) < value <= LONGEST_APPROVAL:
        raise ValueError(f"must be longer than nothing and at most {LONGEST_APPROVAL.days} d")
    return value


#: More approvers than anybody gathers.
LARGEST_QUORUM: Final = 20

#: What a role or a permission may be called.
ROLE_FORM: Final = r"^[A-Za-z0-9_.:-]{1,80}$"


def parse_duration(value: Any) -> Any:
    """Turn ``"90s"``, ``"15m"``, ``"24h"`` or ``"7d"`` into a timedelta; leave others alone."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        try:
            return timedelta(seconds=float(match[1]) * _UNIT_SECONDS[match[2]])
        except OverflowError as error:
            raise ValueError("is too long") from error
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Role = Annotated[str, Field(pattern=ROLE_FORM)]
Quorum = Annotated[int, Field(ge=1, le=LARGEST_QUORUM)]


#: What may prove a decision, the strictest last: as ``Assurance`` has it.
ASKED_PROOFS: Final = ("open", "chat", "signed", "passkey", "device_passkey")
AskedProof = Literal["open", "chat", "signed", "passkey", "device_passkey"]


class WrittenByPeople(BaseModel):
    """Base of what people write: unknown fields are mistakes, not extensions."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Escalate(WrittenByPeople):
    """Ask again, and let only this role decide for this policy."""

    escalate: Role


OnExpiry = Literal["deny", "ask_again"] | Escalate


class ApprovalRule(WrittenByPeople):
    """An exception for some params; the first rule that fits decides.

    Example:
        >>> small = ApprovalRule(when="amount <= 50", required=False)
        >>> ApprovalPolicy(roles=("manager",), rules=(small,)).rules[0].required
        False
    """

    when: str = Field(min_length=1, max_length=500)
    """An expression over the params, such as ``amount > 100 and currency == 'EUR'``."""
    required: bool = True
    """``False``: such a call needs no approval by this policy."""
    quorum: Quorum | None = None
    roles: tuple[Role, ...] | None = None
    four_eyes: bool | None = None
    proof: AskedProof | None = None
    """What must prove each decision on such a call, at least."""


class ApprovalPolicy(WrittenByPeople):
    """Who is asked before a call, and for how long an answer counts.

    Example:
        >>> ApprovalPolicy(quorum=2, roles=("manager",), expires_in="4h").expires_in
        datetime.timedelta(seconds=14400)
    """

    expires_in: Duration = timedelta(hours=24)
    """How long after the request a decision counts, and an approval can be used."""
    quorum: Quorum = 1
    """How many different people have to say yes."""
    roles: tuple[Role, ...] = ()
    """Who may decide: principals with one of these roles; empty: everybody."""
    four_eyes: bool = False
    """Nobody may decide who asked for the call, edited it, or gave its run a value."""
    on_expiry: OnExpiry | None = None
    """What follows if nobody decides in time; ``deny`` if no policy says anything."""
    remind_every: Duration | None = None
    may_edit: tuple[Role, ...] = ()
    """Roles that may edit the params, of those who may decide; empty: all who may decide."""
    rules: tuple[ApprovalRule, ...] = Field(default=(), max_length=50)
    standing: bool = True
    """Whether votes given in advance count; ``False``: people look at each call."""
    proof: AskedProof = "open"
    """What must prove each decision, at least. The key of a ``device_passkey`` cannot leave its
    device; ``open``: what the worker asks for; ``chat``: a button in the chat is enough."""

    @field_validator("expires_in", "remind_every")
    @classmethod
    def _check_duration(cls, value: timedelta | None) -> timedelta | None:
        return None if value is None else some_time(value)

    @property
    def proofs(self) -> frozenset[AskedProof]:
        """Return what decisions may have to be proven by, whichever rule holds."""
        return frozenset((self.proof, *(rule.proof for rule in self.rules if rule.proof)))


Approval = Annotated[
    ApprovalPolicy | None,
    BeforeValidator(lambda v: ApprovalPolicy() if v is True or v == "required" else v),
]


class Requirement(BaseModel):
    """Votes that one policy asks for."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    quorum: int = 1
    roles: tuple[str, ...] = ()
    four_eyes: bool = False
    may_edit: tuple[str, ...] = ()
    escalate: str | None = None
    """The role that decides in the place of the others once a request has expired."""

    def as_text(self) -> str:
        """Return whose approvals are asked for, as one clause."""
        people = f" of {' or '.join(self.roles)}" if self.roles else ""
        count = "1 approval" if self.quorum == 1 else f"{self.quorum} approvals"
        return f"{count}{people}{', not by who asked for it' if self.four_eyes else ''}"

    def escalated(self) -> Requirement:
        """Return what is asked for once a request has expired: one yes of its policy's own role.

        A policy that names none still asks for what it asked for: another one's escalation takes
        nothing away from it.
        """
        changes = {"quorum": 1, "roles": (self.escalate,)}
        return self if self.escalate is None else self.model_copy(update=changes)

    def adds_nothing_to(self, other: Requirement) -> bool:
        """Return whether whatever satisfies another requirement satisfies this one, too."""
        return (
            not self.roles
            and not self.may_edit
            and self.quorum <= other.quorum
            and self.four_eyes <= other.four_eyes
            and self.escalate in (None, other.escalate)
        )


class Needs(BaseModel):
    """What all policies together ask for, for one call."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    requirements: tuple[Requirement, ...]
    expires_in: timedelta
    on_expiry: OnExpiry = "deny"
    remind_every: timedelta | None = None
    escalated_to: str | None = None
    """Who is asked now, because an earlier request has expired."""
    standing: bool = True
    """Whether standing approvals count: no policy that asks may refuse them."""
    proof: AskedProof = "open"
    """What has to prove each decision: what the strictest policy that asks wants."""

    def escalated(self, role: str) -> Needs:
        """Return what is asked for once a request has expired; nobody is asked after that."""
        requirements = tuple(item.escalated() for item in self.requirements)
        changes = {"requirements": requirements, "on_expiry": "deny", "escalated_to": role}
        return self.model_copy(update=changes)


def combine(policies: Iterable[ApprovalPolicy], holds: Callable[[str], bool]) -> Needs | None:
    """Return what the policies ask for; ``None`` where each of them lets the call pass.

    ``holds`` says whether a rule's expression is true of the call's params.
    """
    asking, proofs = [], []
    for policy in policies:
        rule = next((rule for rule in policy.rules if holds(rule.when)), None)
        if rule is None or rule.required:
            asking.append((policy, _make_requirement(policy, rule)))
            proofs.append((rule and rule.proof) or policy.proof)
    if not asking:
        return None
    reminders = [policy.remind_every for policy, _ in asking if policy.remind_every is not None]
    return Needs(
        requirements=_drop_repeated([requirement for _, requirement in asking]),
        expires_in=min(policy.expires_in for policy, _ in asking),
        on_expiry=_strictest_expiry([policy.on_expiry for policy, _ in asking]),
        remind_every=min(reminders, default=None),
        standing=all(policy.standing for policy, _ in asking),
        proof=max(proofs, key=ASKED_PROOFS.index),
    )


def _drop_repeated(requirements: list[Requirement]) -> tuple[Requirement, ...]:
    # Once each: the plan, the recorded and the loaded tool mostly say the same. One that everybody
    # satisfies would let everybody reject and edit what another keeps for some.
    once = tuple(dict.fromkeys(requirements))
    return tuple(
        item
        for item in once
        if not any(item.adds_nothing_to(other) for other in once if other != item)
    )


def _make_requirement(policy: ApprovalPolicy, rule: ApprovalRule | None) -> Requirement:
    names = {"quorum", "roles", "four_eyes"}
    changed = rule.model_dump(include=names, exclude_none=True) if rule else {}
    escalate = policy.on_expiry.escalate if isinstance(policy.on_expiry, Escalate) else None
    asked = {**policy.model_dump(include=names), **changed}
    return Requirement(may_edit=policy.may_edit, escalate=escalate, **asked)


def _strictest_expiry(said: list[OnExpiry | None]) -> OnExpiry:
    if "deny" not in said:
        escalations = [item for item in said if isinstance(item, Escalate)]
        if escalations:
            return escalations[0]
        if "ask_again" in said:
            return "ask_again"
    return "deny"
