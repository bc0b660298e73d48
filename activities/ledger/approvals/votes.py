"""Votes: who has said yes to a request, and whether that is enough *now*."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from surehand.activities.ledger.approvals import standing
from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import decisions
from surehand.activities.ledger.people import principals, starts
from surehand.activities.ledger.people.proofs import Refusal, why_unproven
from surehand.activities.ledger.people.starts import find_planners
from surehand.activities.ledger.steps.entries import Covers
from surehand.workflows.contracts.approvals import (
    Assurance,
    DecisionOutcome,
    VerdictCode,
    standing_label,
)
from surehand.workflows.plan.policy import Needs, Requirement

#: Characters of all roles together, as long as the ledger's column for them is.
LONGEST_ROLES: Final = 1000


@dataclass(frozen=True)
class Vote:
    """One person's yes, with the roles that person has."""

    approver: str
    roles: frozenset[str]
    standing_id: str | None = None
    """The standing approval that has voted: the person has not looked at this call."""

    @property
    def label(self) -> str:
        """How people are told whose yes it is."""
        if self.standing_id is None:
            return self.approver
        return standing_label(self.approver, self.standing_id)


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
        why = "has asked for this call, or given its run a value"
        return VerdictCode.FOUR_EYES, f"{vote.approver} {why}"
    return None


def asked_of(requirements: Iterable[Requirement]) -> str:
    """Return the roles whose votes can count, as a request is found by them; pure.

    Empty: everybody's can. So it is where there are more roles than a row has room for: nobody may
    miss what waits for them.
    """
    requirements = tuple(requirements)
    roles = " ".join(sorted({role for one in requirements for role in one.roles}))
    anybody = any(not one.roles for one in requirements)
    return "" if anybody or len(roles) > LONGEST_ROLES else roles


def missing(
    requirements: Iterable[Requirement], votes: Sequence[Vote], requesters: Collection[str]
) -> str | None:
    """Return what the votes do not satisfy, as one clause, or ``None``; pure."""
    requirements = tuple(requirements)
    excluded = _not_counted(requirements, requesters)
    for requirement in requirements:
        counted = _counted(requirement, votes, excluded)
        if len(counted) < requirement.quorum:
            who = f" of {' or '.join(sorted(requirement.roles))}" if requirement.roles else ""
            eyes = ", the requester's own not counted" if requirement.four_eyes else ""
            return f"{len(counted)} of {requirement.quorum} approvals{who}{eyes}"
    return None


def helps(
    requirements: Iterable[Requirement],
    votes: Sequence[Vote],
    vote: Vote,
    requesters: Collection[str],
) -> bool:
    """Return whether one more vote counts for a requirement that is not satisfied yet; pure."""
    requirements = tuple(requirements)
    excluded = _not_counted(requirements, requesters)
    return any(
        len(before) < requirement.quorum
        and before != _counted(requirement, [*votes, vote], excluded)
        for requirement in requirements
        for before in [_counted(requirement, votes, excluded)]
    )


def may_edit(requirements: Iterable[Requirement], roles: frozenset[str]) -> bool:
    """Return whether somebody with these roles may change the params; pure.

    For each policy: those it names, or else those who may decide for it.
    """
    return all(_has_role(one.may_edit or one.roles, roles) for one in requirements)


def requesters(
    tx: Transaction, row: Mapping[str, Any], requirements: Iterable[Requirement]
) -> frozenset[str]:
    """Return who has asked for the call of an approval's row, where four eyes are asked for.

    Whom its run acts for, and who has decided what the run calls.
    """
    if not any(one.four_eyes for one in requirements):
        return frozenset()
    return find_planners(tx, row["run_id"]) | {row["user_id"]}


def unknown_requester(
    tx: Transaction, run_id: str, requirements: Iterable[Requirement], assurance: Assurance
) -> str | None:
    """Return why nobody can tell whose eyes are others', where votes have to be signed."""
    if assurance is Assurance.OPEN or not any(one.four_eyes for one in requirements):
        return None
    why = starts.why_start_unproven(tx, run_id)
    return None if why is None else f"nothing proves who has started run {run_id}: {why}"


def needs_of(row: Mapping[str, Any]) -> Needs:
    """Return what was asked for when an approval's row was written."""
    return Needs.model_validate(row["needs"])


def accepted_decisions(tx: Transaction, approval_id: str) -> list[dict[str, Any]]:
    """Return what was decided on a request and counted then, oldest first."""
    rows = rows_of(decisions, approval_id=approval_id, verdict=VerdictCode.ACCEPTED.value)
    return sorted(tx.all(rows), key=lambda row: int(row["at_ms"]))


def votes_now(
    tx: Transaction,
    approval_id: str,
    accepted: Iterable[Mapping[str, Any]],
    assurance: Assurance,
    *,
    in_advance: Covers | None,
) -> list[Vote]:
    """Return the votes that stand now.

    A role that was taken away since, or the revocation of the key that signed, takes the vote away;
    the end of a standing approval takes away those that it has given. Signatures are verified each
    time, as they are on record: a row without its own is no vote where votes have to be signed.
    What a standing approval covers is judged each time, too.

    Args:
        accepted: The decisions on it that were accepted.
        assurance: What has to prove a vote.
        in_advance: Says which standing approvals cover the call; ``None``: none of them counts.
    """
    rows = [row for row in accepted if row["outcome"] == DecisionOutcome.APPROVE]
    people = principals.find_principals(tx, [row["approver"] for row in rows])
    given = [row["standing_id"] for row in rows if row["standing_id"] is not None]
    standing_now = {}
    if in_advance is not None:
        standing_now = standing.voting(tx, approval_id, given, in_advance)

    def stands(row: Mapping[str, Any]) -> bool:
        if row["standing_id"] is not None:
            # What a standing approval has signed, is verified with it.
            found = standing_now.get(row["standing_id"])
            return found is not None and is_of(row, found) and found.assurance.satisfies(assurance)
        if row["kid"] is None and row["signature"] is None:
            return assurance is Assurance.OPEN
        return why_unproven(tx, row, assurance) is None

    return [
        Vote(row["approver"], people[row["approver"]].roles, row["standing_id"])
        for row in rows
        if stands(row)
    ]


def is_of(row: Mapping[str, Any], found: standing.Standing) -> bool:
    """Return whether a vote on record is that of a standing approval; pure."""
    return (row["approver"], row["kid"], row["signature"]) == (
        found.granter, found.kid, found.signature
    )  # fmt: skip


def _counted(
    requirement: Requirement, votes: Iterable[Vote], excluded: Collection[str]
) -> frozenset[str]:
    return frozenset(
        folded(vote.approver)
        for vote in votes
        if _has_role(requirement.roles, vote.roles) and folded(vote.approver) not in excluded
    )


def _has_role(wanted: Collection[str], held: frozenset[str]) -> bool:
    return not wanted or not held.isdisjoint(wanted)


def _not_counted(
    requirements: Iterable[Requirement], requesters: Collection[str]
) -> Collection[str]:
    # One policy that wants four eyes keeps the requesters out of all of them.
    if not any(requirement.four_eyes for requirement in requirements):
        return ()
    return {folded(requester) for requester in requesters}
