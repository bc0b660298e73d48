"""The cluster with keys, signatures, quotas and a pooler, while its workers are killed."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator

import httpx
import pytest
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads
from temporalio.client import Client

from surehand.workflows.identity import params_hash
from tests.cluster.cluster import READY_TIMEOUT, Cluster
from tests.conftest import KEYS

# The first start builds the Temporal server.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

#: Runs; how many of them may take steps at a time, and how many may ask people.
RUNS, OPEN, ASKING = 5, 3, 2
#: What each run does to the shop.
ONCE = {"refunds": 1, "restocks": 1, "mails": 1}
#: Workers are killed at moments that are the same in each test.
SEED = 4711


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    keys = {"SUREHAND_KEY_ENCRYPTION_KEYS": KEYS}
    # What is typed in the image, test_cluster.py types.
    with Cluster(keys, pooled=True, quick=True) as running:
        running.wait_for_log("worker", "worker.ready", running.compose.replicas("worker"))
        yield running


def document(cluster: Cluster, *words: str) -> dict[str, object]:
    done = cluster.starter(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def states(cluster: Cluster) -> list[str]:
    runs = document(cluster, "list")["runs"]
    assert isinstance(runs, list)
    return [run["state"] for run in runs]


def ledger_rows(cluster: Cluster, sql: str) -> list[str]:
    """Return what the ledger's owner reads, a line for each row."""
    owner = cluster.compose.environment("ledger-migrations")["SUREHAND_DATABASE_URL"]
    tenant = "SELECT set_config('surehand.tenant', 'default', false)"
    ask = ["psql", "-X", "-Atq", "-v", "ON_ERROR_STOP=1", owner, "-c", tenant, "-c", sql]
    read = cluster.run("ledger-grants", *ask)
    assert read.returncode == 0, read.stderr
    return read.stdout.splitlines()[1:]  # without the tenant


@pytest.mark.crash
def test_runs_under_repeated_kills_make_each_effect_once(cluster: Cluster) -> None:
    chance, hour = random.Random(SEED), time.time() // 3600
    adas, graces = cluster.register("ada"), cluster.register("grace")
    limits = [
        "--open-runs",
        str(OPEN),
        "--effects-per-hour",
        "1000",
        "--pending-approvals",
        str(ASKING),
    ]
    limited = cluster.administrator("quota", "set", *limits, "--as", "root")
    assert limited.returncode == 0, limited.stderr
    shop = cluster.compose.environment("worker")["SHOP_URL"]
    orders = [f"order-guarded-{number}" for number in range(RUNS)]
    for number, order in enumerate(orders):
        httpx.post(f"{shop}/admin/orders", json={"order_id": order}).raise_for_status()
        begin = ["start", "examples/refund.yaml", "--run-id", f"guarded-{number}"]
        begin += ["--set", f"input.order_id={order}", "--as", "ada", "--key", adas]
        started = cluster.starter(*begin)
        assert started.returncode in (0, 10), started.stdout + started.stderr

    # Nobody has decided yet, so all others wait for the quotas.
    deadline = time.monotonic() + READY_TIMEOUT
    held = ["waiting_approval"] * ASKING + ["waiting_quota"] * (RUNS - ASKING)
    while (found := sorted(states(cluster))) != held:
        assert time.monotonic() < deadline, found

    deadline = time.monotonic() + 4 * READY_TIMEOUT
    for turn in itertools.count():
        found = states(cluster)
        if found == ["completed"] * RUNS:
            break
        assert time.monotonic() < deadline, found
        if turn < RUNS:
            victim = chance.choice([one for one in cluster.workers if one.running])
            victim.kill()
            cluster.spawn("worker", cluster.compose.command("worker"))
            # Else, on a busy machine, all are killed before one works, and decisions wait for none.
            cluster.wait_for_log("worker", "worker.ready", len(cluster.workers))
            deadline = time.monotonic() + 4 * READY_TIMEOUT
        for request in json.loads(cluster.starter("pending", "--json").stdout)["approvals"]:
            answer = ["--params-hash", request["params_hash"], "--as", "grace", "--key", graces]
            cluster.starter("approve", request["approval_id"], *answer)

    for number, order in enumerate(orders):
        counts = httpx.get(f"{shop}/admin/counts", params={"order_id": order}).json()
        assert {name: n for name, n in counts.items() if n} == ONCE, order
        audited = cluster.starter("audit", f"guarded-{number}")
        assert audited.returncode == 0, audited.stdout
    quotas = document(cluster, "quota", "show")["uses"]
    assert isinstance(quotas, list)
    used = {quota["quota"]: quota["used"] for quota in quotas}
    made = RUNS * len(ONCE)
    # The quota counts those of the clock's hour, which may have begun meanwhile.
    least = made if time.time() // 3600 == hour else 0
    assert least <= int(used["effects_per_hour"]) <= made


