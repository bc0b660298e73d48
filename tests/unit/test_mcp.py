"""MCP servers: what people are shown of their tools and calls, and how their programs end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final, cast

import mcp_types
import pytest
import yaml
from temporalio.exceptions import ActivityError, ApplicationError

from surehand.activities.mcp import connection
from surehand.activities.mcp.calls import McpCall, changed, in_words, sides
from surehand.activities.mcp.connection import McpConnection
from surehand.activities.mcp.server_file import (
    DEFINED,
    McpFileError,
    McpServer,
    McpTool,
    pins_of,
)
from surehand.activities.mcp.tools import mcp_tools
from surehand.activities.tools.call_reports import Answers, NeedsAnswer
from surehand.activities.tools.failures import (
    LONGEST_MESSAGE,
    FailureClass,
    NotAsReviewed,
    Permanent,
    classify,
)
from surehand.activities.tools.tool import ToolContext
from surehand.workflows.canonical_json import digest
from surehand.workflows.names import ErrorType
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.run_records import StepFailed, reason_of
from surehand.workflows.run.step_rules import waits_for_a_way_out

REVIEWED: Final[dict[str, Any]] = {
    "name": "refund",
    "description": "Refund an order.",
    "inputSchema": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    "annotations": {"readOnlyHint": False},
}


@pytest.mark.parametrize(
    ("part", "now", "said"),
    [
        ("description", "Refund.", 'description was "Refund an order." and is "Refund."'),
        ("description", 'a" and is "b', r'and is "a\" and is \"b"'),
        ("annotations", {"readOnlyHint": 0}, '{"readOnlyHint": false} and is {"readOnlyHint": 0}'),
        ("annotations", {"readOnlyHint": True}, '{"readOnlyHint": false} and is {"readOnlyHint"'),
        ("inputSchema", {"type": "object"}, 'inputSchema was {"properties": {"order_id"'),
        ("outputSchema", {"type": "object"}, 'outputSchema was nothing and is {"type": "object"}'),
    ],
)
def test_each_changed_part_is_shown_before_and_after(part: str, now: Any, said: str) -> None:
    words = in_words(REVIEWED, {**REVIEWED, part: now})
    assert words.startswith(f"{part} was ") and said in words


def test_a_change_far_into_a_long_text_is_seen() -> None:
    before, now = sides("x" * 50_000 + "pay ann", "x" * 50_000 + "pay bob" + "y" * 50_000)
    assert before.startswith("...xxx") and before.endswith('xpay ann"')
    assert "xpay bob" in now and now.endswith("...")
    assert max(len(before), len(now)) <= 120


def test_nothing_in_it_is_unseen() -> None:
    assert "\\u001b[2J\\u202e" in in_words(REVIEWED, {**REVIEWED, "description": "\x1b[2J\u202e"})


def test_what_is_said_of_all_parts_fits_into_an_error_with_the_command_at_its_end() -> None:
    now = {part: "\u202e" * 3000 + part for part in DEFINED}
    now["inputSchema"] = {"type": "object", "title": "\u202e" * 3000}
    full = f"{'s' * 40}.{'t' * 79}"
    problem = changed(full, {part: "y" * 3000 for part in DEFINED}, now)
    failure = classify(NotAsReviewed(problem))
    assert len(failure.message) < LONGEST_MESSAGE and failure.message.endswith("wait for it")
    assert f"`mcp pin {full}@{digest(now)}`" in failure.message


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (None, "does not offer it any more"),
        ({**REVIEWED, "annotations": {"number": 2**60}}, "cannot be used: value has no canonical"),
        ({"name": "refund"}, "cannot be used: its params have no schema"),
        ({**REVIEWED, "description": "x" * 70_000}, "65,536 are read"),
    ],
)
def test_an_unpinnable_change_has_no_command(offered: dict[str, Any] | None, said: str) -> None:
    problem = str(changed("shop.refund", REVIEWED, offered))
    assert said in problem and "mcp pin" not in problem


def test_what_is_as_it_was_reviewed_has_not_changed() -> None:
    assert changed("shop.refund", REVIEWED, {**REVIEWED}) is None


@pytest.mark.parametrize(
    ("error", "type_"),
    [
        (NotAsReviewed("changed"), ErrorType.NOT_AS_REVIEWED),
        (Permanent("no such order"), ErrorType.TOOL_FAILED),
    ],
)
def test_unreviewed_tools_are_for_people(error: Permanent, type_: ErrorType) -> None:
    failure = classify(error)
    assert (failure.failure_class, failure.final_type) == (FailureClass.PERMANENT, type_)


@pytest.mark.parametrize(
    ("type_", "told"),
    [
        (ErrorType.NOT_AS_REVIEWED, "NotAsReviewed: changed"),
        (ErrorType.TOOL_FAILED, "NotAsReviewed: changed (ToolFailed)"),
    ],
)
def test_why_a_call_has_failed_names_its_type_once(type_: ErrorType, told: str) -> None:
    names = dict.fromkeys(("identity", "activity_type", "activity_id"), "")
    failed = ActivityError("", scheduled_event_id=1, started_event_id=2, retry_state=None, **names)
    failed.__cause__ = ApplicationError("NotAsReviewed: changed", type=type_)
    assert reason_of(failed) == told


@pytest.mark.parametrize("on_failure", ["compensate", "continue", "pause"])
@pytest.mark.parametrize("unreviewed", [True, False])
def test_an_unreviewed_tools_step_waits(on_failure: str, unreviewed: bool) -> None:
    written = {"id": "it", "tool": "shop.refund", "on_failure": on_failure}
    plan = Plan.model_validate({"steps": [written]})
    failed = StepFailed("changed", unreviewed=unreviewed)
    waits = waits_for_a_way_out(plan, plan.step("it"), failed)
    assert waits == (unreviewed or on_failure == "pause")


TEXT: Final = {"type": "string"}
SCHEMA: Final = {
    "type": "object",
    "properties": {"path": TEXT, "content": TEXT, "mode": TEXT, "size": {"type": "integer"}},
    "required": ["path", "content", "size"],
}
PARAMS: Final = {"path": "/srv/a.txt", "content": "x" * 200, "mode": "a", "size": 3}


def pinned(folder: Path, server: str, tools: dict[str, Any], pins: Any) -> Path:
    """Return the file of one server, beside what is pinned of it."""
    file = folder / "surehand.mcp.yaml"
    written = {"servers": {server: {"command": [server], "tools": tools}}}
    file.write_text(yaml.safe_dump(written), encoding="utf-8")
    text = pins if isinstance(pins, str) else json.dumps(pins)
    pins_of(file).write_text(text, encoding="utf-8")
    return file


def headline(
    folder: Path, params: dict[str, Any], schema: dict[str, Any] = SCHEMA, **said: Any
) -> str:
    definition = {"name": "write", "description": "Harmless.", "inputSchema": schema}
    file = pinned(folder, "files", {"write": said}, {"files.write": definition})
    [tool] = mcp_tools(str(file))
    return tool.describe_call(tool.validate(params))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({}, 'path="/srv/a.txt", content="' + "x" * 90 + '"…, mode="a", size=3'),
        ({"key": "write:${params.path}:${params.size}"}, 'path="/srv/a.txt", size=3'),
        ({"key": "${params.mode}"}, 'mode="a"'),
    ],
    ids=["all", "what the key is made of", "an optional one"],
)
def test_it_names_what_the_key_is_made_of_or_all_params(
    tmp_path: Path, said: dict[str, Any], told: str
) -> None:
    assert headline(tmp_path, PARAMS, **said) == f"files.write: {told}"


def test_a_value_cannot_pass_for_another_param(tmp_path: Path) -> None:
    params = {**PARAMS, "path": '/etc/passwd", content="', "content": "\n"}
    told = 'files.write: path="/etc/passwd\\", content=\\"", content="\\n", mode="a", size=3'
    assert headline(tmp_path, params) == told


def test_without_params_it_is_the_reviewed_description(tmp_path: Path) -> None:
    assert headline(tmp_path, {}, {"type": "object"}) == "files.write: Harmless."


LINK: Final = "https://pay.example/authorise?id=7"
CALL: Final = McpCall("shop", McpServer(command=("shop",)), "refund", McpTool(), {})


class Asking:
    """A connection whose server sends people to a link before it does anything."""

    def __init__(self, link: str) -> None:
        self.link = link
        self.heard: list[Any] = []

    async def call(self, name: str, arguments: Any, meta: Any, answers: Any, state: Any) -> Any:
        self.heard.append((answers, state))
        if answers is not None:
            return mcp_types.CallToolResult(content=[])
        asked = mcp_types.ElicitRequest(
            params=mcp_types.ElicitRequestURLParams(
                message="Sign in there", url=self.link, elicitation_id="e-1"
            )
        )
        return mcp_types.InputRequiredResult(input_requests={"it": asked}, request_state="s-1")


async def asked(server: Asking, *given: tuple[str, Any]) -> Any:
    context = ToolContext(
        tenant="t",
        run_id="r",
        step_id="s",
        user="u",
        attempt=1,
        idempotency_key="k",
        answers=Answers(given),
    )
    return await CALL._sent(cast(McpConnection, server), {}, context)


@pytest.mark.parametrize("answer", ["accept", "decline"])
async def test_a_human_is_shown_the_link_and_the_server_is_told_what_they_say(answer: str) -> None:
    server = Asking(LINK)
    question = await asked(server)
    assert isinstance(question, NeedsAnswer)
    assert f"shop.refund asks to open {LINK} in a browser" in question.question
    assert question.question.endswith("It says: Sign in there")
    assert server.heard == [(None, None)]

    server = Asking(LINK)
    said = await asked(server, (question.digest, answer))
    assert isinstance(said, mcp_types.CallToolResult)
    assert server.heard[1:] == [({"it": {"action": answer}}, "s-1")]


async def test_another_link_in_the_place_of_an_answered_one_is_asked_anew() -> None:
    first = await asked(Asking(LINK))
    server = Asking("https://evil.example/authorise?id=7")
    again = await asked(server, (first.digest, "accept"))
    assert isinstance(again, NeedsAnswer) and "evil.example" in again.question
    assert server.heard == [(None, None)]


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "file:///etc/passwd", "https://x\u202ey", f"https://{'x' * 2000}"],
)
async def test_what_is_no_link_is_asked_of_nobody(link: str) -> None:
    with pytest.raises(Permanent, match="no link"):
        await asked(Asking(link))


#: Each starts another program, and says which.
ENDS: str = "sleep 600 & echo $! > started; cat > /dev/null"
STAYS: str = "trap '' TERM; sleep 600 & echo $! > started; while true; do sleep 600; done"


def runs(number: int) -> bool:
    """Return whether a process is there, and not only what nobody has asked about."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("script", [ENDS, STAYS], ids=["ends by itself", "hears nothing"])
