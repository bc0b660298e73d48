"""Ids, keys and hashes: what makes two tool calls the same call, and whose a run is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from surehand.workflows.canonical_json import (
    LOST_DIGITS,
    NotCanonical,
    canonical_json,
    digest,
    has_lost_digits,
)

DEFAULT_TENANT: Final = "default"
#: Whose is what is no tenant's; no tenant is called so.
_NOBODY: Final = "_"
#: 39 characters: ``tenant/name`` has at most 160. Temporal's SQL stores limit workflow ids to 255,
#: and an approval id adds a step's id and a number. It is part of run ids, of paths in the artifact
#: store and of queries to the server.
_TENANT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,38}", re.ASCII)


_UNDO: Final = "undo:"
_APART: Final = "="


def standing_digest(entries: Iterable[str], children: Iterable[str]) -> str:
    """Return the digest of what stands of a run: its own entries, and its child runs.

    As short for thousands of effects as for one.
    """
    return digest([sorted(set(entries)), sorted(set(children))])


def short_hash(hash_: str) -> str:
    """Return the part of a hash that people compare with their eyes: its first 12 hex digits."""
    return hash_.rpartition(":")[2][:12]


def params_hash(
    tool: str,
    version: str,
    params: Mapping[str, Any],
    answers: Sequence[Any] = (),
    salt: str | None = None,
) -> str:
    """Return the hash that an approval is bound to; ``NotCanonical``: a number may be rounded.

    An approval for one version of the tool is none for another. The params are the *validated* ones
    in JSON form, never raw text. What humans have answered to the tool's own questions decides what
    it does. Without the salt of a run that is sealed nobody finds the params by guessing.
    """
    material = {"tool": tool, "version": version, "params": dict(params)}
    if has_lost_digits([dict(params), list(answers)]):
        # Two amounts may have become one: as a whole number, the canonical form refuses it.
        raise NotCanonical(f"value has no canonical JSON form: {LOST_DIGITS}")
    more = {"answers": list(answers)} if answers else {}
    return digest({**material, **more} if salt is None else {**material, **more, "salt": salt})


def identity_hash(tool: str, params: Mapping[str, Any]) -> str:
    """Return the hash that a ledger entry is compared by.

    The version is left out, so that a deploy never turns a committed effect into a mismatch.
    """
    return digest({"tool": tool, "params": dict(params)})


def provider_key(tenant: str, tool: str, key: str, generation: int) -> str:
    """Return the opaque key that the outside system gets to deduplicate on (67 characters)."""
    material = {"tenant": tenant, "tool": tool, "key": key, "generation": generation}
    return "sh-" + hashlib.sha256(b"surehand/1\n" + canonical_json(material)).hexdigest()


def step_key(run_id: str, step_id: str) -> str:
    """Return the default idempotency key of a write whose tool names no business key."""
    return f"{run_id}:{step_id}"


def undo_key(entry_id: str) -> str:
    """Return the key of the compensation of an effect: undos have a namespace of their own."""
    return _UNDO + entry_id


def forward_key(key: str) -> str:
    """Return the key of a call that goes forward, outside of the undos' namespace.

    Keys that would lie in it, such as those of a run called ``undo``, are set apart; no two keys
    become one.
    """
    return f"{_APART}{key}" if key.lstrip(_APART).startswith(_UNDO) else key


def approval_id(run_id: str, step_id: str, number: int) -> str:
    """Return the deterministic id of the ``number``-th approval request of a step."""
    return f"{run_id}/{step_id}/{number}"


def run_of_approval(approval: str) -> tuple[str, str] | None:
    """Split an approval id into ``(run_id, step_id)``; ``None`` when it has not that form."""
    parts = approval.rsplit("/", 2)
    if len(parts) != 3 or not all(parts) or not (parts[2].isascii() and parts[2].isdecimal()):
        return None
    return parts[0], parts[1]


def run_id_for(tenant: str, name: str) -> str:
    """Return the run id (the Temporal Workflow Id) of a run called ``name`` in a tenant.

    The id carries the tenant: ``acme/refund-1``. Names of the default tenant stand alone, and no
    name may contain a slash, so two tenants can never share an id.
    """
    return name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"


def child_run_id(run_id: str, step_id: str, number: int = 1) -> str:
    """Return the id of the run that does a step which is a plan: ``refund-1~pay``.

    A step that is tried again after its child has failed has another: ``refund-1~pay.2``.

    People's own run names have no ``~``, so nobody else has this id.
    """
    return f"{run_id}~{step_id}" if number == 1 else f"{run_id}~{step_id}.{number}"


def root_run_id(run_id: str) -> str:
    """Return the run at the top of a tree of child runs, by the id of one of them."""
    return run_id.partition("~")[0]


def upkeep_id(tenant: str, name: str) -> str:
    """Return the Workflow Id of what keeps a tenant's ledger in order; no run can have it."""
    return run_id_for(tenant, f"~{name}")


def unwind_id(run_id: str) -> str:
    """Return the Workflow Id of what undoes a run that was stopped; no step can have it."""
    return f"{run_id}~.unwind"


def is_child_of(run_id: str, ancestor: str) -> bool:
    """Return whether a run is done for a step of another one, or of one of that one's children."""
    return run_id.startswith(f"{ancestor}~")


def tenant_problem(tenant: str) -> str | None:
    """Return what is wrong with a tenant's name, as one clause; ``None``: it can be one."""
    if _TENANT.fullmatch(tenant) and tenant != _NOBODY:
        return None
    return "use 1 to 39 letters, digits, '_', '.' and '-', the first no '.' or '-'; not '_' alone"


def tenant_of_run(run_id: str) -> str:
    tenant, slash, _ = run_id.partition("/")
    return tenant if slash else DEFAULT_TENANT


def owner_of(workflow_id: str) -> str:
    """Return whose is what is kept of a workflow, which may be none of ours.

    Workflows whose id begins with what is no tenant's name share an owner that no tenant can be.
    """
    tenant = tenant_of_run(workflow_id)
    return tenant if tenant_problem(tenant) is None else _NOBODY
