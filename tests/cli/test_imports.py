"""What a verb loads, how runs are named, and that answers to assistants have an end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.cli.mcp_server import runs as shown_runs
from surehand.cli.mcp_server.runs import LARGEST_ANSWER, LONGEST_ERROR, bound_document, write_error
from surehand.client.messages import (
    choose_run_id,
    find_approval,
    find_run_id,
    make_run_name,
    new_key,
)
from surehand.process.exits import NotFound, SurehandError, WrongUse
from tests.cli.starter import REFUND, ROOT, Verbs
from tests.shop_process import ShopProcess
from tests.worker_process import WorkerProcess

#: The other room, and what it would bring along.
HEAVY = ("surehand.activities", "sqlalchemy", "alembic", "structlog", "httpx")
_LOADED = """
import json, sys
from surehand.process.exits import leave
from surehand.starter import run
for arguments in json.loads(sys.argv[1]):
    run(arguments)
print(json.dumps(sorted(sys.modules)))
leave(0)
"""


def loaded_by(*lines: list[str], warnings: str = "default") -> set[str]:
    """Return the modules that command lines load, one after the other."""
    ended = subprocess.run(
        [sys.executable, "-W", warnings, "-c", _LOADED, json.dumps(lines)],
        env={**os.environ, "TEMPORAL_ADDRESS": "127.0.0.1:1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["principal", "--help"], ["pendign"]])
def test_help_loads_no_verb(arguments: list[str]) -> None:
    loaded = loaded_by(arguments)

    assert "surehand.cli.app" in loaded
    assert not loaded.intersection({"temporalio", "surehand.cli.options", "surehand.client"})
    if arguments == ["--help"]:
        ours = {one for one in loaded if one.startswith("surehand.")}
        assert "pydantic" not in loaded and len(ours) <= 9, ours


@pytest.mark.parametrize(("verb", "most"), [("--help", 350), ("pending", 740)])
def test_a_verb_loads_few_modules(verb: str, most: int) -> None:
    loaded = loaded_by([verb])

    assert len(loaded) <= most, f"{len(loaded)}: find the new ones with `python -X importtime`"


def test_a_tool_loads_few_modules_and_builds_no_model() -> None:
    program = """
import sys, pydantic
from surehand import tool
built = [one.__name__ for one in pydantic.BaseModel.__subclasses__() if one.__pydantic_complete__]
print(len(sys.modules), *built, *{"asyncio", "pydantic.plugin._loader"} & {*sys.modules})
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    number, *heavy = ended.stdout.split()

    assert heavy == []
    assert int(number) <= 240


def test_a_verb_loads_no_other_ones() -> None:
    loaded = loaded_by(["pending"])

    assert "surehand.cli.approvals" in loaded
    common = {"app", "approvals", "options", "printer", "render"}
    verbs = {one for one in loaded if re.match(r"surehand\.(drill|cli\.)", one)}
    assert verbs == {f"surehand.cli.{one}" for one in common}
    assert "temporalio.worker" not in loaded  # a third of the SDK; for plugins only
    assert len([one for one in loaded if one.startswith("surehand.")]) <= 41


def test_starting_and_steering_runs_imports_nothing_of_the_other_room() -> None:
    loaded = loaded_by(
        ["start", "--help"],
        ["start", REFUND],
        ["plan", "check", REFUND],
        ["list"],
        ["show", "r"],
        ["pending"],
        ["approve", "r/s/1", "--params-hash", f"sha256:{'0' * 64}"],
        ["cancel", "r"],
        ["resolve", "i", "happened", "--run", "r"],
    )

    assert "surehand.workflows" in loaded
    assert not loaded.intersection({*HEAVY, "joserfc", "cryptography"})


def test_signing_imports_nothing_of_the_other_room_and_warns_of_nothing(tmp_path: Path) -> None:
    new_key(key := tmp_path / "ana.pem")
    about = ["r/s/1", "--params-hash", f"sha256:{'0' * 64}"]
    loaded = loaded_by(["sign", *about, "--key", str(key)], warnings="error")

    assert "joserfc" in loaded
    assert not loaded.intersection(HEAVY)


