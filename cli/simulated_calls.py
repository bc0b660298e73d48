"""The calls of ``simulate``, looked at with the tools of this machine as the worker does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cli.simulated import CannotHold, CheckedCall
from workflows.contracts import Effect, ToolSpec
from workflows.policy import ApprovalPolicy, Needs, combine

if TYPE_CHECKING:
    from activities.requests import PreparedCall
    from activities.toolbox import Toolbox


class WorkerChecks:
    """The worker's own evaluator, its tools' models, policies and keys."""

    def __init__(
        self, run_id: str, recorded: Mapping[str, ToolSpec], toolbox: Toolbox | None
    ) -> None:
        """Look at calls.

        Args:
            run_id: The run whose calls these would be.
            recorded: Its tools as recorded with its plan.
            toolbox: The tools that are loaded here; ``None``: none are.
        """
        self._run_id = run_id
        self._specs = recorded
        self._toolbox = toolbox

    def holds(self, expression: str, values: Mapping[str, Any]) -> bool:
        """Return whether a condition is true.

        Raises:
            CannotHold: It cannot be evaluated.
        """
        from activities.rules import RuleBroken, condition_holds

        try:
            return condition_holds(expression, values)
        except RuleBroken as error:
            raise CannotHold(str(error)) from error

    def call(
        self, step_id: str, tool: str, params: Any, policies: Sequence[ApprovalPolicy]
    ) -> CheckedCall:
        """Return what the worker would make of a call before it makes it."""
        recorded = self._specs.get(tool)
        asking = [*policies, *_own(recorded)]
        loaded = None if self._toolbox is None else self._toolbox.get(tool)
        if loaded is None:
            return _without_params(params, asking)
        asking += _own(loaded)
        if params is None:
            return _without_params(params, asking)
        from temporalio.exceptions import ApplicationError

        from activities.requests import prepare_params

        try:
            prepared = prepare_params(loaded, params, self._run_id, step_id)
            needs = _needs(asking, prepared)
        except (ApplicationError, CannotHold) as error:
            return CheckedCall(params, problem=getattr(error, "message", str(error)))
        named = loaded.key is not None and loaded.effect is Effect.WRITE
        return CheckedCall(
            params=prepared.plain,
            params_hash=prepared.params_hash,
            approval="no" if needs is None else "yes",
            approval_text=_as_text(needs),
            key=prepared.key if named else None,
        )


def _own(tool: Any) -> Iterable[ApprovalPolicy]:
    return () if tool is None or tool.approval is None else (tool.approval,)


def _needs(policies: Sequence[ApprovalPolicy], prepared: PreparedCall) -> Needs | None:
    from activities.rules import RuleBroken, holds

    try:
        return combine(policies, lambda expression: holds(expression, prepared.params))
    except RuleBroken as error:
        raise CannotHold(f"{prepared.tool.name}: {error}") from error


def _without_params(params: Any, policies: Sequence[ApprovalPolicy]) -> CheckedCall:
    """Return what holds of a call whatever its params are."""
    always = combine((one for one in policies if not one.rules), lambda _: False)
    by_rules = any(one.rules for one in policies)
    return CheckedCall(
        params=params,
        approval="yes" if always else "by its rules" if by_rules else "no",
        approval_text=_as_text(always),
    )


def _as_text(needs: Needs | None) -> str:
    return "" if needs is None else " and ".join(one.as_text() for one in needs.requirements)
