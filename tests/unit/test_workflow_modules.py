"""Workflows of the user's own: found in their modules, or refused in one line."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from temporalio import workflow

from surehand.activities.tools.workflow_modules import (
    WorkflowModulesError,
    load_workflows,
)
from surehand.workflows.contracts.runs import RunResult, StartRun
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.code_run import CodeRun


@workflow.defn(name="LateOrders")
class Impostor(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        raise NotImplementedError


@workflow.defn(name="AgentRun")
class Usurper(CodeRun):
    @workflow.run
    async def run(self, request: StartRun) -> RunResult:
        raise NotImplementedError


def module(name: str, *classes: type) -> str:
    made = ModuleType(name)
    vars(made).update({class_.__name__: class_ for class_ in classes})
    sys.modules[name] = made
    return name


def test_the_workflows_of_a_module_are_found_and_what_it_imports_is_none() -> None:
    assert [class_.__name__ for class_ in load_workflows(["surehand.examples.late_orders"])] == [
        "LateOrders"
    ]


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (["no.such"], "'no.such' .* cannot be imported: ModuleNotFoundError"),
        (["surehand.examples.shop.tools"], "'surehand.examples.shop.tools' .* defines no workflow"),
        (
            ["surehand.examples.late_orders", module("acme_flows", Impostor)],
            "'acme_flows' .*: there is a workflow 'LateOrders' already",
        ),
        ([module("acme_runs", Usurper)], "there is a workflow 'AgentRun' already"),
    ],
)
def test_a_module_that_cannot_be_used_is_named_with_its_reason(
    modules: list[str], reason: str
) -> None:
    with pytest.raises(WorkflowModulesError, match=reason):
        load_workflows(modules)


def test_a_plan_has_steps_or_the_code_that_makes_them() -> None:
    with pytest.raises(ValueError, match="one of both is enough"):
        Plan.model_validate({"code": "A", "steps": [{"tool": "t"}]})
    assert (
        Plan.model_validate(Plan.model_validate({"code": "A"}).model_dump(mode="json")).steps == ()
    )
