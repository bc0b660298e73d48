"""What pages and scripts are told of requests: rows of the ledger, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import JsonValue

from surehand.activities.ledger.approvals.votes import folded, needs_of
from surehand.activities.ledger.core.approval_expiry import has_expired
from surehand.activities.ledger.core.sealed import Cell, Erased
from surehand.activities.ledger.history.doubts import Doubt
from surehand.activities.ledger.history.one_approval import OneApproval
from surehand.activities.ledger.people.principals import Key, Principal
from surehand.cli.approvals import diff
from surehand.cli.approvals_server.doubts import as_text, doubted
from surehand.cli.approvals_server.graph import run_graph
from surehand.cli.approvals_server.texts import OF_PAGES, STATES
from surehand.cli.approvals_server.times import iso, time_left, utc
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.effects import CANNOT_BE_UNDONE
from surehand.workflows.contracts.foreign import foreign_text
from surehand.workflows.contracts.interrupts import Interrupt
from surehand.workflows.contracts.runs import RunView
from surehand.workflows.identity import short_hash
from surehand.workflows.plan.policy import Escalate


def listed(row: Mapping[str, Any], me: Principal, now_ms: int) -> dict[str, Any]:
    """Return one line of the list."""
    sealed = isinstance(row["description"], Cell | Erased)
    mine, assurance = folded(me.name), Assurance(row["assurance"])
    open_ = assurance is Assurance.OPEN
    return {
        "id": row["approval_id"],
        "tool": row["tool"],
        "description": OF_PAGES.list_sealed if sealed else row["description"],
        "irreversible": str(row["undo"]).startswith(CANNOT_BE_UNDONE),
        "foreign": row["foreign"],
        "asked_by": row["user_id"],
        "needs": [one.as_text() for one in needs_of(row).requirements],
        "voters": row["voters"],
        "decisions": None if open_ else assurance.as_text(),
        "left": time_left(row["expires_ms"], now_ms),
        "expires_at": iso(row["expires_ms"]),
        "hash": short_hash(row["params_hash"]),
        "voted": any(folded(one) == mine for one in row["voters"]),
        "asked": any(folded(one) == mine for one in (row["user_id"], *row["editors"])),
    }


def standing(one: OneApproval) -> dict[str, Any]:
    """Return what of a request changes while somebody looks at it."""
    return {
        "state": _state(one),
        "waits": waits(one),
        "votes": [*_voters(one), *one.standing],
        "run_state": one.run_state,
    }


def detailed(one: OneApproval, me: Principal) -> dict[str, Any]:
    """Return what a page shows of one request, but for the call itself."""
    row, needs = one.row, one.needs
    old = one.replaces["params"] if one.replaces else None
    new = row["params"]
    return {
        "id": row["approval_id"],
        "description": row["description"] or OF_PAGES.list_sealed,
        **standing(one),
        "run_id": row["run_id"],
        "step_id": row["step_id"],
        "key": row["key"],
        "hash": row["params_hash"],
        "undo": row["undo"] or OF_PAGES.list_sealed,
        "asked_by": f"{row['user_id']}, started by {one.started_by}"
        if one.started_by
        else row["user_id"],
        "editors": row["editors"],
        "foreign": foreign_text(one.foreign),
        "needs": [requirement.as_text() for requirement in needs.requirements],
        "excluded": one.excluded,
        "decisions": Assurance(row["assurance"]).as_text(),
        "expires_at": iso(row["expires_ms"]),
        "left": time_left(row["expires_ms"], one.now_ms),
        "then": _then(one) if waits(one) else None,
        "precondition": None if row["precondition"] is None else _precondition(one),
        "replaces": one.replaces["approval_id"] if one.replaces else None,
        "changes": diff(old, new) if old is not None and new is not None else [],
        "entries": [{**entry, "at": iso(entry["claimed_ms"])} for entry in one.entries],
        "said": [{**said, "at": iso(said["at_ms"])} for said in one.decisions],
        "hint": _hint(one, me),
    }


def own_keys(keys: Iterable[Key]) -> dict[str, Any]:
    """Return the registered keys of whoever looks, as the scripts choose among them."""
    known = list(keys)
    passkeys = [
        {"kid": one.kid, "public_key": one.public_key, **asdict(one.passkey)}
        for one in known
        if one.passkey is not None
    ]
    return {"keys": [one.kid for one in known if one.passkey is None], "passkeys": passkeys}


def asked(one: OneApproval, me: Principal, keys: Iterable[Key], *, tenant: str) -> dict[str, Any]:
    """Return what it takes to reject a request: the page has it before anything of the call.

    Args:
        one: The request.
        me: Who looks.
        keys: Those that are registered for them.
        tenant: Whose request it is.
    """
    row = one.row
    return {
        "tenant": tenant,
        "principal": me.name,
        **own_keys(keys),
        "approval_id": row["approval_id"],
        "params_hash": row["params_hash"],
        "proof": row["assurance"],
        "waits": waits(one),
        "left_ms": row["expires_ms"] - one.now_ms,
    }


def document(
    one: OneApproval,
    me: Principal,
    keys: Iterable[Key],
    *,
    tenant: str,
    salt: str | None,
    schema: JsonValue,
) -> dict[str, Any]:
    """Return what the script draws the call from, and has signed.

    Args:
        one: The request.
        me: Who looks.
        keys: Those that are registered for them.
        tenant: Whose request it is.
        salt: What is hashed with the params, where they are sealed.
        schema: JSON Schema of the params, for the form to edit them by; ``None``: it is not known.
    """
    row = one.row
    return {
        **asked(one, me, keys, tenant=tenant),
        "run_id": row["run_id"],
        "tool": row["tool"],
        "version": row["tool_version"],
        "params": row["params"],
        "answers": row["answers"] or [],
        "salt": salt,
        "schema": as_text(guessed_schema(row["params"]) if schema is None else schema),
        "state": row["state"],
    }


def run_document(
    view: RunView,
    doubts: Mapping[str, Doubt],
    me: Principal,
    keys: Iterable[Key],
    *,
    tenant: str,
) -> dict[str, Any]:
    """Return what a run's page is drawn from.

    Args:
        view: What the run says of itself.
        doubts: What the ledger knows of the interventions in it.
        me: Who looks.
        keys: Those that are registered for them.
        tenant: Whose run it is.
    """
    return {
        "tenant": tenant,
        "principal": me.name,
        **own_keys(keys),
        "run_id": view.result.run_id,
        "state": view.result.state.value,
        "error": view.result.error,
        "graph": run_graph(view.plan, view.result.steps),
        "approvals": [{"id": one.approval_id, "text": one.description} for one in view.pending],
        "questions": [_question(one) for one in view.interrupts],
        "doubts": [
            doubted(one, doubts.get(one.id), view.result.run_id)
            for one in view.result.waiting_for
            if one.kind == "intervention"
        ],
        "story": story(view),
    }


def _question(one: Interrupt) -> dict[str, Any]:
    asked = one.model_dump(mode="json")
    value = None if one.value is None else as_text(one.value)
    return {**asked, "value": value, "answer_schema": as_text(asked["answer_schema"])}


def story(view: RunView) -> list[dict[str, Any]]:
    """Return what a run has done so far, a line for each thing."""
    return [{"at": utc(line.at), "step": line.step_id, "text": line.text} for line in view.timeline]


def guessed_schema(value: JsonValue) -> dict[str, JsonValue]:
    """Return the JSON Schema that a form can go by, where nobody knows the tool's own."""
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case dict():
            members: dict[str, JsonValue] = {
                name: guessed_schema(one) for name, one in value.items()
            }
            return {"type": "object", "properties": members, "required": [*value]}
    return {}


