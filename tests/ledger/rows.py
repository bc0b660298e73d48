"""Valid rows written past the ledger's functions, with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Table, insert

from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.tables import (
    approvals,
    checkpoints,
    decisions,
    drafts,
    effects,
    events,
    interventions,
    leases,
    notifications,
    runs,
)
from tests.ledger.scene import RUN, Scene

_HASH = "sha256:" + "0" * 64

_VALID: dict[Table, dict[str, Any]] = {
    runs: {
        "run_id": "raw-run", "first_execution": "w", "execution": "w", "user_id": "ada",
        "started_by": "ada",
        "start_ms": 1, "plan_name": "p",
        "input": {}, "state": "running", "seq": 0, "head": _HASH, "opened_ms": 1,
    },
    effects: {
        "run_id": RUN, "step_id": "s", "entry_id": "ef-1", "tool": "t", "tool_version": "1",
        "key": "k", "generation": 1, "identity_hash": _HASH, "params_hash": _HASH, "params": {},
        "state": "claimed", "fencing_token": 1, "lease_until_ms": 1, "lease_ms": 1,
        "timeout_ms": 1, "unproven": False, "foreign_receipt": False, "epoch": 0, "calls": 1,
        "failures": {}, "claimed_ms": 1,
    },
    approvals: {
        "run_id": RUN, "step_id": "s", "approval_id": "run-1/s/1", "tool": "t",
        "tool_version": "1", "key": "k", "params_hash": _HASH, "params": {}, "description": "",
        "undo": "changes nothing", "user_id": "ada", "editors": [], "needs": {}, "asked_of": "",
        "assurance": "open", "state": "pending", "requested_ms": 1, "expires_ms": 2,
    },
    decisions: {
        "run_id": RUN, "decision_id": "d-1", "approval_id": "run-1/s/1", "approver": "a",
        "outcome": "approve", "params_hash": _HASH, "reason": "", "verdict": "accepted",
        "message": "", "verified": False, "at_ms": 1,
    },
    interventions: {
        "run_id": RUN, "step_id": "s", "intervention_id": "iv-1", "entry_id": "ef-1",
        "number": 1, "rule": "unknown", "question": "?", "state": "open", "opened_ms": 1,
    },
    leases: {
        "run_id": RUN, "step_id": "s", "resource": "account:7", "tool": "t", "fencing_token": 1,
        "holder": "h", "lease_until_ms": 1, "lease_ms": 1, "others_after_ms": 0, "acquired_ms": 1,
    },
    notifications: {
        "run_id": RUN, "notification_id": "nt-1", "kind": "run.stopped", "subject": RUN,
        "number": 0, "channel": "log", "facts": {"what": "it"}, "state": "pending", "due_ms": 1,
        "attempts": 0, "written_ms": 1,
    },
    checkpoints: {
        "run_id": RUN, "name": "c", "seq": 0, "document": {}, "bytes": 2,
        "saved_by": "ada", "saved_ms": 1,
    },
    drafts: {
        "run_id": RUN, "step_id": "s", "number": 1, "params_hash": _HASH, "bytes": 0, "parts": [],
        "tail": b"", "begun_ms": 1,
    },
    events: {
        "run_id": RUN, "seq": 1000, "type": "test", "body": {}, "at_ms": 1, "previous": _HASH,
        "hash": _HASH,
    },
}  # fmt: skip

#: What makes a committed effect of a claimed one.
COMMITTED = {"state": "committed", "lease_until_ms": None, "commit_no": 7}


def write(scene: Scene, table: Table, **changes: Any) -> None:
    """Insert a valid row of a table with some columns changed."""
    values = {"tenant_id": scene.tenant, **_VALID[table], **changes}
    with scene.tx() as tx:
        tx.execute(insert(table).values(values).execution_options(of_run=values.get("run_id")))


def change(
    scene: Scene, table: Table, where: Mapping[str, Any] | None = None, **changes: Any
) -> None:
    """Change a tenant's rows of a table, or those with some values alone."""
    with scene.tx() as tx:
        tx.execute(update_rows(table, **where or {}).values(changes))
