"""What is between us and a server says nothing of what the server has done."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx2
import pytest

from surehand.activities.mcp.connection import NotAnswered, _bounded

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}
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
        return await client.post(url, json={**CALL, "method": method})


@pytest.mark.parametrize("body", [b"<h1>Not Found</h1>", b'{"error": "not found"}', b""])
async def test_a_404_of_a_gateway_is_no_answer_to_a_call(
    gateway: tuple[str, list[bytes]], body: bytes
) -> None:
    url, bodies = gateway
    bodies += [body, body]
    with pytest.raises(NotAnswered, match="HTTP 404"):
        await asked(url, "tools/call")
    assert (await asked(url, "server/discover")).status_code == 404


async def test_a_servers_own_refusal_is_an_answer(gateway: tuple[str, list[bytes]]) -> None:
    url, bodies = gateway
    bodies.append(json.dumps(REFUSED).encode())
    assert (await asked(url, "tools/call")).json() == REFUSED
