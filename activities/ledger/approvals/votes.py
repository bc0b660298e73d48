"""Votes: who has said yes to a request, in person or in advance, and whether it is enough *now*."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from sqlalchemy import bindparam

from surehand.activities.ledger.approvals.standing import (
    Standing,
    find_voting,
    is_within,
    standing_of_tool,
    why_worthless,
)
from surehand.activities.ledger.core.statements import PreparedStatement, rows_of, update_rows
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.core.tables import approvals, decisions, standing_uses
from surehand.activities.ledger.people import principals, starts
from surehand.activities.ledger.people.proofs import Refusal, why_unproven
from surehand.activities.ledger.people.starts import find_planners
from surehand.activities.ledger.steps.entries import Covered, Covers
from surehand.activities.ledger.steps.foreign import foreign_content
from surehand.verify import fold_name
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import (
    ApprovalState,
    Assurance,
    DecisionOutcome,
    VerdictCode,
    standing_label,
)
from surehand.workflows.plan.policy import Needs, Requirement

#: As long as the column for who has decided is.
_LONGEST_NAME: Final = 200
#: Characters of all roles together, as long as the ledger's column for them is.
LONGEST_ROLES: Final = 1000


@dataclass(frozen=True)
class Vote:
    """One person's yes, with the roles that person has."""

    approver: str
    roles: frozenset[str]
    standing_id: str | None = None
    """The standing approval that has voted: the person has not looked at this call."""
    deputy_for: str | None = None
    """In whose place it counts where the approver's own roles are not asked for."""
    lent: frozenset[str] = frozenset()
    """The roles which that person has."""

    @property
    def label(self) -> str:
        """How people are told whose yes it is."""
        return label_vote(self.approver, self.standing_id, self.deputy_for)

    @property
    def short_label(self) -> str:
        """The same, as a request's row has room for."""
        fits = len(self.label) <= _LONGEST_NAME
        return self.label if fits else self.standing_id or self.approver

    def count_for(self, requirement: Requirement, excluded: Collection[str]) -> str | None:
        """Return as whose yes it counts for a requirement, folded; ``None``: it does not."""
        if fold_name(self.approver) in excluded:
            return None
        if _has_role(requirement.roles, self.roles):
            return fold_name(self.approver)
        if self.deputy_for is None or not _has_role(requirement.roles, self.lent):
            return None
        represented = fold_name(self.deputy_for)
        return None if represented in excluded else represented


def label_vote(approver: str, standing_id: str | None, deputy_for: str | None) -> str:
    """Return how people are told whose yes it is; pure."""
    if standing_id is not None:
        return standing_label(approver, standing_id)
    return approver if deputy_for is None else f"{approver} for {deputy_for}"


def refuse_vote(
    requirements: Sequence[Requirement], vote: Vote, requesters: Collection[str]
) -> Refusal | None:
    """Return why a person's decision can count for none of the requirements, or ``None``; pure."""
    if not any(vote.count_for(requirement, ()) for requirement in requirements):
        wanted = sorted({role for r in requirements for role in r.roles})
        return VerdictCode.NOT_PERMITTED, f"{vote.approver} has no role {' or '.join(wanted)}"
    excluded = _not_counted(requirements, requesters)
    if not any(vote.count_for(requirement, excluded) for requirement in requirements):
        own = fold_name(vote.approver) in excluded or vote.deputy_for is None
        who = vote.approver if own else vote.deputy_for
        return VerdictCode.FOUR_EYES, f"{who} has asked for this call, or given its run a value"
    return None


def vote_as_deputy(
    tx: Transaction,
    row: Mapping[str, Any],
    vote: Vote,
    requirements: Sequence[Requirement],
    requesters: Collection[str],
) -> Vote:
    """Return somebody's vote in the place of a person whose deputy they are now for this call.

    The same vote, if that helps nothing. What that person has by being a deputy is not lent on.
    """
    said = {
        fold_name(one["deputy_for"] or one["approver"])
        for one in accepted_decisions(tx, row["approval_id"])
    }
    found = principals.find_represented(tx, vote.approver, row)
    # Those first who have not voted yet, by whomever.
    for name in sorted(found, key=lambda name: fold_name(name) in said):
        lent = replace(vote, deputy_for=name, lent=principals.find_principal(tx, name).roles)
        if refuse_vote(requirements, lent, requesters) is None:
            return lent
    return vote


