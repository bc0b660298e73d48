"""G1, G2, G4, G6 under any interleaving: the real ledger against a counted outside world.

A few steps of three runs want the same business key. Their attempts stand still, die at crash
points, lose the answers to their commits and come back late; leases and windows run out; lookups
and humans say what is true at that moment, or that they cannot tell.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.worker.crash_points import CrashPoint
from tests.property.attempts import Clock, ClockedLedger
from tests.property.bench import Bench, BenchStep, Snapshot
from tests.property.conftest import Place
from tests.property.outside import (
    CALL_ANSWERS,
    KINDS,
    LEASE,
    LOOKUP_ANSWERS,
    RELEASES,
    SETTLE,
    SHORTER,
    TIMEOUT,
    WINDOW,
)
from tests.property.search import search

pytestmark = pytest.mark.property

T = TypeVar("T")

#: Run, step, order and amount: two orders that several want to pay, one of them another amount.
STEPS: Final = (
    ("run-1", "a", "1", "10"),
    ("run-1", "b", "1", "10"),
    ("run-2", "a", "1", "10"),
    ("run-2", "b", "1", "20"),
    ("run-2", "c", "2", "10"),
    ("run-3", "a", "2", "10"),
)
#: What a step may want after a reset: its own order and amount, or another order.
PARAMS: Final = ({"order": "1", "amount": "10"}, {"order": "2", "amount": "10"})
NAMES: Final = [f"{run_id}/{step_id}" for run_id, step_id, *_ in STEPS]
SECOND: Final = timedelta(seconds=1)
TIMES: Final = {
    "the lease is over": LEASE + SECOND,
    "the deadline is over": TIMEOUT + SECOND,
    "the settle time is over": TIMEOUT + SETTLE + SECOND,
    "a shorter settle time is over": SHORTER.timeout + SETTLE + SECOND,
    "the window is nearly over": WINDOW - LEASE,
}
#: A death in the middle of a call has a rule of its own.
POINTS: Final = [point for point in CrashPoint if point is not CrashPoint.DURING_CALL]
#: How far an attempt gets, and what it meets.
ATTEMPTS: Final[dict[str, Any]] = {
    "crash_at": st.sampled_from([*[None] * 8, *POINTS]),
    "sleepy": st.sampled_from([False, False, False, True]),
    "loses_answer": st.sampled_from([0, 0, 0, 0, 1, 2]),
    "lookup": st.sampled_from(["stands still", *LOOKUP_ANSWERS]),
    "call": st.sampled_from(["stands still", "stands still", *CALL_ANSWERS]),
}
_tenants = itertools.count(1)


class LedgerMachine(RuleBasedStateMachine):
    """Anything that can happen to the attempts at a few effects."""

    loop: asyncio.AbstractEventLoop
    engine: Any
    clock: Clock

    def __init__(self) -> None:
        super().__init__()
        self.sound = True
        self.bench: Bench
        self.unwinds = False
        """Whether all runs are unwound in the end."""
        self.seen = Snapshot([], [], [], [])

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something; until the invariants hold afterwards, the ledger is not sound."""
        self.sound = False
        return self.loop.run_until_complete(work)

    @initialize(
        kind=st.sampled_from(sorted(KINDS)),
        late=st.booleans(),
        patience=st.sampled_from([timedelta(days=1), timedelta(days=1), LEASE]),
        unwinds=st.booleans(),
    )
    def open_runs(self, kind: str, late: bool, patience: timedelta, unwinds: bool) -> None:
        steps = [
            BenchStep(run_id, step_id, f"pay.{kind}", {"order": order, "amount": amount})
            for run_id, step_id, order, amount in STEPS
        ]
        ledger = ClockedLedger(self.engine, self.clock)
        tenant = f"tenant-{next(_tenants)}"
        self.bench = Bench(ledger, self.clock, tenant, steps, late, patience)
        self.unwinds = unwinds
        self.sound = False
        self.bench.open_runs()

    def step(self, name: str) -> BenchStep:
        return next(step for step in self.bench.steps if step.name == name)

    @rule(name=st.sampled_from(NAMES), **ATTEMPTS)
    def attempt(self, name: str, **how: Any) -> None:
        """Make the next attempt at a step, or at undoing it, and let it get as far as told."""
        self._attempt(name, **how)

    @rule(name=st.sampled_from(NAMES), when=st.sampled_from(sorted(TIMES)), **ATTEMPTS)
    def later_attempt(self, name: str, when: str, **how: Any) -> None:
        """Make it after a while."""
        self.drive(self.bench.pass_time(TIMES[when]))
        self._attempt(name, **how)

    def _attempt(
        self,
        name: str,
        crash_at: CrashPoint | None,
        sleepy: bool,
        loses_answer: int,
        lookup: str,
        call: str,
    ) -> None:
        step, bench = self.step(name), self.bench
        if not bench.ready(step):
            return
        attempt = self.drive(
            bench.start(step, crash_at=crash_at, loses=loses_answer, sleepy=sleepy)
        )
        for place, answer in (("lookup", lookup), ("call", call)):
            if attempt.stands == place and answer != "stands still":
                self.drive(bench.go_on(attempt, answer))

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data())
    def attempt_goes_on(self, data: st.DataObject) -> None:
        """An attempt that stands still is answered, or dies; its request may be on the wire."""
        alive = {attempt.name: attempt for attempt in self.bench.alive}
        attempt = alive[data.draw(st.sampled_from(list(alive)), label="attempt")]
        answers = {
            "call": CALL_ANSWERS,
            "lookup": LOOKUP_ANSWERS,
            "start": ("truth",),
            "answer": ("truth", "done, answer lost"),
        }
        told = data.draw(st.sampled_from([*answers[attempt.stands], "killed"]), label="told")
        self.drive(self.bench.go_on(attempt, told))

    @precondition(lambda self: self.bench.outside.wire)
    @rule(number=st.integers(0, 5), half=st.sampled_from([False, False, True]))
    def late_request_arrives(self, number: int, half: bool) -> None:
        """A request arrives of which nobody hears any more."""
        standing = {attempt.name for attempt in self.bench.standing("call")}
        wire = self.bench.outside.wire
        if not standing:
            request = wire.pop(number % len(wire))
            self.bench.outside.arrive(request, half=half)

    @rule(what=st.sampled_from(sorted(TIMES)))
    def time_passes(self, what: str) -> None:
        self.drive(self.bench.pass_time(TIMES[what]))

    @precondition(lambda self: self.undoable())
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """The run of a step begins to unwind it."""
        name = data.draw(st.sampled_from(self.undoable()), label="step")
        self.drive(self.bench.undo(self.step(name)))

    @rule(release=st.sampled_from(sorted(RELEASES)), kills=st.booleans())
    def deploy(self, release: str, kills: bool) -> None:
        """The next attempts are made by workers with other timeouts and leases."""
        self.bench.deploy(RELEASES[release])
        if kills:
            self.drive(self.bench.kill_workers())

    @precondition(lambda self: self.in_call())
    @rule(data=st.data())
    def deploy_in_the_call(self, data: st.DataObject) -> None:
        """A worker dies in its call, and one of the next release is as hasty as it can be."""
        bench, in_call = self.bench, self.in_call()
        step = in_call[data.draw(st.sampled_from(sorted(in_call)), label="step")]
        assert step.attempt is not None
        self.drive(bench.go_on(step.attempt, "killed"))
        bench.deploy(SHORTER)
        for wait in (LEASE + SECOND, SHORTER.timeout + SETTLE + SECOND):
            self.drive(bench.pass_time(wait))
            self._attempt(step.name, None, False, 0, "truth", "done")

    def in_call(self) -> dict[str, BenchStep]:
        standing = self.bench.standing("call")
        return {step.name: step for step in self.bench.steps if step.attempt in standing}

    @precondition(lambda self: self.undoable())
    @rule(data=st.data(), params=st.sampled_from(PARAMS))
    def reset(self, data: st.DataObject, params: dict[str, str]) -> None:
        """The run of a step is reset to before it."""
        name = data.draw(st.sampled_from(self.undoable()), label="step")
        self.bench.begin_anew(self.step(name), dict(params))

    def undoable(self) -> list[str]:
        """Return the steps that have begun and are not being undone."""
        steps = self.bench.steps
        return [step.name for step in steps if step.begun and not step.undoing]

    @precondition(lambda self: self.questions())
    @rule(number=st.integers(0, 3), wish=st.sampled_from(["truth", "terse", "by hand", "give up"]))
    def human_answers(self, number: int, wish: str) -> None:
        questions = self.questions()
        self.sound = False
        self.bench.answer(questions[number % len(questions)], wish)

    def questions(self) -> list[dict[str, Any]]:
        return [row for row in self.seen.interventions if row["state"] == "open"]

    @precondition(lambda self: self.overdue())
    @rule()
    def reap(self) -> None:
        self.drive(self.bench.reap())

    def overdue(self) -> bool:
        """Return whether the reaper would find something."""
        return any(
            row["state"] in ("in_doubt", "partial")
            or (row["state"] == "claimed" and row["lease_until_ms"] < self.clock.now_ms)
            for row in self.seen.effects
        )

    @invariant()
    def holds(self) -> None:
        if self.sound:
            return  # nothing has happened since
        self._holds()
        self.sound = True

    def _holds(self) -> None:
        bench = self.bench
        twice = {key: n for key, n in bench.outside.applied.items() if n > 1}
        assert not twice, f"G1: applied more than once: {twice}"
        undone_twice = {key: n for key, n in bench.outside.undone.items() if n > 1}
        assert not undone_twice, f"G4: undone more than once: {undone_twice}"
        before = len(self.seen.events)
        self.seen = now = bench.snapshot()
        if len(now.events) != before:
            now.audit()
        entries = [Entry.from_row(row) for row in now.effects]
        live = [(e.tool, e.key) for e in entries if e.state not in ("failed", "compensated")]
        assert len(live) == len(set(live)), f"G1: two live entries of one key: {live}"
        asked = {
            row["entry_id"]
            for row in now.interventions
            if row["state"] == "open" or row["outcome"] == "give_up"
        }
        undone = {s.name for s in bench.steps if s.undone in ("compensated", "nothing_to_undo")}
        for entry in entries:
            self._true(entry)
            if entry.state == "committed" and not entry.undoes:
                owner = f"{entry.run_id}/{entry.step_id}"
                assert owner not in undone, f"G4: its run has undone it: {entry}"
            if entry.state in ("claimed", "in_doubt", "partial", "compensating"):
                assert self._cared_for(entry, asked), f"nobody settles {entry}"

    def _true(self, entry: Entry) -> None:
        """What the ledger takes for settled is how it is."""
        outside, key = self.bench.outside, entry.provider_key
        there, undone = outside.applied[key], outside.undone[key]
        match entry.state:
            case "committed":
                assert there, f"committed, and not there: {entry}"
            case "failed":
                assert not there, f"failed, and there: {entry}"
            case "compensated":
                assert undone, f"compensated, and not undone: {entry}"

    def _cared_for(self, entry: Entry, asked: set[str]) -> bool:
        if entry.entry_id in asked or (entry.undoes or "") in asked:
            return True
        if (entry.lease_until_ms or 0) > self.clock.now_ms:
            return True
        step = self.step(f"{entry.run_id}/{entry.step_id}")
        # What was under way before a reset is the reaper's, until the step is undone.
        return not step.over or (step.lives > 1 and not step.undoing)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            if self.sound:
                self.drive(self.bench.come_to_an_end())
                self._holds()
                self._unwind()
                # Whatever is on the wire arrives.
                self.drive(self.bench.pass_time(TIMEOUT + SETTLE))
                self._holds()
        finally:
            self.loop.run_until_complete(self.bench.kill_all())

    def _unwind(self) -> None:
        if self.unwinds:
            for name in self.undoable():
                self.drive(self.bench.undo(self.step(name)))
            self.drive(self.bench.come_to_an_end())
            self._holds()


@pytest.fixture
def machine(place: Place) -> type[LedgerMachine]:
    LedgerMachine.loop, LedgerMachine.engine, LedgerMachine.clock = place
    return LedgerMachine


@pytest.mark.parametrize("database", ["sqlite"])
def test_no_interleaving_on_sqlite_breaks_a_guarantee(machine: type[LedgerMachine]) -> None:
    run_state_machine_as_test(machine, settings=search(75, stateful_step_count=25))


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"])
def test_no_interleaving_on_postgresql_breaks_a_guarantee(machine: type[LedgerMachine]) -> None:
    run_state_machine_as_test(machine, settings=search(12, stateful_step_count=25))
