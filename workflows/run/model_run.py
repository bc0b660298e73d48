"""``ModelRun``: a run whose next step a model decides, one recorded turn at a time.

A turn is a read: the model's tool is given the goal and all that has happened, and says what to do
next. What is recorded of it is not asked again by a replay, a crash or a resume.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from surehand.workflows import names
    from surehand.workflows.contracts.artifacts import as_artifact
    from surehand.workflows.contracts.base import Message
    from surehand.workflows.contracts.runs import RunResult
    from surehand.workflows.contracts.starting import StartRun
    from surehand.workflows.plan.model_tools import MODEL, TOOLS, allowed
    from surehand.workflows.plan.policy import Written
    from surehand.workflows.plan.wording import reasons
    from surehand.workflows.run.code_run import CodeRun, StepFailed, StepMaker

#: Turns in a row that make no sense; then the run fails.
MOST_MISTAKES: Final = 3
#: Bytes of one turn.
LARGEST_TURN: Final = 1024 * 1024
#: Bytes of one output that a model is told as it is; it is told all of them in each turn. Of a
#: larger one it is told the artifact.
LARGEST_TOLD: Final = 64 * 1024


class CallTool(Written):
    """Call a tool."""

    do: Literal["call"]
    tool: str = Field(min_length=1, max_length=120)
    params: dict[str, JsonValue] = {}


class AskHuman(Written):
    """Ask a human."""

    do: Literal["ask"]
    question: str = Field(min_length=1, max_length=2000)
    answer: dict[str, JsonValue] = {}
    """JSON Schema of the answer."""


class Finish(Written):
    """The goal is reached; the output is the run's."""

    do: Literal["finish"]
    output: JsonValue = None


class GiveUp(Written):
    """The goal cannot be reached: the run fails, and what was done is undone."""

    do: Literal["give_up"]
    reason: str = Field(min_length=1, max_length=2000)


Turn = Annotated[CallTool | AskHuman | Finish | GiveUp, Field(discriminator="do")]
_TURN: Final[TypeAdapter[Turn]] = TypeAdapter(Turn)


class _SoFar(Message):
    """How far a run has come, for its next execution."""

    so_far: list[JsonValue] = []
    mistakes: int = 0
    number: int = 0


@workflow.defn(name=names.MODEL_RUN)
class ModelRun(CodeRun):
    """A run that a model drives.

    Its plan names the model's tool as ``input.model``, and what it may call as ``input.tools``.
    """

    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        """Take turns until the model finishes or gives up.

        Raises:
            ApplicationError: As a run of a plan ends.
        """
        return await self.drive_code(self._turns)

    async def _turns(self, steps: StepMaker) -> JsonValue:
        model = str(steps.input[MODEL])
        before = _SoFar.model_validate(steps.carried or {})
        so_far, mistakes, number = list(before.so_far), before.mistakes, before.number
        while True:
            if steps.history_is_long:
                now = _SoFar(so_far=so_far, mistakes=mistakes, number=number)
                await steps.continue_as_new(now.model_dump(mode="json"))
            number += 1
            asked = {"goal": self._data.request.plan.goal, "input": steps.input, "so_far": so_far}
            output = await steps.call(model, asked, id=f"turn-{number}", on_failure="pause")
            said = await _whole(steps, output, LARGEST_TURN)
            try:
                turn = _TURN.validate_python(said)
            except ValidationError as error:
                mistakes += 1
                large = as_artifact(said)
                what = (
                    f"it is too large: {large.bytes} bytes, {LARGEST_TURN} at most"
                    if large is not None
                    else "; ".join(reasons(error, "turn"))
                )
                if mistakes == MOST_MISTAKES:
                    raise StepFailed(f"{model} makes no sense: {what}", called=False) from error
                so_far.append({"turn": said, "mistake": what})
                continue
            if isinstance(turn, CallTool) and turn.tool not in self._may_call(steps):
                mistakes += 1
                what = f"{turn.tool!r} is none of the tools that this run has: "
                what += ", ".join(sorted(self._may_call(steps)))
                await steps.refuse(turn.tool, what, id=f"step-{number}")
                if mistakes == MOST_MISTAKES:
                    raise StepFailed(f"{model} makes no sense: {what}", called=False)
                so_far.append({"turn": said, "mistake": what})
                continue
            mistakes = 0
            if isinstance(turn, Finish):
                return turn.output
            if isinstance(turn, GiveUp):
                raise StepFailed(f"{model} gives up: {turn.reason}", called=False)
            so_far.append({"turn": said, **await self._done(steps, turn, number)})

    def _may_call(self, steps: StepMaker) -> set[str]:
        """Return the tools that the input names, of those that the run's start has recorded."""
        listed: Any = steps.input[TOOLS]
        # A tool that undoes others is among the recorded ones only where it is named exactly.
        return allowed(listed, self._data.tools, ())

    async def _done(
        self, steps: StepMaker, turn: CallTool | AskHuman, number: int
    ) -> dict[str, JsonValue]:
        """Do what a turn says, and return what the model is told of it."""
        step_id = f"step-{number}"
        try:
            if isinstance(turn, AskHuman):
                return {"output": await steps.ask(turn.question, turn.answer, id=step_id)}
            output = await steps.call(turn.tool, turn.params, id=step_id, on_no="continue")
            output = await _whole(steps, output, LARGEST_TOLD)
        except StepFailed as failed:
            told: dict[str, Any] = {"rejected" if failed.rejected else "failed": failed.reason}
            return told | self._edited(step_id)
        return {"output": output} | self._edited(step_id)

    def _edited(self, step_id: str) -> dict[str, JsonValue]:
        edited = self._data.of_step(step_id).edited
        return {} if edited is None else {"edited_by_a_human": dict(edited)}


async def _whole(steps: StepMaker, output: JsonValue, largest: int) -> JsonValue:
    """Return the value of an output, as far as it is not larger than that."""
    artifact = as_artifact(output)
    return output if artifact is None or artifact.bytes > largest else await steps.content(output)
