"""What runs have kept, listed and handed out: each page is an attack."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.statements import update_rows
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import artifacts
from surehand.activities.ledger.runs import lifecycle
from surehand.activities.ledger.runs.keys import erase_run
from surehand.activities.ledger.steps import artifacts as artifact_rows
from surehand.activities.ledger.steps.artifacts import record_artifact
from surehand.activities.run_keys import LedgerKeys
from surehand.cli.approvals_server import runs as pages
from surehand.process.ciphers import read_key_ring
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.runs import CloseRun
from surehand.workflows.identity import run_id_for
from tests.cli.starter import Ended, Starter, Verbs
from tests.cli.test_approvals_server import HOSTILE, Site, site
from tests.conftest import KEYS
from tests.ledger.scene import RUN, STEP, Scene

BIG: Final = {"lines": ["x" * 100] * 100}
Fetch = Callable[..., Ended]


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def fetch(verbs: Verbs, settings: dict[str, str], store: Path, run_id: str) -> Fetch:
    """Calls ``artifacts``; a run of tenant ``default`` and one of ``acme`` have kept a value."""

    async def keep(tenant: str) -> None:
        async with open_ledger(settings["SUREHAND_DATABASE_URL"]) as ledger:
            scene = Scene(ledger, tenant)
            scene.open_run(run_id_for(tenant, run_id))
            kept = await ArtifactStore(str(store), ledger, largest_inline=8 * 1024).keep(
                tenant, run_id_for(tenant, run_id), BIG
            )
            with scene.tx() as tx:
                record_artifact(tx, run_id_for(tenant, run_id), STEP, kept)

    for tenant in ("default", "acme"):
        asyncio.run(keep(tenant))

    def call(*arguments: str) -> Ended:
        return verbs("artifacts", *arguments, SUREHAND_ARTIFACTS=str(store))

    return call


@pytest.fixture
def written(fetch: Fetch, settings: dict[str, str], store: Path, tmp_path: Path) -> Fetch:
    """The same in a process of its own, whose stdout takes bytes."""
    return partial(Starter({**settings, "SUREHAND_ARTIFACTS": str(store)}, tmp_path), "artifacts")


def test_a_runs_artifacts_are_listed_and_fetched(fetch: Fetch, written: Fetch, run_id: str) -> None:
    [row] = json.loads(fetch(run_id, "--json").out)["rows"]
    assert (row["run_id"], row["step_id"], row["type"]) == (run_id, STEP, "application/json")

    fetched = written(run_id, row["artifact_id"])

    assert fetched.out.encode() == canonical_json(BIG)


def test_another_tenants_artifacts_are_not_found(fetch: Fetch, run_id: str) -> None:
    other = fetch(run_id, "--tenant", "nobody")
    assert other.code == 2
    assert f"run not found: nobody/{run_id}; " in other.line()
    assert "list --tenant nobody` lists" in other.line()
    ours = json.loads(fetch(run_id, "--json").out)["rows"]
    theirs = json.loads(fetch(run_id, "--tenant", "acme", "--json").out)["rows"]
    assert {row["artifact_id"] for row in ours}.isdisjoint(row["artifact_id"] for row in theirs)


def test_a_changed_artifact_is_not_written(
    fetch: Fetch, written: Fetch, run_id: str, store: Path
) -> None:
    [row] = json.loads(fetch(run_id, "--json").out)["rows"]
    [file] = [path for path in (store / "default").rglob("*") if path.is_file()]
    file.write_bytes(b"{}")

    ended = written(run_id, row["artifact_id"])

    assert (ended.code, ended.out) == (4, "")
    assert "is not what was kept" in ended.line()


def test_an_unknown_artifact_is_named(fetch: Fetch, run_id: str) -> None:
    ended = fetch(run_id, "ar-none")

    assert (ended.code, ended.line()) == (2, f"surehand: run {run_id} has no artifact 'ar-none'")


__all__ = ["site"]
SVG: Final = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
HTML: Final = b"<!doctype html><script>alert(document.cookie)</script>"


async def kept(scene: Scene, content: bytes, type_: str, step_id: str = STEP) -> str:
    found = await scene.artifacts.keep_bytes(scene.tenant, RUN, content, type_)
    with scene.tx() as tx:
        artifact_rows.record_artifact(tx, RUN, step_id, found)
    [row] = [one for one in scene.rows(artifacts) if one["step_id"] == step_id]
    return str(row["artifact_id"])


def changed(scene: Scene, artifact_id: str, **values: Any) -> None:
    """Write into an artifact's row what no worker writes."""
    with scene.tx() as tx:
        assert tx.execute(update_rows(artifacts, artifact_id=artifact_id).values(**values)) == 1