def roles_asked(requirements: Sequence[Requirement]) -> str:
    """Return the roles whose votes can count, as a request is found by them; pure.

    Empty: everybody's can. So it is where there are more roles than a row has room for: nobody may
    miss what waits for them.
    """
    roles = " ".join(sorted({role for one in requirements for role in one.roles}))
    anybody = any(not one.roles for one in requirements)
    return "" if anybody or len(roles) > LONGEST_ROLES else roles


def missing_votes(
    requirements: Sequence[Requirement], votes: Sequence[Vote], requesters: Collection[str]
) -> str | None:
    """Return what the votes do not satisfy, as one clause, or ``None``; pure."""
    excluded = _not_counted(requirements, requesters)
    for requirement in requirements:
        counted = _counted_people(requirement, votes, excluded)
        if len(counted) < requirement.quorum:
            who = f" of {' or '.join(sorted(requirement.roles))}" if requirement.roles else ""
            eyes = ", the requester's own not counted" if requirement.four_eyes else ""
            return f"{len(counted)} of {requirement.quorum} approvals{who}{eyes}"
    return None


def any_counts(
    requirements: Sequence[Requirement], votes: Sequence[Vote], excluded: Collection[str]
) -> bool:
    """Return whether a vote counts for any requirement; ``excluded`` are folded names; pure."""
    return any(_counted_people(requirement, votes, excluded) for requirement in requirements)


def vote_helps(
    requirements: Sequence[Requirement],
    votes: Sequence[Vote],
    vote: Vote,
    requesters: Collection[str],
) -> bool:
    """Return whether one more vote counts for a requirement that is not satisfied yet; pure."""
    excluded = _not_counted(requirements, requesters)
    for requirement in requirements:
        before = _counted_people(requirement, votes, excluded)
        after = _counted_people(requirement, [*votes, vote], excluded)
        if len(before) < requirement.quorum and before != after:
            return True
    return False


def may_edit(requirements: Sequence[Requirement], roles: frozenset[str]) -> bool:
    """Return whether somebody with these roles may change the params; pure.

    For each policy: those it names, or else those who may decide for it.
    """
    return all(_has_role(one.may_edit or one.roles, roles) for one in requirements)


def find_requesters(
    tx: Transaction, row: Mapping[str, Any], requirements: Sequence[Requirement]
) -> frozenset[str]:
    """Return who has asked for the call of an approval's row, where four eyes are asked for.

    Whom its run acts for, and who has decided what the run calls.
    """
    if not any(one.four_eyes for one in requirements):
        return frozenset()
    return find_planners(tx, row["run_id"]) | {row["user_id"]}


def unknown_requester(
    tx: Transaction, run_id: str, requirements: Sequence[Requirement], assurance: Assurance
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
    call: Mapping[str, Any] | None = None,
) -> list[Vote]:
    """Return the votes that stand now, of the decisions that were ``accepted``.

    A role that was taken away since, or the revocation of the key that signed, takes the vote away;
    the end of a standing approval takes away those that it has given. Signatures are verified each
    time, as they are on record: a row without its own is no vote where votes have to be signed.
    ``in_advance`` judges each time which standing approvals cover the call; ``None``: none counts.
    A deputy's vote counts in another one's place only if that holds now for ``call``, the row of
    the request.
    """
    rows = [row for row in accepted if row["outcome"] == DecisionOutcome.APPROVE]
    given = [row["standing_id"] for row in rows if row["standing_id"] is not None]
    standing_now = {}
    if in_advance is not None:
        standing_now = find_voting(tx, approval_id, given, in_advance)

    def stands(row: Mapping[str, Any]) -> bool:
        if row["standing_id"] is not None:
            # What a standing approval has signed, is verified with it.
            one = standing_now.get(row["standing_id"])
            if one is None or not one.assurance.satisfies(assurance):
                return False
            said = (row["approver"], row["kid"], row["signature"])
            return said == (one.granter, one.kid, one.signature)
        if row["kid"] is None and row["signature"] is None:
            return assurance is Assurance.OPEN
        return why_unproven(tx, row, assurance) is None

    def vote_of(row: Mapping[str, Any]) -> Vote:
        roles = principals.find_principal(tx, row["approver"]).roles
        vote = Vote(row["approver"], roles, row["standing_id"])
        name = None if call is None else row["deputy_for"]
        if name is None or name not in principals.find_represented(tx, row["approver"], call):
            return vote
        return replace(vote, deputy_for=name, lent=principals.find_principal(tx, name).roles)

    return [vote_of(row) for row in rows if stands(row)]


