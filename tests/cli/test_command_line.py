"""What the command line does without any server: bad input never ends in a traceback."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from surehand.cli import app, doctor
from surehand.client import client
from surehand.process import VERSION
from surehand.process.exits import ExitCode
from tests.cli.starter import REFUND

VERBS = [
    *("start", "list", "show", "checkpoint", "pause", "resume", "event", "top-up", "amend"),
    *("retry", "fork", "simulate", "cancel", "pending", "approve", "reject", "edit", "sign"),
    *("answer", "resolve", "halt", "lift", "halts", "effects", "artifacts", "events"),
    *("interventions", "notifications", "audit", "receipt", "erase", "reconcile", "unwind"),
    *("retention", "stats", "settings", "tools", "doctor", "drill", "try", "demo", "init"),
]
#: Verbs that serve until they are ended: they have no result.
SERVING = ["dev", "worker", "migrate", "server"]
#: The verbs of each group: those that have a result, and those that serve until they are ended.
GROUPS = {
    "plan": (["check"], []),
    "keys": (["new", "list", "rotate"], []),
    "codec": (["token"], ["serve"]),
    "approvals": (["link"], ["serve"]),
    "mcp": (["list", "pin"], ["serve"]),
    "ledger": (["restored"], []),
    "principal": (
        ["add", "grant", "revoke", "list", "keygen", "name-deputy", "revoke-deputy", "deputies"],
        [],
    ),
    "quota": (["set", "show"], []),
    "limits": (["try"], []),
    "tenant": (["add", "show"], []),
    "standing": (["grant", "add", "list", "revoke"], []),
}
LEAVES = [
    *([verb] for verb in VERBS),
    *([group, verb] for group, (verbs, _) in GROUPS.items() for verb in verbs),
]

#: Of params that nobody has.
HASH = f"sha256:{'0' * 64}"
#: Verbs that need a server, with valid arguments.
REMOTE = [
    ["start", REFUND],
    ["list"],
    ["show", "r"],
    ["checkpoint", "r"],
    ["cancel", "r"],
    ["pending"],
    ["approve", "r/s/1", "--params-hash", HASH],
    ["reject", "r/s/1", "--params-hash", HASH],
    ["resolve", "i", "happened", "--run", "r"],
    ["amend", "r", REFUND],
    ["unwind", "r"],
    ["reconcile", "--every", "1s"],
]
LEDGER = [
    ["effects", "r"],
    ["simulate", "r", "--from", "1"],
    ["events", "r"],
    ["interventions"],
    ["notifications"],
    ["ledger", "restored"],
    ["principal", "list"],
    ["principal", "add", "ana"],
    ["standing", "list"],
    ["standing", "revoke", "SA-1"],
    ["halt", "--reason", "why"],
    ["lift", "halt-1"],
    ["halts"],
]


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, no ``.env``, and an address where nobody listens."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "TOOL_MODULES", "TENANT", "TASK_QUEUE"):
        monkeypatch.delenv(f"SUREHAND_{name}", raising=False)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("SUREHAND_USER", "ana")


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr, after the program's name."""
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("surehand: ")
    return lines[0].removeprefix("surehand: ")


