"""The cluster with keys, signatures, quotas and a pooler, while its workers are killed."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster.cluster import READY_TIMEOUT, Cluster
from tests.conftest import KEYS

# The first start builds the Temporal server.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

#: Runs; how many of them may take steps at a time, and how many may ask people.
RUNS, OPEN, ASKING = 8, 3, 2
#: What each run does to the shop.
ONCE = {"refunds": 1, "restocks": 1, "mails": 1}
#: Workers are killed at moments that are the same in each test.
SEED = 4711


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster({"SUREHAND_KEY_ENCRYPTION_KEYS": KEYS}, pooled=True) as running:
        running.wait_for_log("worker", "worker.ready", running.compose.replicas("worker"))
        yield running


def document(cluster: Cluster, *words: str) -> dict[str, object]:
    """Return what a verb says as JSON."""
    done = cluster.starter(*words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def states(cluster: Cluster) -> list[str]:
    runs = document(cluster, "list")["runs"]
    assert isinstance(runs, list)
    return [run["state"] for run in runs]


@pytest.mark.crash
def test_runs_whose_workers_are_killed_again_and_again_make_each_effect_once(
    cluster: Cluster,
) -> None:
    chance = random.Random(SEED)
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
        for request in json.loads(cluster.starter("pending", "--json").stdout)["approvals"]:
            answer = ["--params-hash", request["params_hash"], "--as", "grace", "--key", graces]
            cluster.starter("approve", request["approval_id"], *answer)

    for number, order in enumerate(orders):
        counts = httpx.get(f"{shop}/admin/counts", params={"order_id": order}).json()
        assert {name: n for name, n in counts.items() if n} == ONCE, order
        audited = cluster.starter("audit", f"guarded-{number}")
        assert audited.returncode == 0, audited.stdout
    quotas = document(cluster, "quota", "show")["quotas"]
    assert isinstance(quotas, list)
    used = {quota["quota"]: quota["used"] for quota in quotas}
    assert used["effects_per_hour"] == str(RUNS * len(ONCE))


def test_whoever_reads_the_ledgers_tables_finds_no_value(cluster: Cluster) -> None:
    sql = "SELECT string_agg(t::text, '') FROM (SELECT params, receipt FROM effects) AS t"
    owner = cluster.compose.environment("ledger-migrations")["SUREHAND_DATABASE_URL"]
    tenant = "SELECT set_config('surehand.tenant', 'default', false)"
    read = cluster.run("ledger-grants", "psql", "-X", "-At", owner, "-c", tenant, "-c", sql)

    assert read.returncode == 0, read.stderr
    assert "$sealed" in read.stdout
    assert "order-guarded" not in read.stdout
