"""Approving, cancelling and looking, against a real server and a real worker."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from surehand.cli.approvals import PendingList
from surehand.cli.audit import AuditReport
from surehand.cli.doctor import DoctorReport
from surehand.cli.runs import RunList
from surehand.cli.shapes import LedgerRows
from surehand.cli.show import ShownRun
from surehand.cli.tools import ToolList
from surehand.process.dev_server import DevServer
from surehand.workflows.contracts.approvals import Verdict
from surehand.workflows.contracts.checkpoint import Checkpoint
from tests.cli.starter import Run, Verbs

NewRun = Callable[..., Run]


def asked(verbs: Verbs, run: Run) -> tuple[str, str, str]:
    """What decides the run's request: its id and its hash."""
    [request] = verbs("show", run.name, "--json").document()["pending"]
    return request["approval_id"], "--params-hash", request["params_hash"]


def test_every_reading_verb_prints_one_document_of_its_shape(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run().name

    RunList.model_validate(verbs("list", "--json").document())
    shown = ShownRun.model_validate(verbs("show", run, "--json").document())
    Checkpoint.model_validate(verbs("checkpoint", run, "--json").document())
    PendingList.model_validate(verbs("pending", "--json").document())
    ToolList.model_validate(verbs("tools", "--json").document())
    for verb in ("effects", "events", "interventions"):
        LedgerRows.model_validate(verbs(verb, run, "--json").document())
    assert shown.web_ui.endswith(f"/namespaces/default/workflows/{run}")


def test_people_see_steps_effects_decisions_and_what_to_do(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    decision = asked(verbs, run)

    for text in (verbs("show", run.name).out, verbs("pending").out):
        assert f"python starter.py approve {' '.join(decision)}" in text
        assert '"amount": "120.00"' in text
    assert "approved by bob (unverified)" in verbs("approve", *decision, "--as", "bob").out
    assert verbs(*run.start, "--wait").code == 0

    shown = verbs("show", run.name).out
    [in_table] = [line for line in shown.splitlines() if " accepted " in line]
    assert "approved by bob (unverified)" in in_table
    assert "Unverified approvals (unsigned): 1, by bob." in verbs("audit", run.name).out
    audited = AuditReport.model_validate(verbs("audit", run.name, "--json").document())
    assert audited.unverified_approvals == ["bob"]
    assert f"refund:{run.order}" in shown
    assert "committed" in shown


def test_an_export_says_how_to_verify_it(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    run, file = new_run().name, tmp_path / "events.jsonl"

    said = verbs("events", run, "--export", str(file))
    events = verbs("events", run, "--json", "--export", str(file))
    audited = verbs("audit", "--file", str(file), "--json").document()

    count = len(file.read_text().splitlines())
    assert said.out == (
        f"{count} events written to {file}, head {audited['head']},"
        f" verify with: python starter.py audit --file {file}\n"
    )
    assert LedgerRows.model_validate(events.document()).rows[-1]["hash"] == audited["head"]
    assert f"{count} events written to {file}" in events.err
    assert (audited["ok"], audited["events"]) == (True, count)


def test_a_failed_export_is_code_74(verbs: Verbs, new_run: NewRun, tmp_path: Path) -> None:
    ended = verbs("events", new_run().name, "--export", str(tmp_path / "none" / "events.jsonl"))

    assert ended.code == 74
    assert "events.jsonl: cannot be written: No such file or directory" in ended.line()


def test_an_audit_says_what_the_chain_was_compared_with(verbs: Verbs, new_run: NewRun) -> None:
    said = verbs("audit", new_run().name)

    assert said.code == 0
    assert "the newest event's hash in the ledger's row of the run, and " in said.out
    assert " hashes that Temporal's history recorded as the run went on." in said.out
    assert said.out.endswith("Nothing is left open.\n")


def test_a_run_without_a_goal_is_shown_without_one(verbs: Verbs, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("- {tool: orders.read, params: {order_id: order-1001}}")
    verbs("start", str(plan), "--run-id", "no-goal", "--wait")

    assert "  plan     plan, version 1\n" in verbs("show", "no-goal").out


def test_a_decision_for_other_params_is_refused_and_says_why(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    decision = asked(verbs, run)

    wrong = ("approve", decision[0], "--params-hash", "sha256:0")
    refused, told = verbs(*wrong), verbs(*wrong, "--json")

    assert (refused.code, told.code) == (2, 2)
    assert "wrong_hash" in refused.line()
    assert Verdict.model_validate(told.document()).code == "wrong_hash"
    assert asked(verbs, run) == decision


def test_an_early_decision_is_shown_with_what_it_waits_for(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()
    early = f"{run.name}/refund/2"
    sent = verbs("approve", early, "--params-hash", "sha256:0", "--as", "bob")
    assert (sent.code, "before its request" in sent.out) == (0, True)
    waits = "step refund to ask, which is waiting_approval"

    [held] = [one for one in verbs("pending", "--json").document()["held"]
              if one["run_id"] == run.name]  # fmt: skip
    assert (held["approval_id"], held["outcome"], held["approver"]) == (early, "approve", "bob")
    assert held["waits_for"] == waits
    one = verbs("show", early, "--json").document()
    assert (one["state"], one["run_state"], one["waits_for"]) == ("held", "waiting_approval", waits)
    for words in (["show", run.name], ["show", early], ["pending"]):
        text = verbs(*words).out
        assert f"{early}  was decided early, and is held\n" in text
        assert f"  waits for  {waits}\n" in text


def test_a_decision_on_an_impossible_number_is_refused(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    for number in ("3", "7"):
        typo = verbs("approve", f"{run.name}/refund/{number}", "--params-hash", "sha256:0")
        assert typo.code == 2
        assert "unknown_approval" in typo.line()


def test_a_signal_of_a_wrong_name_shows_and_changes_nothing(
    verbs: Verbs, new_run: NewRun, temporal_cli: Path, temporal_server: DevServer
) -> None:
    run = new_run()
    decision = asked(verbs, run)
    signal = ["workflow", "signal", "--workflow-id", run.name, "--name", "aprove"]
    signal += ["--input", "7", "--address", temporal_server.address]
    subprocess.run([temporal_cli, *signal], check=True, capture_output=True)

    [refused] = verbs("show", run.name, "--json").document()["refused_signals"]
    assert refused["name"] == "aprove"
    assert (
        "known are resolve, decide, cancel, pause, resume, token, answer, event, top_up, amend"
        in refused["reason"]
    )
    assert "aprove" in verbs("show", run.name).out
    assert asked(verbs, run) == decision


def test_a_cancelled_run_is_code_30(verbs: Verbs, new_run: NewRun) -> None:
    run = new_run()

    ended = verbs("cancel", run.name, "--reason", "not needed", "--wait", "--json")

    assert ended.code == 30
    assert ended.document()["state"] == "cancelled"
    assert verbs("cancel", run.name).code == 2
    assert verbs(*run.start).code == 30


def test_another_tenants_run_is_not_found_by_any_verb(verbs: Verbs, new_run: NewRun) -> None:
    acme = ("--tenant", "acme")
    run = new_run(*acme).name
    [request] = verbs("show", run, "--json", *acme).document()["pending"]
    decision = (request["approval_id"], "--params-hash", request["params_hash"])

    for arguments in (
        ["show", f"acme/{run}"],
        ["show", run],
        ["checkpoint", f"acme/{run}"],
        ["cancel", f"acme/{run}"],
        ["approve", *decision],
        ["reject", *decision],
        ["approve", *decision, "--tenant", "beta"],
        ["effects", f"acme/{run}"],
        ["effects", run],
        ["events", run],
        ["interventions", run],
        ["resolve", "iv-1", "happened", "--run", f"acme/{run}"],
    ):
        ended = verbs(*arguments)
        assert ended.code == 2, arguments
        assert "not found" in ended.line()
    assert run not in verbs("list").out
    assert run not in verbs("pending").out
    assert f"acme/{run}" in verbs("list", *acme).out
    assert verbs("approve", *decision, *acme).code == 0


def test_a_workflow_that_is_no_run_is_not_found(
    verbs: Verbs, temporal_cli: Path, temporal_server: DevServer
) -> None:
    start = ["workflow", "start", "--workflow-id", "other", "--type", "Other"]
    start += ["--task-queue", "other", "--address", temporal_server.address]
    subprocess.run([temporal_cli, *start], check=True, capture_output=True)

    assert verbs("show", "other").line() == "surehand: run not found: other"


def test_without_a_ledger_verbs_say_so_and_make_none(lonely: Verbs, tmp_path: Path) -> None:
    url = "sqlite:///ledger.sqlite"

    reconciled = lonely("reconcile", SUREHAND_DATABASE_URL=url)
    examined = lonely("doctor", SUREHAND_DATABASE_URL=url)

    assert reconciled.code == examined.code == 4
    assert f"no ledger at {tmp_path / 'ledger.sqlite'} " in reconciled.line()
    assert f"no ledger at {tmp_path / 'ledger.sqlite'} " in examined.out
    assert list(tmp_path.iterdir()) == []


def test_doctor_finds_everything_or_says_what_to_do(verbs: Verbs, lonely: Verbs) -> None:
    well = verbs("doctor", "--json")
    ill = lonely("doctor", SUREHAND_DATABASE_URL="sqlite:///empty.db")
    nowhere = verbs("doctor", TEMPORAL_NAMESPACE="nowhere")

    assert (well.code, ill.code, nowhere.code) == (0, 4, 4)
    report = DoctorReport.model_validate(well.document())
    assert {check.name for check in report.checks} >= {
        "server",
        "namespace",
        "search attributes",
        "worker",
        "server clock",
        "database",
        "database clock",
        "tools",
    }
    assert "python worker.py" in ill.out
    assert "python -m surehand.cli.migrate" in ill.out
    assert "namespace create --namespace nowhere" in nowhere.out
