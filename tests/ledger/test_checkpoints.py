"""Checkpoints under a name: the newest ten for seven days, unless somebody says otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from surehand.activities.ledger.core.store import RunNotFound
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.runs import checkpoints
from surehand.activities.ledger.runs.checkpoints import CheckpointError, Saved
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.workflows.contracts.values import as_artifact
from tests.ledger.scene import NOW, OTHER_RUN, RUN, Scene

WEEK = timedelta(days=7)
OVER = WEEK + timedelta(seconds=1)


def save(
    scene: Scene, name: str, document: Any = None, *, run_id: str = RUN, after: timedelta = NOW
) -> list[str]:
    """Save a checkpoint; returns the names of those that made room."""
    kept = document if isinstance(document, Kept) else Kept(document or {"run_id": run_id})
    with scene.tx(after) as tx:
        _, removed = checkpoints.save(
            tx, run_id, name, kept, seq=3, size=10, saved_by="ann", ttl=WEEK, most=10, grace=WEEK
        )
    return removed


def names(scene: Scene, after: timedelta = NOW) -> list[str]:
    with scene.tx(after) as tx:
        return [one.name for one in checkpoints.saved(tx, RUN)]


def named(scene: Scene, name: str, after: timedelta = NOW) -> Saved:
    with scene.tx(after) as tx:
        return checkpoints.named(tx, RUN, name)


def test_what_was_saved_is_found_by_its_name(scene: Scene) -> None:
    save(scene, "before", {"plan_version": 1})
    save(scene, "after", {"plan_version": 2})

    found = named(scene, "before")

    assert (found.document, found.seq, found.saved_by) == ({"plan_version": 1}, 3, "ann")
    assert found.expires_at - found.saved_at == WEEK
    assert names(scene) == ["after", "before"]
    with pytest.raises(CheckpointError, match="no checkpoint x; it has: after, before"):
        named(scene, "x")


def test_a_name_is_taken_once_in_a_run_and_nothing_is_replaced(scene: Scene) -> None:
    save(scene, "before", {"plan_version": 1})
    scene.open_run(OTHER_RUN)
    save(scene, "before", run_id=OTHER_RUN)

    with pytest.raises(CheckpointError, match="has a checkpoint before already, of event 3"):
        save(scene, "before", {"plan_version": 2})

    assert (named(scene, "before")).document == {"plan_version": 1}


def test_the_oldest_makes_room_for_the_eleventh_and_its_name_is_free_again(
    scene: Scene,
) -> None:
    for number in range(10):
        assert save(scene, f"c{number}") == []

    assert save(scene, "c10") == ["c0"]

    assert names(scene) == [f"c{number}" for number in range(10, 0, -1)]
    assert save(scene, "c0") == ["c1"]


def test_what_makes_room_is_hidden_for_its_grace_and_says_how_it_is_shown_again(
    scene: Scene,
) -> None:
    for number in range(11):
        save(scene, f"c{number}")

    hidden = "checkpoint c0 of run run-1 is hidden since .* `.* --keep run-1` shows it again"
    with pytest.raises(CheckpointError, match=hidden):
        named(scene, "c0")
    first = scene.row(checkpoints.checkpoints, name="c0")
    assert first["document"] == {"run_id": RUN}
    assert first["delete_after_ms"] - first["hidden_ms"] == WEEK // timedelta(milliseconds=1)


def test_one_whose_time_is_over_leaves_its_name_and_its_place_to_the_next(scene: Scene) -> None:
    save(scene, "old", {"run_id": RUN})
    save(scene, "young", after=WEEK - timedelta(days=1))

    assert save(scene, "old", after=OVER) == []

    assert names(scene, OVER) == ["old", "young"]
    assert [row["hidden_ms"] is None for row in scene.rows(checkpoints.checkpoints)] == [
        False,
        True,
        True,
    ]


async def test_a_large_one_is_kept_by_reference_and_listed_with_the_runs_artifacts(
    scene: Scene,
) -> None:
    document = {"completed_steps": [f"step{number}" for number in range(5000)]}

    save(scene, "large", await scene.artifacts.keep(scene.tenant, RUN, document))

    artifact = as_artifact((named(scene, "large")).document)
    assert artifact is not None
    assert await scene.artifacts.read(scene.tenant, RUN, artifact) == document
    [row] = await scene.ledger.transact(scene.tenant, reads.artifacts_of, RUN)
    assert (row["step_id"], row["sha256"]) == ("checkpoint:large", artifact.sha256)


def test_another_tenants_run_has_no_checkpoints_and_gets_none(scene: Scene, other: Scene) -> None:
    scene.open_run("theirs")
    save(scene, "before", run_id="theirs")

    with pytest.raises(RunNotFound):
        save(other, "after", run_id="theirs")
    with other.tx(OVER) as tx:
        assert checkpoints.saved(tx, "theirs") == []