@pytest.mark.parametrize("verb", LEAVES, ids=" ".join)
def test_every_verb_has_help_and_json(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([*verb, "--help"]) == ExitCode.DONE

    text = capsys.readouterr().out
    assert f"Example: python starter.py {' '.join(verb)}" in text
    assert "--json" in text


@pytest.mark.parametrize("verb", ["start", "list", "cancel", "resolve", "audit", "drill"])
def test_an_example_can_be_pasted_from_a_terminal_of_80_columns(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app.run([verb, "--help"])

    example = capsys.readouterr().out.partition("Example: ")[2].strip()
    *broken, _ = example.splitlines()
    assert all(line.rstrip().endswith(" \\") for line in broken)


@pytest.mark.parametrize(
    ("of", "verbs"),
    [
        ([], [*VERBS, *SERVING, *GROUPS]),
        *(([group], [*verbs, *serving]) for group, (verbs, serving) in GROUPS.items()),
    ],
    ids=["all", *GROUPS],
)
def test_no_verb_is_missing_here(
    of: list[str], verbs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*of, "--help"] if of else ["--help-all"]) == ExitCode.DONE

    listed = re.findall(r"^│ ([a-z][a-z-]*) ", capsys.readouterr().out, flags=re.MULTILINE)
    assert sorted(listed) == sorted(verbs)


def test_the_help_lists_what_people_need_every_day_and_says_how_to_see_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app.run(["--help"])

    out = capsys.readouterr().out
    listed = re.findall(r"^│ ([a-z][a-z-]*) ", out, flags=re.MULTILINE)
    assert listed[:3] == ["init", "dev", "start"] and 8 <= len(listed) <= 10
    assert "--help-all` shows all verbs" in out


def test_without_a_verb_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([]) == ExitCode.WRONG_USE
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["principal"], "Missing command"),
        (["principal", "grnt"], "No such command 'grnt'. Did you mean"),
        (["principal", "add", "ana", "--key", "none.pub"], "none.pub: No such file or directory"),
        (["principal", "grant", "ana"], "name a --role, a --permission or a --key"),
        (["principal", "revoke", "ana"], "name a --role, a --permission or a --key"),
        (["principal", "keygen", "none/ana.pem"], "none/ana.pem: No such file or directory"),
        (["standing", "grant", "--tool", "t"], "Missing option '--until'"),
        (["standing", "grant", "--tool", "t", "--until", "soon"], "--until 'soon': write a time"),
        (
            ["standing", "grant", "--tool", "t", "--until", "2020-01-01T00:00Z"],
            "'2020-01-01T00:00Z': is over",
        ),
        (["standing", "grant", "--tool", "t", "--until", "9999d"], "at most 3650 d from now"),
        (["standing", "grant", "--tool", "t", "--until", "2026-13-01"], "such as 2026-12-31"),
        (["standing", "grant", "--tool", "t", "--until", "1d", "--count", "0"], "equal to 1"),
        (["standing", "add", "none.json"], "grant none.json: No such file or directory"),
        (["standing", "add", REFUND], "refund.yaml: "),
        (["strat"], "No such command 'strat'. Did you mean"),
        (["show"], "Missing argument 'RUN|APPROVAL_ID'"),
        (["show", "r", "--nope"], "No such option"),
        (["start"], "Missing argument 'PLAN'"),
        (["start", "none.yaml"], "none.yaml: file: No such file or directory"),
        (["start", "."], ".: file: Is a directory"),
        (["start", REFUND, "--set", "input.x=1"], "unknown path"),
        (["start", REFUND, "--run-id", "a b"], "run id 'a b'"),
        (["start", REFUND, "--run-id", "acme/x"], "no tenant but 'default'"),
        (["start", REFUND, "--tenant", "a/b"], "tenant 'a/b'"),
        (["start", REFUND, "--timeout", "soon"], "such as 90s, 10m or 2h"),
        (["start", REFUND, "--timeout", "0s"], "such as 90s, 10m or 2h"),
        (["start", REFUND, "--timeout", f"{'9' * 30}d"], "too long"),
        (["start", REFUND, "--timeout", "5m"], "--timeout is for --wait"),
        (["retry", "r", "--timeout", "5m"], "--timeout is for --wait"),
        (["fork", "r", "--from", "s", "--timeout", "5m"], "--timeout is for --wait"),
        (["event", "r", "e", "--id", "1", "--payload", "{"], "--payload is no JSON"),
        (["amend", "r", "none.yaml"], "none.yaml: file: No such file or directory"),
        (["amend", "a b", REFUND], "run id 'a b'"),
        (["unwind", "a b"], "run id 'a b'"),
        (["unwind", "acme/r"], "run not found: acme/r"),
        (["reconcile", "--every", "0s"], "such as 90s, 10m or 2h"),
        (["reconcile", "--every", "999ms"], "--every: at least 1 s"),
        (["reconcile", "--every", "60s", "--tenant", "a/b"], "tenant 'a/b'"),
        (["approve", "r/s/1", "--params-hash", "x", "--reason", "a\0b"], "reason: "),
        (["start", REFUND, "--as", ""], "name yourself"),
        (["start", REFUND, "--as", "x" * 201], "name yourself"),
        (["start", REFUND, "--tenant", ""], "tenant ''"),
        (["show", "r\udcff"], "not UTF-8"),
        (["resolve", "i", "happened", "--run", "r", "--receipt", "{"], "JSON, such as '{"),
        (["resolve", "i", "happened", "--run", "r", "--receipt", "{bad"], "line 1, column 2"),
        (["approve", "r/s/1"], "Missing option '--params-hash'. The hash of the params you saw"),
        (["approve", "r/s/1", "--params-hash", HASH[:-1]], "starter.py show r` shows it"),
        (["approve", "r", "--params-hash", "x"], "RUN/STEP/NUMBER"),
        (["sign", "r/s/1", "--params-hash", "x", "--key", "k"], "sha256: and 64 hex digits"),
        (["cancel", "r", "--mode", "sideways"], "'compensate', 'keep', 'cleanup'"),
        (
            ["resolve", "i", "perhaps"],
            "'happened', 'not-happened', 'call-off', 'compensated', 'undo', 'give-up'",
        ),
        (["list", "--state", "sleeping"], "'waiting_approval'"),
        (["list", "--limit", "0"], "greater than or equal to 1"),
        (["show", "acme/r"], "not found: acme/r; `python starter.py list` lists those there are"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == ExitCode.WRONG_USE
    assert said in complaint(capsys)


def test_an_amendments_plan_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.yaml").write_text("- {tol: orders.read}\n")

    assert app.run(["amend", "r", "plan.yaml"]) == ExitCode.WRONG_USE
    assert "plan.yaml: steps.0.tol: unknown field; did you mean 'tool'?" in capsys.readouterr().err


def test_the_run_judges_missing_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.yaml").write_text("- {tool: orders.read, params: {id: '${input.id}'}}\n")

    assert app.run(["amend", "r", "plan.yaml"]) == ExitCode.NOT_REACHABLE
    assert "no Temporal server answers" in complaint(capsys)


@pytest.mark.parametrize("arguments", REMOTE, ids=lambda a: a[0])
def test_an_unreachable_server_is_one_line_with_its_address_and_code_4(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == ExitCode.NOT_REACHABLE
    assert "no Temporal server answers at 127.0.0.1:1 (TEMPORAL_ADDRESS)" in complaint(capsys)
    app.run([*arguments, "--json"])
    assert json.loads(capsys.readouterr().out)["exit_code"] == 4


@pytest.mark.parametrize(
    "arguments",
    [["checkpoint", "r", "--at", "0"], ["list", "--limit", "0"], ["strat"], ["show", "r\udcff"]],
    ids=" ".join,
)
def test_wrong_use_is_a_json_document_too(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*arguments, "--json"]) == ExitCode.WRONG_USE

    written = capsys.readouterr()
    document = json.loads(written.out)
    assert document["exit_code"] == 2
    assert document["error"] in written.err


def test_a_tool_module_that_ends_the_process_is_named_with_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keyless_tools.py").write_text("import sys\nsys.exit('no key')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "keyless_tools")
    monkeypatch.setenv("SUREHAND_DATABASE_URL", f"sqlite:///{tmp_path}/ledger.db")

    assert app.run(["tools"]) == ExitCode.WRONG_USE
    assert "'keyless_tools'" in (said := complaint(capsys))
    assert "no key" in said


