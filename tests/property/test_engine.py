"""G1, G3, G4: random plans, faults and people, on a real Temporal server over a model ledger."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pytest
from hypothesis import example, given, note
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.worker import Worker

from surehand.worker import workflow_runner
from surehand.workflows.contracts.approvals import ApprovalState
from surehand.workflows.contracts.base import ENDED, RunState, StepState
from surehand.workflows.contracts.runs import RunResult, RunView, StartRun
from surehand.workflows.names import WORKFLOW
from surehand.workflows.run.agent_run import AgentRun
from tests.e2e.runs import PATIENCE_S
from tests.property.model_ledger import ModelLedger, World
from tests.property.people import People
from tests.property.scenarios import CANCELLED, IN_LINE, RESET, UNDISTURBED, PlannedStep, Scenario
from tests.property.search import search

pytestmark = pytest.mark.property

#: What has become of an effect that has happened, once its run has ended.
ENDED_STATES: Final = ("committed", "compensated")
#: A request whose time is over in an execution that has only just begun.
EXPIRES: Final = Scenario(
    (
        PlannedStep("a", "a", gated=True, approver="approve at once"),
        PlannedStep("b", "b", gated=True, approver="let it expire"),
    )
)
#: A rejection whose step ends while the run waits for nothing else.
REJECTED: Final = Scenario(
    (
        PlannedStep("a", "a", gated=True, approver="approve at once"),
        PlannedStep("b", "b", gated=True, approver="reject", on_failure="continue"),
    )
)


@dataclass(frozen=True, repr=False)
class ModelStage:
    """Where random runs take place."""

    client: Client
    model: ModelLedger
    task_queue: str

    async def play(
        self, scenario: Scenario, continue_after: int | None = None
    ) -> tuple[World, RunResult]:
        people = People()
        run_id = f"property-{uuid.uuid4().hex[:12]}"
        world = World(scenario, run_id, people)
        self.model.worlds[run_id] = world
        early = people.watch(world)
        request = StartRun(
            run_id=run_id,
            tenant="default",
            user="uma",
            plan=scenario.plan(),
            continue_after=continue_after,
        )
        options: dict[str, Any] = {"start_signal": "decide", "start_signal_args": early[:1]}
        await self.client.start_workflow(
            WORKFLOW, request, id=run_id, task_queue=self.task_queue, **(options if early else {})
        )
        # Whichever execution of it is the newest.
        handle = self.client.get_workflow_handle(run_id, result_type=RunResult)
        for decision in early[1:]:
            await handle.signal("decide", decision)
        people.started(handle)
        try:
            async with asyncio.timeout(PATIENCE_S):
                result = await _result_of(handle)
        except TimeoutError:
            view = await handle.query("view", result_type=RunView)
            raise AssertionError(
                f"stuck in {view.result.state}, waiting for {view.result.waiting_for};"
                f" asked for: {world.log}"
            ) from None
        await people.go_home()
        return world, result


async def _result_of(handle: Any) -> RunResult:
    try:
        result: RunResult = await handle.result()
        return result
    except WorkflowFailureError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == "RunFailed":
            return RunResult.model_validate(error.cause.details[0])
        if isinstance(error.cause, TerminatedError):  # It was reset.
            return await _result_of(handle)
        if isinstance(error.cause, CancelledError):
            view: RunView = await handle.query("view", result_type=RunView)
            return view.result
        raise


@pytest.fixture(scope="module")
async def model_stage(client: Client) -> AsyncIterator[ModelStage]:
    model, queue = ModelLedger(), f"model-{uuid.uuid4().hex[:8]}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[AgentRun],
        activities=model.all(),
        workflow_runner=workflow_runner(),
    ):
        yield ModelStage(client, model, queue)


@search(30)
@given(scenario=UNDISTURBED)
async def test_a_run_follows_plan_and_people(model_stage: ModelStage, scenario: Scenario) -> None:
    world, result = await model_stage.play(scenario)
    note(f"asked for: {world.log}; ended as {result.state}: {result.error}")
    assert result.state in (RunState.COMPLETED, RunState.FAILED)
    guarantees_hold(world, result)


@search(30)
@given(scenario=CANCELLED)
async def test_a_cancelled_run_ends_whole(model_stage: ModelStage, scenario: Scenario) -> None:
    world, result = await model_stage.play(scenario)
    note(f"asked for: {world.log}; ended as {result.state}: {result.error}")
    guarantees_hold(world, result)


@search(12)
@given(scenario=RESET)
async def test_a_reset_run_forgets_nothing(model_stage: ModelStage, scenario: Scenario) -> None:
    world, result = await model_stage.play(scenario)
    note(f"asked for: {world.log}; ended as {result.state}: {result.error}")
    assert result.state in (RunState.COMPLETED, RunState.FAILED)
    guarantees_hold(world, result)


@search(8, functions=True)
@example(scenario=EXPIRES)
@example(scenario=REJECTED)
@given(scenario=IN_LINE)
async def test_a_run_that_continues_as_new_after_every_step_ends_as_one_that_does_not(
    model_stage: ModelStage, monkeypatch: pytest.MonkeyPatch, scenario: Scenario
) -> None:
    # Given a run that is due whenever anything has happened
    monkeypatch.setattr("surehand.workflows.run.run_core.LEAST_EVENTS", 1)
    plain, expected = await model_stage.play(scenario)
    world, result = await model_stage.play(scenario, continue_after=1)
    note(f"asked for: {world.log}; ended as {result.state}: {result.error}")

    guarantees_hold(world, result)
    called = {what for port, what in plain.log if port == "execute_tools"}
    assert len(plain.executions) == 1
    # A run that is rejected at once has nothing behind it when it could continue.
    assert len(world.executions) > 1 or len(called) <= 1
    assert ended(world, result) == ended(plain, expected)


def ended(world: World, result: RunResult) -> dict[str, Any]:
    """Return what a run has come to, whatever its name."""
    text = json.dumps(
        {
            "result": result.model_dump(mode="json", exclude={"run_id"}),
            "applied": world.applied,
            "undone": world.undone,
            # A message that arrives while a run continues as new has its last task made anew.
            "asked": _once(world.log),
        }
    )
    found: dict[str, Any] = json.loads(text.replace(world.run_id, "the run"))
    return found


def _once(log: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return a log without what is asked twice in a row, and without late decisions.

    A second decision of the same person comes before the run's end or after it.
    """
    asked: list[tuple[str, Any]] = []
    for one, _ in groupby(log):
        if one[0] != "verify_decision" or one not in asked:
            asked.append(one)
    return asked