@pytest.mark.parametrize(
    ("tenant", "text", "run_id"),
    [
        ("default", "refund-1", "refund-1"),
        ("default", "default/refund-1", "refund-1"),
        ("acme", "refund-1", "acme/refund-1"),
        ("acme", "acme/refund-1", "acme/refund-1"),
        ("acme", "a.b:c_D-9", "acme/a.b:c_D-9"),
    ],
)
def test_a_run_is_found_by_its_name_or_its_full_id(tenant: str, text: str, run_id: str) -> None:
    assert find_run_id(tenant, text) == run_id


@pytest.mark.parametrize(
    ("tenant", "text"), [("default", "acme/r"), ("acme", "beta/r"), ("acme", "default/r")]
)
def test_another_tenants_run_is_not_found(tenant: str, text: str) -> None:
    with pytest.raises(NotFound, match=f"run not found: {text}"):
        find_run_id(tenant, text)


@pytest.mark.parametrize("text", ["", "a b", "/a", "a/", "a/b/c", "a'b", "ü", "x" * 121, "a\n"])
def test_what_cannot_be_a_run_id_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUse, match="run id"):
        find_run_id("acme", text)


@pytest.mark.parametrize("text", ["bad id!/x", "beta/r", "a b"])
def test_what_cannot_name_a_new_run_is_told_what_can(text: str) -> None:
    with pytest.raises(WrongUse, match=r"has 1 to 120 letters, digits, '_', '\.', ':' and '-'"):
        choose_run_id("acme", text)


def test_the_longest_tenant_and_name_fit_into_a_run_id() -> None:
    assert len(find_run_id("t" * 39, "n" * 120)) == 160


@pytest.mark.parametrize(
    ("tenant", "text", "found"),
    [
        ("default", "r/step/1", ("r", "r/step/1")),
        ("acme", "r/step/2", ("acme/r", "acme/r/step/2")),
        ("acme", "acme/r/step/2", ("acme/r", "acme/r/step/2")),
    ],
)
def test_both_approval_ids_are_found(tenant: str, text: str, found: tuple[str, str]) -> None:
    assert find_approval(tenant, text) == found


def test_another_tenants_approval_is_not_found() -> None:
    with pytest.raises(NotFound):
        find_approval("default", "acme/r/step/1")


@pytest.mark.parametrize("text", ["", "r", "r/step", "r/step/x", "r/step/²", "//1"])
def test_what_cannot_be_an_approval_id_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUse, match="RUN/STEP/NUMBER"):
        find_approval("default", text)


def test_a_new_run_is_named_after_its_plan() -> None:
    assert re.fullmatch(r"refund-[0-9a-f]{8}", make_run_name("refund"))
    assert make_run_name("refund") != make_run_name("refund")


PLUGINS: Final = "tests.e2e.plugins"


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("httpx", "'httpx' is not module:name"),
        (f"{PLUGINS}:none", f"{PLUGINS}:none cannot"),
        (f"{PLUGINS}:no_plugin", "no_plugin is no plugin of Temporal's"),
        (f"{PLUGINS}:Impossible", "Impossible() has failed: TypeError"),
        (f"{PLUGINS}:other_codec", "brings the payload codec Secret"),
        (f"{PLUGINS}:other_converter", "brings the payload converter Default"),
    ],
)
def test_a_starter_refuses_a_plugin_that_cannot_be_loaded_or_kept_beside_ours(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, says: str
) -> None:
    ended = Verbs({**settings, "SUREHAND_WORKER_PLUGINS": named}, tmp_path, monkeypatch)("list")

    assert ended.code == 2
    assert "SUREHAND_WORKER_PLUGINS" in (line := ended.line()) and says in line


