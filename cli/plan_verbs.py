"""``plan check``, ``plan graph`` and ``plan schema``: looking at plans without a server."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final

import typer

from cli import options
from cli.caller import Caller, perform_sync
from cli.exits import ExitCode, PlanRefused, WrongUse
from cli.plan_graph import graph_of
from cli.plan_mermaid import mermaid
from cli.plan_picture import picture
from cli.plan_schema import plan_schema
from cli.plan_shapes import PlanChecked
from cli.planfile import load_plan
from cli.text import counted
from cli.toolcheck import named_tools, problems_of, warnings_of
from workflows.plan import Plan

CHECK_EXAMPLE: Final = "Example: python starter.py plan check examples/refund.yaml"
GRAPH_EXAMPLE: Final = "Example: python starter.py plan graph examples/refund.yaml --format mermaid"
SCHEMA_EXAMPLE: Final = "Example: python starter.py plan schema > plan.schema.json"


class Format(StrEnum):
    """How ``plan graph`` draws."""

    TEXT = "text"
    MERMAID = "mermaid"


def check(
    plan: options.PlanFile, changes: options.Changes = None, json_output: options.Json = False
) -> int:
    """Validate a plan as `start` does, and start nothing; with tools where they are named."""

    def verb(caller: Caller) -> int:
        parsed = load_plan(plan, changes or [])
        problems = problems_of(caller, parsed)
        if problems:
            raise PlanRefused(plan, problems)
        checked = PlanChecked(
            file=plan,
            plan=parsed.name,
            steps=_steps(parsed),
            tools_checked=problems is not None,
            warnings=warnings_of(caller, _tools(parsed)),
        )
        if json_output:
            caller.printer.document(checked)
            return ExitCode.DONE
        steps = counted(checked.steps, "step")
        made = steps if parsed.code is None else f"its steps are made by the workflow {parsed.code}"
        caller.printer.say(f"{plan}: valid: plan {parsed.name}, {made}")
        for warning in checked.warnings:
            caller.printer.warn(warning)
        if not checked.tools_checked:
            caller.printer.say(
                "Its tools and params are not checked: SUREHAND_TOOL_MODULES names none"
            )
        return ExitCode.DONE

    return perform_sync(verb, json_output=json_output)


def graph(
    plan: options.PlanFile,
    changes: options.Changes = None,
    form: Annotated[
        Format, typer.Option("--format", help="A picture as text, or a Mermaid flowchart.")
    ] = Format.TEXT,
    json_output: options.Json = False,
) -> int:
    """Draw a plan: what waits for what, what needs a human, and where gotos lead."""

    def verb(caller: Caller) -> int:
        parsed = load_plan(plan, changes or [])
        if parsed.code is not None:
            raise WrongUse(f"{plan}: the workflow {parsed.code} makes its steps: nothing to draw")
        toolbox = named_tools(caller)
        known = {} if toolbox is None else {spec.name: spec for spec in toolbox.specs()}
        drawn = graph_of(parsed, known)
        if json_output:
            caller.printer.document(drawn)
            return ExitCode.DONE
        width = caller.printer.console.width
        for line in mermaid(drawn) if form is Format.MERMAID else picture(drawn, width):
            caller.printer.say(line)
        return ExitCode.DONE

    return perform_sync(verb, json_output=json_output)


def schema(json_output: options.Json = False) -> int:
    """Print the JSON Schema of plan files, always as JSON; editors complete plans with it."""

    def verb(caller: Caller) -> int:
        caller.printer.document(plan_schema())
        return ExitCode.DONE

    return perform_sync(verb, json_output=json_output)


def _tools(plan: Plan) -> Iterator[str]:
    for step in plan.steps:
        if step.plan is not None:
            yield from _tools(step.plan)
        yield step.tool


def _steps(plan: Plan) -> int:
    return sum(1 + (_steps(step.plan) if step.plan else 0) for step in plan.steps)
