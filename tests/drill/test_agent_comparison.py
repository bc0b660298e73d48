"""``try``: agents as people have them, killed as they are and with Surehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehand.drill.agent_comparison import ComparisonReport
from tests.cli.starter import Starter

TRIED = "tests.variants.tried"
#: Of a read and a write: what is doubled as it is, by call and point.
STARTED_AGAIN = {(2, "during"), (2, "after")}
#: Its session has the answer by then.
WITH_SESSION = {(2, "during")}


def try_agent(starter: Starter, *arguments: str) -> ComparisonReport:
    ended = starter("try", *arguments, "--input", "Refund order-1", "--json")
    assert ended.code == 0, ended
    return ComparisonReport.model_validate(ended.document())


@pytest.mark.crash
@pytest.mark.parametrize(
    ("agent", "framework", "doubled"),
    [
        ((f"{TRIED}.pydantic_ai:clerk",), "pydantic-ai", STARTED_AGAIN),
        ((f"{TRIED}.openai_agents:clerk",), "openai-agents", WITH_SESSION),
        ((f"{TRIED}.langgraph:clerk",), "langgraph", STARTED_AGAIN),
        ((f"{TRIED}.loop:clerk", "--tools", f"{TRIED}.tools"), "a function", STARTED_AGAIN),
    ],
)
def test_an_agent_as_it_is_doubles_what_surehand_makes_once(
    starter: Starter, agent: tuple[str, ...], framework: str, doubled: set[tuple[int, str]]
) -> None:
    report = try_agent(starter, *agent)
    assert report.framework == framework
    assert [(one.tool, one.reads) for one in report.calls] == [
        ("get_order", True),
        ("refund", False),
    ]
    bare = {(c.call, c.point): c for c in report.cells if not c.with_surehand}
    with_surehand = [c for c in report.cells if c.with_surehand]
    assert len(bare) == len(with_surehand) == 6
    assert {place for place, cell in bare.items() if cell.effects == 2} == doubled
    assert {c.outcome.value for c in bare.values()} == {"right", "doubled"}
    assert {(c.outcome.value, c.effects) for c in with_surehand} == {("right", 1)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("acme",), "'acme' is not module:agent, such as acme.agents:clerk"),
        (("acme.agents:clerk",), "acme.agents:clerk: No module named 'acme'"),
        ((f"{TRIED}.loop:number",), "a int is none of what can be tried"),
        (
            (f"{TRIED}.loop:reader", "--tools", f"{TRIED}.tools"),
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
