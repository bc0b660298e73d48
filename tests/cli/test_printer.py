from __future__ import annotations

import json

import pytest

from surehand.cli.printer import Printer, compact, plain
from surehand.process.exits import PlanRefused
from surehand.workflows.contracts.tools import PlanError


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


def test_lines_and_rows_are_never_wrapped_where_nobody_watches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer(json_output=False)
    long = "x" * 500

    printer.say(long)
    printer.table(["a", "b"], [["1", long], ["22", ""]])

    assert capsys.readouterr().out == f"{long}\nA   B\n1   {long}\n22\n"


def test_with_json_stdout_holds_the_document_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer(json_output=True)

    printer.say("progress")
    printer.table(["a"], [["1"]])
    printer.document({"text": "ü\x1b"})

    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"text": "ü\x1b"}
    assert captured.out.isascii()
    assert "progress" in captured.err


def test_an_error_is_a_line_each_and_with_json_a_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = PlanRefused("plan.yaml", [PlanError(where="steps.0", reason="is wrong")])

    Printer(json_output=True).error(error)

    captured = capsys.readouterr()
    assert captured.err == "surehand: plan.yaml: steps.0: is wrong\n"
    assert json.loads(captured.out) == {
        "error": "plan.yaml: the plan is not valid",
        "exit_code": 2,
        "problems": [{"where": "steps.0", "reason": "is wrong"}],
    }
