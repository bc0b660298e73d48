"""G1 and G2 with many writers at once, of which some record in one call and some do not.

Each writer plays a script of its own, over keys, steps and runs that all of them want. Where the
tenant has a quota, it is counted by both ways at once, and changes meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import effects, quota_usage, steps
from surehand.activities.ledger.effects import run_tree
from surehand.activities.ledger.effects.claim_entry import OVERTAKEN_PAUSE
from surehand.activities.ledger.quotas.limits import OverQuota
from surehand.activities.ledger.quotas.usage import HOUR_MS
from surehand.activities.ledger.steps import batches, executions
from surehand.activities.ledger.steps.batches import Holding
from surehand.activities.ledger.steps.entries import (
    Barred,
    Claimed,
    ClaimRequest,
    Committed,
    Entry,
    Held,
    Mismatch,
)
from surehand.activities.ledger.steps.executions import ActsElsewhere
from tests.ledger.one_call import check_chains, claim, commit
from tests.ledger.quotas import limited
from tests.ledger.scene import Scene
from tests.ledger_databases import PostgresLedgers
from tests.property.search import search

pytestmark = [pytest.mark.property, pytest.mark.postgres]

RUNS: Final = ("run-a", "run-b")
STEPS: Final = ("a", "b")
KEYS: Final = ("k1", "k2", "k3")
TOOLS: Final = ("payments.refund", "mail.send")
WRITERS: Final = 5
#: No machine is so busy that a lease ends within a script.
LEASE: Final = timedelta(minutes=10)
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Want:
    """A write that somebody wants made."""

    run_id: str
    step_id: str
    tool: str
    key: str
    amount: str
    joins: bool
    """Whether it is claimed with the outcome in hand, if it is of the same run or not."""
    in_batch: bool
    """Whether it is made in the run's first batch, and for its first execution."""


@dataclass(frozen=True)
class Change:
    """Another quota of effects an hour."""

    most: int


@dataclass(frozen=True)
class Stop:
    """Something that keeps writes from being made."""

    run_id: str
    what: str
    """A step to bar, ``batch`` or ``execution``: another one is begun."""


_wants = st.builds(
    Want,
    *map(st.sampled_from, (RUNS, STEPS, TOOLS, KEYS, ("10", "10", "10", "20"))),
    st.booleans(),
    st.booleans(),
)
_stops = st.builds(Stop, st.sampled_from(RUNS), st.sampled_from(["b", "batch", "execution"]))
#: Fewer effects than there are keys.
_mosts = st.integers(0, 3)


