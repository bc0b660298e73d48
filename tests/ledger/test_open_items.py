"""What the database refuses by itself, and what a run has left open."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Table, delete, update
from sqlalchemy.exc import DBAPIError, IntegrityError

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
from surehand.activities.ledger.runs import lifecycle
from surehand.verify import OpenItems, find_open_items
from surehand.workflows.contracts.base import RunState
from tests.ledger import rows
from tests.ledger.rows import COMMITTED
from tests.ledger.scene import RUN, Scene, said

NOTHING = OpenItems([], [], [], [])


def left_by(scene: Scene, state: RunState | None) -> OpenItems:
    """Close the run, unless it goes on, and return what its events leave open."""
    if state is not None:
        scene.end(state=state)
    return find_open_items(scene.events())


def test_a_standing_effect_is_open_only_if_it_should_be_undone(scene: Scene) -> None:
    entry = scene.committed(scene.call())

    assert left_by(scene, None) == NOTHING
    named = f"payments.refund (step refund, entry {entry.entry_id})"
    assert (left_by(scene, RunState.CANCELLED)).uncompensated == [named]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("made", "state"),
    [
        ("committed", RunState.COMPLETED),
        ("compensated", RunState.FAILED),
        ("failed", RunState.FAILED),
        ("answered_no", RunState.FAILED),
    ],
)
def test_an_effect_as_it_should_be_is_not_open(scene: Scene, made: str, state: RunState) -> None:
    getattr(scene, made)(scene.call())

    assert left_by(scene, state) == NOTHING


def test_doubt_and_its_open_question_are_told_until_a_human_answers(scene: Scene) -> None:
    entry, question = scene.asked(scene.call())
    left = left_by(scene, None)
    assert (len(left.in_doubt), left.interventions) == (1, [question])

    assert scene.settle(said(question, "not_happened"))[0]

    assert entry.entry_id in left.in_doubt[0]
    assert left_by(scene, None) == NOTHING


def test_an_effect_in_part_stays_in_part_when_a_human_gives_up(scene: Scene) -> None:
    _, question = scene.asked(scene.call(), partial=True)
    asked = left_by(scene, None)
    assert (len(asked.partial), asked.in_doubt, asked.interventions) == (1, [], [question])
    assert scene.settle(said(question, "give_up"))[0]

    left = left_by(scene, RunState.FAILED)

    assert (len(left.partial), left.in_doubt, left.interventions) == (1, [], [])


def test_a_call_without_an_outcome_is_in_doubt_once_its_run_has_ended(scene: Scene) -> None:
    scene.claimed(scene.call())

    assert left_by(scene, None) == NOTHING
    assert len((left_by(scene, RunState.FAILED)).in_doubt) == 1


def test_an_undo_that_failed_leaves_its_original_uncompensated(scene: Scene) -> None:
    entry = scene.committed(scene.call())
    question = scene.asked_to_undo(entry)

    left = left_by(scene, RunState.FAILED)

    assert (len(left.uncompensated), left.interventions) == (1, [question])


def test_a_run_stopped_from_outside_is_told_as_not_undone(scene: Scene) -> None:
    entry = scene.committed(scene.call())

    with scene.tx() as tx:
        assert lifecycle.close_terminated(tx, RUN)

    named = f"payments.refund (step refund, entry {entry.entry_id})"
    assert (left_by(scene, None)).uncompensated == [named]


CONSUMED = {"consumed_entry": "ef-1", "consumed_generation": 1}
DECIDED = {"state": "approved", "decided_by": "alice"}
FREE = {"holder": None, "lease_until_ms": None}
UNDO = {"undoes": "ef-0", "key": "undo:ef-0"}
SIGNED = {"verified": True, "kid": "k-1", "nonce": "n-1"}
STARTED = {"start_signature": "a.b.c", "start_kid": "k", "start_nonce": "n"}
SETTLED = {"state": "settled", "outcome": "happened", "actor": "olga"}
#: A valid row with one thing wrong, and the rule that refuses it.
ILLEGAL: list[tuple[str, Table, dict[str, Any]]] = [
    ("ck_runs_closed_when_ended", runs, {"state": "completed"}),
    ("ck_runs_closed_when_ended", runs, {"closed_ms": 2}),
    ("ck_runs_start_signed_whole", runs, {"start_signature": "a.b.c"}),
    ("ck_runs_start_signed_whole", runs, {"start_kid": "k"}),
    ("ck_runs_start_signed_whole", runs, {"start_nonce": "n"}),
    ("ck_checkpoints_counts", checkpoints, {"seq": -1}),
    ("ck_effects_state", effects, {"state": "done", "lease_until_ms": None}),
    ("ck_effects_leased_while_claimed", effects, {"lease_until_ms": None}),
    ("ck_effects_leased_while_claimed", effects, {**COMMITTED, "lease_until_ms": 1}),
    ("ck_effects_leased_while_claimed", effects, {"state": "in_doubt"}),
    ("ck_effects_committed_has_number", effects, {**COMMITTED, "commit_no": None}),
    ("ck_effects_committed_has_number", effects, {"state": "compensated", "lease_until_ms": None}),
    ("ck_effects_counts", effects, {"generation": 0}),
    ("ck_effects_counts", effects, {"fencing_token": 0}),
    ("ck_approvals_state", approvals, {"state": "maybe"}),
    ("ck_approvals_decided_by_someone", approvals, {"state": "approved"}),
    ("ck_approvals_decided_by_someone", approvals, {"decided_by": "alice"}),
    ("ck_approvals_only_approved_is_consumed", approvals, CONSUMED),
    ("ck_approvals_only_approved_is_consumed", approvals, {**CONSUMED, "state": "void"}),
    ("ck_approvals_consumed_whole", approvals, {**DECIDED, "consumed_entry": "ef-1"}),
    ("ck_approvals_consumed_whole", approvals, {**DECIDED, "consumed_generation": 1}),
    ("ck_interventions_state", interventions, {"state": "closed"}),
    ("ck_interventions_settled_whole", interventions, {"state": "settled"}),
    ("ck_interventions_settled_whole", interventions, {**SETTLED, "actor": None}),
    ("ck_interventions_settled_whole", interventions, {"outcome": "happened", "actor": "olga"}),
    ("ck_effects_undos_have_their_own_keys", effects, {"key": "undo:ef-0"}),
    ("ck_effects_undos_have_their_own_keys", effects, {"undoes": "ef-0"}),
    ("ck_leases_held_until", leases, {"holder": None}),
    ("ck_leases_held_until", leases, {**FREE, "holder": "h"}),
    ("ck_leases_fencing_token", leases, {"fencing_token": 0}),
    ("ck_notifications_state", notifications, {"state": "lost"}),
    ("ck_notifications_sent_at_a_time", notifications, {"state": "sent"}),
    ("ck_notifications_sent_at_a_time", notifications, {"sent_ms": 2}),
    ("ck_notifications_counts", notifications, {"number": -1}),
    ("ck_drafts_counts", drafts, {"number": 0}),
    ("ck_drafts_removed_at_a_time", drafts, {"tail": None}),
    ("ck_drafts_removed_at_a_time", drafts, {"ended_ms": 2, "removed_ms": 3}),
    ("ck_drafts_ended_when_removed", drafts, {"removed_ms": 3, "tail": None}),
    ("ck_events_seq", events, {"seq": 0}),
]
#: Two rows that are valid by themselves, and the rule by which they cannot both be there.
TOGETHER: list[tuple[str, Table, dict[str, Any], dict[str, Any]]] = [
    ("uq_runs_start_nonce", runs, STARTED, {**STARTED, "run_id": "run-3"}),
    ("uq_drafts_under_way", drafts, {}, {"number": 2}),
    ("uq_effects_live_key", effects, {}, {"entry_id": "ef-2", "generation": 2}),
    ("uq_effects_live_key", effects, COMMITTED, {"entry_id": "ef-2", "generation": 2}),
    (
        "uq_effects_live_key", effects,
        {**COMMITTED, "state": "compensating"}, {"entry_id": "ef-2", "generation": 2},
    ),
    (
        "uq_effects_tenant_id_tool_key_generation", effects,
        {"state": "failed", "lease_until_ms": None}, {"entry_id": "ef-2"},
    ),
    (
        "uq_effects_undoes", effects,
        UNDO, {**UNDO, "entry_id": "ef-2", "tool": "another"},
    ),
    (
        "uq_effects_undoes", effects,
        {**COMMITTED, **UNDO}, {**UNDO, "entry_id": "ef-2", "key": "undo:another"},
    ),
    ("uq_decisions_vote", decisions, {}, {"decision_id": "d-2", "reason": "twice"}),
    ("uq_decisions_nonce", decisions, SIGNED, {**SIGNED, "decision_id": "d-2", "approval_id": "a"}),
    ("uq_interventions_open", interventions, {}, {"intervention_id": "iv-2"}),
    ("pk_leases", leases, {}, {"step_id": "another", "holder": "another"}),
    (
        "uq_notifications_tenant_id_kind_subject_number_channel", notifications,
        {}, {"notification_id": "nt-2"},
    ),
    ("pk_events", events, {}, {"type": "another"}),
]  # fmt: skip
#: Two rows that may both be there.
BESIDE: list[tuple[Table, dict[str, Any], dict[str, Any]]] = [
    (
        effects,
        {"state": "failed", "lease_until_ms": None}, {"entry_id": "ef-2", "generation": 2},
    ),
    (
        effects,
        {**COMMITTED, "state": "compensated"}, {"entry_id": "ef-2", "generation": 2},
    ),
    (
        effects,
        {**UNDO, "state": "failed", "lease_until_ms": None},
        {**UNDO, "entry_id": "ef-2", "generation": 2},
    ),
    (runs, STARTED, {**STARTED, "run_id": "run-3", "started_by": "another"}),
    (runs, STARTED, {**STARTED, "run_id": "raw-run~step", "start_nonce": None}),
    (effects, {}, {"entry_id": "ef-2", "tool": "another"}),
    (decisions, {}, {"decision_id": "d-2", "verdict": "already_decided"}),
    (decisions, {}, {"decision_id": "d-2", "approver": "another"}),
    (decisions, {}, {"decision_id": "d-2", "outcome": "reject"}),
    (decisions, SIGNED, {**SIGNED, "decision_id": "d-2", "approver": "another"}),
    (interventions, SETTLED, {"intervention_id": "iv-2"}),
]  # fmt: skip


def shown(value: Any) -> str:
    """Return how a parameter is shown in a test's name."""
    if isinstance(value, Table):
        return value.name
    if isinstance(value, dict):
        return ",".join(str(value[name]) if name == "state" else name for name in value) or "valid"
    return str(value)