def test_an_exit_that_no_closed_output_explains_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(arguments: Sequence[str], *, show_all: bool) -> None:
        raise SystemExit("gone")

    monkeypatch.setattr(app, "build", leave)

    assert app.run(["list"]) == ExitCode.UNEXPECTED
    assert "SystemExit: gone" in complaint(capsys)


def test_a_token_is_no_token_where_there_is_no_stdin_to_read_it_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    assert app.run(["resume", "r", "--token", "-"]) == ExitCode.WRONG_USE
    assert "resume token" in complaint(capsys)


def test_temporals_configuration_is_read_from_the_env_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    (tmp_path / ".env").write_text("TEMPORAL_ADDRESS=127.0.0.1:2\n")

    assert app.run(["list"]) == ExitCode.NOT_REACHABLE
    assert "127.0.0.1:2" in complaint(capsys)


def test_a_profile_that_does_not_exist_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "nope")

    assert app.run(["list"]) == ExitCode.WRONG_USE
    assert "Profile 'nope' not found" in complaint(capsys)


@pytest.mark.parametrize("arguments", LEDGER, ids=" ".join)
def test_a_missing_setting_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == ExitCode.WRONG_USE
    said = complaint(capsys)
    assert "SUREHAND_DATABASE_URL is missing: set it, or put it into .env" in said
    assert said.endswith(f"(no .env here: {Path.cwd()})")


def test_a_missing_mcp_file_is_named_with_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["mcp", "pin"]) == ExitCode.WRONG_USE
    assert "surehand.mcp.yaml (SUREHAND_MCP): file: No such file" in complaint(capsys)


