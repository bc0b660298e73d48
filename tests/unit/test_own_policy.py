"""What a policy of the user's own says of a call, and everything that is no answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from surehand.activities.ledger.limits import PolicyAnswer
from surehand.activities.limits_file import AskedPolicy, LimitsError
from surehand.activities.own_policy import read_policy
from surehand.activities.tools.toolbox import load_toolbox
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "howto" / "own-policies.md"

FACTS = {
    "tenant": "acme", "run": "acme/r-1", "step": "refund", "tool": "payments.refund",
    "tool_version": "1", "user": 'ana" or true //', "params_hash": "sha256:1",
    "params": {"order_id": "o-1"}, "millionths": {"amount": 50_000_000},
}  # fmt: skip


class Opa(BaseHTTPRequestHandler):
    """Answers as OPA's Data API is documented to: a real server needs a build of Go.

    ``POST /v1/data/PATH`` with ``{"input": ...}`` gives ``{"result": ...}``; without ``result`` the
    rule is undefined.
    """

    answer: Callable[[dict[str, Any]], Any]
    asked: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        type(self).asked.append((self.path, body))
        said = type(self).answer(body["input"])
        status = 200
        if isinstance(said, int):
            status, said = said, {}
        raw = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("location", "/v1/data/yes")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def opa(answer: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[str, type[Opa]]]:
    handler = type("Handler", (Opa,), {"answer": staticmethod(answer), "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/data/surehand/call", handler
    finally:
        server.shutdown()
        server.server_close()


def policy_of(folder: Path, **policy: Any) -> Any:
    file = folder / "limits.yaml"
    file.write_text(yaml.safe_dump({"policy": policy}))
    return read_policy(str(file), load_toolbox(("surehand.examples.shop.tools",)))


async def answer_of(folder: Path, **policy: Any) -> PolicyAnswer:
    found = policy_of(folder, **policy)
    assert found is not None
    answer: PolicyAnswer = await found.answer(FACTS)
    return answer


def says(answer: str, **more: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda asked: {
        "result": {"answer": answer, "question": asked["question"], "version": "v1", **more}
    }


@pytest.mark.parametrize("said", ["allow", "ask", "refuse"])
async def test_what_opa_says_is_told_with_its_reasons_and_version(
    tmp_path: Path, said: str
) -> None:
    with opa(says(said, reasons=["too much", "at night"])) as (url, server):
        found = await answer_of(tmp_path, opa=url)
    assert found == PolicyAnswer(said, "too much; at night", "v1", FACTS)  # type: ignore[arg-type]
    [(path, body)] = server.asked
    assert path == "/v1/data/surehand/call"
    assert len(body["input"].pop("question")) == 32
    assert body == {"input": FACTS}


def slowly(_: dict[str, Any]) -> Any:
    time.sleep(2)
    return {}


NOT_A_YES: dict[str, tuple[Any, str]] = {
    "undefined": ({}, "undefined or malformed: result"),
    "null": ({"result": None}, "undefined or malformed: result"),
    "bare true": ({"result": True}, "undefined or malformed: result"),
    "a text": (b"allow", "is not JSON text"),
    "no object": (b"[true]", "is not a JSON object"),
    "cut off": (b'{"result": {"answer": "all', "is not JSON text"),
    "of another question": (
        {"result": {"answer": "allow", "question": "0" * 32, "version": "v1"}},
        "is to another question",
    ),
    "of no question": (
        {"result": {"answer": "allow", "version": "v1"}}, "malformed: result.question",
    ),
    "twice": (
        b'{"result": {"answer": "refuse"}, "result": {"answer": "allow"}}', "has a name twice",
    ),
    "another word": (says("yes"), "malformed: result.answer"),
    "another type": (says("allow", reasons="none"), "malformed: result.reasons"),
    "of no version": (says("allow", version=""), "malformed: result.version"),
    "too long": (b" " * 70_000, "is longer than 65536 bytes"),
    "an error": (500, "OPA has answered 500"),
    "no rule": (404, "OPA has answered 404"),
    "elsewhere": (307, "OPA has answered 307"),
    "late": (slowly, "has not answered within 0.5 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_A_YES)
async def test_what_is_no_answer_is_no_yes(tmp_path: Path, name: str) -> None:
    answer, why = NOT_A_YES[name]
    with opa(answer if callable(answer) else lambda _: answer) as (url, _):
        found = await answer_of(tmp_path, opa=url, timeout="500ms")
    assert found.said == "none" and why in found.reasons


class Trickling(Opa):
    """Sends a byte now and then: no wait for one of them is too long."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(30):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.1)