async def test_what_a_server_has_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(connection, "_GRACE", 0.3)
    monkeypatch.chdir(tmp_path)
    started = tmp_path / "started"
    async with connection.program(["/bin/sh", "-c", script], {"PATH": os.environ["PATH"]}):
        while not started.exists() or not started.read_text(encoding="utf-8").strip():
            await connection.asyncio.sleep(0.01)
        child = int(started.read_text(encoding="utf-8"))
        assert runs(child)
    assert not runs(child)


async def test_a_server_that_leaves_nothing_behind_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_GRACE", 60.0)
    began = time.monotonic()
    async with connection.program(
        ["/bin/sh", "-c", "cat > /dev/null"], {"PATH": os.environ["PATH"]}
    ):
        pass
    assert time.monotonic() - began < 30


def test_what_a_server_says_of_its_tool_makes_no_read_of_it(tmp_path: Path) -> None:
    hints = {"readOnlyHint": True}
    definition = {"name": "find", "inputSchema": {"type": "object"}, "annotations": hints}
    file = pinned(tmp_path, "shop", {"find": {}}, {"shop.find": definition})
    [tool] = mcp_tools(str(file))
    assert tool.effect == "WRITE" and tool.approval is not None


RETURNED: Final = {
    "properties": {
        "notes": {"items": {"properties": {"id": {}}}},
        "either": {"properties": {}, "oneOf": [{"properties": {"id": {}}}, True]},
        "open": {"properties": {}, "additionalProperties": {}},
    }
}
LOOKUP: Final = {"tool": "find", "found": "output.notes[0].id == key"}


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"key": "note:${params.text}", "lookup": LOOKUP}, None),
        ({"key": "note:${params.txt}"}, "key: params.txt: there is no 'txt'; did you mean 'text'?"),
        (
            {"lookup": {**LOOKUP, "found": "output.nots != []"}},
            "lookup.found: output.nots: there is no 'nots'; did you mean 'notes'?",
        ),
        (
            {"lookup": {**LOOKUP, "not_found": "receipt == null"}},
            "lookup.not_found: receipt: there is no 'receipt'; there are: params, key, output",
        ),
        (
            {"lookup": {**LOOKUP, "params": {"text": "${params.id}"}}},
            "lookup.params: params.id: there is no 'id'; there are: text",
        ),
        ({"lookup": {**LOOKUP, "found": "output.either.id == key"}}, None),
        ({"lookup": {**LOOKUP, "found": "output.open.id == key"}}, None),
        ({"lockup": LOOKUP}, "lockup: unknown field; did you mean 'lookup'?"),
    ],
)
def test_a_field_of_the_file_that_names_what_is_not_there_is_refused_when_it_is_loaded(
    tmp_path: Path, said: dict[str, Any], wrong: str | None
) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    add, find = ({"name": name, "inputSchema": schema} for name in ("add", "find"))
    pins = {"desk.add": add, "desk.find": {**find, "outputSchema": RETURNED}}
    file = pinned(tmp_path, "desk", {"find": {"effect": "read"}, "add": said}, pins)
    problem = None
    try:
        mcp_tools(str(file))
    except McpFileError as error:
        problem = str(error)
    assert problem == (wrong and f"{file}: servers.desk.tools.add.{wrong}")


@pytest.mark.parametrize("held", ["[]", '{"shop.find": 7}', '{"shop.find": {"size": NaN}}'])
def test_pins_that_hold_no_definitions_are_refused_in_one_line(tmp_path: Path, held: str) -> None:
    file = pinned(tmp_path, "shop", {"find": {}}, held)
    with pytest.raises(McpFileError, match="holds no definitions; remove it, and pin again"):
        mcp_tools(str(file))
