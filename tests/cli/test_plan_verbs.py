from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from surehand.activities.tools import toolbox
from surehand.activities.tools.toolbox import load_toolbox
from surehand.cli import app
from surehand.cli.doctor import _found
from surehand.process.exits import ExitCode
from tests.cli.starter import REFUND, ROOT

PLAN = """\
name: all
steps:
  - {id: order, tool: orders.read, params: {order_id: order-1}}
  - {id: amount, after: [], tool: refunds.calculate, params: {order_id: order-1, paid: "1"}}
  - {id: why, after: [order], ask: 'Why "now"?', on_reject: {goto: end}}
  - {id: ship, after: [order], tool: parcels.send, for_each: "${order.lines}", parallel: 4}
  - {id: big, after: [order, amount], when: order.paid > 1, tool: payments.refund,
     on_no: {goto: end}}
  - {id: pay, after: [big], plan: [{tool: mail.send, approval: required}], interrupt: before}
  - {id: end, after: [order, why, ship, pay], wait: {event: parcel.back}}
"""


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHAND_TOOL_MODULES", raising=False)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")  # nobody is asked


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    return str(file)


def test_a_plan_that_fits_the_tools_is_valid(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "surehand.examples.shop.tools")

    assert app.run(["plan", "check", REFUND, "--json"]) == ExitCode.DONE

    assert json.loads(capsys.readouterr().out) == {
        "file": REFUND,
        "plan": "refund",
        "steps": 5,
        "tools_checked": True,
        "not_checked": [],
        "warnings": [],
    }


@pytest.mark.parametrize("inside", [False, True])
def test_a_check_warns_of_a_lookup_that_may_find_what_others_have_done(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    inside: bool,
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "tests.variants.odd,tests.variants.flights")
    steps = "[{tool: write.unfound}, {tool: flights.change, params: {booking: a, flight: b}}]"
    file = tmp_path / "odd.yaml"
    file.write_text(f"[{{plan: {steps}}}]" if inside else steps)

    assert app.run(["plan", "check", str(file), "--json"]) == ExitCode.DONE
    [warning] = json.loads(capsys.readouterr().out)["warnings"]
    assert warning.startswith("write.unfound: its lookup does not use ctx.idempotency_key")
    assert app.run(["plan", "check", str(file)]) == ExitCode.DONE
    assert warning in capsys.readouterr().err


def test_a_check_loads_the_tools_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "surehand.examples.shop.tools")
    load = Mock(wraps=load_toolbox)
    monkeypatch.setattr(toolbox, "load_toolbox", load)

    assert app.run(["plan", "check", REFUND]) == ExitCode.DONE

    assert load.call_count == 1


def test_doctor_tells_the_same_of_all_tools_that_are_loaded() -> None:
    found = _found(load_toolbox(["tests.variants.odd", "tests.variants.flights"]))

    assert "flights.change" in found[0]
    assert any(one.startswith("warning: write.unfound: its lookup does not") for one in found)
    assert not any(one.startswith("warning: flights.change") for one in found)


def test_a_code_plan_names_its_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / "late_orders.yaml")

    assert app.run(["plan", "check", file]) == ExitCode.DONE
    assert "its steps are made by the workflow LateOrders" in capsys.readouterr().out


def test_tools_left_unchecked_are_named(capsys: pytest.CaptureFixture[str], plan: str) -> None:
    assert app.run(["plan", "check", plan]) == ExitCode.DONE

    assert (
        "plan all, 8 steps\nNot checked: its tools and params (SUREHAND_TOOL_MODULES"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("written", "complaints"),
    [
        ("{code: ModlRun}", ["code: unknown workflow 'ModlRun'"]),
        ("[{plan: {code: Lat3}}]", ["steps.0 (step1).plan.code: unknown workflow 'Lat3'"]),
        ("{model: 'openai:gpt-5', tools: ['nope.*']}", ["tools: 'nope.*' names no tool"]),
        (
            "[{id: a, tool: nope.a, retires: 1}, {plan: [{tool: nope.b}]}]",
            [
                "steps.0 (a).retires: unknown field",
                "steps.0 (a).tool: unknown tool 'nope.a'",
                "steps.1 (step2).plan.steps.0 (step1).tool: unknown tool 'nope.b'",
            ],
        ),
        (
            "{input: {a: 1}, steps: [{tool: orders.read, when: input.b == 1}]}",
            ["steps.0 (step1).when: ", "in the plan's input (--set input.b=...)"],
        ),
        (
            "{input: {a: 1}, steps: [{plan: {input: {c: 1}, steps: [{tool: orders.read,"
            " params: {order_id: '${input.a}'}, when: input.c == 1}]}}]}",
            ["steps.0 (step1).plan.steps.0 (step1).params.order_id: "],
        ),
        (
            "{agent: 'tests.variants.nobody:agent'}",
            ["agent: tests.variants.nobody:agent is in no module of SUREHAND_AGENT_MODULES"],
        ),
        (
            "[{plan: {agent: 'tests.variants.account:agnt'}}]",
            ["steps.0 (step1).plan.agent: tests.variants.account:agnt cannot be loaded", "agnt"],
        ),
    ],
    ids=[
        *("code", "code inside", "model", "form and tools at once", "when", "input inside"),
        *("agent elsewhere", "no such agent"),
    ],
)
def test_one_check_names_everything_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    written: str,
    complaints: list[str],
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "surehand.examples.shop.tools")
    monkeypatch.setenv("SUREHAND_WORKFLOW_MODULES", "surehand.examples.late_orders")
    monkeypatch.setenv("SUREHAND_AGENT_MODULES", "tests.variants.account")
    file = tmp_path / "wrong.yaml"
    file.write_text(written)

    assert app.run(["plan", "check", str(file)]) == ExitCode.WRONG_USE

    said = capsys.readouterr().err
    assert all(complaint in said for complaint in complaints), said


def test_child_references_come_later(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "child.yaml"
    step = "{id: it, tool: a.b, params: {a: '${input.order.paid}'}, when: input.order.paid > 1}"
    file.write_text(
        "[{id: order, tool: orders.read}, {params: {order: '${order.whole}'},"
        f" plan: [{step}]}}]"
    )

    assert app.run(["plan", "check", str(file)]) == ExitCode.DONE, capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{code: ModlRun}", "the workflow ModlRun (SUREHAND_WORKFLOW_MODULES names no modules;"),
        ("{code: ModlRun}", "did you mean 'ModelRun'?"),
        ("{agent: 'c:a'}", "the agent c:a (SUREHAND_AGENT_MODULES names no modules)"),
    ],
)
def test_a_check_without_modules_says_what_is_not_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, written: str, said: str
) -> None:
    (tmp_path / "plan.yaml").write_text(written)

    assert app.run(["plan", "check", "plan.yaml"]) == ExitCode.DONE

    told = capsys.readouterr().out
    assert "Not checked: " in told and said in told


@pytest.mark.parametrize(
    ("modules", "changes", "complaint"),
    [
        ("", ["--set", "steps.0.after=[end]"], "the step waits for itself"),
        ("surehand.examples.shop.tools", [], "steps.3 (ship).tool: unknown tool 'parcels.send'"),
        ("no.such.tools", [], "no.such.tools"),
    ],
)
def test_a_check_that_finds_a_problem_or_cannot_look_exits_with_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    plan: str,
    modules: str,
    changes: list[str],
    complaint: str,
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", modules)

    assert app.run(["plan", "check", plan, *changes]) == ExitCode.WRONG_USE

    assert complaint in capsys.readouterr().err
