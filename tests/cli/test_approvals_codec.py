"""The approvers' pages and the codec server in one process: two origins that share nothing."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any, Final

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from surehand.process.children import Child
from surehand.process.exits import ExitCode
from surehand.workflows.payload_codec import ENCODING_KEY, ENCRYPTED
from tests.cli.starter import Starter, Verbs
from tests.conftest import KEYS

UI: Final = "http://localhost:8080"
PLAIN: Final = Payload(metadata={ENCODING_KEY: b"json/plain"}, data=b'{"secret": 1}')


@dataclass(frozen=True)
class Both:
    """A process that serves both."""

    process: Child
    pages: str
    codec: str | None
    starter: Starter
    tokens: Path

    def token(self, right: str) -> str:
        done = self.starter("codec", "token", str(self.tokens), "--right", right, "--json")
        assert done.code == 0, done.err
        return str(done.document()["token"])

    def ask(self, what: str, payload: Payload, token: str, **headers: str) -> httpx.Response:
        given = {"authorization": f"Bearer {token}", **headers}
        body: dict[str, Any] = json_format.MessageToDict(Payloads(payloads=[payload]))
        return httpx.post(f"{self.codec}/{what}", json=body, headers=given)


@contextmanager
def serving(settings: dict[str, str], folder: Path) -> Iterator[Both]:
    starter, tokens = Starter(settings, folder), folder / "tokens"
    serve = [
        *("approvals", "serve", "--http", "127.0.0.1:0", "--state", str(folder / "state")),
        *("--codec", "127.0.0.1:0", "--codec-tokens", str(tokens), "--codec-origin", UI),
    ]
    with starter.child(folder / "approvals.log", *serve) as process:
        process.wait_said("approvals at")
        process.wait_said("codec server")
        said = process.output()
        pages = re.search(r"approvals at (\S+)", said)
        codec = re.search(r"codec server at (\S+)", said)
        assert pages is not None
        yield Both(process, pages[1], None if codec is None else codec[1], starter, tokens)


@pytest.fixture
def settings(ledger_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        "SUREHAND_DATABASE_URL": ledger_url,
        "SUREHAND_ARTIFACTS": str(tmp_path / "artifacts"),
        "SUREHAND_KEY_ENCRYPTION_KEYS": KEYS,
    }


@pytest.fixture
def verbs(settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs(settings, tmp_path, monkeypatch)


@pytest.fixture
def both(settings: dict[str, str], tmp_path: Path) -> Iterator[Both]:
    with serving(settings, tmp_path) as both:
        yield both


def listens(url: str) -> bool:
    parts = httpx.URL(url)
    with socket.socket() as tried:
        return tried.connect_ex((parts.host, parts.port or 80)) == 0


@pytest.mark.slow
def test_one_process_serves_both_and_a_token_counts_once_it_is_made(both: Both) -> None:
    assert both.ask("encode", PLAIN, "none-yet").status_code == 401
    writer, reader = both.token("write"), both.token("read")
    made = both.ask("encode", PLAIN, writer)
    assert made.status_code == 200, made.text
    [encrypted] = json_format.ParseDict(made.json(), Payloads()).payloads
    assert encrypted.metadata[ENCODING_KEY] == ENCRYPTED
    told = both.ask("decode", encrypted, reader, origin=UI)
    [read] = json_format.ParseDict(told.json(), Payloads()).payloads
    assert read.data == PLAIN.data
    assert told.headers["access-control-allow-origin"] == UI
    assert both.ask("encode", PLAIN, reader).status_code == 403
    assert httpx.get(f"{both.pages}/health").json() == {"ok": True}


@pytest.mark.slow
def test_neither_server_answers_for_the_other_and_sign_ins_stay_apart(both: Both) -> None:
    assert both.codec is not None
    token = both.token("read")
    link = both.starter(
        "approvals",
        "link",
        "--as",
        "ann",
        "--state",
        str(both.process.log.parent / "state"),
        "--json",
    )
    secret = link.document()["link"].partition("#")[2]
    with httpx.Client() as browser:  # one jar: cookies know no ports
        own = {"origin": both.pages, "sec-fetch-site": "same-origin"}
        signed_in = browser.post(f"{both.pages}/sign-in", json={"token": secret}, headers=own)
        assert signed_in.status_code == 200
        assert browser.get(f"{both.pages}/").status_code == 200
        body = json_format.MessageToDict(Payloads(payloads=[PLAIN]))
        for url in (both.codec, both.pages):
            # As the approver: no token, and from where the pages are, or the Web UI.
            for origin in (both.pages, UI):
                told = browser.post(f"{url}/decode", json=body, headers={"origin": origin})
                assert told.status_code in (401, 403, 404)
    with httpx.Client(headers={"authorization": f"Bearer {token}"}) as reader:
        assert reader.get(f"{both.pages}/").status_code == 401
        asked = reader.options(
            f"{both.pages}/decode", headers={"origin": UI, "access-control-request-method": "POST"}
        )
        assert "access-control-allow-origin" not in asked.headers
    assert "frame-ancestors 'none'" in httpx.get(both.pages).headers["content-security-policy"]


@pytest.mark.slow
def test_one_signal_ends_both(both: Both) -> None:
    assert both.codec is not None
    assert [listens(url) for url in (both.pages, both.codec)] == [True, True]
    assert both.process.stop(SIGTERM) == 0, both.process.output()
    assert "Traceback" not in both.process.output()
    assert [listens(url) for url in (both.pages, both.codec)] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("how", [SIGINT, SIGTERM], ids=lambda how: how.name)
def test_early_signals_end_it_well(settings: dict[str, str], tmp_path: Path, how: Signals) -> None:
    serve = ["approvals", "serve", "--http", "127.0.0.1:0", "--state", str(tmp_path / "state")]
    with Starter(settings, tmp_path).child(tmp_path / "approvals.log", *serve) as process:
        process.wait_said("approvals at")

        assert process.stop(how) == 0
        assert len(process.output().splitlines()) == 1


def test_without_encryption_only_pages_are_served(settings: dict[str, str], tmp_path: Path) -> None:
    with serving({**settings, "SUREHAND_KEY_ENCRYPTION_KEYS": ""}, tmp_path) as both:
        assert both.codec is None
        assert "nothing to decrypt with" in both.process.output()
        assert httpx.get(f"{both.pages}/sign-in").status_code == 200


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--codec", "127.0.0.1:0"], "--codec-tokens FILE"),
        (["--codec-tokens", "tokens"], "--codec HOST:PORT"),
        (["--codec-origin", UI], "--codec HOST:PORT"),
        (["--codec", "here", "--codec-tokens", "tokens"], "--codec here"),
        (
            ["--codec", "127.0.0.1:0", "--codec-tokens", "t", "--codec-origin", "x"],
            "--codec-origin x",
        ),
    ],
)
def test_a_half_configured_codec_is_refused(verbs: Verbs, more: list[str], what: str) -> None:
    done = verbs("approvals", "serve", "--http", "127.0.0.1:0", *more)
    assert done.code == ExitCode.WRONG_USE
    assert what in done.line()


def test_where_one_address_is_taken_neither_is_served(verbs: Verbs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        more = ["--codec", address, "--codec-tokens", "tokens"]
        done = verbs("approvals", "serve", "--http", "127.0.0.1:0", *more)
    assert done.code == ExitCode.NOT_REACHABLE
    assert f"--codec {address}" in done.err
    assert "approvals at" not in done.err
