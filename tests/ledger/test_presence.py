"""Who lives and what each has in hand, on both databases (``ledger/core/presence.py``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from surehand.activities.ledger.core import presence
from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.presence import Presence, presence_of
from surehand.activities.worker.takeover import InHand, worker_before
from tests.ledger_databases import DATABASES

NO_TIME = timedelta(milliseconds=1)
LONG = timedelta(seconds=60)
Make = Callable[..., Presence]


@pytest.fixture
def make(ledger_url: str) -> Iterator[Make]:
    """Makes the presence of a worker, whose name is enough."""
    engine, made = make_engine(ledger_url), list[Presence]()

    def one(worker: str, namespace: str = "default") -> Presence:
        found = presence_of(engine, namespace, worker)
        assert found is not None
        made.append(found)
        return found

    yield one
    for each in made:
        each.leave()
        # In a worker a thread may wait for a lock on it until the process ends.
        if (watching := getattr(each, "_watching", None)) is not None:
            watching.close()
    engine.dispose()


def die(worker: Presence) -> None:
    """Free its lock, as the end of its process does, and change nothing else."""
    own = worker._own  # type: ignore[attr-defined]
    worker._own = None  # type: ignore[attr-defined]
    os.close(own) if isinstance(own, int) else own.close()


@pytest.mark.parametrize("database", DATABASES)
def test_a_dead_workers_lock_is_free_and_its_work_found_once(
    make: Make,
) -> None:
    dead, alive = make("1@host@a"), make("2@host@b")
    dead.enter(["first"])
    alive.enter(["mine"])
    dead.write(["second", "third"], ["first"])

    assert alive.others() == ["1@host@a"]
    assert not alive.wait_free("1@host@a", NO_TIME)
    with alive.taken("1@host@a") as runs:
        assert runs is None

    die(dead)

    assert alive.wait_free("1@host@a", LONG)
    with alive.taken("1@host@a") as runs:
        assert runs is not None
        assert sorted(runs) == ["second", "third"]
    assert alive.others() == []


@pytest.mark.parametrize("database", DATABASES)
def test_what_nobody_has_taken_over_to_the_end_is_found_again(make: Make) -> None:
    dead, alive = make("dead"), make("alive")
    dead.enter(["run"])
    die(dead)
    alive.others()

    with pytest.raises(RuntimeError, match="cut off"), alive.taken("dead"):
        raise RuntimeError("cut off")

    with alive.taken("dead") as runs:
        assert runs == ["run"]


@pytest.mark.parametrize("database", DATABASES)
def test_who_leaves_in_order_leaves_nothing(make: Make) -> None:
    one, other = make("one"), make("other")
    one.enter(["run"])
    assert other.others() == ["one"]

    one.leave()

    assert other.others() == []


@pytest.mark.parametrize("database", DATABASES)
def test_workers_of_another_namespace_are_not_seen(make: Make) -> None:
    one, other = make("one", "a"), make("other", "b")
    one.enter(["run"])

    assert other.others() == []


def test_a_grown_file_is_rewritten_and_locked(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_LARGEST_FILE", 1000)
    writer, reader = make("writer"), make("reader")
    writer.enter(["kept"])
    for number in range(200):
        writer.write([f"run-{number}"], [f"run-{number - 1}"])

    assert not reader.wait_free("writer", NO_TIME)
    die(writer)
    with reader.taken("writer") as runs:
        assert runs == ["kept", "run-199"]


def test_each_worker_watches_the_one_before_it_and_the_first_one_the_last() -> None:
    workers = ["a", "b", "c"]
    watched = {
        one: worker_before(one, [other for other in workers if other != one]) for one in workers
    }
    assert watched == {"a": "c", "b": "a", "c": "b"}
    assert worker_before("a", []) is None


def test_a_run_is_noted_once_and_dropped_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("surehand.activities.worker.takeover.time.monotonic", lambda: now)
    in_hand, told = InHand(), list[None]()
    in_hand.on_news = lambda: told.append(None)
    with in_hand.holding("run"):
        for _ in range(2):
            with in_hand.holding("run"):
                pass
        assert in_hand.changes() == (["run"], [])
        now += 60
        assert in_hand.changes() == ([], [])
    with in_hand.holding("run"):
        pass
    assert (len(told), in_hand.all()) == (1, ["run"])
    now += 60
    assert in_hand.changes() == ([], ["run"])
    assert in_hand.all() == []