async def test_a_run_s_artifacts_are_listed_with_name_size_type_and_hash(site: Site) -> None:
    content = b"x" * 12_345
    one = await kept(site.scene, content, "text/csv")
    await site.sign_in("ann")

    page = (await site.get(f"/artifacts?id={RUN}")).text
    for said in (f"refund-{one}.csv", "12,345 bytes", "text/csv"):
        assert said in page
    assert hashlib.sha256(content).hexdigest() in page
    told = await site.get(f"/artifact?run={RUN}&id={one}")
    assert (told.status_code, told.content) == (200, content)


@pytest.mark.parametrize(
    ("content", "type_"),
    [
        (SVG, "image/svg+xml"),
        (HTML, "text/html"),
        (HTML, "text/html; charset=utf-7"),
        (b"alert(1)", "text/javascript"),
        (HTML, "application/xhtml+xml"),
        (b"%PDF-1.7", "application/pdf"),
    ],
)
async def test_a_runnable_file_is_only_saved(site: Site, content: bytes, type_: str) -> None:
    one = await kept(site.scene, content, type_)
    await site.sign_in("ann")

    told = await site.get(f"/artifact?run={RUN}&id={one}")
    assert told.content == content
    assert told.headers["content-type"] == "application/octet-stream"
    assert told.headers["x-content-type-options"] == "nosniff"
    saved = told.headers["content-disposition"]
    assert saved.startswith("attachment; filename=")
    assert not saved.rstrip('"').endswith((".svg", ".html", ".htm", ".js", ".xhtml", ".xml"))
    policy = told.headers["content-security-policy"].split("; ")
    assert "sandbox" in policy and "default-src 'none'" in policy
    assert not any("'self'" in rule or "allow-" in rule for rule in policy)
    assert told.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "step_id",
    [
        "../../etc/passwd",
        "a\r\nSet-Cookie: x=1",
        'x"; filename="evil.html',
        ".bashrc",
        "x\\y",
        "\u202ecod.exe",
        "%2e%2e%2f",
        "CON ",
        "x" * 70,
    ],
)
async def test_a_name_leads_nowhere_and_ends_no_header(site: Site, step_id: str) -> None:
    one = await kept(site.scene, b"content", "text/plain")
    changed(site.scene, one, step_id=step_id)
    await site.sign_in("ann")

    told = await site.get(f"/artifact?run={RUN}&id={one}")
    assert (told.status_code, told.content) == (200, b"content")
    name = told.headers["content-disposition"].removeprefix('attachment; filename="')[:-1]
    assert name.endswith(f"{one}.txt") and len(name) < 120
    assert not set(name) & set('/\\"\r\n;%:') and name.isascii() and name[0].isalnum()
    assert "set-cookie" not in told.headers
    page = (await site.get(f"/artifacts?id={RUN}")).text
    assert "\u202e" not in page and "\r" not in page


async def test_a_strangers_type_is_text_and_never_a_header(site: Site) -> None:
    one = await kept(site.scene, b"x", "text/plain")
    changed(site.scene, one, type=HOSTILE[:80])
    await site.sign_in("ann")

    page = (await site.get(f"/artifacts?id={RUN}")).text
    assert "<img" not in page and "&lt;script&gt;" in page
    told = await site.get(f"/artifact?run={RUN}&id={one}")
    assert told.headers["content-type"] == "application/octet-stream"
    assert told.headers["content-disposition"].endswith('.bin"')


@pytest.mark.parametrize("how", ["by its id", "by its run", "by both"])
async def test_another_tenants_artifact_is_not_served(site: Site, ledger: Ledger, how: str) -> None:
    other = Scene.begin(ledger, "acme")
    other.__dict__["artifacts"] = site.scene.artifacts  # one store for both, as workers have it
    theirs = await kept(other, b"secret of acme", "text/plain", step_id="theirs")
    await site.sign_in("ann")

    run = RUN if how == "by its id" else f"acme/{RUN}"
    told = await site.get(f"/artifact?run={run}&id={theirs if how != 'by its run' else 'x'}")
    assert told.status_code == 404
    assert b"secret of acme" not in told.content
    assert "theirs" not in (await site.get(f"/artifacts?id={RUN}")).text
    assert (await site.get(f"/artifacts?id=acme/{RUN}")).status_code == 404


