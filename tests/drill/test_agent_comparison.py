"""``try``: agents as people have them, killed as they are and with Surehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehand.drill.agent_comparison import ComparisonReport
from tests.cli.starter import Starter

TRIED = "tests.variants.tried"
READS = ("--reads", "get_order")
READ = ("get_order", True)
WRITE = ("refund", False)


@pytest.mark.crash
@pytest.mark.parametrize(
    ("agent", "framework", "calls", "doubled"),
    [
        # Its session has the answer by then.
        ((f"{TRIED}.openai_agents:clerk",), "openai-agents", [WRITE], {"during"}),
        ((f"{TRIED}.langgraph:clerk",), "langgraph", [WRITE], {"during", "after"}),
        (
            (f"{TRIED}.loop:clerk", "--tools", f"{TRIED}.tools", *READS),
            "a function",
            [READ, WRITE],
            {"during", "after"},
        ),
    ],
    ids=["openai-agents", "langgraph", "function"],
)
def test_an_agent_as_it_is_doubles_what_surehand_makes_once(
    starter: Starter,
    agent: tuple[str, ...],
    framework: str,
    calls: list[tuple[str, bool]],
    doubled: set[str],
) -> None:
    ended = starter("try", *agent, "--input", "Refund order-1", "--json")
    assert ended.code == 0, ended
    report = ComparisonReport.model_validate(ended.document())
    assert report.framework == framework
    assert [(one.tool, one.reads) for one in report.calls] == calls
    bare = [c for c in report.cells if not c.with_surehand]
    with_surehand = [c for c in report.cells if c.with_surehand]
    assert len(bare) == len(with_surehand) == 3 * len(calls)
    assert {(c.tool, c.point) for c in bare if c.effects == 2} == {("refund", p) for p in doubled}
    assert {c.outcome.value for c in bare} == {"right", "doubled"}
    assert {(c.outcome.value, c.effects) for c in with_surehand} == {("right", 1)}


@pytest.mark.crash
def test_calls_of_one_turn_are_compared_in_whatever_order_they_come(starter: Starter) -> None:
    ended = starter("try", f"{TRIED}.pydantic_ai:at_once", *READS, "--json")
    assert ended.code == 0, ended
    assert f"{TRIED}.pydantic_ai:at_once, tried on " in ended.err
    report = ComparisonReport.model_validate(ended.document())
    assert report.framework == "pydantic-ai"
    assert sorted((one.tool, one.reads) for one in report.calls) == [READ, WRITE, WRITE]
    tools = {(c.with_surehand, c.call, c.tool) for c in report.cells}
    assert tools == {
        (way, number, one.tool)
        for way in (False, True)
        for number, one in enumerate(report.calls, 1)
    }
    assert {c.outcome.value for c in report.cells if c.with_surehand} == {"right"}
    doubled = {(c.tool, c.point) for c in report.cells if c.outcome.value == "doubled"}
    assert doubled >= {("refund", "during"), ("refund", "after")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("acme",), "'acme' is not module:agent, such as acme.agents:clerk"),
        (("acme.agents:clerk",), "acme.agents:clerk cannot be loaded: ModuleNotFoundError"),
        ((f"{TRIED}.loop:number",), "it is a int, and has to be an agent of pydantic-ai"),
        ((f"{TRIED}.loop:blocking",), "it is a function, and has to be an agent of pydantic-ai"),
        ((f"{TRIED}.loop:clerk",), "its tools would be called: name their module with --tools"),
        ((f"{TRIED}.loop:clerk", "--tools", TRIED), "refuse_effect is no async function"),
        (
            (f"{TRIED}.loop:clerk", "--tools", f"{TRIED}.tools", "--reads", "look"),
            "--reads look: tests.variants.tried.loop:clerk has no such tool (it has get_order,"
            " refund)",
        ),
        (
            (f"{TRIED}.loop:reader", "--tools", f"{TRIED}.tools", "--reads", "get_order"),
            "has called no tool that writes (it has get_order, refund)",
        ),
        (
            (f"{TRIED}.loop:by_chance", "--tools", f"{TRIED}.tools"),
            "that nothing happened to make different calls",
        ),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_line(
    starter: Starter, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    ended = starter("try", *arguments)
    assert ended.code == 2, ended
    assert said in ended.err.splitlines()[-1]
    assert not list(tmp_path.glob("surehand-drill-*"))
