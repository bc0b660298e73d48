"""``plan check``, ``plan graph`` and ``plan schema``: looking at plans without a server."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from surehand.cli.plans.graph import graph_of, mermaid, picture
from surehand.cli.plans.schema import plan_schema
from surehand.cli.plans.shapes import PlanChecked
from surehand.cli.plans.tool_check import (
    TOOLS_SETTING,
    agent_problems,
    named_tools,
    problems_of,
    warnings_of,
    workflow_problems,
)
from surehand.cli.verb import options
from surehand.cli.verb.printer import Reply
from surehand.cli.verb.text import counted
from surehand.client.plan_file import load_plan
from surehand.process.exits import ExitCode, PlanRefused, WrongUse
from surehand.workflows.plan.plan import Plan


class Format(StrEnum):
    """How ``plan graph`` draws."""

    TEXT = "text"
    MERMAID = "mermaid"


def check(
    caller: options.Anybody,
    plan: options.PlanFile,
    changes: options.Changes = None,
) -> Reply:
    """Validate a plan as `start` does, and start nothing; with tools where they are named.

    Example: python starter.py plan check examples/refund.yaml
    """
    toolbox = named_tools(caller)
    tools = None if toolbox is None else toolbox.names()
    parsed = load_plan(plan, changes or [], tools)
    unknown, not_checked = workflow_problems(caller, parsed)
    no_agents, unsure = agent_problems(caller, parsed)
    not_checked += unsure
    problems = [*unknown, *no_agents, *problems_of(toolbox, parsed)]
    if problems:
        raise PlanRefused(plan, problems)
    if tools is None:
        not_checked.append(f"its tools and params ({TOOLS_SETTING} names none)")
    checked = PlanChecked(
        file=plan,
        plan=parsed.name,
        steps=_steps(parsed),
        tools_checked=tools is not None,
        not_checked=not_checked,
        warnings=warnings_of(toolbox, _tools(parsed)),
    )
    for warning in checked.warnings:
        caller.printer.warn(warning)
    steps = counted(checked.steps, "step")
    made = steps if parsed.code is None else f"its steps are made by the workflow {parsed.code}"
    said = [f"Not checked: {one}" for one in checked.not_checked]
    return Reply(checked, [f"{plan}: valid: plan {parsed.name}, {made}", *said])


def graph(
    caller: options.Anybody,
    plan: options.PlanFile,
    changes: options.Changes = None,
    form: Annotated[
        Format, typer.Option("--format", help="A picture as text, or a Mermaid flowchart.")
    ] = Format.TEXT,
) -> Reply:
    """Draw a plan: what waits for what, what needs a human, and where gotos lead.

    Example: python starter.py plan graph examples/refund.yaml --format mermaid
    """
    parsed = load_plan(plan, changes or [])
    if parsed.code is not None:
        raise WrongUse(f"{plan}: the workflow {parsed.code} makes its steps: nothing to draw")
    toolbox = named_tools(caller)
    known = {} if toolbox is None else {spec.name: spec for spec in toolbox.specs()}
    drawn = graph_of(parsed, known)
    width = caller.printer.console.width
    return Reply(drawn, mermaid(drawn) if form is Format.MERMAID else picture(drawn, width))


def schema(
    caller: options.Anybody,
) -> ExitCode:
    """Print the JSON Schema of plan files, always as JSON; editors complete plans with it.

    Example: python starter.py plan schema > plan.schema.json
    """
    caller.printer.document(plan_schema())
    return ExitCode.DONE


def _tools(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if step.plan is not None:
            yield from _tools(step.plan)
        yield step.tool


def _steps(plan: Plan) -> int:
    return sum(1 + (_steps(step.plan) if step.plan else 0) for step in plan.steps)
