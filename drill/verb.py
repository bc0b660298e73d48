"""``drill`` and ``try``: the commands, and their reports as files."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import JsonValue

from surehand.cli import options
from surehand.cli.options import argument, duration_option, option
from surehand.cli.printer import Lines, Reply, Shape
from surehand.drill.report import make_lines, print_lines
from surehand.drill.request import CASE_LIMIT, DrillRequest
from surehand.process.exits import ExitCode, WrongUse, end_by_signal_in_order
from surehand.process.files import BadDocument, read_document


def _split_names(option: str, text: str | None) -> tuple[str, ...]:
    """Return the names that an option lists; all there are go by none."""
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise WrongUse(f"{option} {text!r} names nothing: leave it out for all")
    return names


def _require_folder(report: Path | None) -> None:
    """See that a report can be written, before what takes minutes."""
    if report and not (folder := report.absolute().parent).is_dir():
        raise WrongUse(f"--report {report}: there is no folder {folder}")


def _tell_report(
    caller: options.Anybody, found: Shape, ok: bool, lines: Lines, report: Path | None
) -> Reply:
    """Print a report, and write it as a page, if that is asked for."""
    if report:
        report.write_text(print_lines(lines, html=True), encoding="utf-8")
    caller.printer.lines(lines)  # with --json, too: it is what the progress comes to
    return Reply(found, (), ExitCode.DONE if ok else ExitCode.BROKEN)


def drill(
    caller: options.Anybody,
    plan: Annotated[str, argument("PLAN", "A YAML or JSON file.")],
    world: Annotated[
        str | None, option("Returns what a run's effects have left.", metavar="MODULE:FUNCTION")
    ] = None,
    fresh: Annotated[
        str | None, option("Returns plan input for one more run.", metavar="MODULE:FUNCTION")
    ] = None,
    points: Annotated[
        str | None, option("What is done to a run, comma separated; default all.")
    ] = None,
    steps: Annotated[str | None, option("Steps, comma separated; default all.")] = None,
    modes: Annotated[str | None, option("Durability modes, comma separated; default sync.")] = None,
    report: Annotated[Path | None, option("Write it as an HTML page.", metavar="FILE")] = None,
    database: Annotated[
        str | None, option("A migrated ledger; default a file a case.", metavar="URL")
    ] = None,
    changes: Annotated[
        list[str] | None, option("Change the plan, as with start.", "--set", metavar="PATH=VALUE")
    ] = None,
    timeout: Annotated[
        timedelta, duration_option("One case's; default 2m.", show_default=False)
    ] = CASE_LIMIT,
) -> Reply:
    r"""Kill workers at every step, interrupt, reset and stop runs there, and compare what is left.

    Each case is a fresh run with workers of its own: one dies, another one takes over.

    Crash points: before_claim, after_claim, during_call, after_call, after_outcome, before_report.

    Forced waits: pause, halt, approval, ask, permission_loss, expiry.

    Operations: reset, reset_step, reset_killed, terminate, deploy, freeze.

    Tools run for real, approved by 'drill-approver': drill a test system.

    Exits with 3 if a world differs, a point was not reached, or something ran that was not approved
    or not allowed; needing a human is no difference where the tool says that one decides.

    Example: surehand drill examples/refund.yaml --report drill.html \
      --world surehand.examples.shop.drill:world \
      --fresh surehand.examples.shop.drill:fresh
    """
    from surehand.drill.environment import prepare_drill, require_tools
    from surehand.drill.people import APPROVER
    from surehand.drill.suite import Suite

    _require_folder(report)
    request = DrillRequest(
        plan,
        changes=changes or [],
        points=_split_names("--points", points),
        modes=_split_names("--modes", modes),
        steps=_split_names("--steps", steps),
        world=world,
        fresh=fresh,
        limit=timeout,
        own_ledger=database is None,
    )
    end_by_signal_in_order()
    say, variables = caller.printer.say, caller.environment
    require_tools(variables)
    with prepare_drill(variables, database=database, say=say) as environment:
        server = environment.temporal.get("TEMPORAL_ADDRESS", "the profile's server")
        where = "an embedded server" if environment.embedded else server
        say(f"Drilling {request.plan_name} on {where}; {APPROVER!r} approves what waits")
        suite = Suite(request, environment, caller.settings, variables, say)
        found = asyncio.run(suite.run())
    return _tell_report(caller, found, found.ok, list(make_lines(found)), report)


def _read_input(text: str) -> JsonValue:
    """Return what an agent is to do: an object as such, anything else as a text."""
    try:
        given: JsonValue = json.loads(text)
    except ValueError:
        return text
    return given if isinstance(given, dict) else text


def _read_answers(file: Path | None) -> dict[str, Any]:
    try:
        found = {} if file is None else read_document(file)
    except BadDocument as error:
        raise WrongUse(f"--answers {file}: {error.where}: {error.reason}") from error
    if not isinstance(found, dict):
        raise WrongUse(f"--answers {file}: it has to be an answer for each tool: `pay: {{id: 7}}`")
    return found


def try_agent(
    caller: options.Anybody,
    agent: Annotated[str, argument("MODULE:AGENT", "An agent, a graph, or a function.")],
    text: Annotated[
        str, option("What it is to do: a text, or an object as JSON.", "--input", metavar="TEXT")
    ] = "",
    functions: Annotated[
        str | None, option("The tools, if the agent is a function.", "--tools", metavar="MODULE")
    ] = None,
    reads: Annotated[
        str | None, option("Tools that only read, comma separated: they are called, once.")
    ] = None,
    answers: Annotated[
        Path | None, option("YAML or JSON: what each write is answered with.", metavar="FILE")
    ] = None,
    report: Annotated[Path | None, option("Write it as an HTML page.", metavar="FILE")] = None,
) -> Reply:
    r"""Kill your agent at each call, as it is and with Surehand, and count its effects.

    Needs no changes to the agent: of pydantic-ai, the OpenAI Agents SDK or LangGraph, or an async
    function that calls those of --tools.

    Only tools of --reads are called. Any other call is counted in a file, and answered with "done".

    Exits with 3 if an effect is not right with Surehand.

    Example: surehand try surehand.examples.agents.clerk:clerk --reads get_order
    """
    from surehand.drill.agent_comparison import Comparison, describe_comparison
    from surehand.drill.bare_agent import Agent
    from surehand.drill.environment import prepare_drill
    from surehand.process.settings import is_named

    _require_folder(report)
    if not is_named(agent):
        raise WrongUse(f"{agent!r} is not module:agent, such as acme.agents:clerk")
    tried = Agent(
        name=agent,
        functions=functions or "",
        input=_read_input(text),
        reads=list(_split_names("--reads", reads)),
        answers=_read_answers(answers),
    )
    end_by_signal_in_order()
    say, variables = caller.printer.say, caller.environment
    with prepare_drill(variables, database=None, say=say) as environment:
        comparison = Comparison(tried, environment, caller.settings, variables, say)
        found = asyncio.run(comparison.run())
    return _tell_report(caller, found, found.ok, list(describe_comparison(found)), report)
