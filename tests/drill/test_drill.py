"""Real drills of the shop's plans: real workers, killed for real; the shop counts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from surehand.drill.report import DrillReport
from tests.cli.starter import LIMIT_S, REFUND, ROOT, Ended, Starter
from tests.cli.test_demo import running, until
from tests.drill.conftest import OWN
from tests.shop_process import ShopProcess

pytestmark = pytest.mark.crash

#: Each but `approval`, which is played where it goes wrong.
INTERRUPTIONS = "pause,ask,permission_loss,expiry"
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


def test_workers_killed_in_a_read_and_in_a_write_leave_the_same_world(
    starter: Starter, shop: ShopProcess, tmp_path: Path
) -> None:
    before = shop.counts()["refunds"]
    chosen = ("--steps", "order,refund", "--points", "after_claim,after_call")
    files = [f"--report={tmp_path / f'drill.{kind}'}" for kind in ("html", "md", "json")]
    ended = starter("drill", REFUND, *OWN, *chosen, *files, "--json")

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
    assert [found.kills for found in report.recovery if found.point == "all"] == [3]
    given = [*report.fault_free.approvals, *(a for cell in report.cells for a in cell.approvals)]
    assert {approval.tool for approval in given} == {"payments.refund"}
    assert len(given) == 4
    assert "'drill-approver' approved payments.refund 4 times" in ended.err
    written = json.loads((tmp_path / "drill.json").read_text())
    assert written == ended.document()
    for kind in ("html", "md"):
        assert "3 same world" in (tmp_path / f"drill.{kind}").read_text()
    assert not list(tmp_path.glob("surehand-drill-*"))


def test_a_worker_killed_while_a_step_fails_or_is_undone_leaves_everything_undone_once(
    starter: Starter,
) -> None:
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


def test_a_tool_that_wrongly_says_its_provider_dedupes_is_found_out_and_resume_keeps_that(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path
) -> None:
    shop.fault("refunds", ignore_keys=True, ignore_lookup=True)
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.refund_dedupes", "TMPDIR": str(tmp_path)}
    starter = Starter({**settings, **tools}, tmp_path)
    chosen = ("drill", REFUND, *OWN, "--steps", "refund", "--points", "after_call")
    ended = starter(*chosen, "--json")

    assert ended.code == 3, ended
    cell = cells(ended)["refund", "after_call"]
    assert cell["outcome"] == "differs"
    assert "world.effects.refunds: 2, expected 1" in cell["differences"]
    [kept] = tmp_path.glob("surehand-drill-*")
    assert str(kept) in ended.err

    before = shop.requests("refunds")["received"]
    again = starter(*chosen[:-1], "before_claim,after_call", "--resume", "--json")

    assert again.code == 3, again
    assert "Done before: 1 of 2 cases" in again.err
    assert cells(again)["refund", "after_call"] == cell
    assert outcomes(again)["refund", "before_claim"] == "same world"
    assert shop.requests("refunds")["received"] == before + 1


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
    found = ended.document()
    calls = 2 + len(places)
    assert found["approval_consistency"] == {
        "as_approved": calls,
        "gated": calls,
        "percent": 100.0,
    }
    assert found["permission_drift"] == {"drifted": 0, "losses": 1}
    # The one that expired is not the one that was given.
    [given] = cells(ended)["refund", "expiry"]["approvals"]
    assert given["approval_id"].endswith("/refund/2")


def test_a_worker_that_checks_neither_hash_nor_permission_is_found_out_by_both_numbers(
    settings: dict[str, str], tmp_path: Path
) -> None:
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.refund_careless", "TMPDIR": str(tmp_path)}
    starter = Starter({**settings, **tools}, tmp_path)
    chosen = ("--steps=refund", "--points=approval,permission_loss")
    ended = starter("drill", REFUND, *OWN, *chosen, "--json")

    assert ended.code == 3, ended
    found = ended.document()
    assert found["approval_consistency"] == {"as_approved": 0, "gated": 4, "percent": 0.0}
    assert found["permission_drift"] == {"drifted": 1, "losses": 1}
    assert set(outcomes(ended).values()) == {"differs"}
    story, audit = cells(ended)["refund", "approval"]["differences"]
    assert "refund attempt 1 of payments.refund is not what was approved" in story
    assert "was claimed with other params than approved" in audit
    lost = cells(ended)["refund", "permission_loss"]["differences"]
    assert any("had lost the permission refunds" in line for line in lost)
    assert "Approval Consistency: 0 %" in ended.err
    assert "Permission Drift: 1" in ended.err


def test_a_tool_that_nothing_can_settle_needs_a_human_and_that_is_no_difference(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path
) -> None:
    shop.fault("refunds", ignore_keys=True, ignore_lookup=True)
    tools = {"SUREHAND_TOOL_MODULES": "tests.variants.refund_human"}
    starter = Starter({**settings, **tools}, tmp_path)
    ended = starter("drill", REFUND, *OWN, "--steps=refund", "--points=after_call", "--json")

    assert ended.code == 0, ended
    cell = cells(ended)["refund", "after_call"]
    assert cell["outcome"] == "needs human"
    assert "Did it happen?" in cell["question"]
    assert cell["effects"] == 1


def test_a_step_that_is_never_called_is_not_reached_and_proves_nothing(
    starter: Starter, tmp_path: Path
) -> None:
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


def test_tools_that_cannot_be_loaded_are_named(starter: Starter) -> None:
    starter.environment["SUREHAND_TOOL_MODULES"] = "no.such"
    ended = starter("drill", REFUND, *OWN)

    assert ended.code == 2, ended
    assert "tool module 'no.such'" in ended.line()


def test_a_world_that_never_compares_equal_is_refused(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "clock.py").write_text(
        "import time\ndef world(context):\n    return {'at': time.time()}\n"
    )
    ended = starter("drill", REFUND, "--world", "clock:world", *OWN[2:])

    assert ended.code == 2, ended
    assert "two fault-free runs differ" in ended.line()
    assert "world.at" in ended.line()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_ended_leaves_no_process_and_goes_on_later(
    starter: Starter, temporal_cli: Path, tmp_path: Path, number: signal.Signals
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
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 130
    assert "--resume goes on" in said
    until(lambda: not running(place), "processes are left")
    assert not list(tmp_path.glob("surehand-drill-*"))
