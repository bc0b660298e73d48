"""Real drills: real workers, killed for real; what is worse than it says is found out."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from surehand.drill.report import DrillReport
from tests.cli.starter import LIMIT_S, REFUND, ROOT, Ended, Starter
from tests.cli.test_demo import running, until
from tests.drill.conftest import OWN
from tests.drill_selections import AGENT_PLAN, AGENTS, Selection
from tests.shop_process import ShopProcess

#: Each but `approval`, which is played where it goes wrong.
INTERRUPTIONS = "pause,halt,ask,permission_loss,expiry"
TWO_OF_FINANCE = "steps.refund.approval={roles: [finance], quorum: 2}"
FAILS = str(ROOT / "examples" / "refund_fails.yaml")


def cells(ended: Ended) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells by row and point."""
    found = {}
    for cell in ended.document()["cells"]:
        undo = " (undo)" if cell["undo"] else ""
        found[f"{cell['step']}{undo}", cell["point"]] = cell
    return found


def outcomes(ended: Ended) -> dict[tuple[str, str], str]:
    return {place: cell["outcome"] for place, cell in cells(ended).items()}


@pytest.mark.crash
def test_kills_leave_the_same_world(starter: Starter, shop: ShopProcess, tmp_path: Path) -> None:
    before = shop.counts()["refunds"]
    chosen = ("--steps", "order,refund", "--points", "after_claim,after_call")
    ended = starter("drill", REFUND, *OWN, *chosen, f"--report={tmp_path / 'drill.html'}", "--json")

    assert ended.code == 0, ended
    assert outcomes(ended) == {  # a read claims nothing
        ("order", "after_call"): "same world",
        ("refund", "after_claim"): "same world",
        ("refund", "after_call"): "same world",
    }
    # Two fault-free runs and three kills: one refund each, whoever paid it.
    assert shop.counts()["refunds"] - before == 5
    report = DrillReport.model_validate(ended.document())
    assert report.fault_free.counted["refunds"] == 1
    assert {cell.effects for cell in report.cells} == {report.fault_free.effects} == {3}
    assert all(cell.recovery_s is not None and cell.recovery_s > 0 for cell in report.cells)
    assert "'drill-approver' approves what waits" in ended.err
    assert "3 same world" in (tmp_path / "drill.html").read_text()
    assert not list(tmp_path.glob("surehand-drill-*"))


@pytest.mark.crash
def test_kills_while_failing_or_undoing_leave_all_undone_once(starter: Starter) -> None:
    chosen = ("--steps", "restock,close", "--points", "after_outcome")
    ended = starter("drill", FAILS, *OWN, *chosen, "--json")

    assert ended.code == 0, ended
    assert outcomes(ended) == {
        ("restock", "after_outcome"): "same world",
        ("close", "after_outcome"): "same world",
        ("restock (undo)", "after_outcome"): "same world",
    }
    assert all(cell["recovery_s"] > 0 for cell in cells(ended).values())
    assert ended.document()["fault_free"]["counted"]["restock_undos"] == 1
    assert ended.document()["fault_free"]["state"] == "failed"


@pytest.mark.crash
def test_a_tool_that_wrongly_says_its_provider_dedupes_is_found_out(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path
) -> None:
    shop.fault("refunds", ignore_keys=True, ignore_lookup=True)
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.refund_dedupes", "TMPDIR": str(tmp_path)}
    starter = Starter({**settings, **tools}, tmp_path)
    ended = starter("drill", REFUND, *OWN, "--steps=refund", "--points=after_call", "--json")

    assert ended.code == 3, ended
    cell = cells(ended)["refund", "after_call"]
    assert cell["outcome"] == "differs"
    assert "world.effects.refunds: 2, expected 1" in cell["differences"]
    [kept] = tmp_path.glob("surehand-drill-*")
    assert str(kept) in ended.err


