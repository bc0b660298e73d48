"""What cannot be drilled is said in one line, before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surehand.cli import app
from surehand.drill.report import DrillTarget, ForcedWait, Operation
from surehand.drill.request import DrillRequest
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.tools import MODEL, Effect
from tests.cli.starter import REFUND

WORLD = ("--world", "surehand.examples.shop.drill:world")


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHAND_TOOL_MODULES", raising=False)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "after_cal"], "--points 'after_cal': there are before_claim,"),
        (["--steps", "refnd"], "--steps 'refnd': there are order, amount, refund, restock, mail"),
        (["--steps", ","], "--steps ',' names nothing"),
        (["--points", ""], "--points '' names nothing"),
        (["--modes", "sink"], "--modes 'sink': there are sync, async, exit"),
        (["--world", "nothing"], "--world: 'nothing' is not module:name"),
        (["--world", "no.such:world"], "no.such:world cannot be loaded: ModuleNotFoundError"),
        (
            ["--fresh", "surehand.examples.shop.drill:order"],
            "surehand.examples.shop.drill:order cannot be loaded: Attribute",
        ),
        (["--report", "no/such/drill.html"], "there is no folder"),
        (
            ["--points", "permission_loss", "--database", "sqlite://"],
            "not the drill's to change",
        ),
        ([*WORLD, "--modes", "sync"], "set SUREHAND_TOOL_MODULES"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_it_is_refused_with_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert app.run(["drill", REFUND, *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def request_of(points: Sequence[str], **more: Any) -> DrillRequest:
    return DrillRequest(REFUND, points=points, steps=["order"], **more)


@pytest.mark.parametrize(
    ("facts", "there"),
    [
        ({"effect": Effect.WRITE}, {"pause", "halt", "approval", "ask", "expiry"}),
        ({"effect": Effect.WRITE, "may_ask_again": False}, {"pause", "halt", "approval", "ask"}),
        (
            {"effect": Effect.READ, "permission": "orders"},
            {"pause", "halt", "approval", "ask", "expiry", "permission_loss"},
        ),
        ({"effect": None, "asks": True}, {"ask"}),
        # It was approved with its step, and waits for nobody.
        ({"effect": Effect.WRITE, "undo": True}, set()),
        ({"effect": Effect.READ, "tool": MODEL}, {"pause", "halt", "ask"}),
    ],
)
def test_each_call_has_its_own_interrupts(facts: dict[str, Any], there: set[str]) -> None:
    target = DrillTarget(**{"step": "order", "tool": "orders.read", **facts})

    assert set(request_of(list(ForcedWait)).points_of(target)) == there
    shared = request_of([], own_ledger=False)
    assert set(shared.points_of(target)) & set(ForcedWait) == there - {"permission_loss", "halt"}


@pytest.mark.parametrize(
    ("facts", "there"),
    [
        ({"effect": Effect.WRITE}, set(Operation)),
        ({"effect": Effect.WRITE, "succeeded": False}, {"reset_killed", "deploy", "freeze"}),
        ({"effect": Effect.WRITE, "recovery": "transactional"}, {*Operation} - {"freeze"}),
        ({"effect": Effect.READ}, {"reset_step"}),
        ({"effect": None, "child": True}, {"reset", "reset_step", "terminate"}),
        ({"effect": None, "asks": True}, set()),
        ({"effect": Effect.WRITE, "undo": True}, set()),
        ({"effect": None, "succeeded": False}, set()),
    ],
)
def test_operators_act_behind_steps_or_in_calls(facts: dict[str, Any], there: set[str]) -> None:
    target = DrillTarget(step="order", tool="orders.read", **facts)

    assert set(request_of(list(Operation)).points_of(target)) == there


def test_a_choice_that_proves_nothing_is_refused() -> None:
    request = request_of(["after_claim"])

    with pytest.raises(WrongUse, match="a read has before_claim, during_call"):
        request.choose_targets([DrillTarget(step="order", tool="orders.read", effect=Effect.READ)])


def test_the_steps_of_an_agent_are_known_once_it_has_made_them(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("agent: bank:clerk")
    made = [DrillTarget(step=step, tool=MODEL, effect=Effect.READ) for step in ("turn-1", "turn-2")]

    def chosen(*steps: str) -> list[str]:
        request = DrillRequest(str(tmp_path / "agent.yaml"), steps=steps)
        return [target.step for target in request.choose_targets(made)]

    assert chosen() == ["turn-1", "turn-2"]
    assert chosen("turn-2") == ["turn-2"]
    with pytest.raises(WrongUse, match="--steps 'turn-3': there are turn-1, turn-2"):
        chosen("turn-3")


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_code_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "surehand.examples.shop.tools")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)

        assert app.run(["drill", REFUND, *WORLD]) == 4
    assert address in capsys.readouterr().err


def test_a_database_that_is_no_ledger_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "surehand.examples.shop.tools")

    assert app.run(["drill", REFUND, *WORLD, "--database", "mysql://here"]) == 2
    assert "sqlite://" in capsys.readouterr().err