def test_what_is_ours_travels_as_ever_beside_a_plugin_with_a_converter_of_its_own(
    settings: dict[str, str], shop: ShopProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_id, name = shop.new_order(), f"run-{uuid.uuid4().hex[:8]}"
    given = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"plugins-{uuid.uuid4().hex[:8]}",
        "SUREHAND_ARTIFACTS": str(tmp_path / "artifacts"),
        "SUREHAND_TOOL_MODULES": "tests.variants.refund_ungated",
        "SUREHAND_WORKFLOW_MODULES": "tests.e2e.code_frameworks",
        "SUREHAND_WORKER_PLUGINS": f"{PLUGINS}:framework",
    }
    verbs = Verbs(given, tmp_path, monkeypatch)
    plan = {"code": "Foreign", "input": {"order_id": order_id, "note": "x" * 1_200_000}}
    (tmp_path / "foreign.yaml").write_text(json.dumps(plan))

    with WorkerProcess(given, tmp_path / "worker") as worker:
        worker.wait_ready()
        ended = verbs("start", "foreign.yaml", "--run-id", name, "--wait")
        shown = verbs("show", name, "--json", SUREHAND_WORKER_PLUGINS="")

    assert ended.code == 0, ended
    assert shown.document()["result"]["output"] == f"https://shop.example/{order_id}"
    assert shop.counts(order_id)["refunds"] == 1
    files = [file for file in (tmp_path / "artifacts").rglob("*") if file.is_file()]
    assert max(file.stat().st_size for file in files) > 1_200_000  # by reference, as ever


COMMAND: Final = f"  python starter.py show {'r' * 120}/refund/1 --tenant {'t' * 60}"
FIELDS: Final = {str(number): "y" * 999 for number in range(99)}
ITEM: Final[dict[str, Any]] = {"kind": "approval", "id": "x", "a_person_has_to": ["x", COMMAND]}


@pytest.mark.parametrize(
    "more",
    [
        {"output": "y" * 1_000_000},
        {"steps": [{"id": f"s{number}", "output": FIELDS} for number in range(99)]},
        {"output": [[["y" * 500] * 200] * 200]},
    ],
    ids=["a long text", "many steps", "lists in lists"],
)
def test_however_much_a_run_says_the_command_for_the_person_is_whole(more: dict[str, Any]) -> None:
    shown, text = bound_document({"run_id": "r", "waiting_for": [ITEM], **more})
    assert len(text) <= LARGEST_ANSWER and json.loads(text) == shown
    assert shown["waiting_for"] == [ITEM]


def test_no_more_is_looked_at_than_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = Counter[str]()

    def plain(text: str) -> str:
        looked_at["texts"] += 1
        return text

    monkeypatch.setattr(shown_runs, "plain", plain)
    some = ["y"] * 200
    bound_document({"output": [[some] * 200] * 200})
    assert looked_at["texts"] <= 7 * LARGEST_ANSWER  # it is tried with seven sizes


def test_of_many_runs_that_wait_fewer_are_told_and_their_commands_are_whole() -> None:
    runs = [{"run_id": f"r{number}", "waiting_for": [ITEM]} for number in range(200)]
    shown, text = bound_document({"runs": runs})
    assert len(text) <= LARGEST_ANSWER
    assert shown["runs"][-1].endswith(" more")
    told = shown["runs"][:-1]
    assert told
    assert all(one["waiting_for"] == [ITEM] for one in told)


def test_what_is_too_much_in_every_way_is_said_to_be() -> None:
    deep: Any = "y" * 20
    for _ in range(9):
        deep = {str(number): deep for number in range(3)}
    shown, text = bound_document({"run_id": "r", "output": deep})
    assert shown["run_id"] == "r" and "look with the command line" in shown["too_large"]
    assert len(text) < 200


def test_nothing_in_it_is_unseen_and_lines_stay_lines() -> None:
    shown, _ = bound_document({"output": {"\u202ekey": "one\ntwo\x1b[2J\U000e0041"}})
    assert shown == {"output": {"\\u202ekey": "one\ntwo\\u001b[2J\\ue0041"}}


def test_an_error_is_one_line_with_an_end() -> None:
    assert write_error(SurehandError("a\n\tb\x1b")) == "a b\\u001b"
    assert len(write_error(SurehandError("x" * 1_000_000))) == LONGEST_ERROR