@pytest.mark.crash
def test_interrupted_runs_wait_and_then_make_each_call_once_as_approved_and_allowed(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path
) -> None:
    before = shop.counts()["refunds"]
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.refund_strict"}
    starter = Starter({**settings, **tools}, tmp_path)
    chosen = ("--steps=refund", f"--points={INTERRUPTIONS}", "--set", TWO_OF_FINANCE)
    ended = starter("drill", REFUND, *OWN, *chosen, "--json")

    assert ended.code == 0, ended
    places = [("refund", point) for point in INTERRUPTIONS.split(",")]
    assert outcomes(ended) == dict.fromkeys(places, "same world")
    assert shop.counts()["refunds"] - before == 2 + len(places)
    calls = 2 + len(places)
    tally = {"as_approved": calls, "gated": calls, "drifted": 0, "losses": 1}
    assert ended.document()["tally"] == tally


LIMITS = """
limits:
  - {name: a-restock, tools: [inventory.restock], most: 0, within: 24h, ask: {roles: [finance]}}
  - {name: mails, tools: [mail.send], most: 1, within: 24h}
"""


@pytest.mark.crash
def test_what_a_limit_asks_about_is_approved_and_made_once(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path
) -> None:
    before = shop.counts()
    (tmp_path / "limits.yaml").write_text(LIMITS)
    starter = Starter({**settings, "SUREHAND_LIMITS": str(tmp_path / "limits.yaml")}, tmp_path)
    chosen = ("--steps=restock,mail", "--points=after_call,halt")
    ended = starter("drill", REFUND, *OWN, *chosen, "--json")

    assert ended.code == 0, ended
    assert list(outcomes(ended).values()) == ["same world"] * 4
    runs = 2 + 4
    made = {name: count - before[name] for name, count in shop.counts().items()}
    assert made == {**made, "refunds": runs, "restocks": runs, "mails": runs}
    # A refund is asked about by its tool, a restock by the limit alone.
    tally = ended.document()["tally"]
    assert tally["gated"] == tally["as_approved"] >= 2 * runs


@pytest.mark.crash
def test_both_numbers_find_a_careless_worker(settings: dict[str, str], tmp_path: Path) -> None:
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.refund_careless", "TMPDIR": str(tmp_path)}
    starter = Starter({**settings, **tools}, tmp_path)
    chosen = ("--steps=refund", "--points=approval,permission_loss")
    ended = starter("drill", REFUND, *OWN, *chosen, "--json")

    assert ended.code == 3, ended
    tally = {"as_approved": 0, "gated": 4, "drifted": 1, "losses": 1}
    assert ended.document()["tally"] == tally
    assert set(outcomes(ended).values()) == {"differs"}
    story, audit = cells(ended)["refund", "approval"]["differences"]
    assert "refund attempt 1 of payments.refund is not what was approved" in story
    assert "was claimed with other params than approved" in audit
    lost = cells(ended)["refund", "permission_loss"]["differences"]
    assert any("had lost the permission refunds" in line for line in lost)
    assert "Approval Consistency: 0 %" in ended.err
    assert "Permission Drift: 1" in ended.err


@pytest.mark.crash
def test_an_uncalled_step_is_not_reached(starter: Starter, tmp_path: Path) -> None:
    # The order is on its way to the customer: there is nothing to refund.
    (tmp_path / "shipped.py").write_text(
        "from surehand.examples.shop.drill import _shop\n"
        "def fresh(context):\n"
        "    with _shop() as shop:\n"
        "        order = shop.post('/admin/orders', json={'status': 'shipped'})\n"
        "    return {'order_id': order.json()['order_id']}\n"
    )
    chosen = ("--fresh", "shipped:fresh", "--steps", "refund", "--points", "after_call")
    ended = starter("drill", REFUND, *OWN[:2], *chosen, "--json")

    assert ended.code == 3, ended
    assert outcomes(ended) == {("refund", "after_call"): "not reached"}


@pytest.mark.crash
def test_tools_that_cannot_be_loaded_are_named(starter: Starter) -> None:
    starter.environment["SUREHAND_TOOL_MODULES"] = "no.such"
    ended = starter("drill", REFUND, *OWN)

    assert ended.code == 2, ended
    assert "tool module 'no.such'" in ended.line()


@pytest.mark.crash
def test_a_world_that_never_compares_equal_is_refused(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "clock.py").write_text(
        "import time\ndef world(context):\n    return {'at': time.time()}\n"
    )
    ended = starter("drill", REFUND, "--world", "clock:world", *OWN[2:])

    assert ended.code == 2, ended
    assert "two fault-free runs differ" in ended.line()
    assert "world.at" in ended.line()