def waits(one: OneApproval) -> bool:
    """Return whether a decision can still count."""
    expired = has_expired(one.row, one.now_ms)
    return one.row["state"] == "pending" and one.run_open and not expired


def _state(one: OneApproval) -> str:
    row = one.row
    if row["state"] == "pending" and has_expired(row, one.now_ms):
        return STATES["expired"]
    if row["state"] == "pending" and not one.run_open:
        return f"{STATES['void']} ({one.run_state})"
    mark = "" if row["verified"] or not row["decided_by"] else f" ({OF_PAGES.unverified})"
    by = f" by {row['decided_by']}{mark}" if row["decided_by"] else ""
    return STATES[row["state"]] + by


def _precondition(one: OneApproval) -> dict[str, Any]:
    """Return what is known here of the precondition: its digest, and when that was made."""
    now, before = one.row["precondition"], one.precondition_before
    return {
        "digest": short_hash(now),
        "at": iso(one.row["requested_ms"]),
        "before": None if before is None else short_hash(before),
        "changed": before not in (None, now),
    }


def _voters(one: OneApproval) -> list[str]:
    return [
        said["approver"] + ("" if said["verified"] else f" ({OF_PAGES.unverified})")
        for said in one.decisions
        if _is_yes(said)
    ]


def _is_yes(said: Mapping[str, Any]) -> bool:
    return (said["verdict"], said["outcome"]) == ("accepted", "approve")


def _then(one: OneApproval) -> str:
    if one.needs.on_expiry == "ask_again":
        return OF_PAGES.then_again
    if isinstance(one.needs.on_expiry, Escalate):
        return f"{OF_PAGES.then_escalated} {one.needs.on_expiry.escalate}"
    return OF_PAGES.then_rejected


def _hint(one: OneApproval, me: Principal) -> str | None:
    """Return why the vote of whoever looks will not count, as far as that is known here."""
    if folded(me.name) in map(folded, one.excluded):
        return OF_PAGES.you_excluded
    said_yes = (said["approver"] for said in one.decisions if _is_yes(said))
    if folded(me.name) in map(folded, said_yes):
        return OF_PAGES.you_voted
    roles = [set(requirement.roles) for requirement in one.needs.requirements]
    if all(asked and asked.isdisjoint(me.roles) for asked in roles):
        return OF_PAGES.you_lack_role
    return None