async def test_a_server_that_trickles_is_waited_for_no_longer(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Trickling)
    server.daemon_threads, server.block_on_close = True, False
    Thread(target=server.serve_forever, daemon=True).start()
    url, began = f"http://127.0.0.1:{server.server_port}/v1/data/call", time.monotonic()
    found = await answer_of(tmp_path, opa=url, timeout="500ms")
    took = time.monotonic() - began
    server.shutdown()
    server.server_close()
    assert found.said == "none" and "within 0.5 s" in found.reasons
    assert took < 2.5


async def test_a_server_that_is_away_says_nothing(tmp_path: Path) -> None:
    with opa(says("allow")) as (url, _):
        pass
    found = await answer_of(tmp_path, opa=url)
    assert (found.said, found.version) == ("none", "none")
    assert "OPA does not answer" in found.reasons


CEDAR = """
permit (principal == User::"ana\\" or true //", action == Action::"call", resource)
when { context.millionths.amount <= 50000000 };
permit (principal, action == Action::"ask", resource == Tool::"payments.refund")
when { context.millionths.amount <= 90000000 };
"""


async def cedar(folder: Path, text: str, **changes: Any) -> PolicyAnswer:
    (folder / "calls.cedar").write_text(text)
    found = policy_of(folder, cedar="calls.cedar")
    answer: PolicyAnswer = await found.answer({**FACTS, **changes})
    return answer


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "allow"),
        ({"user": "ana"}, "ask"),
        ({"millionths": {"amount": 50_000_001}}, "ask"),
        ({"millionths": {"amount": 90_000_001}}, "refuse"),
        ({"tool": "mail.send", "user": "ana"}, "refuse"),
        ({"millionths": {}}, "none"),  # the policy fails
        ({"params": {"note": None}}, "none"),
        ({"params": {"rate": 0.5}}, "none"),
    ],
)
async def test_what_cedars_policies_say(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    found = await cedar(tmp_path, CEDAR, **changes)
    assert found.said == said
    assert found.version.startswith("sha256:") or said == "none"


@pytest.mark.parametrize(
    ("amount", "tool", "said"),
    [
        (50_000_000, "mail.send", "allow"),
        (50_000_001, "payments.refund", "ask"),
        (50_000_001, "mail.send", "refuse"),
    ],
)
async def test_the_cedar_of_the_page_says_what_the_page_says(
    tmp_path: Path, amount: int, tool: str, said: str
) -> None:
    [shown] = [one.text for one in blocks(PAGE) if one.language == "cedar"]
    found = await cedar(tmp_path, shown, tool=tool, millionths={"amount": amount})
    assert found.said == said


async def test_a_cedar_policy_that_forbids_and_fails_is_not_passed_over(tmp_path: Path) -> None:
    forbids = 'forbid (principal, action, resource) when { context.params.country == "XX" };'
    found = await cedar(tmp_path, CEDAR + forbids)
    assert found.said == "none" and "country" in found.reasons


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({}, "say either opa or cedar"),
        ({"opa": "http://h/v1/data/x", "cedar": "x"}, "say either opa or cedar"),
        ({"opa": "http://me:secret@h/v1/data/x"}, "policy.opa: "),
        ({"opa": "http://h/v1/policies/x"}, "policy.opa: "),
        ({"opa": "http://h/v1/data/x", "timeout": "11s"}, "policy.timeout: "),
        ({"opa": "http://h/v1/data/x", "tools": ["no.tool"]}, "no.tool: it is not loaded here"),
        ({"opa": "http://h/v1/data/x", "tools": ["orders.read"]}, "it only reads"),
        (
            {"opa": "http://h/v1/data/x", "tools": ["payments.refund"], "params": ["customer"]},
            "payments.refund: it has no param customer",
        ),
        (
            {"opa": "http://h/v1/data/x", "params": ["customer"]},
            "policy: no tool has a param custo",
        ),
        ({"cedar": "none.cedar"}, "policy.cedar: "),
        ({"cedar": "limits.yaml"}, "policy.cedar: "),  # which is no Cedar
    ],
)
def test_what_is_wrong_with_a_policy_is_said_before_anything_runs(
    tmp_path: Path, policy: dict[str, Any], said: str
) -> None:
    with pytest.raises(LimitsError, match=r"limits file .*limits.yaml: ") as found:
        policy_of(tmp_path, **policy)
    assert said in str(found.value)


def test_without_a_policy_nobody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text("limits: []")
    toolbox = load_toolbox(())
    assert read_policy(str(tmp_path / "limits.yaml"), toolbox) is None
    assert read_policy("", toolbox) is None
    assert AskedPolicy(cedar="x").timeout == timedelta(seconds=2)
