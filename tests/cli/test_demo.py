"""The demo, without a terminal and with one."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from surehand.cli.demo import DemoEnvironment, DemoScript
from surehand.cli.printer import Printer
from surehand.examples.bank import Bank
from tests.cli.starter import ROOT, Starter, Verbs
from tests.cli.terminal import LIMIT_S, Terminal

SHOWN = ROOT / "docs" / "demo.txt"


@pytest.fixture
def showing(temporal_cli: Path, tmp_path: Path) -> Starter:
    """The starter with nothing but the Temporal CLI and a folder for temporary files."""
    return Starter({"TEMPORAL_CLI_PATH": str(temporal_cli), "TMPDIR": str(tmp_path)}, tmp_path)


def leftovers(folder: Path) -> list[str]:
    """What there is of demos in a folder: their own folders, and processes that run there."""
    demos = [str(demo) for demo in folder.glob("surehand-demo-*")]
    return demos + [command for _, command in running(f"{folder}/surehand-demo-")]


def running(place: str) -> list[tuple[int, str]]:
    """Processes that run in a place, write their log there, or have it in their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().replace("\0", " ")
            about = [command, *(str((process / link).readlink()) for link in ("cwd", "fd/1"))]
            if any(place in one for one in about):
                found.append((int(process.name), command))
        except OSError:  # it has just ended
            continue
    return found


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_named_approver_approves_without_a_terminal(showing: Starter, tmp_path: Path) -> None:
    ended = showing("demo", "--json")

    assert ended.code == 0, ended
    assert "There is no terminal to ask at: 'demo-approver' approves it." in ended.err
    assert "Worker 1 is dead: SIGKILL in the middle of the refund" in ended.err
    assert re.search(r"sha256:[0-9a-f]{64}", ended.err)
    assert "refunds: 1" in ended.err
    assert ended.err.splitlines()[-1].startswith("OK: ")
    report = ended.document()
    assert report["ok"] and report["worker_killed"]
    assert (report["refunds"], report["mails"]) == (1, 1)
    assert report["decided_by"] == "demo-approver"
    assert not leftovers(tmp_path)
    shown = SHOWN.read_text()
    assert [unnumbered(line) for line in shown.strip().splitlines()] == [
        unnumbered(line) for line in ended.err.strip().splitlines()
    ]


def unnumbered(line: str) -> str:
    """A line without what differs from showing to showing: ports, processes, ids, times."""
    return re.sub(r"[+-]?([0-9a-f]{12,}|[0-9a-f]*[0-9][0-9a-f]*)", "#", line)


@pytest.mark.parametrize(("answer", "code", "refunds"), [("yes", 0, 1), ("n", 0, 0)])
def test_at_a_terminal_it_asks_until_it_is_told_and_does_that(
    showing: Starter, tmp_path: Path, answer: str, code: int, refunds: int
) -> None:
    terminal = Terminal(showing.command("demo"), showing.environment, tmp_path)
    terminal.read_until("Approve this call with these params? [y/n]")
    assert "payments.refund (version 1)" in terminal.text
    assert '"amount": "120.00"' in terminal.text

    terminal.type("yo\n")
    terminal.read_until("Please answer yes or no.")
    terminal.type(f"{answer}\n")
    terminal.read_until("Enter stops everything")
    assert f"Refunds paid: {refunds}." in terminal.text
    assert ("and takes over" in terminal.text) == (refunds == 1)
    # Neither ledger nor shop has anything to tell of a refund that was not approved.
    assert terminal.text.count("   none\r\n") == (2 if refunds == 0 else 0)
    terminal.type("\n")

    assert terminal.end() == code
    assert not leftovers(tmp_path)


async def test_ctrl_d_at_the_question_is_told_to_be_no_approval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        script = DemoScript(Printer(json_output=False), cast(DemoEnvironment, None), approver="ana")

        assert not await script._ask()

    assert capsys.readouterr().out.endswith(
        "Ctrl-D: no answer is no approval, so it is rejected.\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_however_it_is_ended_nothing_of_it_stays_running(
    showing: Starter, tmp_path: Path, number: signal.Signals
) -> None:
    place = f"{tmp_path}/surehand-demo-"
    with showing.popen("demo") as process:
        until(
            lambda: any("-m surehand.worker" in command for _, command in running(place)),
            "the demo has started no worker",
        )
        assert len(running(place)) >= 3  # and server and shop

        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)

    assert process.returncode == (130 if number is not signal.SIGKILL else -signal.SIGKILL)
    until(lambda: not running(place), "processes are left")
    # Only SIGKILL leaves no time to tidy up.
    assert bool(list(tmp_path.glob("surehand-demo-*"))) is (number is signal.SIGKILL)


# The tools that the README shows do what it says of them.


BANK = str(ROOT / "examples" / "bank.yaml")


def waiting(verbs: Verbs, start: list[str]) -> tuple[str, str, str]:
    """What decides the one request that the run waits for: its id and its hash."""
    ended = verbs(*start, "--wait", "--json")
    assert ended.code == 10, ended
    [request] = ended.document()["waiting_for"]
    return request["id"], "--params-hash", request["params_hash"]


def test_the_first_refund_is_taken_back_once_when_the_second_is_rejected(verbs: Verbs) -> None:
    bank = Bank(Path(verbs.environment["BANK_FILE"]))
    run = f"bank-{uuid.uuid4().hex[:8]}"
    orders = [f"--set=input.{step}=order-{run}-{step}" for step in ("first", "second")]
    start = ["start", BANK, "--run-id", run, *orders]

    verbs("approve", *waiting(verbs, start))
    verbs("reject", *waiting(verbs, start), "--reason", "not returned")
    ended = verbs(*start, "--wait", "--json")

    assert ended.code == 20
    shown = verbs("show", run).out
    # In the first line, at the step, and once in the story.
    assert (shown.count("not returned"), "accepted" in shown) == (3, False)
    assert bank.counts() == {"refund": 1, "cancellation": 1}
    entries: list[dict[str, Any]] = verbs("effects", run, "--json").document()["rows"]
    refund, undo = sorted(entries, key=lambda row: str(row["tool"]), reverse=True)
    assert (refund["tool"], refund["state"]) == ("bank.refund", "compensated")
    assert (undo["tool"], undo["state"]) == ("bank.cancel", "committed")
    assert undo["key"] == f"undo:{refund['entry_id']}"


def test_an_order_that_the_bank_does_not_know_is_answered_with_no(verbs: Verbs) -> None:
    run = f"bank-{uuid.uuid4().hex[:8]}"
    start = ["start", BANK, "--run-id", run, "--set", "input.first=parcel-1"]

    verbs("approve", *waiting(verbs, start))
    ended = verbs(*start, "--wait", "--json")

    assert ended.code == 20
    [refused] = [step for step in ended.document()["steps"] if step["id"] == "first"]
    assert "no such order" in str(refused)