def _scripts_of(*elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    one = st.lists(st.one_of(*elements), min_size=2, max_size=7)
    return st.lists(one, min_size=WRITERS, max_size=WRITERS)


_scripts = _scripts_of(_wants, _wants, _wants, _wants, _stops)
_counted_scripts = _scripts_of(*[_wants] * 6, _stops, st.builds(Change, _mosts))
#: Ends the holder of what is made in the first batch, and for the first execution.
_IN_BATCH: Final = "in batch"
#: What all runs are made in, as long as nobody has begun another.
FIRST: Final = Holding(1, "first", 1, "a")


@dataclass
class Heard:
    """What the writers of a tenant have been told."""

    claimed: list[Entry] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


@dataclass
class Ends:
    """How the transactions of all ledgers have ended."""

    counted: Counter[str] = field(default_factory=Counter)

    def transaction(self, outcome: str, seconds: float) -> None:
        self.counted[outcome] += 1

    def event(self, type_: str, body: Mapping[str, Any]) -> None:
        """Not counted."""


@dataclass
class Writer:
    """One of several that write at the same time."""

    name: str
    scene: Scene
    heard: Heard
    in_hand: tuple[ClaimRequest, Entry] | None = None
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    async def play(self, script: list[Want | Stop | Change]) -> None:
        for one in script:
            match one:
                case Want():
                    await self._want(one)
                case Stop():
                    await self._stop(one)
                case Change(most):
                    await asyncio.to_thread(limited, self.scene, effects_per_hour=most)
        await self._commit()

    async def _want(self, want: Want) -> None:
        request = self.scene.call(
            run_id=want.run_id,
            step_id=want.step_id,
            tool=want.tool,
            key=want.key,
            params={"order": want.key, "amount": want.amount},
            lease=LEASE,
            holder=f"{self.name}:{next(self._numbers)}:{_IN_BATCH if want.in_batch else ''}",
            activity_key=self.name,
            batch=FIRST.token if want.in_batch else None,
            execution="first" if want.in_batch else None,
        )
        if want.joins:
            claimed = await self._commit(request)
            if claimed is not None:
                self._has(request, claimed)
                return
        await self._commit()
        try:
            found = await claim(self.scene, request)
        except ActsElsewhere:
            assert want.in_batch
            self.heard.refused["ActsElsewhere"] += 1
            return
        if isinstance(found, Claimed):
            self._has(request, found)
            return
        self.heard.refused[type(found).__name__] += 1
        match found:
            case Held(wait) if wait == OVERTAKEN_PAUSE:
                assert want.in_batch or self.scene.rows(effects, key=want.key)
            case Held() | Committed() | Mismatch():
                assert self.scene.rows(effects, tool=want.tool, key=want.key)
            case Barred():
                assert want.step_id == "b"
            case OverQuota(wait):
                assert int(wait.used) >= int(wait.limit)
            case _:
                pytest.fail(f"nothing can come to this: {found}")

    def _has(self, request: ClaimRequest, found: Claimed) -> None:
        assert (found.entry.fencing_token, found.entry.generation) == (1, 1)
        assert found.entry.holder == request.holder
        self.heard.claimed.append(found.entry)
        self.in_hand = request, found.entry

    async def _commit(self, following: ClaimRequest | None = None) -> Claimed | None:
        if self.in_hand is None:
            return None
        (request, entry), self.in_hand = self.in_hand, None
        claimed = await commit(self.scene, request, entry, self.name, following)
        self.heard.committed.append(entry)
        return claimed

    async def _stop(self, stop: Stop) -> None:
        scene, run_id = self.scene, stop.run_id

        def stopped(tx: Any) -> None:
            if stop.what == "batch":
                batches.begin(tx, run_id, replace(FIRST, scheduled_ms=2, number=2))
            elif stop.what == "execution":
                found = ActsElsewhere(scene.tenant, run_id, "second", "first")
                executions.take_over(tx, found)
            else:
                run_tree.bar(tx, run_id, stop.what)
            # What is claimed from here on is claimed although it was stopped.
            tx.event(run_id, f"test.stopped_{stop.what}")

        await scene.ledger.transact(scene.tenant, stopped)


@pytest.fixture(scope="module")
def ends() -> Ends:
    return Ends()


@pytest.fixture(scope="module")
async def ledgers(
    postgres_ledgers: PostgresLedgers, ends: Ends
) -> AsyncIterator[tuple[Ledger, Ledger]]:
    """One with calls and one without, of one database."""
    url = postgres_ledgers.create()
    async with open_ledger(url, ends) as quick, open_ledger(url, ends) as general:
        general.one_call = False
        yield quick, general


@search(60, functions=True)
@given(scripts=_scripts)
async def test_writers_at_once_make_each_effect_once_on_whichever_way(
    ledgers: tuple[Ledger, Ledger], ends: Ends, scripts: list[list[Want | Stop | Change]]
) -> None:
    scene, heard = opened(ledgers[0])

    await written(ledgers, ends, scene, heard, scripts)

    assert heard.refused["OverQuota"] == 0
    assert scene.rows(quota_usage) == []


@search(60, functions=True)
@given(scripts=_counted_scripts, most=_mosts)
async def test_writers_at_once_make_no_more_effects_an_hour_than_a_quota_allows(
    ledgers: tuple[Ledger, Ledger],
    ends: Ends,
    scripts: list[list[Want | Stop | Change]],
    most: int,
) -> None:
    scene, heard = opened(ledgers[0])
    limited(scene, effects_per_hour=most)

    await written(ledgers, ends, scene, heard, scripts)

    changes = {one.most for script in scripts for one in script if isinstance(one, Change)}
    begun = Counter(row["claimed_ms"] // HOUR_MS for row in scene.rows(effects))
    counted = {row["window_start_ms"]: row["used"] for row in scene.rows(quota_usage)}
    assert counted == {hour * HOUR_MS: count for hour, count in begun.items()}
    assert max(begun.values(), default=0) <= max({most, *changes})
    if heard.refused["OverQuota"]:
        assert max(begun.values(), default=0) >= min({most, *changes})


def opened(ledger: Ledger) -> tuple[Scene, Heard]:
    """Return a tenant that nobody else has, with its runs and their first batches."""
    scene = Scene(ledger, f"writers-{next(_numbers)}")
    for run_id in RUNS:
        scene.open_run(run_id)
        with scene.tx() as tx:
            batches.begin(tx, run_id, FIRST)
    return scene, Heard()


async def written(
    ledgers: tuple[Ledger, Ledger],
    ends: Ends,
    scene: Scene,
    heard: Heard,
    scripts: list[list[Want | Stop | Change]],
) -> None:
    """Have all scripts played at once, and make sure that each effect is made once."""
    ends.counted.clear()
    writers = [
        Writer(f"writer {number}", Scene(ledgers[number % 2], scene.tenant), heard)
        for number in range(WRITERS)
    ]

    await asyncio.gather(
        *(writer.play(script) for writer, script in zip(writers, scripts, strict=True))
    )

    # Nobody was a deadlock's victim, and nothing failed that was then done by the general way.
    assert ends.counted["unavailable"] == 0
    assert ends.counted["rolled_back"] == heard.refused["ActsElsewhere"]
    check_chains(scene)
    check_entries(scene, heard)
    check_stops(scene)


def check_entries(scene: Scene, heard: Heard) -> None:
    """Make sure that each key has one entry, claimed once and committed once by who was told so."""
    rows = scene.rows(effects)
    assert len({(row["tool"], row["key"]) for row in rows}) == len(rows)
    assert {row["state"] for row in rows} <= {"committed"}
    assert {(row["fencing_token"], row["calls"], row["generation"]) for row in rows} <= {(1, 1, 1)}
    ids = Counter(row["entry_id"] for row in rows)
    assert Counter(entry.entry_id for entry in heard.claimed) == ids
    assert Counter(entry.entry_id for entry in heard.committed) == ids
    numbers = [row["commit_no"] for row in rows]
    assert len(set(numbers)) == len(numbers)
    by_id = {row["entry_id"]: row for row in rows}
    for entry in heard.claimed:
        row = by_id[entry.entry_id]
        assert (row["holder"], row["run_id"], row["step_id"]) == (
            entry.holder,
            entry.run_id,
            entry.step_id,
        )
        assert row["receipt"] == str(entry.holder).partition(":")[0]
    told = defaultdict[str, Counter[str]](Counter)
    for run_id in RUNS:
        for event in scene.events(run_id):
            if event["type"] in ("effect.claimed", "effect.committed"):
                assert by_id[event["body"]["entry_id"]]["run_id"] == run_id
                told[event["type"]][event["body"]["entry_id"]] += 1
    assert told["effect.claimed"] == told["effect.committed"] == ids
    assert all(row["state"] in ("succeeded", "running") for row in scene.rows(steps))


def check_stops(scene: Scene) -> None:
    """Make sure that nothing was claimed that had been stopped before."""
    holders = {row["entry_id"]: row for row in scene.rows(effects)}
    for run_id in RUNS:
        stopped = set[str]()
        for event in scene.events(run_id):
            if event["type"].startswith("test.stopped_"):
                stopped.add(event["type"].removeprefix("test.stopped_"))
            elif event["type"] == "effect.claimed":
                row = holders[event["body"]["entry_id"]]
                assert row["step_id"] not in stopped, "a step that was undone has claimed"
                late = stopped & {"batch", "execution"}
                assert not (late and row["holder"].endswith(_IN_BATCH)), f"it has another {late}"
