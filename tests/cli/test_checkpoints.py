"""Checkpoints kept by hand, and what a plan would do from a moment of a run."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.cli.records import CheckpointList, CheckpointSaved
from tests.cli.starter import Run, Verbs
from tests.shop_process import ShopProcess

#: Neither a server nor a worker has a part in it.
NOWHERE: Final = {"TEMPORAL_ADDRESS": "127.0.0.1:1"}
NewRun = Callable[..., Run]


def test_a_saved_checkpoint_never_changes(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    then = verbs("checkpoint", run.name, "--json").document()

    keeps = {"SUREHAND_RETENTION": "7d"}
    said = verbs("checkpoint", run.name, "--save", "waiting", "--as", "ana", **keeps)
    assert verbs("cancel", run.name).code == 0
    assert verbs(*run.start, "--wait").code == 30

    kept = verbs("checkpoint", run.name, "--named", "waiting", "--json", **NOWHERE).document()
    assert "Saved waiting" in said.out
    assert kept == {**then, "ttl": "P7D"}
    assert verbs("checkpoint", run.name, "--json").document() != kept


def test_checkpoints_are_listed_newest_first(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    # From the ledger alone, too.
    early = ["--at", "1", "--save", "early", "--json"]
    saved = CheckpointSaved.model_validate(
        verbs("checkpoint", run.name, *early, **NOWHERE).document()
    )
    assert verbs("checkpoint", run.name, "--save", "second").code == 0

    listed = CheckpointList.model_validate(
        verbs("checkpoint", run.name, "--list", "--json", **NOWHERE).document()
    )
    assert (saved.saved.name, saved.saved.seq) == ("early", 1)
    assert [one.name for one in listed.checkpoints] == ["second", "early"]
    assert {one.saved_by for one in listed.checkpoints} == {"ana"}
    gone = verbs("checkpoint", run.name, "--named", "third")
    assert gone.code == 2
    assert "has no checkpoint third; it has: second, early" in gone.line()
    again = verbs("checkpoint", run.name, "--save", "second")
    assert again.code == 2
    assert "has a checkpoint second already" in again.line()


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
    ],
)
def test_conflicting_options_are_refused(lonely: Verbs, options: list[str], says: str) -> None:
    refused = lonely("checkpoint", "r", *options)

    assert refused.code == 2
    assert says in refused.line()


# ``checkpoint --at``: a run's state from its events, held against what the run itself says.


#: What only the live document has, and that in which the two are not comparable.
NOT_IN_EVENTS: Final = {"current_steps", "artifact_refs", "budget", "resume_policy"}
OWN: Final = {"created_at", "not_rebuilt", "progress"}
ASKING: Final = """\
name: asking
input: {order_id: order-1}
steps:
  - {id: order, tool: orders.read, params: {order_id: "${input.order_id}"}}
  - {id: why, ask: {question: Why, answer: {type: string}}}
  - {id: back, wait: {event: parcel.back, about: "${input.order_id}"}}
  - {id: restock, tool: inventory.restock, approval: required,
     params: {order_id: "${input.order_id}", lines: "${order.lines}"}}