def _counted_people(
    requirement: Requirement, votes: Iterable[Vote], excluded: Collection[str]
) -> frozenset[str]:
    counted = (vote.count_for(requirement, excluded) for vote in votes)
    return frozenset(one for one in counted if one is not None)


def _has_role(wanted: Collection[str], held: frozenset[str]) -> bool:
    return not wanted or not held.isdisjoint(wanted)


def _not_counted(
    requirements: Sequence[Requirement], requesters: Collection[str]
) -> Collection[str]:
    # One policy that wants four eyes keeps the requesters out of all of them.
    if not any(requirement.four_eyes for requirement in requirements):
        return ()
    return {fold_name(requester) for requester in requesters}


def apply_standing(tx: Transaction, row: Mapping[str, Any], covers: Covers) -> bool:
    """Let standing approvals vote for a request that was just written; return whether any has.

    Only those that help, and none once there are votes enough. They are used under one lock for
    all of a tool, taken after the approval's row: workers may not change the rows of standing
    approvals, so they cannot lock them.
    """
    needs = needs_of(row)
    if not needs.standing or not standing_of_tool(tx, row["tool"]):
        return False
    tx.take_turn("standing", row["tool"])
    assurance = Assurance(row["assurance"])
    if unknown_requester(tx, row["run_id"], needs.requirements, assurance) is not None:
        return False
    waiting = standing_of_tool(tx, row["tool"])
    asked_by = find_requesters(tx, row, needs.requirements)
    votes: list[Vote] = []
    verified, foreign = True, bool(foreign_content(tx, row["run_id"]))
    for standing in waiting:
        if not standing.is_for(foreign=foreign):
            continue
        roles = principals.find_principal(tx, standing.granter).roles
        vote = Vote(standing.granter, roles, standing.standing_id)
        if not vote_helps(needs.requirements, votes, vote, asked_by):
            continue
        found = covers(standing.scope)
        if found is None or not standing.assurance.satisfies(assurance):
            continue
        if why_worthless(tx, standing) is not None or not is_within(tx, standing, found):
            continue
        _use_standing(tx, row, standing, found)
        votes, verified = [*votes, vote], verified and standing.signed
        if missing_votes(needs.requirements, votes, asked_by) is None:
            approved = ApprovalState.APPROVED
            settle_request(tx, row, approved, vote.short_label, verified=verified)
            break
    return bool(votes)


@dataclass(frozen=True)
class Voters:
    """Who has voted for a request, as people are told."""

    all: tuple[str, ...]
    standing: tuple[str, ...]
    """Whose standing approvals have."""


def find_voters(tx: Transaction, approval_id: str) -> Voters:
    """Return who has voted for a request, and which of them in advance."""
    said = decisions.c
    columns = (said.approver, said.standing_id, said.deputy_for, said.verified, said.at_ms)
    counted = {"verdict": VerdictCode.ACCEPTED.value, "outcome": DecisionOutcome.APPROVE.value}
    rows = tx.all(rows_of(decisions, *columns, approval_id=approval_id, **counted))
    rows.sort(key=lambda row: (row["at_ms"], row["standing_id"] or ""))
    told = [
        label_vote(row["approver"], row["standing_id"], row["deputy_for"])
        + ("" if row["verified"] else " (unverified)")
        for row in rows
    ]
    standing = [name for name, row in zip(told, rows, strict=True) if row["standing_id"]]
    return Voters(tuple(told), tuple(standing))


