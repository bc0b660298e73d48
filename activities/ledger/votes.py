"""Votes: who has said yes to a request, and whether that is enough *now*."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from activities.ledger import principals
from activities.ledger.store import Transaction
from activities.ledger.tables import decisions
from workflows.contracts import Assurance, VerdictCode
from workflows.policy import Needs, Requirement

#: Why a decision does not count.
Refusal = tuple[VerdictCode, str]


@dataclass(frozen=True)
class Vote:
    """One person's yes, with the roles that person has."""

    approver: str
    roles: frozenset[str]


def folded(name: str) -> str:
    """Return what the spellings of a name have in common; pure.

    Case, width, blanks, how accents are made and characters that nobody sees make no other person.
    Only to tell people apart: nobody has a role, a permission or a key but by the exact name.
    """
    seen = "".join(c for c in name if unicodedata.category(c) != "Cf")
    alike = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return " ".join(alike.split())


def refusal(
    requirements: Iterable[Requirement], vote: Vote, requesters: Collection[str]
) -> Refusal | None:
    """Return why a person's decision can count for none of the requirements, or ``None``; pure."""
    requirements = tuple(requirements)
    fitting = [r for r in requirements if _has_role(r.roles, vote.roles)]
    if not fitting:
        wanted = sorted({role for r in requirements for role in r.roles})
        return VerdictCode.NOT_PERMITTED, f"{vote.approver} has no role {' or '.join(wanted)}"
    if folded(vote.approver) in _not_counted(requirements, requesters):
        return VerdictCode.FOUR_EYES, f"{vote.approver} has asked for this call, or edited it"
    return None


def missing(
    requirements: Iterable[Requirement], votes: Sequence[Vote], requesters: Collection[str]
) -> str | None:
    """Return what the votes do not satisfy, as one clause, or ``None``; pure."""
    requirements = tuple(requirements)
    excluded = _not_counted(requirements, requesters)
    for requirement in requirements:
        counted = {
            folded(vote.approver)
            for vote in votes
            if _has_role(requirement.roles, vote.roles) and folded(vote.approver) not in excluded
        }
        if len(counted) < requirement.quorum:
            who = f" of {' or '.join(sorted(requirement.roles))}" if requirement.roles else ""
            eyes = ", the requester's own not counted" if requirement.four_eyes else ""
            return f"{len(counted)} of {requirement.quorum} approvals{who}{eyes}"
    return None


def may_edit(requirements: Iterable[Requirement], roles: frozenset[str]) -> bool:
    """Return whether somebody with these roles may change the params; pure.

    For each policy: those it names, or else those who may decide for it.
    """
    return all(_has_role(one.may_edit or one.roles, roles) for one in requirements)


def requesters(row: Mapping[str, Any]) -> frozenset[str]:
    """Return who has asked for the call of an approval's row, with its params as they are."""
    return frozenset((row["user_id"], *row["editors"]))


def needs_of(row: Mapping[str, Any]) -> Needs:
    """Return what was asked for when an approval's row was written."""
    return Needs.model_validate(row["needs"])


async def votes_now(tx: Transaction, approval_id: str, assurance: Assurance) -> list[Vote]:
    """Return the votes that stand now.

    A role that was taken away since, or the revocation of the key that signed, takes the vote away.
    """
    rows = await tx.all(
        select(decisions.c.approver, decisions.c.verified, decisions.c.kid)
        .where(
            decisions.c.tenant_id == tx.tenant,
            decisions.c.approval_id == approval_id,
            decisions.c.verdict == "accepted",
            decisions.c.outcome == "approve",
        )
        .order_by(decisions.c.at_ms)
    )
    people = await principals.find(tx, [row["approver"] for row in rows])
    return [
        Vote(row["approver"], people[row["approver"]].roles)
        for row in rows
        if (row["kid"] in people[row["approver"]].keys)
        or (row["kid"] is None and assurance is Assurance.OPEN)
    ]


def _has_role(wanted: Collection[str], held: frozenset[str]) -> bool:
    return not wanted or not held.isdisjoint(wanted)


def _not_counted(
    requirements: Iterable[Requirement], requesters: Collection[str]
) -> Collection[str]:
    # One policy that wants four eyes keeps the requesters out of all of them.
    if not any(requirement.four_eyes for requirement in requirements):
        return ()
    return {folded(requester) for requester in requesters}
