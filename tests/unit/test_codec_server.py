"""The codec server: who may read what, and nothing is told of other tenants' runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import DataConverter, WorkflowSerializationContext

from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import run_keys
from surehand.activities.run_keys import LedgerKeys
from surehand.cli.codec_server.server import (
    LARGEST_BODY,
    MOST_PAYLOADS,
    CodecServer,
    TokenFile,
    make_holder,
    write_line,
)
from surehand.process.blobs import Blobs
from surehand.process.ciphers import KeyRing, RunEncryption, new_key
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.base import as_pasted, as_unreadable
from surehand.workflows.payload_codec import (
    ENCODING,
    ENCODING_KEY,
    ENCRYPTED,
    KEY_ID,
    LARGEST_SENT,
    PART,
    WORKFLOW_ID,
    data_converter,
)

UI = "http://localhost:8080"
READER, WRITER, ACME, BOTH = "reader" * 6, "writer" * 6, "acme" * 8, "both" * 8
PLAIN = Payload(metadata={ENCODING_KEY: b"json/plain"}, data=b'{"secret": 1}')

Convert = Callable[[str], DataConverter]


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing([new_key("first")])


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    holders = {
        READER: ("default", "read"),
        WRITER: ("default", "write"),
        ACME: ("acme", "write"),
        BOTH: ("acme,default", "write"),
    }
    lines = [write_line(token, make_holder(*holder, "test")) for token, holder in holders.items()]
    file.write_text("# who may read\n" + "\n".join(lines))
    return file


@pytest.fixture
def convert(ledger: Ledger, ring: KeyRing, tmp_path: Path) -> Convert:
    def of(run_id: str) -> DataConverter:
        converter = data_converter(
            lambda: Blobs(str(tmp_path / "artifacts")),
            waits=True,
            encryption=RunEncryption(LedgerKeys(lambda: ledger, ring)),
        )
        return converter.with_context(WorkflowSerializationContext("default", run_id))

    return of


@pytest.fixture
async def client(
    ledger: Ledger, ring: KeyRing, tokens: Path, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    server = CodecServer(
        tokens=TokenFile(tokens),
        keys=LedgerKeys(lambda: ledger, ring),
        open_store=lambda: Blobs(str(tmp_path / "artifacts")),
        namespace="default",
    )
    transport = httpx.ASGITransport(app=server.app([UI]))
    async with httpx.AsyncClient(transport=transport, base_url="http://codec") as connected:
        yield connected


@pytest.fixture
def ask(client: httpx.AsyncClient) -> Callable[..., Any]:
    """Sends payloads to ``/encode`` or ``/decode``, as the Web UI and the command line do."""

    async def send(
        what: str, *payloads: Payload, token: str | None = READER, **headers: str
    ) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        body = json_format.MessageToDict(Payloads(payloads=payloads))
        return await client.post(f"/{what}", json=body, headers=given)

    return send


def payloads_of(answer: httpx.Response) -> list[Payload]:
    assert answer.status_code == 200, answer.text
    return list(json_format.ParseDict(answer.json(), Payloads()).payloads)


async def test_a_reader_sees_what_the_tenant_s_runs_have_sent(ask: Any, convert: Convert) -> None:
    [payload] = await convert("run").encode([{"secret": 1}])
    decoded = payloads_of(await ask("decode", payload, PLAIN, payload, x_namespace="default"))

    assert [one.data for one in decoded] == [b'{"secret":1}', PLAIN.data, b'{"secret":1}']


async def test_a_reader_sees_what_lies_in_the_artifact_store(ask: Any, convert: Convert) -> None:
    text = "x" * LARGEST_SENT
    [payload] = await convert("run").encode([text])
    [decoded] = payloads_of(await ask("decode", payload))

    assert payload.metadata[ENCODING_KEY] == ENCODING
    assert text.encode() in decoded.data


async def test_an_erased_run_is_told_as_such(ask: Any, convert: Convert, ledger: Ledger) -> None:
    [payload] = await convert("run").encode([{"secret": 1}])
    with ledger.transaction("default") as tx:
        erased = {"wrapped": None, "erased_ms": tx.now_ms, "erased_by": "root"}
        tx.execute(update_rows(run_keys, run_id="run").values(**erased))
    [decoded] = payloads_of(await ask("decode", payload))

    assert b"run run was erased by root on" in decoded.SerializeToString()
    assert b"secret" not in decoded.data


@pytest.mark.parametrize("token", [None, "", "guessed" * 6, READER[:-1]])
@pytest.mark.parametrize("what", ["encode", "decode"])
async def test_without_a_token_nothing_is_answered(ask: Any, what: str, token: str | None) -> None:
    answer = await ask(what, PLAIN, token=token)

    assert answer.status_code == 401
    assert b"secret" not in answer.content


async def test_another_tenants_token_reads_nothing(ask: Any, convert: Convert) -> None:
    [there] = await convert("run").encode([{"secret": 1}])
    [no_run] = await convert("run").encode([{"secret": 1}])
    no_run.metadata[KEY_ID] = no_run.metadata[WORKFLOW_ID] = b"no-run"
    [own] = await convert("acme/run").encode([{"mine": 1}])
    [kept] = await convert("run").encode(["x" * LARGEST_SENT])
    answers = [
        await ask("decode", *asked, token=ACME)
        for asked in ([there], [no_run], [own, there], [PLAIN, there], [kept])
    ]

    assert [answer.status_code for answer in answers] == [403] * 5
    assert len({answer.content for answer in answers}) == 1


async def test_a_claimed_tenant_is_not_read(ask: Any, convert: Convert) -> None:
    [payload] = await convert("run").encode([{"secret": 1}])
    await convert("acme/run").encode([{"mine": 1}])
    payload.metadata[KEY_ID] = payload.metadata[WORKFLOW_ID] = b"acme/run"
    [decoded] = payloads_of(await ask("decode", payload, token=ACME))

    assert b"secret" not in decoded.data
    assert b"was changed" in decoded.data


async def test_readers_encrypt_nothing_and_writers_their_own(ask: Any, convert: Convert) -> None:
    asked = Payload()
    asked.CopyFrom(PLAIN)
    asked.metadata[WORKFLOW_ID], asked.metadata[PART] = b"run", b"workflow"
    [encrypted] = payloads_of(await ask("encode", asked, token=WRITER))

    assert (await ask("encode", asked, token=READER)).status_code == 403
    assert (await ask("encode", asked, token=ACME)).status_code == 403
    assert encrypted.metadata[ENCODING_KEY] == ENCRYPTED
    assert await convert("run").decode([encrypted]) == [{"secret": 1}]


@pytest.mark.parametrize("part", ["activity", "any"])
async def test_writers_forge_nothing_of_workers(ask: Any, convert: Convert, part: str) -> None:
    asked = Payload()
    asked.CopyFrom(PLAIN)
    asked.metadata[WORKFLOW_ID], asked.metadata[PART] = b"run", part.encode()

    assert (await ask("encode", asked, token=WRITER)).status_code == 403


async def test_the_command_line_counts_as_pasted(ask: Any, convert: Convert) -> None:
    # It names no run: nothing in Temporal's protocol does.
    [encrypted] = payloads_of(await ask("encode", PLAIN, token=WRITER))
    [shown] = await convert("run").decode([encrypted])
    [elsewhere] = await convert("acme/run").decode([encrypted])

    assert encrypted.metadata[ENCODING_KEY] == ENCRYPTED
    assert as_unreadable(shown) is not None
    assert as_pasted(shown) == {"secret": 1}
    assert as_pasted(elsewhere) == elsewhere
    assert (await ask("encode", PLAIN, token=BOTH)).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"x_namespace": "other"}, 403),
        ({"content_type": "text/plain"}, 415),
    ],
)
async def test_other_pages_and_namespaces_are_refused(
    ask: Any, convert: Convert, headers: dict[str, str], status: int
) -> None:
    [payload] = await convert("run").encode([{"secret": 1}])

    assert (await ask("decode", payload, **headers)).status_code == status


async def test_only_named_origins_may_read(client: httpx.AsyncClient) -> None:
    async def preflight(origin: str) -> httpx.Response:
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-namespace",
        }
        return await client.options("/decode", headers=headers)

    ours, other = await preflight(UI), await preflight("http://evil.example")

    assert ours.headers["access-control-allow-origin"] == UI
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


async def test_a_person_signs_in_once_and_the_browser_shows_the_token_from_then_on(
    client: httpx.AsyncClient, convert: Convert
) -> None:
    [payload] = await convert("run").encode([{"secret": 1}])
    body = json_format.MessageToDict(Payloads(payloads=[payload]))
    page = await client.get("/")
    wrong = await client.post("/sign-in", content="token=guessed\r\n")
    right = await client.post("/sign-in", content=f"token={READER}\r\n")
    answer = await client.post("/decode", json=body, headers={"origin": UI})
    shown_to = {cookie.path for cookie in client.cookies.jar}

    assert "<form" in page.text and wrong.status_code == 401
    # Cookies know no ports: other services of this host are not shown the token.
    assert shown_to == {"/decode", "/encode"}
    cookie = right.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert answer.status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_page_signs_nobody_in(client: httpx.AsyncClient, site: str) -> None:
    headers = {"sec-fetch-site": site}
    answer = await client.post("/sign-in", content=f"token={READER}\r\n", headers=headers)

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"{", b'{"payloads": 1}', b"\xff", b'{"a": 1}'])
async def test_what_is_no_request_is_refused(client: httpx.AsyncClient, body: bytes) -> None:
    headers = {"authorization": f"Bearer {READER}", "content-type": "application/json"}
    answer = await client.post("/decode", content=body, headers=headers)

    assert answer.status_code == 400


async def test_a_too_large_request_is_refused(ask: Any, client: httpx.AsyncClient) -> None:
    headers = {"authorization": f"Bearer {READER}", "content-type": "application/json"}
    large = await client.post("/decode", content=b" " * (LARGEST_BODY + 1), headers=headers)
    many = await ask("decode", *[PLAIN] * (MOST_PAYLOADS + 1))

    assert (large.status_code, many.status_code) == (413, 413)


async def test_a_removed_token_counts_no_more(ask: Any, convert: Convert, tokens: Path) -> None:
    [payload] = await convert("run").encode([{"secret": 1}])
    before = await ask("decode", payload)
    tokens.write_text("")
    after = await ask("decode", payload)
    tokens.unlink()
    unknown = await ask("decode", payload)

    assert [one.status_code for one in (before, after, unknown)] == [200, 401, 503]


@pytest.mark.parametrize(
    "line",
    [
        "secret default read",
        "sha256:" + "0" * 64 + " default admin",
        "sha256:" + "0" * 64 + " a/b read",
    ],
)
def test_a_wrong_line_of_the_tokens_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"\n{line}\n")

    with pytest.raises(WrongUse, match="line 2"):
        TokenFile(file)