def names(rule: str, error: IntegrityError) -> bool:
    """Whether the error is of that rule; SQLite names a unique rule by its columns."""
    message = str(error.orig)
    if rule in message:
        return True
    columns = {
        "uq_runs_start_nonce": "runs.started_by, runs.start_nonce",
        "uq_drafts_under_way": "drafts.run_id, drafts.step_id",
        "uq_effects_live_key": "effects.tenant_id, effects.tool, effects.key",
        "uq_effects_tenant_id_tool_key_generation": "effects.key, effects.generation",
        "uq_effects_undoes": "effects.tenant_id, effects.undoes",
        "uq_decisions_vote": "decisions.approval_id, decisions.approver",
        "uq_decisions_nonce": "decisions.approver, decisions.nonce",
        "uq_interventions_open": "interventions.entry_id, interventions.run_id",
        "uq_notifications_tenant_id_kind_subject_number_channel": "notifications.channel",
        "pk_leases": "leases.tenant_id, leases.resource",
        "pk_events": "events.tenant_id, events.run_id, events.seq",
    }
    return message.endswith(columns.get(rule, rule))


@pytest.mark.parametrize(("rule", "table", "changes"), ILLEGAL, ids=shown)
def test_an_illegal_state_is_refused(
    scene: Scene, rule: str, table: Table, changes: dict[str, Any]
) -> None:
    with pytest.raises(IntegrityError) as refused:
        rows.write(scene, table, **changes)

    assert names(rule, refused.value), refused.value


