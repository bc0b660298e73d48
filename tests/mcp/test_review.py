"""The file, its calls, and what servers may offer; nothing of it needs Temporal."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml

from surehand.activities.mcp import calls
from surehand.activities.mcp.connection import NotAnswered, _bounded
from surehand.activities.mcp.server_file import McpFileError, pins_of, read_file
from surehand.activities.mcp.tools import look_for_changes, mcp_tools
from surehand.activities.tools.failures import DependencyDown, NotAsReviewed, OutcomeUnknown
from surehand.activities.tools.tool import Found, ToolContext, Unknown
from surehand.activities.worker.settings import Settings
from surehand.cli import app, doctor
from surehand.cli.doctor import Check
from surehand.process.children import Child, clean_environment
from surehand.process.dev_server import free_ports
from tests.mcp.conftest import REFUND, ROOT, McpShop

CALL: Final = {"order_id": "o-1", "amount": 1}
CONTEXT: Final = ToolContext(
    tenant="t", run_id="r", step_id="s", user="u", attempt=1, idempotency_key="key-1"
)


async def call(shop: McpShop, name: str, params: dict[str, Any]) -> Any:
    [tool] = [one for one in mcp_tools(str(shop.file)) if one.name == name]
    return await tool.fn(tool.validate(params), CONTEXT)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("servers: {shop: {tools: {}}}", "servers.shop: has either url or command"),
        ("servers: {shop: {command: [a], url: 'http://x', tools: {}}}", "either url or command"),
        ("servers: {shop: {command: [a], tools: {x: {efect: read}}}}", "x.efect: unknown field"),
        ("servers: {shop: {command: [a], tools: {x: {}, x: {}}}}", "'x' is written twice"),
        ("servers: {shop: {url: 'http://x', bearer: secret}}", "servers.shop.bearer: must be"),
        ("servers: {shop: {command: [a], tools: {x: {key: 'a:${order}'}}}}", "begin it with"),
        ("servers: {shop: {command: [a], tools: {x: {}}}}", "tools.x: has no pin"),
    ],
)
def test_a_mistake_in_the_file_names_its_place(tmp_path: Path, written: str, said: str) -> None:
    file = tmp_path / "surehand.mcp.yaml"
    file.write_text(written, encoding="utf-8")
    with pytest.raises(McpFileError) as error:
        mcp_tools(str(file))
    assert said in str(error.value)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(McpFileError, match="No such file"):
        mcp_tools(str(tmp_path / "none.yaml"))


async def test_what_is_left_out_is_taken_for_the_worst(mcp_shop: McpShop) -> None:
    await mcp_shop.pin(create_refund={}, find_refunds={"effect": "read"})
    refund, find = mcp_tools(str(mcp_shop.file))
    assert (refund.effect, refund.recovery, refund.irreversible) == ("WRITE", "human", True)
    assert refund.approval is not None and not refund.approval.standing
    assert (find.effect, find.approval) == ("READ", None)
    pin = (await mcp_shop.seen())["shop.create_refund"].pin
    assert pin is not None and refund.version in pin


async def test_a_tool_whose_pin_was_changed_is_not_called(mcp_shop: McpShop) -> None:
    await mcp_shop.pin(create_refund=REFUND)
    file = pins_of(mcp_shop.file)
    file.write_text(file.read_text().replace("Refund an order", "Refund all"), encoding="utf-8")
    with pytest.raises(NotAsReviewed, match="description was"):
        await call(mcp_shop, "shop.create_refund", CALL)
    assert mcp_shop.made() == []


async def test_pinning_leaves_the_file_as_it_is_and_forgets_what_it_names_no_more(
    mcp_shop: McpShop,
) -> None:
    await mcp_shop.pin(create_refund=REFUND, find_refunds={"effect": "read"})
    mcp_shop.say(create_refund=REFUND, paint={})
    written = mcp_shop.file.read_text()
    await mcp_shop.pin()
    assert mcp_shop.file.read_text() == written
    assert set(read_file(mcp_shop.file).definitions) == {"shop.create_refund", "shop.paint"}
    assert await look_for_changes(str(mcp_shop.file)) == []


def schema(**more: Any) -> dict[str, str]:
    return {"schema": json.dumps({"type": "object", **more})}


CIRCLE: Final = {"a": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"description": "x" * 10_000_000}, "bytes"),
        (schema(properties={"a": {"pattern": "(a{1,999}){1,999}"}}), ""),
        (schema(**{"$ref": "#/$defs/a", "$defs": CIRCLE}), ""),
        (schema(**{"$ref": "http://127.0.0.1:1/schema"}), "not in it"),
    ],
    ids=["10 MB of description", "a huge pattern", "a circle", "a reference elsewhere"],
)
async def test_a_definition_that_is_a_bomb_cannot_be_pinned(
    mcp_shop: McpShop, how: dict[str, str], said: str
) -> None:
    name = "create_refund" if "description" in how else "find_refunds"
    mcp_shop.say(**{name: {"effect": "read"}})
    mcp_shop.behave(**how)
    seen = (await mcp_shop.seen())[f"shop.{name}"]
    assert seen.state == "unusable" and seen.digest is None
    assert said in str(seen.problem)


async def test_control_characters_of_a_description_are_shown_and_not_sent_to_a_terminal(
    mcp_shop: McpShop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mcp_shop.say(create_refund=REFUND)
    mcp_shop.behave(description="Refund\x1b[2J\u202e an order.")
    await mcp_shop.pin()
    [tool] = mcp_tools(str(mcp_shop.file))
    assert tool.description == "Refund\\u001b[2J\\u202e an order."


async def test_an_output_over_4_mib_is_cut_by_its_bytes(mcp_shop: McpShop) -> None:
    await mcp_shop.pin(create_refund=REFUND)
    mcp_shop.behave(floods=str(2_200_000))  # characters, of two bytes each
    output = await call(mcp_shop, "shop.create_refund", CALL)
    assert output["too_large"] > 4_400_000
    assert output["begins"].startswith('{"id": "ää')
    assert len(output["begins"]) < 2000


async def test_a_cut_lookup_does_not_say_that_nothing_happened(mcp_shop: McpShop) -> None:
    params = {"order_id": "${params.order_id}"}
    lookup = {"tool": "find_refunds", "params": params, "found": "'note' in output"}
    rule = {**lookup, "settle": "1s"}
    await mcp_shop.pin(create_refund={**REFUND, "lookup": rule}, find_refunds={"effect": "read"})
    [tool] = [one for one in mcp_tools(str(mcp_shop.file)) if one.lookup is not None]
    assert tool.lookup is not None
    assert isinstance(await tool.lookup(tool.validate(CALL), CONTEXT), Found)
    mcp_shop.behave(tells="ä" * 2_200_000)
    assert isinstance(await tool.lookup(tool.validate(CALL), CONTEXT), Unknown)


async def test_of_a_server_with_tools_beyond_measure_none_is_called(mcp_shop: McpShop) -> None:
    await mcp_shop.pin(create_refund=REFUND)
    mcp_shop.behave(crowd="1001")
    with pytest.raises(DependencyDown, match="more than 1000 tools"):
        await call(mcp_shop, "shop.create_refund", CALL)
    assert mcp_shop.made() == []
    offered = await calls.ask_servers(read_file(mcp_shop.file))
    assert "more than 1000 tools" in offered.silent["shop"]


async def test_a_server_that_does_not_start_was_not_called(mcp_shop: McpShop) -> None:
    await mcp_shop.pin(create_refund=REFUND)
    text = mcp_shop.file.read_text().replace("warm.py", "nothing.py")
    mcp_shop.file.write_text(text, encoding="utf-8")
    with pytest.raises(DependencyDown, match="cannot be reached"):
        await call(mcp_shop, "shop.create_refund", CALL)


def test_the_verbs_list_what_is_offered_pin_it_and_show_what_has_changed(
    mcp_shop: McpShop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHAND_MCP", str(mcp_shop.file))
    mcp_shop.say(create_refund=REFUND)

    def verb(*argv: str) -> tuple[int, Any]:
        code = app.run(["mcp", *argv, "--json"])
        return code, json.loads(capsys.readouterr().out)

    states = {one["tool"]: one["state"] for one in verb("list")[1]["tools"]}
    assert states["shop.create_refund"] == "not pinned"
    assert states["shop.paint"] == "refused"
    assert list(verb("pin")[1]["pinned"]) == ["shop.create_refund"]
    code, same = verb("list")
    assert (code, same["changes"], same["silent"]) == (0, [], {})
    mcp_shop.behave(description="Refund twice.")
    code, changed = verb("list")
    assert code == 3
    [change] = changed["changes"]
    assert (change["part"], change["reviewed"], change["offered"]) == (
        "description",
        "Refund an order.",
        "Refund twice.",
    )
    assert verb("pin")[1]["pinned"] == {}, "what has changed has to be named"
    assert list(verb("pin", "shop.create_refund")[1]["pinned"]) == ["shop.create_refund"]
    assert verb("list")[0] == 0
    mcp_shop.behave(description="x" * 70_000)
    assert verb("list")[0] == 3, "what cannot be pinned has changed, too"


def test_what_was_not_shown_is_not_pinned(
    mcp_shop: McpShop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SUREHAND_MCP", str(mcp_shop.file))
    mcp_shop.say(create_refund=REFUND)

    def verb(*argv: str) -> tuple[int, str]:
        code = app.run(["mcp", *argv])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    def pinned() -> Any:
        return read_file(mcp_shop.file).definitions["shop.create_refund"]["description"]

    assert "refused: the file does not name it: say there what it does" in verb("list")[1]
    code, said = verb("pin")
    assert code == 0 and "no server that answers offers it" not in said
    assert f"Nothing to pin: {mcp_shop.file} names no tool without a pin" in verb("pin")[1]
    assert "did you mean 'shop.create_refund'?" in verb("pin", "shop.create_refunds")[1]
    mcp_shop.behave(description="Refund twice.")
    [command] = [line for line in verb("list")[1].splitlines() if "mcp pin" in line]
    shown = command.rpartition(" ")[2]
    assert shown.startswith("shop.create_refund@sha256:")
    mcp_shop.behave(description="Refund all.")
    code, said = verb("pin", shown)
    assert code == 2 and "now, not sha256:" in said
    assert pinned() != "Refund twice."
    mcp_shop.behave(description="Refund twice.")
    assert verb("pin", shown)[0] == 0
    assert pinned() == "Refund twice."
    mcp_shop.say(create_refund=REFUND, refund_later=REFUND)
    code, said = verb("pin")
    assert (code, pinned()) == (0, "Refund twice.")
    assert "surehand: shop.refund_later: no server that answers offers it" in said


async def test_a_worker_waits_for_a_silent_server_for_a_time_of_its_own(
    mcp_shop: McpShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "LOOK_AT_START", 0.1)
    monkeypatch.setattr(calls, "LOOK", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        mcp_shop.file.write_text(f"servers: {{shop: {{url: '{url}'}}}}\n", encoding="utf-8")
        async with asyncio.timeout(60):
            assert await look_for_changes(str(mcp_shop.file)) == [
                "shop: cannot be asked: TimeoutError"
            ]


async def test_a_server_without_allowed_tools_stops_no_pinning(mcp_shop: McpShop) -> None:
    mcp_shop.say(create_refund=REFUND)
    text = mcp_shop.file.read_text(encoding="utf-8")
    mcp_shop.file.write_text(f"{text}  idle: {{url: 'http://127.0.0.1:1/mcp'}}\n", encoding="utf-8")
    reviewed = read_file(mcp_shop.file)
    offered = await calls.ask_servers(reviewed)
    assert list(offered.silent) == ["idle"]
    calls.write_pins(reviewed, [one for one in offered.tools if one.said is not None])
    assert [one.name for one in mcp_tools(str(mcp_shop.file))] == ["shop.create_refund"]


@pytest.fixture
def over_http(mcp_shop: McpShop) -> Iterator[Child]:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.mcp.served", str(port), str(mcp_shop.folder)]
    environment = clean_environment({"PYTHONPATH": str(ROOT)})
    tools = {"create_refund": REFUND, "find_refunds": {"effect": "read"}}
    server = {"url": f"http://127.0.0.1:{port}/mcp", "bearer": "env:SHOP_TOKEN", "tools": tools}
    mcp_shop.file.write_text(yaml.safe_dump({"servers": {"shop": server}}), encoding="utf-8")
    with Child(command, environment=environment, log=mcp_shop.folder / "log") as child:
        child.wait_said("Uvicorn running")
        yield child


async def test_over_http_a_lost_reply_of_a_write_is_in_doubt_and_never_sent_again(
    mcp_shop: McpShop, over_http: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "token-of-the-shop")
    await mcp_shop.pin()
    assert (await call(mcp_shop, "shop.create_refund", CALL))["id"] == "re-o-1"
    found = await call(mcp_shop, "shop.find_refunds", {"order_id": "o-1", "key": "key-1"})
    assert len(found["refunds"]) == 1
    mcp_shop.behave(dies="yes")
    with pytest.raises(OutcomeUnknown, match="its answer is lost"):
        await call(mcp_shop, "shop.create_refund", {"order_id": "o-2", "amount": 1})
    assert [one["order_id"] for one in mcp_shop.made()] == ["o-1", "o-2"]
    with pytest.raises(DependencyDown):
        await call(mcp_shop, "shop.create_refund", {"order_id": "o-3", "amount": 1})


async def test_a_missing_token_is_one_clear_refusal(
    mcp_shop: McpShop, over_http: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_TOKEN", raising=False)
    offered = await calls.ask_servers(read_file(mcp_shop.file))
    assert "SHOP_TOKEN is not set" in offered.silent["shop"]


@pytest.mark.slow
def test_nothing_imports_the_sdk_unless_it_is_asked_for() -> None:
    code = "import sys, surehand.worker, surehand.cli.app; sys.exit('mcp' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


async def test_doctor_tells_of_servers_and_pins(mcp_shop: McpShop) -> None:
    async def looked() -> Check:
        settings = Settings(database_url="sqlite:///x", mcp=str(mcp_shop.file))
        [found] = await doctor._mcp_servers(settings, doctor._tools(settings))
        assert found.name == "MCP server shop"
        return found

    await mcp_shop.pin(create_refund=REFUND, find_refunds={"effect": "read"})
    well = await looked()
    assert (well.ok, well.detail) == (True, "answers; 2 tools, as reviewed")

    mcp_shop.behave(description="Refund an order, twice.")
    other = await looked()
    assert (other.ok, other.detail) == (False, "shop.create_refund: changed")
    assert [line.split("mcp ")[1] for line in other.commands] == [
        "list",
        f"pin shop.create_refund@{(await mcp_shop.seen())['shop.create_refund'].digest}",
    ]

    written = yaml.safe_load(mcp_shop.file.read_text())
    written["servers"]["shop"]["command"] = [sys.executable, "-c", "raise SystemExit(1)"]
    mcp_shop.file.write_text(yaml.safe_dump(written))
    silent = await looked()
    assert not silent.ok and "cannot be asked" in silent.detail
    assert f"mend servers.shop in {mcp_shop.file}" in silent.fix


# What is between us and a server says nothing of what the server has done.


REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}
REFUSED = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no such tool"}}


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each request with 404 and the body that comes next."""
    bodies = list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(404)
            self.end_headers()
            self.wfile.write(bodies.pop(0))

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


async def asked(url: str, method: str) -> httpx2.Response:
    async with httpx2.AsyncClient(event_hooks={"response": [_bounded]}) as client:
        return await client.post(url, json={**REQUEST, "method": method})


@pytest.mark.parametrize("body", [b"<h1>Not Found</h1>", b'{"error": "not found"}', b""])
async def test_a_gateways_404_is_no_answer(gateway: tuple[str, list[bytes]], body: bytes) -> None:
    url, bodies = gateway
    bodies += [body, body]
    with pytest.raises(NotAnswered, match="HTTP 404"):
        await asked(url, "tools/call")
    assert (await asked(url, "server/discover")).status_code == 404


async def test_a_servers_own_refusal_is_an_answer(gateway: tuple[str, list[bytes]]) -> None:
    url, bodies = gateway
    bodies.append(json.dumps(REFUSED).encode())
    assert (await asked(url, "tools/call")).json() == REFUSED