@pytest.mark.crash
def test_a_drill_that_is_ended_leaves_no_process(
    starter: Starter, temporal_cli: Path, tmp_path: Path
) -> None:
    # Without an address the drill starts a server of its own.
    own = {k: v for k, v in starter.environment.items() if k != "TEMPORAL_ADDRESS"}
    embedded = Starter({**own, "TEMPORAL_CLI_PATH": str(temporal_cli)}, tmp_path)
    place = f"{tmp_path}/surehand-drill-"
    with embedded.popen("drill", REFUND, *OWN, "--steps=refund") as process:
        until(
            lambda: any("process.children" in command for _, command in running(place)),
            "the drill has started no worker",
        )
        assert len(running(place)) >= 2  # and its server
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)

    assert process.returncode == 130
    until(lambda: not running(place), "processes are left")
    assert not list(tmp_path.glob("surehand-drill-*"))


def drilled(framework: str, steps: str, points: str) -> list[str]:
    chosen = Selection(AGENT_PLAN, framework, tuple(steps.split(",")), tuple(points.split(",")))
    return ["drill", str(ROOT / AGENT_PLAN), *chosen.arguments()[1:], "--json"]


@pytest.mark.crash
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=() if name == "pydantic-ai" else pytest.mark.exhaustive)
        for name in AGENTS
    ],
)
def test_an_agent_is_drilled_by_its_turns_and_calls_and_no_recorded_turn_is_asked_again(
    settings: dict[str, str], tmp_path: Path, framework: str
) -> None:
    own = {**settings, **Selection(AGENT_PLAN, framework).variables, "TMPDIR": str(tmp_path)}
    starter = Starter(own, tmp_path)
    ended = starter(*drilled(framework, "turn-2,turn-2.1", "after_call,before_report"))

    assert ended.code == 0, ended
    points = ("after_call", "before_report")
    places = {(step, point) for step in ("turn-2", "turn-2.1") for point in points}
    assert outcomes(ended) == dict.fromkeys(places, "same world")
    consistency = ended.document()["tally"]
    assert consistency["as_approved"] == consistency["gated"] == 2 + len(places)


OURS = ("--world", "tests.variants.cheats:world", "--fresh", "tests.variants.cheats:fresh")


def cheat_drilled(settings: dict[str, str], folder: Path, points: str, *tools: str) -> Any:
    """Drill a plan with some of the tools, which are found out; returns the report."""
    steps = [
        {"id": name, "tool": f"cheats.{name}", "params": {"file": "${input.file}", "text": name}}
        for name in tools
    ]
    plan = folder / "notes.yaml"
    plan.write_text(yaml.safe_dump({"name": "notes", "input": {"file": "none"}, "steps": steps}))
    own = {"SUREHAND_TOOL_MODULES": "tests.variants.cheats", "TMPDIR": str(folder)}
    ended = Starter({**settings, **own}, folder)(
        "drill", str(plan), *OURS, "--points", points, "--json"
    )
    assert ended.code == 3
    return ended.document()


@pytest.mark.crash
def test_a_human_who_is_not_to_be_asked_and_late_arrivals_are_found_out(
    settings: dict[str, str], tmp_path: Path
) -> None:
    helpless, late = cheat_drilled(settings, tmp_path, "after_call", "helpless", "late")["cells"]

    assert (helpless["outcome"], bool(helpless["question"])) == ("differs", True)
    assert "cheats.helpless says that it settles this by itself" in helpless["differences"][0]
    assert late["effects"] == 3
    assert "world.effects.notes: 3, expected 2" in late["differences"]


@pytest.mark.crash
def test_a_call_after_thawing_is_found_out(settings: dict[str, str], tmp_path: Path) -> None:
    [cell] = cheat_drilled(settings, tmp_path, "freeze", "threaded")["cells"]

    assert "world.effects.notes: 2, expected 1" in cell["differences"]


@pytest.mark.crash
def test_doubles_without_faults_are_found(settings: dict[str, str], tmp_path: Path) -> None:
    report = cheat_drilled(settings, tmp_path, "terminate", "twice")

    assert report["fault_free"]["violations"] == [
        "the world counts 2 effects, the ledger 1",
        "the world counts 2 effects, the ledger 1",
    ]
