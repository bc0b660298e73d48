"""Events for a SIEM: each once and none lost, whatever is open, and however often it is killed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.history import reads
from surehand.activities.ledger.history.reads import ClockSetBack, Cut, Position, list_after
from surehand.cli.records import as_ocsf
from surehand.process.children import Child
from tests.cli.starter import Starter
from tests.ledger.databases import Database
from tests.ledger.scene import RUN, Scene


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "CLOCK_SET_BACK_MS", -1)


def read(
    scene: Scene, after: Position | None = None, cut: Cut | None = None, most: int = 100
) -> tuple[list[Position], Cut]:
    with scene.tx() as tx:
        rows, next_ = list_after(tx, after, cut, None, most=most)
    return [Position(row["at_ms"], row["run_id"], row["seq"]) for row in rows], next_


def whole(scene: Scene) -> set[tuple[str, int]]:
    return {(one["run_id"], one["seq"]) for one in scene.events()}


@pytest.mark.usefixtures("at_once")
def test_pages_go_on_behind_one_another(scene: Scene) -> None:
    with scene.tx() as tx:
        for n in range(5):
            tx.event(RUN, "step.spent", n=n)
    found: list[Position] = []
    page, cut = read(scene, most=2)
    while page:
        found += page
        page, cut = read(scene, found[-1], cut, most=2)

    assert found == sorted(set(found)) and {one[1:] for one in found} == whole(scene)
    assert [Position.parse(str(one)) for one in found] == found


@pytest.mark.usefixtures("at_once")
def test_what_an_open_transaction_may_still_write_is_waited_for(
    scene: Scene, workers: list[Ledger]
) -> None:
    if scene.ledger.one_writer:
        return  # while one transaction is open, no other one begins
    scene.open_run("late")
    with workers[0].transaction(scene.tenant) as slow:
        slow.event("late", "step.spent", n=1)
        time.sleep(0.01)
        with scene.tx() as tx:
            tx.event(RUN, "step.spent", n=2)
        nothing, cut = read(scene)
        assert nothing == []
        assert read(scene, None, cut) == ([], cut)

    found, _ = read(scene, None, cut)
    late = scene.events("late")[-1]
    assert Position(late["at_ms"], "late", late["seq"]) in found


def test_a_clock_that_was_set_back_is_told(scene: Scene) -> None:
    ahead = Position(int(time.time() * 1000) + 3_600_000, RUN, 1)
    with pytest.raises(ClockSetBack):
        read(scene, ahead)


@contextmanager
def writing(scene: Scene, ledger: Ledger) -> Iterator[None]:
    """Have other connections write events meanwhile, some in transactions that stay open."""
    enough = threading.Event()

    def write(number: int) -> None:
        chance, run_id = random.Random(number), f"run-{number}"
        while not enough.is_set():
            with ledger.transaction(scene.tenant) as tx:
                tx.event(run_id, "step.spent", n=number)
                if not scene.ledger.one_writer and chance.random() < 0.2:
                    time.sleep(chance.random() / 2)
            time.sleep(0.01)

    for number in range(2, 5):
        scene.open_run(f"run-{number}")
    threads = [threading.Thread(target=write, args=(number,)) for number in range(2, 5)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def follow(child: Child, lines: list[Any], most: int | None = None) -> int:
    """Read what a follower says until it ends, or is killed after so many lines.

    What it said before it died is read too; a line that is cut off is none.
    """
    with child:
        if most is not None:
            child.wait_for(lambda: child.output().count("\n") >= most)
            child.kill()
        code = child.wait(60)
    lines += [json.loads(line) for line in child.output().split("\n")[:-1]]
    return code


@pytest.mark.crash
@pytest.mark.full
def test_a_follower_that_is_killed_loses_nothing_and_tells_nothing_twice(
    scene: Scene, database: Database, workers: list[Ledger], tmp_path: Path
) -> None:
    chance = random.Random(34)
    settings = {"SUREHAND_DATABASE_URL": database.url, "SUREHAND_FSYNC_OFF": "allow"}
    settings |= {"SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools"}
    starter = Starter(settings, tmp_path)
    lines: list[dict[str, Any]] = []

    def events(number: int, *more: str) -> Child:
        after = ("--after", lines[-1]["metadata"]["uid"]) if lines else ()
        own = ("events", "--format", "ocsf", "--tenant", scene.tenant, *more, *after)
        return starter.child(tmp_path / f"{number}.out", *own, errors=tmp_path / f"{number}.err")

    with writing(scene, workers[0]):
        killed = [
            follow(events(number, "--follow"), lines, chance.randint(1, 120)) for number in range(3)
        ]
    code = follow(events(3), lines)

    assert set(killed) == {-9} and code == 0
    told = [(one["unmapped"]["run_id"], one["unmapped"]["seq"]) for one in lines]
    there = {(e["run_id"], e["seq"]) for n in (1, 2, 3, 4) for e in scene.events(f"run-{n}")}
    assert len(told) == len(set(told)) and set(told) == there
    assert len(there) > 100


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("type_", "class_", "activity", "status"),
    [
        ("effect.claimed", 6003, 1, 1),
        ("effect.in_doubt", 6003, 3, 2),
        ("effect.compensated", 6003, 4, 1),
        ("approval.requested", 3004, 1, 1),
        ("decision.accepted", 3004, 3, 1),
        ("run.failed", 6003, 3, 2),
    ],
)
def test_an_event_has_what_ocsf_requires(
    scene: Scene, type_: str, class_: int, activity: int, status: int
) -> None:
    with scene.tx() as tx:
        tx.event(RUN, type_, approval_id="r/s/1", approver="ann", tool="t", entry_id="e")
    [row] = scene.events(type_=type_)

    said = as_ocsf(scene.tenant, "1:r#1", row)

    assert (said["class_uid"], said["activity_id"], said["status_id"]) == (class_, activity, status)
    assert (said["category_uid"], said["type_uid"]) == (class_ // 1000, class_ * 100 + activity)
    assert {"version", "product", "uid"} <= said["metadata"].keys()
    assert said["actor"]["user"]["name"] == "ann" and said["time"] == row["at_ms"]
    required = {"api", "src_endpoint"} if class_ == 6003 else {"entity"}
    assert required | {"severity_id", "unmapped"} <= said.keys()
    assert said["unmapped"]["hash"] == row["hash"]
