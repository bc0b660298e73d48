"""What Temporal and the workflow do for one step, in the words of the ledger's state machine."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.effects.compensation import CompensationActivities
from surehand.activities.effects.reconcile import settle_stale
from surehand.activities.effects.tool_calls import ToolActivities
from surehand.activities.ledger.core.store import LedgerUnavailable
from surehand.activities.ledger.core.tables import effects, events, interventions, runs
from surehand.activities.ledger.effects import reconcile as intervention_rows
from surehand.activities.ledger.history.audit import verify_run
from surehand.activities.ledger.runs import lifecycle as run_rows
from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.tools.failures import Retries
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import CrashPoint
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.effects import (
    Compensate,
    CompensationOutcome,
    CompensationReport,
    FindRemaining,
    Resolution,
)
from surehand.workflows.contracts.runs import OpenRun, StartRun
from surehand.workflows.contracts.tools import (
    AnsweredNo,
    ApprovalNeeded,
    Batch,
    HumanNeeded,
    Succeeded,
    ToolCall,
    ToolReport,
)
from surehand.workflows.plan.plan import Plan
from tests.property.attempts import Attempt, Clock, ClockedLedger, DyingCrash, Killed
from tests.property.outside import LEASE, SETTLE, TIMEOUT, ExternalEvents, Release

#: Rounds in which everything left over has to come to an end.
_PATIENCE: Final = 40


@dataclass
class BenchStep:
    """One step as its workflow knows it: Temporal believes in one attempt of it at a time."""

    run_id: str
    step_id: str
    tool: str
    params: dict[str, str]
    attempt: Attempt | None = None
    ended: str | None = None
    """How its forward call ended."""
    undoing: bool = False
    undone: str | None = None
    """How undoing it ended."""
    waits_for: str | None = None
    """The intervention that has to be settled first."""
    joined: str | None = None
    activity: int = 1
    number: int = 0
    used_up: int = 0
    lives: int = 1
    """Grows when its run is reset to before it."""

    @property
    def name(self) -> str:
        """Return what the tests call it."""
        return f"{self.run_id}/{self.step_id}"

    @property
    def over(self) -> bool:
        """Return whether no further attempt will be made as things are."""
        return self.undone is not None if self.undoing else self.ended is not None

    @property
    def begun(self) -> bool:
        return self.number > 0 or self.activity > 1

    def next_activity(self) -> None:
        """Call a port anew."""
        self.activity, self.used_up, self.number = self.activity + 1, self.used_up + self.number, 0


@dataclass(frozen=True)
class Snapshot:
    """The rows of a ledger at one moment."""

    effects: list[dict[str, Any]]
    interventions: list[dict[str, Any]]
    events: list[dict[str, Any]]
    runs: list[dict[str, Any]]

    def audit(self) -> None:
        """Prove every run's events whole, and the entries told of."""
        for run in self.runs:
            mine = [one for one in self.events if one["run_id"] == run["run_id"]]
            entries = [one for one in self.effects if one["run_id"] == run["run_id"]]
            head = ChainHead(seq=run["seq"], hash=run["head"])
            broken = verify_run(mine, entries, [head])
            assert broken is None, f"{run['run_id']}: {broken}"


