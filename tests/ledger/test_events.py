"""G6: what happened can be proven: one chain a run, written with the change it records."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from sqlalchemy import update

from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.ledger.core.tables import events, runs
from tests.ledger.scene import OTHER_RUN, RUN, Scene

pytestmark = pytest.mark.guarantee("G6")

HASHED = ("run_id", "seq", "type", "step_id", "body", "at_ms")


def recomputed(chain: list[dict[str, Any]]) -> str:
    """Return the head of a chain, computed from its contents alone and not by the ledger's code."""
    head = "sha256:" + "0" * 64
    for event in chain:
        content = {name: event[name] for name in HASHED}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        head = "sha256:" + hashlib.sha256(f"{head}\n{canonical}".encode()).hexdigest()
        assert event["hash"] == head, event["seq"]
    return head


def _story(scene: Scene) -> list[dict[str, Any]]:
    """Let a run do a bit of everything, and return its chain."""
    gated = scene.approved(scene.call())
    committed = scene.committed(gated)
    scene.answered_no(scene.call(step_id="mail", key="mail"))
    scene.begin_undo()
    undo = scene.undo(committed)
    scene.commit(undo, scene.claimed(undo))
    return scene.events()


def test_events_are_numbered_without_gaps_and_each_carries_the_hash_of_the_one_before(
    scene: Scene,
) -> None:
    chain = _story(scene)

    assert [event["seq"] for event in chain] == list(range(1, len(chain) + 1))
    assert [event["type"] for event in chain] == [
        "run.opened",
        "approval.requested",
        "decision.accepted",
        "approval.approved",
        "approval.consumed",
        "effect.claimed",
        "effect.committed",
        "effect.claimed",
        "effect.answered_no",
        "step.barred",
        "effect.claimed",
        "effect.committed",
        "effect.compensated",
    ]
    assert recomputed(chain) == (scene.row(runs))["head"]


def test_a_change_to_any_part_of_an_event_shows(scene: Scene) -> None:
    chain = _story(scene)
    for name, forged in [
        ("type", "effect.failed"),
        ("step_id", "another"),
        ("body", {}),
        ("at_ms", 0),
        ("run_id", OTHER_RUN),
        ("seq", 99),
    ]:
        copy = [dict(event) for event in chain]
        copy[5][name] = forged
        with pytest.raises(AssertionError):
            recomputed(copy)
    with pytest.raises(AssertionError):
        recomputed(chain[:4] + chain[5:])


def test_an_event_is_written_only_if_its_transaction_commits(scene: Scene) -> None:
    before = [scene.rows(table) for table in (runs, events)]

    with pytest.raises(ZeroDivisionError), scene.tx() as tx:
        tx.event(RUN, "test.never")
        tx.write_events()
        raise ZeroDivisionError

    assert [scene.rows(table) for table in (runs, events)] == before


def test_a_change_whose_event_cannot_be_written_is_not_made(scene: Scene) -> None:
    with pytest.raises(RunNotFound), scene.tx() as tx:
        tx.execute(update(runs).where(runs.c.tenant_id == scene.tenant).values(user_id="mallory"))
        tx.event("nobody's run", "test.lost")

    assert (scene.row(runs))["user_id"] == "ada"


def test_a_transaction_returns_the_heads_that_the_rows_have_then(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    with scene.tx() as tx:
        tx.watch(OTHER_RUN)
        tx.event(RUN, "test.first")
        tx.event(RUN, "test.second", step_id="s", number=1)

    assert set(tx.heads) == {RUN, OTHER_RUN}
    for run_id, head in tx.heads.items():
        row = scene.row(runs, run_id=run_id)
        assert (head.seq, head.hash) == (row["seq"], row["head"])
        assert (scene.events(run_id))[-1]["hash"] == head.hash


def test_each_run_has_a_chain_of_its_own(scene: Scene) -> None:
    scene.open_run(OTHER_RUN)
    with scene.tx() as tx:
        for run_id in (OTHER_RUN, RUN, OTHER_RUN):
            tx.event(run_id, "test.both")

    assert [event["seq"] for event in scene.events(RUN)] == [1, 2]
    assert [event["seq"] for event in scene.events(OTHER_RUN)] == [1, 2, 3]
    for run_id in (RUN, OTHER_RUN):
        recomputed(scene.events(run_id))


def test_events_hold_digests_and_references_and_no_params(scene: Scene) -> None:
    secret = "4556-7375-8689-9855"
    request = scene.approved(scene.call(params={"card": secret}))
    entry = scene.claimed(request)
    scene.commit(request, entry, {"card": secret})

    told = json.dumps([event["body"] for event in scene.events()])
    assert secret not in told
    assert request.params_hash in told


def test_unusual_text_in_an_event_is_hashed_as_it_is_stored(scene: Scene) -> None:
    with scene.tx() as tx:
        tx.event(RUN, "test.odd", text='é \U0001f600 \u2028 \x7f "quoted" \\ ', number=2**53 - 1)

    recomputed(scene.events())