@pytest.mark.parametrize("human", ["tell before it is reported", "tell what is settled already"])
@pytest.mark.parametrize("undoing", [False, True])
async def test_a_question_that_is_settled_already_holds_up_no_run(
    model_stage: ModelStage, human: str, undoing: bool
) -> None:
    if undoing:
        fate: dict[str, Any] = {"undo_tries": ("fails for good",)}
    else:
        fate = {"tries": ("in doubt: happened",)}
    steps = (
        PlannedStep("a", "a", human=human, **fate),
        PlannedStep("b", "b", tries=("permanent",) if undoing else ()),
    )
    world, result = await model_stage.play(Scenario(steps))
    guarantees_hold(world, result)
    assert result.state is (RunState.FAILED if undoing else RunState.COMPLETED)
    [question] = world.questions.values()
    assert question.outcome == ("compensated" if undoing else "happened")


def guarantees_hold(world: World, result: RunResult) -> None:
    """Compare what the engine did with what it may do."""
    assert result.state in ENDED
    assert not result.waiting_for
    assert world.wrong == []
    applied_once(world)
    only_as_approved(world)
    nothing_runs_over_a_doubt(world, result)
    tells_the_truth(world, result)
    unwound(world, result)


def applied_once(world: World) -> None:
    assert all(times == 1 for times in world.applied.values()), world.applied
    assert len(world.undone) == len(set(world.undone)), world.undone