"""


def live(verbs: Verbs, run: str) -> dict[str, Any]:
    document: dict[str, Any] = verbs("checkpoint", run, "--json").document()
    return document


def at(verbs: Verbs, run: str, seq: int) -> dict[str, Any]:
    ended = verbs("checkpoint", run, "--at", str(seq), "--json", **NOWHERE)
    assert ended.code == 0, ended
    document: dict[str, Any] = ended.document()
    return document


def newest(verbs: Verbs, run: str) -> int:
    return len(verbs("events", run, "--json").document()["rows"])


def same(rebuilt: dict[str, Any], said: dict[str, Any]) -> None:
    """Assert that the two agree wherever events tell it, and that the rest is owned to."""
    left_out = NOT_IN_EVENTS | OWN
    assert {k: v for k, v in rebuilt.items() if k not in left_out} == {
        k: v for k, v in said.items() if k not in left_out
    }
    assert rebuilt.keys() == said.keys()
    assert [rebuilt[name] for name in sorted(NOT_IN_EVENTS)] == [None] * len(NOT_IN_EVENTS)
    assert rebuilt["not_rebuilt"].keys() == NOT_IN_EVENTS


def test_checkpoints_from_events_match_the_run(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    waiting = live(verbs, run.name)
    seq = newest(verbs, run.name)
    same(at(verbs, run.name, seq), waiting)
    assert waiting["completed_steps"] == ["order", "amount"]

    verbs.approve(run.name)
    assert verbs(*run.start, "--wait").code == 0
    same(at(verbs, run.name, newest(verbs, run.name)), live(verbs, run.name))

    # The past stays what it was, whatever has come after it.
    earlier = at(verbs, run.name, seq)
    same(earlier, waiting)
    assert earlier["pending_approvals"] == [f"{run.name}/refund/1"]
    assert earlier["side_effects"] == []


def test_each_event_of_a_run_has_a_checkpoint_and_no_other(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    verbs.approve(run.name)
    verbs(*run.start, "--wait")
    rows = verbs("events", run.name, "--json").document()["rows"]
    claimed = next(r for r in rows if r["type"] == "effect.claimed" and r["step_id"] == "refund")

    amid = at(verbs, run.name, claimed["seq"])
    assert amid["checkpoint_id"] == f"{run.name}@{claimed['seq']}"
    assert amid["pending_side_effects"] == ["refund"]
    assert [effect["state"] for effect in amid["side_effects"]] == ["claimed"]
    assert amid["side_effects"][0]["idempotency_key"] == f"refund:{run.order}"
    assert at(verbs, run.name, 1)["recovery_point"] == "start"
    refused = verbs("checkpoint", run.name, "--at", str(len(rows) + 1))
    assert refused.code == 2
    assert f"events 1 to {len(rows)}, none of number {len(rows) + 1}" in refused.line()


def test_interrupts_rebuild_as_the_run_has(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    order, name = new_run().order, f"asking-{tmp_path.name}"
    file = tmp_path / "asking.yaml"
    file.write_text(ASKING)
    start = ["start", str(file), "--run-id", name, "--set", f"input.order_id={order}", "--wait"]

    assert verbs(*start).code == 10
    same(at(verbs, name, newest(verbs, name)), live(verbs, name))
    verbs("answer", name, "why.1=broken")
    assert verbs(*start).code == 10
    same(at(verbs, name, newest(verbs, name)), live(verbs, name))
    assert verbs("event", name, "parcel.back", "--id", "dhl-1", "--about", order).code == 0
    assert verbs(*start).code == 10
    same(at(verbs, name, newest(verbs, name)), live(verbs, name))
    verbs("reject", *verbs.asked(name))
    assert verbs(*start).code == 20
    same(at(verbs, name, newest(verbs, name)), live(verbs, name))


def simulated(verbs: Verbs, run: str, seq: int, *changes: str) -> dict[str, Any]:
    sets = [part for change in changes for part in ("--set", change)]
    ended = verbs("simulate", run, "--from", str(seq), *sets, "--json", **NOWHERE)
    assert ended.code == 0, ended
    document: dict[str, Any] = ended.document()
    return document


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {step["id"]: step["outcome"] for step in document["steps"]}


def events(verbs: Verbs, run: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = verbs("events", run, "--json").document()["rows"]
    return rows


def test_a_simulation_changes_nothing(verbs: Verbs, new_run: NewRun, shop: ShopProcess) -> None:
    run = new_run()
    waiting = len(events(verbs, run.name))
    parked = simulated(verbs, run.name, waiting)
    assert outcomes(parked) == {
        "order": "done",
        "amount": "done",
        "refund": "would call",
        "restock": "would call",
        "mail": "would call",
    }
    refund, mail = parked["steps"][2], parked["steps"][4]
    assert refund["approval"] == "yes"
    assert mail["depends_on"] == ["refund"]

    verbs.approve(run.name)
    assert verbs(*run.start, "--wait").code == 0
    before, counts = events(verbs, run.name), shop.counts(run.order)
    same = simulated(verbs, run.name, waiting)
    changed = simulated(verbs, run.name, waiting, "steps.refund.params.amount=1.50")

    assert outcomes(same)["refund"] == "would replay"
    assert (same["ends"], changed["ends"]) == (None, None)
    assert outcomes(changed) == {**outcomes(parked), "restock": "would replay"}
    [why] = [one["why"] for one in changed["steps"] if "with other params: refused" in one["why"]]
    assert f"is committed (step refund, run {run.name})" in why
    assert (events(verbs, run.name), shop.counts(run.order)) == (before, counts)


def test_wrong_use_is_one_line(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    run = new_run()
    last = len(events(verbs, run.name))
    for arguments, said in (
        (["nobody", "--from", "1"], "run not found: nobody"),
        ([run.name, "--from", str(last + 1)], f"none of number {last + 1}"),
        ([run.name, "--from", "1", "--set", "steps.gone.tool=x"], "unknown path"),
        ([run.name, "--from", "1", "--set", "steps.refund.tool=x.y"], "unknown tool 'x.y'"),
    ):
        ended = verbs("simulate", *arguments, **NOWHERE)
        assert ended.code == 2, ended
        assert said in ended.line()