@dataclass
class Bench:
    """A ledger, its outside world, and some steps that want something of both."""

    ledger: ClockedLedger
    clock: Clock
    tenant: str
    steps: list[BenchStep]
    late: bool = False
    """Requests of dead attempts arrive at the last moment they may, instead of never."""
    patience: timedelta = timedelta(days=1)
    """How long a recovery may take before a human is asked."""
    outside: ExternalEvents = field(init=False)
    alive: list[Attempt] = field(default_factory=list)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.outside = ExternalEvents(self.clock)
        self.deploy(Release())

    def deploy(self, release: Release) -> None:
        """Have attempts made by workers of this release from now on; earlier ones live on."""
        self.toolbox = self.outside.toolbox(release.timeout)
        self.context = WorkerContext(
            self.ledger,
            self.toolbox,
            ArtifactStore("memory:///", self.ledger, largest_inline=8192),
            DyingCrash(),
            lease=release.lease,
            renew_every=timedelta(days=1),
            retries=Retries(recovery_limit=self.patience),
        )

    def open_runs(self) -> None:
        for run_id in sorted({step.run_id for step in self.steps}):
            mine = [step for step in self.steps if step.run_id == run_id]
            plan = Plan.model_validate([{"id": step.step_id, "tool": step.tool} for step in mine])
            start = StartRun(run_id=run_id, tenant=self.tenant, user="ada", plan=plan)
            specs = {spec.name: spec for spec in self.toolbox.specs()}
            with self.ledger.transaction(self.tenant) as tx:
                opening = OpenRun(request=start, execution=start.run_id)
                run_rows.open_run(tx, opening, specs)

    def standing(self, *places: str) -> list[Attempt]:
        """Return the attempts that stand still there; those nobody believes in any more, too."""
        return [attempt for attempt in self.alive if attempt.stands in places]

    def ready(self, step: BenchStep) -> bool:
        """Return whether the workflow makes another attempt now."""
        if step.waits_for is not None and not self._is_open(step.waits_for):
            step.waits_for = None
        return not step.over and step.waits_for is None

    async def start(
        self,
        step: BenchStep,
        *,
        crash_at: CrashPoint | None = None,
        loses: int = 0,
        sleepy: bool = False,
        hasty: bool = False,
    ) -> Attempt:
        """Make the next attempt; Temporal has lost sight of the one before, which lives on."""
        step.number += 1
        name = f"{step.name} {'undo' if step.undoing else 'call'} {step.activity}.{step.number}"
        attempt = Attempt(name, crash_at, loses, sleepy, hasty)
        step.attempt = attempt
        work = self._compensate(step) if step.undoing else self._call(step)
        await self._begin(attempt, work, step)
        return attempt

    async def reap(self) -> None:
        async def alive(run_id: str) -> bool:
            return True

        work = settle_stale(self.context, self.tenant, alive, quiet=timedelta(0), limit=10)
        await self._begin(Attempt(f"reaper {next(self._numbers)}", hasty=True), work, None)

    async def _begin(
        self, attempt: Attempt, work: Coroutine[Any, Any, Any], step: BenchStep | None
    ) -> None:
        self.alive.append(attempt)
        await attempt.begin(work)
        self._collect(attempt, step)

    async def go_on(self, attempt: Attempt, told: str) -> None:
        """Let an attempt go on as told, now or after a while."""
        if told == "done, just in time":
            assert attempt.deadline_ms is not None
            await self.pass_time_until(attempt.deadline_ms - 1)
        if told == "truth, told after the settle time":
            await attempt.go_on("truth, answer held up")
            await self.pass_time(TIMEOUT + SETTLE)
            told = "truth"
        await attempt.go_on(told)
        self._collect(attempt, next((s for s in self.steps if s.attempt is attempt), None))

    async def _call(self, step: BenchStep) -> ToolReport:
        tool = self.toolbox.get(step.tool)
        assert tool is not None
        call = ToolCall(
            tenant=self.tenant,
            run_id=step.run_id,
            step_id=step.step_id,
            plan_version=1,
            user="ada",
            tool=tool.spec(),
            params=dict(step.params),
            attempts_before=step.used_up,
            joined=step.joined,
        )
        activity = ToolActivities(self.context).execute_tools
        report = await self._environment(step, "call").run(activity, Batch(first=call))
        return report.steps[0].report

    async def _compensate(self, step: BenchStep) -> CompensationReport:
        """Ask what the step has to undo, of all its lives, and undo that as its workflow would."""
        activities = CompensationActivities(self.context)
        its = {"tenant": self.tenant, "run_id": step.run_id, "step_id": step.step_id}
        asked = FindRemaining(**its, bar=True)
        found = await self._environment(step, "find").run(activities.find_remaining, asked)
        if not found.effects:
            return CompensationReport(outcome=CompensationOutcome.NOTHING_TO_UNDO)
        told: CompensationReport | None = None
        for standing in found.effects:
            entry_id = standing.effect.entry_id
            what = Compensate(**its, entry_id=entry_id, user="ada")
            environment = self._environment(step, f"undo-{entry_id}")
            report: CompensationReport = await environment.run(activities.compensate, what)
            if report.outcome is CompensationOutcome.HUMAN_NEEDED:
                return report
            if told is None or report.outcome is CompensationOutcome.UNCOMPENSATED:
                told = report
        assert told is not None
        return told

    def _environment(self, step: BenchStep, kind: str) -> ActivityEnvironment:
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(
            environment.info,
            workflow_run_id=step.run_id,
            activity_id=f"{kind}-{step.step_id}-{step.activity}",
            attempt=step.number,
        )
        return environment

    def _collect(self, attempt: Attempt, step: BenchStep | None) -> None:
        """Follow how an attempt has ended, as its workflow would; zombies are not listened to."""
        if not attempt.task.done():
            return
        self.alive.remove(attempt)
        error = attempt.task.exception()
        expected = isinstance(error, (Killed, LedgerUnavailable, ApplicationError))
        if error is not None and not expected:
            raise error
        if step is None or step.attempt is not attempt:
            return
        step.attempt = None
        if isinstance(error, ApplicationError) and error.non_retryable:
            assert not step.undoing, f"undoing ended as {error.type}: {error.message}"
            step.ended = str(error.type)
        elif error is None:
            self._follow(step, attempt.task.result())

    def _follow(self, step: BenchStep, report: ToolReport | CompensationReport) -> None:
        step.next_activity()
        if isinstance(report, CompensationReport):
            if report.outcome is CompensationOutcome.HUMAN_NEEDED:
                step.waits_for = report.intervention_id
            else:
                step.undone = report.outcome.value
            return
        match report.outcome:
            case Succeeded():
                step.ended = "succeeded"
            case AnsweredNo():
                step.ended = "no"
            case HumanNeeded(intervention_id=id_, effect=None):
                step.joined = id_
            case HumanNeeded(intervention_id=id_):
                step.waits_for, step.joined = id_, None
            case ApprovalNeeded():
                raise AssertionError("nobody asks for approvals here")

    async def undo(self, step: BenchStep) -> None:
        """Begin to undo a step; an attempt that Temporal has lost sight of lives on."""
        step.undoing, step.waits_for, step.attempt = True, None, None
        step.next_activity()

    def begin_anew(self, step: BenchStep, params: dict[str, str]) -> None:
        """Reset a step's run to before it: what came before it may say something else now.

        An attempt that Temporal has lost sight of lives on.
        """
        step.next_activity()
        step.lives, step.params, step.attempt = step.lives + 1, params, None
        step.ended, step.waits_for, step.joined = None, None, None

    async def pass_time(self, by: timedelta) -> None:
        await self.pass_time_until(self.clock.now_ms + int(by / timedelta(milliseconds=1)))

    async def pass_time_until(self, until_ms: int) -> None:
        """Move the clock; calls that should have ended take their processes with them."""
        for attempt in self.standing("call", "answer"):
            if attempt.deadline_ms is not None and attempt.deadline_ms <= until_ms:
                await self.go_on(attempt, "killed")
        self.outside.time_passes(until_ms, late=self.late)

    def entries(self) -> list[Entry]:
        rows = self._rows(select(effects).order_by(effects.c.claimed_ms))
        return [Entry.from_row(row) for row in rows]

    def questions(self, state: str = "open") -> list[dict[str, Any]]:
        """Return the interventions in a state."""
        order = (interventions.c.opened_ms, interventions.c.run_id)
        query = select(interventions).where(interventions.c.state == state).order_by(*order)
        return self._rows(query)

    def _is_open(self, intervention_id: str) -> bool:
        found = [row["intervention_id"] for row in self.questions()]
        return intervention_id in found

    def _rows(self, query: Any) -> list[dict[str, Any]]:
        table = query.get_final_froms()[0]
        with self.ledger.transaction(self.tenant) as tx:
            return tx.all(query.where(table.c.tenant_id == self.tenant))

    def answer(self, question: dict[str, Any], wish: str) -> bool:
        """Have a human settle a question truthfully; ``False`` if nobody can tell yet."""
        (entry,) = [e for e in self.entries() if e.entry_id == question["entry_id"]]
        said = self._truth(entry, wish)
        if said is None:
            return False
        receipt = {"id": entry.provider_key} if said == "happened" and wish != "terse" else None
        resolution = Resolution(
            intervention_id=question["intervention_id"],
            outcome=said,
            actor="oscar",
            evidence="looked",
            receipt=receipt,
        )
        resolution_id = f"{entry.run_id}#{next(self._numbers)}"
        with self.ledger.transaction(self.tenant) as tx:
            accepted, why, _ = intervention_rows.settle_intervention(
                tx, question["run_id"], resolution_id, resolution
            )
        assert accepted, f"a truthful answer was refused: {why}"
        return True

    def _truth(self, entry: Entry, wish: str) -> Any:
        key, outside = entry.provider_key, self.outside
        if entry.state == "compensated":
            return "compensated"  # it was undone under a run that had replayed it
        if wish == "give up":
            return "give_up"
        if entry.state == "compensating":
            # Whoever says so has seen to it that it is undone, once.
            outside.undone[key] = outside.undone[key] or 1
            return "compensated"
        with self.ledger.transaction(self.tenant) as tx:
            until = intervention_rows.may_arrive_until(tx, entry)
        if until is not None or outside.under_way(key):
            return None
        if wish == "by hand" and outside.applied[key] and not entry.undoes:
            outside.undone[key] += 1
            return "compensated"
        if key in outside.half:
            # Half of it does not stand: it is taken back by hand.
            outside.half.remove(key)
        return "happened" if outside.applied[key] else "not_happened"

    def snapshot(self) -> Snapshot:
        with self.ledger.transaction(self.tenant) as tx:
            read = [
                tx.all(select(table).where(table.c.tenant_id == self.tenant).order_by(*by))
                for table, by in (
                    # Not by its id, which is another one in each example's tenant.
                    (effects, (effects.c.claimed_ms,)),
                    (interventions, (interventions.c.opened_ms, interventions.c.run_id)),
                    (events, (events.c.seq,)),
                    (runs, (runs.c.run_id,)),
                )
            ]
        return Snapshot(*read)

    async def come_to_an_end(self) -> None:
        """Let everything that is left over go on, truthfully; all of it has to end."""
        for _ in range(_PATIENCE):
            for attempt in list(self.alive):
                await self.go_on(attempt, "truth")
            for step in self.steps:
                if self.ready(step):
                    await self.start(step, hasty=True)
            for question in self.questions():
                self.answer(question, "truth")
            if all(step.over for step in self.steps) and not self.alive:
                return
            await self.pass_time(2 * LEASE)
        unfinished = [step for step in self.steps if not step.over]
        raise AssertionError(f"still not at an end: {unfinished}")

    async def kill_workers(self) -> None:
        """Kill all attempts where they stand; their requests may be on the wire."""
        for attempt in list(self.alive):
            await self.go_on(attempt, "killed")

    async def kill_all(self) -> None:
        for attempt in list(self.alive):
            await attempt.kill()
            await asyncio.wait({attempt.task})
            attempt.task.exception()
        self.alive.clear()