@pytest.mark.parametrize("arguments", LEDGER, ids=" ".join)
def test_a_database_that_is_not_migrated_is_code_4(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.db").touch()
    monkeypatch.setenv("SUREHAND_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")

    assert app.run(arguments) == ExitCode.NOT_REACHABLE
    assert "python starter.py migrate" in complaint(capsys)


@pytest.mark.parametrize("arguments", [*LEDGER, ["audit", "r"]], ids=" ".join)
def test_a_ledger_that_is_not_there_is_code_4_and_is_not_made(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SUREHAND_DATABASE_URL", "sqlite:///ledger.sqlite")

    assert app.run(arguments) == ExitCode.NOT_REACHABLE
    assert complaint(capsys).startswith(f"no ledger at {tmp_path / 'ledger.sqlite'} ")
    assert list(tmp_path.iterdir()) == []


def test_a_tool_module_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHAND_DATABASE_URL", "sqlite:///x.db")
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "acme.none")

    assert app.run(["tools"]) == ExitCode.WRONG_USE
    said = complaint(capsys)
    assert "'acme.none'" in said
    assert "PYTHONPATH" in said
    assert "frozen" not in said


def test_a_tool_module_that_lacks_a_package_is_named_with_its_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools_without_client.py").write_text("import os\nimport no_such_client\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SUREHAND_DATABASE_URL", "sqlite:///x.db")
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "tools_without_client")

    assert app.run(["tools"]) == ExitCode.WRONG_USE
    said = complaint(capsys)
    assert "No module named 'no_such_client'" in said
    assert f"({tmp_path / 'tools_without_client.py'}:2)" in said


def test_doctor_with_nothing_configured_lists_all_there_is_to_do_in_lines_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given nobody at the address where the embedded server would be
    monkeypatch.setattr(doctor, "EMBEDDED", {"127.0.0.1:1"})

    assert app.run(["doctor"]) == ExitCode.NOT_REACHABLE

    said = capsys.readouterr().out
    assert re.findall(r"^\d\. ([a-z ]+):", said, flags=re.MULTILINE) == [
        "settings",
        "tools",
        "database",
        "server",
        "worker",
    ]
    assert re.findall(r"^     (.+)", said, flags=re.MULTILINE) == [
        f"export SUREHAND_DATABASE_URL=sqlite:///{tmp_path}/.surehand/ledger.sqlite",
        "export SUREHAND_TOOL_MODULES=surehand.examples.shop.tools",
        "python starter.py migrate",
        "python starter.py server &",
        "python starter.py server --wait",
        "python starter.py worker &",
    ]
    assert "`python starter.py dev` starts server and worker in one terminal" in said
    assert list(tmp_path.iterdir()) == []


def test_doctor_starts_no_server_where_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["doctor"]) == ExitCode.NOT_REACHABLE

    said = capsys.readouterr().out
    assert "TEMPORAL_ADDRESS" in said
    assert re.findall(r"^     (python starter.py server.*)", said, flags=re.MULTILINE) == [
        "python starter.py server --wait"
    ]


def test_doctor_does_not_migrate_a_database_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "postgresql://nobody:secret@127.0.0.1:1/none"
    monkeypatch.setenv("SUREHAND_DATABASE_URL", url)

    assert app.run(["doctor"]) == ExitCode.NOT_REACHABLE

    said = capsys.readouterr().out
    assert "start the server, make the database, or mend SUREHAND_DATABASE_URL" in said
    assert "starter.py migrate" not in said
    assert "secret" not in said


def test_doctor_says_how_a_tool_module_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHAND_DATABASE_URL", "sqlite:///x.db")
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "acme.none")

    assert app.run(["doctor", "--json"]) == ExitCode.NOT_REACHABLE

    [tools] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "tools"]
    assert "'acme.none'" in tools["detail"]
    assert "PYTHONPATH" in tools["fix"]


def test_a_mistake_of_ours_is_one_line_and_a_traceback_only_with_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(client, "_condition_of_state", broken)
    monkeypatch.setattr("surehand.cli.options.connect", lambda *_, **__: _nothing())

    assert app.run(["list"]) == ExitCode.UNEXPECTED
    assert "unexpected ZeroDivisionError: by zero" in complaint(capsys)

    for arguments in (["--debug", "list"], ["list", "--debug"], ["list", "--limit=1", "--debug"]):
        assert app.run(arguments) == ExitCode.UNEXPECTED
        assert "Traceback" in capsys.readouterr().err


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"surehand {VERSION}\n"


async def _nothing() -> None:
    pass


def test_help_lists_every_exit_code_with_its_meaning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    app.run(["--help-all"])
    shown = capsys.readouterr().out.splitlines()

    assert [line.strip() for line in shown if re.match(r" *\d+  ", line)] == [
        f"{code:d}  {code.meaning}" for code in ExitCode
    ]


def test_tools_are_listed_with_the_schemas_that_a_model_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHAND_TOOL_MODULES", "surehand.examples.shop.tools")

    assert app.run(["tools", "--json"]) == ExitCode.DONE
    listed = json.loads(capsys.readouterr().out)["tools"]

    [refund] = [one for one in listed if one["name"] == "payments.refund"]
    assert (refund["effect"], refund["version"]) == ("WRITE", "1")
    assert "order_id" in refund["params_schema"]["required"]
    assert refund["output_schema"]["type"] == "object"
    assert all(one["description"] for one in listed)