async def test_services_show_forward_and_decrypt(cluster: Cluster) -> None:
    asas, gails = cluster.register("asa"), cluster.register("gail")
    shop = cluster.compose.environment("worker")["SHOP_URL"]
    order = {"order_id": "order-guarded-page"}
    httpx.post(f"{shop}/admin/orders", json=order).raise_for_status()
    begin = ["start", "examples/refund.yaml", "--run-id", "paged", "--wait", "--as", "asa"]
    begin += ["--set", f"input.order_id={order['order_id']}", "--key", asas]
    assert cluster.starter(*begin).returncode == 10
    cluster.wait_until_healthy("approvals")

    # Given somebody who has signed in by a link that the service has made
    link = ["approvals", "link", "--state", "/data/approvals", "--as", "gail", "--json"]
    linked = cluster.run_starter("approvals", *link)
    assert linked.returncode == 0, linked.stderr
    page, _, token = json.loads(linked.stdout)["link"].partition("#")
    origin = page.removesuffix("/sign-in")
    with httpx.Client(base_url=origin, headers={"origin": origin}) as browser:
        assert browser.get("/approval.json?id=paged/refund/1").status_code == 401
        browser.post("/sign-in", json={"token": token}).raise_for_status()

        # When they sign what the page shows, by the hash of what it shows
        told = browser.get("/approval.json", params={"id": "paged/refund/1"}).json()
        call = {name: told[name] for name in ("tool", "version", "params", "salt")}
        assert call["params"]["order_id"] == order["order_id"]
        seen = params_hash(**call)
        assert (told["waits"], told["params_hash"]) == (True, seen)
        unsigned = {"approval_id": told["approval_id"], "params_hash": seen, "approver": "gail"}
        refused = browser.post("/decide", json={**unsigned, "outcome": "approve"})
        assert (refused.status_code, "signed" in refused.text) == (409, True)
        sign = ["sign", told["approval_id"], "--params-hash", seen, "--as", "gail"]
        decision = json.loads(cluster.starter(*sign, "--key", gails).stdout)
        accepted = browser.post("/decide", json=decision)
        assert accepted.status_code == 200, accepted.text

    # Then it counts: in the shop, in the ledger and for an auditor
    ended = cluster.starter(*begin)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = httpx.get(f"{shop}/admin/counts", params=order).json()
    assert {name: n for name, n in counts.items() if n} == ONCE
    said = "SELECT approver, verdict, verified FROM decisions WHERE run_id = 'paged' ORDER BY at_ms"
    assert ledger_rows(cluster, said) == ["gail|unsigned|f", "gail|accepted|t"]
    audited = cluster.starter("audit", "paged")
    assert audited.returncode == 0, audited.stdout

    # And another service decrypts what Temporal has, for whoever holds a token
    made = cluster.run_starter("codec", *["codec", "token", "/data/codec-tokens", "--json"])
    assert made.returncode == 0, made.stderr
    cluster.spawn("codec", cluster.compose.command("codec"))
    cluster.wait_until_healthy("codec")
    compose = cluster.compose
    temporal = await Client.connect(compose.here["temporal:7233"], namespace="surehand")
    first = (await temporal.get_workflow_handle("paged").fetch_history()).events[0]
    payloads = first.workflow_execution_started_event_attributes.input
    assert order["order_id"].encode() not in payloads.SerializeToString()
    decoded = httpx.post(
        f"http://{compose.here['0.0.0.0:8081']}/decode",
        json=json_format.MessageToDict(payloads),
        headers={"authorization": f"Bearer {json.loads(made.stdout)['token']}"},
    )
    [read] = json_format.ParseDict(decoded.json(), Payloads()).payloads
    assert order["order_id"].encode() in read.data


def test_whoever_reads_the_ledgers_tables_finds_no_value(cluster: Cluster) -> None:
    sql = "SELECT string_agg(t::text, '') FROM (SELECT params, receipt FROM effects) AS t"
    [read] = ledger_rows(cluster, sql)

    assert "$sealed" in read
    assert "order-guarded" not in read
