"""Approval Consistency and Permission Drift of one play, counted from the rows of its ledger.

A call counts once its attempt stands in the ledger: from there on nothing lies between it and the
tool. Neither number believes what a worker says of itself: hashes are made anew from the params
that an attempt was made with, permissions from what an administrator has changed, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from surehand.activities.ledger.history.evidence import Evidence, Row
from surehand.drill.report import Tally
from surehand.workflows.contracts.tools import Effect, ToolSpec
from surehand.workflows.identity import NotCanonical, identity_hash, params_hash
from surehand.workflows.plan.plan import Step

#: How attempts end that were turned away before their tool.
_NOT_CALLED: Final = frozenset({"refused"})


def tally(evidence: Evidence, actor: str) -> tuple[Tally, list[str]]:
    """Return the numbers of one play, and each violation as one line.

    Args:
        evidence: The play's rows.
        actor: In whose name the drill takes permissions away.
    """
    gated = [call for call in _calls(evidence) if _needs_approval(evidence, call)]
    unlike = [(call, why) for call in gated if (why := _differs(evidence, call))]
    drifted = list(_drifted(evidence))
    lost = [c for c in evidence.changes if c["change"].endswith("revoked") and c["actor"] == actor]
    found = Tally(
        gated=len(gated),
        as_approved=len(gated) - len(unlike),
        losses=len(lost),
        drifted=len(drifted),
    )
    stories = [f"{_name(call)} is not what was approved: {why}" for call, why in unlike]
    stories += [
        f"{_name(call)} was made although {evidence.user} had lost the permission {permission}"
        for call, permission in drifted
    ]
    return found, stories


@dataclass(frozen=True)
class _Call:
    """One attempt that may have reached its tool."""

    id: str
    """The step's id, with its item's number where it has a list."""
    step: Step
    row: Row
    claim: Row | None
    """What the ledger wrote when a write was claimed."""


def _calls(evidence: Evidence) -> Iterator[_Call]:
    claims = {(c["step_id"], c["attempt"]): c for c in evidence.claims if not c.get("undoes")}
    for row in evidence.steps:
        called = row["attempt"] > 0 and row["error_class"] not in _NOT_CALLED
        if called and row["tool"] in evidence.tools:
            claim = claims.get((row["step_id"], row["attempt"]))
            yield _Call(row["step_id"], evidence.plan.step(row["step_id"]), row, claim)


def calls_of(evidence: Evidence, step_id: str | None = None) -> int:
    """Return how many calls a run has made, or one of its steps."""
    return sum(step_id in (None, call.id) for call in _calls(evidence))


def _needs_approval(evidence: Evidence, call: _Call) -> bool:
    """Say whether a human had to be asked, by the plan and its tools as they were recorded."""
    if _requests(evidence, call):
        return True
    own = _tool(evidence, call).approval
    policies = [*evidence.plan.approvals(call.step), *([own] if own is not None else [])]
    if not policies:
        return False
    # Only rules can waive it, and only if every policy has one that does.
    may_be_waived = all(any(not rule.required for rule in one.rules) for one in policies)
    return not (may_be_waived and _hash(evidence, call) in _waived(evidence, call))


def _waived(evidence: Evidence, call: _Call) -> set[str]:
    return {one["params_hash"] for one in evidence.waived if one["step_id"] == call.id}


def _hash(evidence: Evidence, call: _Call) -> str:
    """Return the hash of what an attempt was made with, made anew."""
    tool = _tool(evidence, call)
    try:
        return params_hash(tool.name, tool.version, call.row["input"])
    except NotCanonical:
        return ""


def _requests(evidence: Evidence, call: _Call) -> list[Row]:
    return [row for row in evidence.approvals if row["step_id"] == call.id]


def _differs(evidence: Evidence, call: _Call) -> str | None:
    """Return in what a call differs from what was approved; ``None``: in nothing."""
    approved = [row for row in _requests(evidence, call) if row["state"] == "approved"]
    if not approved:
        return "nobody has approved it"
    if _tool(evidence, call).effect is Effect.READ:
        fits = any(_same_params(evidence, call, row) for row in approved)
        return None if fits else f"its params are not those of {_named(approved)}"
    if call.claim is None:
        return "it was made without a claim"
    return _claim_differs(evidence, call, call.claim, approved)


def _claim_differs(evidence: Evidence, call: _Call, claim: Row, approved: list[Row]) -> str | None:
    row = next((row for row in approved if row["approval_id"] == claim.get("approval_id")), None)
    if row is None:
        return f"its claim names {claim.get('approval_id') or 'no approval'}, not a given one"
    consumer = (row["consumed_entry"], row["consumed_generation"])
    if consumer != (claim["entry_id"], claim["generation"]):
        return f"{row['approval_id']} was used by {consumer[0] or 'nothing'}, not by it"
    recorded = {claim["params_hash"], *_in_entry(evidence, claim)}
    if recorded != {row["params_hash"]}:
        others = ", ".join(sorted(recorded - {row["params_hash"]}))
        return f"approved are params {row['params_hash']}, its claim has {others}"
    if not _same_params(evidence, call, row):
        return f"its params are not those of {row['approval_id']}"
    return None


def _in_entry(evidence: Evidence, claim: Row) -> Iterator[str]:
    """Yield the hash that stands in the claim's entry, unless a later claim has changed it."""
    for entry in evidence.effects:
        named = (entry["entry_id"], entry["fencing_token"])
        if named == (claim["entry_id"], claim["fencing_token"]):
            yield entry["params_hash"]


def _same_params(evidence: Evidence, call: _Call, approval: Row) -> bool:
    tool, params = approval["tool"], call.row["input"]
    try:
        if call.id in evidence.answered:
            # The hash covers the answers, too, which stand in no row as they are.
            return identity_hash(tool, params) == identity_hash(tool, approval["params"])
        return params_hash(tool, approval["tool_version"], params) == str(approval["params_hash"])
    except NotCanonical:
        return False


def _drifted(evidence: Evidence) -> Iterator[tuple[_Call, str]]:
    """Yield the calls that began while the acting user did not have a permission any more."""
    for call in _calls(evidence):
        permission = _tool(evidence, call).permission
        if permission is not None and _was_lost(evidence, permission, call.row["started_ms"]):
            yield call, permission


def _was_lost(evidence: Evidence, permission: str, at_ms: int) -> bool:
    before = [c for c in evidence.changes if c["what"] == permission and c["at_ms"] <= at_ms]
    return bool(before) and before[-1]["change"] == "permission_revoked"


def _tool(evidence: Evidence, call: _Call) -> ToolSpec:
    """Return the tool of an attempt; after a failure that is the step's fallback."""
    return evidence.tools[call.row["tool"]]


def _name(call: _Call) -> str:
    return f"{call.id} attempt {call.row['attempt']} of {call.row['tool']}"


def _named(rows: list[Row]) -> str:
    return ", ".join(row["approval_id"] for row in rows)
