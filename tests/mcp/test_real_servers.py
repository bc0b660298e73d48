"""Servers that others publish: a write killed around its reply is applied once, and is settled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.mcp.calls import ask_servers, write_pins
from surehand.activities.mcp.server_file import McpLookup, read_file
from surehand.workflows.plan.plan import Plan
from tests.conftest import missing
from tests.docs.pages import ROOT
from tests.e2e.stage import Stage
from tests.locked_packages import PackagesMissing
from tests.mcp.real_servers import SERVERS, Installed, RealServer, install

EACH: Final = pytest.mark.parametrize("name", SERVERS)


@pytest.fixture(scope="session")
def installed() -> Installed:
    try:
        return install()
    except PackagesMissing as error:
        missing(str(error))


@pytest.fixture
def server(installed: Installed, tmp_path: Path, name: str) -> RealServer:
    return SERVERS[name](installed, tmp_path)


def plan(server: RealServer) -> Plan:
    step = {"id": "it", "tool": f"real.{server.write}", "params": server.params}
    return Plan.model_validate({"steps": [step]})


async def reviewed(server: RealServer, folder: Path, *, lookup: bool) -> dict[str, Any]:
    """Write the file, take what the server offers as reviewed, and return a worker's settings."""
    file = folder / "surehand.mcp.yaml"
    server.say(file, lookup=lookup)
    offered = await ask_servers(read_file(file))
    assert not offered.silent
    named = [one for one in offered.tools if one.said is not None]
    await asyncio.to_thread(write_pins, read_file(file), named)
    return {"tool_modules": "", "mcp": str(file)}


@EACH
def test_the_example_has_the_lookups_that_are_tested(tmp_path: Path, name: str) -> None:
    said = read_file(ROOT / "examples" / "mcp" / "surehand.mcp.yaml").servers[name]
    server = SERVERS[name](Installed(tmp_path), tmp_path)
    lookup = said.tools[server.write].lookup
    assert lookup is not None
    tested = McpLookup.model_validate({"tool": server.read, "settle": "1s", **server.lookup})
    assert lookup == tested
    assert said.tools[server.read].effect == "read"


@pytest.mark.crash
@pytest.mark.parametrize(
    ("name", "point"),
    [("filesystem", "during_call"), ("memory", "after_call"), ("git", "during_call")],
)
async def test_a_write_killed_around_its_reply_is_settled_by_a_second_tool_without_a_human(
    stage: Stage, server: RealServer, tmp_path: Path, point: str
) -> None:
    given = await reviewed(server, tmp_path, lookup=True)
    with stage.worker(**given, crash_at=f"real.{server.write}:{point}") as doomed:
        run = await stage.start(plan(server))
        doomed.wait_killed()
    with stage.worker(**given):
        await run.completed()
    assert server.made() == 1
    assert await stage.effect_states(run) == {f"real.{server.write}": "committed"}


@pytest.mark.crash
@pytest.mark.parametrize("name", ["filesystem"])
async def test_a_write_killed_behind_its_reply_is_not_repeated_and_a_human_is_asked(
    stage: Stage, server: RealServer, tmp_path: Path
) -> None:
    given = await reviewed(server, tmp_path, lookup=False)
    with stage.worker(**given, crash_at=f"real.{server.write}:after_call") as doomed:
        run = await stage.start(plan(server))
        doomed.wait_killed()
    assert server.made() == 1
    with stage.ready_worker(**given):
        question = await run.asks_a_human()
        await stage.no_call_may_arrive(run)
        await run.resolve(intervention_id=question.id, outcome="happened", evidence="looked")
        await run.completed()
    assert server.made() == 1
