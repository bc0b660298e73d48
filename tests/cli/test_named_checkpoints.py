"""``checkpoint --save``, ``--list`` and ``--named``: a run's state, kept by hand."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from surehand.cli.records import CheckpointList, CheckpointSaved
from tests.cli.starter import Run, Verbs
from tests.shop_process import ShopProcess

NOWHERE = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}
NewRun = Callable[..., Run]


def test_a_saved_checkpoint_stays_as_it_was_whatever_becomes_of_the_run(
    verbs: Verbs, new_run: NewRun
) -> None:
    run = new_run()
    then = verbs("checkpoint", run.name, "--json").document()

    said = verbs("checkpoint", run.name, "--save", "waiting", "--as", "ana")
    assert verbs("cancel", run.name).code == 0
    assert verbs(*run.start, "--wait").code == 30

    # Neither a server nor a worker has a part in it.
    kept = verbs("checkpoint", run.name, "--named", "waiting", "--json", **NOWHERE).document()
    assert "Saved waiting" in said.out
    assert kept == {**then, "ttl": "P7D"}
    assert verbs("checkpoint", run.name, "--json").document() != kept


def test_those_that_are_kept_are_listed_the_newest_first_and_the_oldest_makes_room(
    verbs: Verbs, new_run: NewRun
) -> None:
    run = new_run()
    # From the ledger alone, too.
    early = ["--at", "1", "--save", "early", "--ttl", "30d", "--json"]
    saved = CheckpointSaved.model_validate(
        verbs("checkpoint", run.name, *early, **NOWHERE).document()
    )
    assert verbs("checkpoint", run.name, "--save", "second").code == 0
    two = {"SUREHAND_CHECKPOINTS_KEPT": "2"}
    third = verbs("checkpoint", run.name, "--save", "third", **two)

    listed = CheckpointList.model_validate(
        verbs("checkpoint", run.name, "--list", "--json", **NOWHERE).document()
    )
    assert saved.saved.expires_at - saved.saved.saved_at == timedelta(days=30)
    assert "Hidden early" in third.out
    assert [one.name for one in listed.checkpoints] == ["third", "second"]
    assert {one.saved_by for one in listed.checkpoints} == {"ana"}
    gone = verbs("checkpoint", run.name, "--named", "early")
    assert gone.code == 2
    assert f"checkpoint early of run {run.name} is hidden since" in gone.line()
    again = verbs("checkpoint", run.name, "--save", "third")
    assert again.code == 2
    assert "has a checkpoint third already" in again.line()


def test_a_large_checkpoint_comes_back_whole(verbs: Verbs, shop: ShopProcess) -> None:
    # Its document has the run's id in it some times.
    run = Run(f"run-{uuid.uuid4().hex}-{'x' * 80}", shop.new_order())
    assert verbs(*run.start, "--wait").code == 10
    small = {"SUREHAND_LARGEST_INLINE": "1024"}

    assert verbs("checkpoint", run.name, "--at", "4", "--save", "x" * 64, **small).code == 0

    rows = verbs("artifacts", run.name, "--json").document()["rows"]
    assert [row["step_id"] for row in rows] == [f"checkpoint:{'x' * 64}"]
    kept = verbs("checkpoint", run.name, "--named", "x" * 64, "--json").document()
    assert kept["checkpoint_id"] == f"{run.name}@4"


def test_a_ledger_that_is_held_for_long_keeps_no_checkpoint_and_says_so(
    verbs: Verbs, settings: dict[str, str], new_run: NewRun
) -> None:
    run = new_run()
    with closing(sqlite3.connect(settings["SUREHAND_DATABASE_URL"].partition("///")[2])) as held:
        held.execute("BEGIN IMMEDIATE")
        refused = verbs("checkpoint", run.name, "--save", "late")
        held.rollback()

    assert refused.code == 4
    assert "database is locked" in refused.line()
    assert "No checkpoint" in verbs("checkpoint", run.name, "--list").out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--save", "a b"], "a name is 1 to 64 letters"),
        (["--save", "a", "--list"], "--save and --list do not go together"),
        (["--named", "a", "--at", "1"], "--at does not go with --named"),
        (["--ttl", "1d"], "--ttl says how long"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    lonely: Verbs, options: list[str], says: str
) -> None:
    refused = lonely("checkpoint", "r", *options)

    assert refused.code == 2
    assert says in refused.line()