@cache
def _unused(*named: str) -> PreparedStatement:
    """Return the query of a run's approvals with uses, of which no effect has used any."""
    live = standing_uses.c
    waiting = rows_of(standing_uses, live.approval_id, run_id=bindparam("of_run"), returned_ms=None)
    if "of_step" in named:
        waiting = waiting.where(live.step_id == bindparam("of_step"))
    if "of_approval" in named:
        waiting = waiting.where(live.approval_id == bindparam("of_approval"))
    return PreparedStatement(
        rows_of(approvals, approvals.c.approval_id, approvals.c.step_id, consumed_entry=None)
        .where(approvals.c.approval_id.in_(waiting))
        .order_by(approvals.c.approval_id)
        .with_for_update()
    )


def give_back_uses(
    tx: Transaction, run_id: str, *, step_id: str | None = None, approval_id: str | None = None
) -> None:
    """Give back what approvals of a run, or of one step, have used and no effect can use any more.

    A vote whose use is given back counts no more, so that a late attempt at the old approval finds
    it missing.
    """
    named = {"of_step": step_id, "of_approval": approval_id}
    given = {name: value for name, value in named.items() if value is not None}
    # Locked, in order of their ids: a claim may be about to consume one of them.
    for row in tx.all(_unused(*given), of_run=run_id, **given):
        live = update_rows(standing_uses, approval_id=row["approval_id"], returned_ms=None)
        ended = live.values(returned_ms=tx.now_ms).returning(standing_uses.c.standing_id)
        returned = tx.all(ended)
        for use in sorted(returned, key=lambda use: str(use["standing_id"])):
            body = {"approval_id": row["approval_id"], "standing_id": use["standing_id"]}
            tx.event(run_id, "approval.standing_returned", step_id=row["step_id"], **body)


def _use_standing(
    tx: Transaction, row: Mapping[str, Any], standing: Standing, found: Covered
) -> None:
    approval_id = row["approval_id"]
    tx.insert_row(
        standing_uses,
        approval_id=approval_id,
        standing_id=standing.standing_id,
        run_id=row["run_id"],
        step_id=row["step_id"],
        amount=None if found.amount is None else f"{found.amount:f}",
        used_ms=tx.now_ms,
    )
    # Its own nonce has counted when it was granted; a use has one of its own, bound to both.
    nonce = digest([standing.nonce, approval_id]) if standing.signed else None
    tx.insert_row(
        decisions,
        decision_id=f"{approval_id}#{standing.standing_id}",
        run_id=row["run_id"],
        approval_id=approval_id,
        approver=standing.granter,
        outcome=DecisionOutcome.APPROVE.value,
        params_hash=row["params_hash"],
        reason=standing.reason,
        verdict=VerdictCode.ACCEPTED.value,
        message=f"approved by {standing.label}",
        verified=standing.signed,
        signature=standing.signature,
        kid=standing.kid,
        nonce=nonce,
        at_ms=tx.now_ms,
        standing_id=standing.standing_id,
    )
    tx.event(
        row["run_id"],
        "approval.standing_used",
        step_id=row["step_id"],
        approval_id=approval_id,
        standing_id=standing.standing_id,
        approver=standing.granter,
        verified=standing.signed,
        proof=standing.assurance.value,
        kid=standing.kid,
    )


def settle_request(
    tx: Transaction,
    row: Mapping[str, Any],
    state: ApprovalState,
    decided_by: str,
    *,
    verified: bool,
    edited_hash: str | None = None,
) -> None:
    """Let a request's row, as it was read under its lock, follow what has decided it."""
    approval_id = row["approval_id"]
    same = {"approval_id": approval_id, "state": row["state"], "consumed_entry": None}
    values = {"decided_by": decided_by, "verified": verified}
    tx.execute(update_rows(approvals, **same).values(state=state.value, **values))
    tx.event(
        row["run_id"],
        f"approval.{state}",
        step_id=row["step_id"],
        approval_id=approval_id,
        params_hash=row["params_hash"],
        edited_hash=edited_hash,
        verified=verified,
    )
