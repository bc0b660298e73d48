"""What a verb prints, to people, programs and files; and figures."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.history.stats import Stats
from surehand.cli.printer import Printer, compact, plain
from surehand.process.exits import OUTPUT_LOST, PlanRefused
from surehand.workflows.identity import DEFAULT_TENANT
from surehand.workflows.plan.references import PlanError
from tests.cli.starter import Run, Starter, Verbs
from tests.ledger.scene import RUN, Scene


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2K\x1b[1Apaid 1.00", "\\u001b[2K\\u001b[1Apaid 1.00"),
        ("to \u202e321\u202c", "to \\u202e321\\u202c"),
        ("a\u200bb", "a\\u200bb"),
        ("two\nlines\r", "two\\u000alines\\u000d"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("Müller 東京 €5", "Müller 東京 €5"),
    ],
)
def test_nothing_that_was_written_can_steer_the_terminal(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert "\x1b" not in compact({"note": text})


def test_rich_markup_in_a_value_is_only_text(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(json_output=False)

    printer.say("[red]stop[/red] :smile:")
    printer.table(["what"], [["[bold]x[/bold]"]])

    assert capsys.readouterr().out == "[red]stop[/red] :smile:\nWHAT\n[bold]x[/bold]\n"


def test_unwatched_lines_are_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(json_output=False)
    long = "x" * 500

    printer.say(long)
    printer.table(["a", "b"], [["1", long], ["22", ""]])

    assert capsys.readouterr().out == f"{long}\nA   B\n1   {long}\n22\n"


def test_json_stdout_holds_only_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(json_output=True)

    printer.say("progress")
    printer.table(["a"], [["1"]])
    printer.document({"text": "ü\x1b"})

    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"text": "ü\x1b"}
    assert captured.out.isascii()
    assert "progress" in captured.err


def test_an_error_is_a_line_or_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    error = PlanRefused("plan.yaml", [PlanError(where="steps.0", reason="is wrong")])

    Printer(json_output=True).error(error)

    captured = capsys.readouterr()
    assert captured.err == "surehand: plan.yaml: steps.0: is wrong\n"
    assert json.loads(captured.out) == {
        "error": "plan.yaml: the plan is not valid",
        "exit_code": 2,
        "problems": [{"where": "steps.0", "reason": "is wrong"}],
    }


# The exit code is the verb's, whatever the SDK's threads do while the process ends.
def test_the_exit_code_is_right_25_times_out_of_25(
    starter: Starter, verbs: Verbs, new_run: Callable[..., Run]
) -> None:
    waiting, cancelled, rejected, done = new_run(), new_run(), new_run(), new_run()
    verbs("cancel", cancelled.name)
    for verb, run in (("reject", rejected), ("approve", done)):
        verbs(verb, *verbs.asked(run.name))
        verbs(*run.start, "--wait")
    ends = [
        ([*waiting.start, "--wait"], 10),
        ([*cancelled.start, "--wait"], 30),
        ([*rejected.start, "--wait"], 20),
        ([*done.start, "--wait"], 0),
        (["show", "not-there"], 2),
    ] * 5

    # Side by side: a machine under load is where an interpreter aborts at its exit.
    with ThreadPoolExecutor(4) as several:
        codes = list(several.map(lambda end: starter(*end[0]).code, ends))

    assert codes == [code for _, code in ends]


@pytest.mark.parametrize("json_output", [(), ("--json",)])
def test_a_lost_output_is_no_success(starter: Starter, json_output: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            starter.command("tools", *json_output),
            env=starter.environment,
            cwd=starter.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )

    assert ended.returncode == OUTPUT_LOST
    assert "Traceback" not in ended.stderr


def test_a_reader_that_has_gone_ends_the_output_quietly(starter: Starter) -> None:
    with starter.popen("tools") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (141, "")


@pytest.fixture
def file(sqlite_template: Path, tmp_path: Path) -> Path:
    """A ledger with one run that has one effect."""
    copied = Path(shutil.copy(sqlite_template, tmp_path / "ledger.db"))

    async def fill() -> None:
        async with open_ledger(f"sqlite:///{copied}") as ledger:
            scene = Scene.begin(ledger, DEFAULT_TENANT)
            scene.committed(scene.call())

    asyncio.run(fill())
    return copied


@pytest.fixture
def stats_verbs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs with a ledger, and neither server nor worker."""
    return Verbs({"SUREHAND_DATABASE_URL": f"sqlite:///{file}"}, tmp_path, monkeypatch)


def test_figures_need_neither_server_nor_endpoint(stats_verbs: Verbs) -> None:
    told = stats_verbs("stats", "--probe", "3", "--json")
    found = Stats.model_validate(told.document())

    assert told.code == 0
    assert (found.leases.claims, found.invariants.ok) == (1, 1)
    assert found.checkpoint is not None and found.checkpoint.transactions == 3
    said = stats_verbs("stats")
    assert said.code == 0
    for part in ("claims 1, lost 0, success rate 100.0%", "runs 1, ok 1", "--probe N` measures"):
        assert part in said.out
    assert "waits for leases" in said.out


def test_a_broken_chain_is_said_and_exits_with_3(stats_verbs: Verbs, file: Path) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("DROP TRIGGER events_no_update")
        connection.execute("UPDATE events SET body = '{}' WHERE type = 'effect.committed'")
    connection.close()

    ended = stats_verbs("stats")

    assert ended.code == 3
    assert f"BROKEN {RUN}: event 3" in ended.out


def test_wrong_use_is_said_in_one_line(stats_verbs: Verbs) -> None:
    ended = stats_verbs("stats", "--since", "soon")

    assert ended.code == 2
    assert "not a duration" in ended.line()