async def test_another_run_s_artifact_is_not_handed_out_by_its_id(site: Site) -> None:
    one = await kept(site.scene, b"of run-1", "text/plain")
    site.scene.open_run("run-2")
    await site.sign_in("ann")

    told = await site.get(f"/artifact?run=run-2&id={one}")
    assert (told.status_code, b"of run-1" in told.content) == (404, False)


async def test_an_erased_run_s_artifact_is_read_by_nobody(site: Site, ledger: Ledger) -> None:
    ring = read_key_ring(KEYS)
    assert ring is not None
    ledger.keys = LedgerKeys(lambda: ledger, ring)
    one = await kept(site.scene, b"secret", "text/plain")
    await site.sign_in("ann")
    path = f"/artifact?run={RUN}&id={one}"
    assert (await site.get(path)).content == b"secret"

    ended = CloseRun(tenant=site.scene.tenant, run_id=RUN, state=RunState.COMPLETED)
    with site.scene.tx() as tx:
        lifecycle.close_run(tx, ended)
    with site.scene.tx() as tx:
        assert erase_run(tx, RUN, by="root", because="asked").artifacts == 1
    ledger.keys = LedgerKeys(lambda: ledger, ring)
    told = await site.get(path)
    assert told.status_code == 503
    assert "was erased by root" in told.text and "attachment" not in str(told.headers)
    assert "secret" not in told.text


async def test_what_is_not_what_was_kept_is_not_handed_out(site: Site) -> None:
    one = await kept(site.scene, b"kept", "text/plain")
    two = await kept(site.scene, b"other", "text/plain", step_id="other")
    [other] = [row for row in site.scene.rows(artifacts) if row["artifact_id"] == two]
    await site.scene.artifacts.blobs.put(
        next(r["uri"] for r in site.scene.rows(artifacts) if r["artifact_id"] == one), b"changed"
    )
    await site.sign_in("ann")

    told = await site.get(f"/artifact?run={RUN}&id={one}")
    assert (told.status_code, b"changed" in told.content) == (503, False)
    assert (await site.get(f"/artifact?run={RUN}&id={other['artifact_id']}")).content == b"other"


@pytest.mark.parametrize("dest", ["image", "script", "iframe", "object", "embed", "style"])
async def test_no_part_of_a_page_is_an_artifact(site: Site, dest: str) -> None:
    one = await kept(site.scene, SVG, "image/svg+xml")
    await site.sign_in("ann")
    told = await site.get(f"/artifact?run={RUN}&id={one}", **{"sec-fetch-dest": dest})
    assert (told.status_code, SVG in told.content) == (403, False)


async def test_a_too_large_artifact_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LARGEST_ARTIFACT", 10)
    one = await kept(site.scene, b"x" * 11, "text/plain")
    await site.sign_in("ann")
    assert (await site.get(f"/artifact?run={RUN}&id={one}")).status_code == 400
    assert "Too large" in (await site.get(f"/artifacts?id={RUN}")).text


async def test_a_long_list_is_paged_completely(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ON_A_PAGE", 2)
    ids = [await kept(site.scene, b"%d" % n, "text/plain", f"s{n}") for n in range(5)]
    await site.sign_in("ann")
    path, seen = f"/artifacts?id={RUN}", []
    while path:
        page = (await site.get(path)).text
        seen.append([one for one in ids if f"-{one}." in page])
        more = [line for line in page.splitlines() if 'rel="next"' in line]
        path = more[0].split('href="')[1].split('"')[0].replace("&amp;", "&") if more else ""
    assert seen == [ids[:2], ids[2:4], ids[4:]]


async def test_whoever_gets_a_secret_steps_artifact_is_on_record(site: Site) -> None:
    secret = site.scene.ask_approval(site.scene.call(), secret=True).approval_id
    one = await kept(site.scene, b"[1]", "application/json")
    other = await kept(site.scene, b"[2]", "application/json", "other")
    await site.sign_in("ann")

    assert (await site.get(f"/artifacts?id={RUN}")).status_code == 200
    assert (await site.get(f"/artifact?run={RUN}&id={other}")).content == b"[2]"
    assert site.scene.events(type_="approval.read") == []
    for _ in range(2):
        assert (await site.get(f"/artifact?run={RUN}&id={one}")).content == b"[1]"
    [read] = site.scene.events(type_="approval.read")
    assert (read["body"]["actor"], read["body"]["approval_id"]) == ("ann", secret)