@pytest.mark.parametrize(("rule", "table", "first", "second"), TOGETHER, ids=shown)
def test_two_rows_that_exclude_each_other_are_refused(
    scene: Scene, rule: str, table: Table, first: dict[str, Any], second: dict[str, Any]
) -> None:
    rows.write(scene, table, **first)

    with pytest.raises(IntegrityError) as refused:
        rows.write(scene, table, **second)

    assert names(rule, refused.value), refused.value


@pytest.mark.parametrize(("table", "first", "second"), BESIDE, ids=shown)
def test_what_is_settled_makes_room(
    scene: Scene, table: Table, first: dict[str, Any], second: dict[str, Any]
) -> None:
    rows.write(scene, table, **first)
    rows.write(scene, table, **second)


def test_a_legal_row_cannot_be_changed_into_an_illegal_one(scene: Scene) -> None:
    rows.write(scene, approvals)

    with pytest.raises(IntegrityError) as refused:
        rows.change(scene, approvals, **CONSUMED)

    assert names("ck_approvals_only_approved_is_consumed", refused.value)


def test_a_row_of_a_run_that_was_never_opened_is_refused(scene: Scene) -> None:
    with pytest.raises(IntegrityError):
        rows.write(scene, effects, run_id="nobody's")


@pytest.mark.parametrize(
    "statement", [update(events).values(type="forged"), delete(events)], ids=["UPDATE", "DELETE"]
)
def test_events_are_never_changed_or_deleted(scene: Scene, statement: Any) -> None:
    before = scene.events()
    assert before

    # On PostgreSQL the workers have not even the right to try.
    with pytest.raises(DBAPIError, match=r"append-only|permission denied"), scene.tx() as tx:
        tx.execute(statement.where(events.c.tenant_id == scene.tenant))

    assert scene.events() == before