def only_as_approved(world: World) -> None:
    """G3: what a gated step applied had an approval of its own."""
    used = dict(world.authorised)
    assert len(set(world.authorised)) == len(used), "an approval was used by two entries"
    for approval_id in used:
        assert world.approvals[approval_id].state is ApprovalState.APPROVED
    for entry in world.entries:
        if entry.step.gated and world.applied[entry.id]:
            assert entry.id in used.values(), f"{entry.id} was applied without an approval"


def nothing_runs_over_a_doubt(world: World, result: RunResult) -> None:
    """G2: what comes after an effect that may have happened is never begun."""
    newest = world.log[world.reset_at :]
    called = {what for port, what in newest if port == "execute_tools"}
    for view in result.steps:
        doubtful = "ParamsMismatch" in (view.error or "") or "StepBarred" in (view.error or "")
        if doubtful and world.scenario.step(view.id).write:
            after = world.scenario.descendants(view.id) & called
            assert not after, f"{after} ran although {view.id} is in doubt"


def tells_the_truth(world: World, result: RunResult) -> None:
    """The result says what the ledger says, and why the run has not done more."""
    assert result.effects == world.views()
    states = {view.id: view.state for view in result.steps}
    assert set(states.values()) <= {StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED}
    for step in world.scenario.steps:
        if states[step.id] is StepState.SUCCEEDED and step.write:
            output = next(view.output for view in result.steps if view.id == step.id)
            if output is None:
                # Cut off by the end of its run: the ledger has it, and what it said is not known.
                assert result.state is not RunState.COMPLETED
                made = [entry for entry in world.entries if entry.step.id == step.id]
                assert any(entry.state in ENDED_STATES for entry in made)
                continue
            assert isinstance(output, dict)
            assert "no" in output or world.applied.total() > 0
    if result.state is RunState.COMPLETED:
        stopped = [
            step.id
            for step in world.scenario.steps
            if states[step.id] is StepState.FAILED and step.on_failure == "stop"
        ]
        assert not stopped, f"completed over {stopped}"
        assert not world.undone or "compensated" in {q.outcome for q in world.questions.values()}


def unwound(world: World, result: RunResult) -> None:
    """G4: undone last first, or listed."""
    undoing = [what for port, what in world.log if port == "compensate"]
    how = world.scenario.cancellation.how if world.scenario.cancellation else None
    kept = result.state is RunState.CANCELLED and how == "keep"
    if result.state is RunState.COMPLETED or kept:
        assert undoing == []
    if result.state is RunState.COMPLETED:
        return
    standing = [v for v in world.views() if v.state in ("committed", "in_doubt", "compensating")]
    assert [v.entry_id for v in result.uncompensated] == [v.entry_id for v in standing]
    if kept:
        return
    for entry in world.entries:
        answers = {q.outcome for q in world.questions.values() if q.entry is entry}
        if entry.state in (*ENDED_STATES, "in_doubt"):
            # What a human has undone does not stand: nobody undoes it once more.
            by_hand = entry.state == "compensated" and "compensated" in answers
            assert by_hand or entry.id in undoing, f"{entry.id} was left without a word"
        assert entry.state != "compensating"
        if entry.state == "committed":
            left = entry.step.irreversible or how == "cleanup"
            assert left or "give_up" in answers, f"{entry.id} still stands"
    numbers = {entry.id: entry.commit_no for entry in world.entries}
    settled = {q.entry.id for q in world.questions.values()}
    newest = [what for port, what in world.log[world.reset_at :] if port == "compensate"]
    first = [one for one in dict.fromkeys(newest) if numbers[one] and one not in settled]
    assert first == sorted(first, key=lambda one: numbers[one] or 0, reverse=True)
