"""docker-compose.yml works: what it starts is started here, by its own words, without Docker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster.cluster import Cluster

# The first start builds the Temporal server.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.wait_for_log("worker", "worker.ready", running.compose.replicas("worker"))
        yield running


@pytest.mark.parametrize(
    "service", ["temporal-schema", "temporal-namespace", "ledger-migrations", "ledger-grants"]
)
def test_a_one_shot_service_may_run_again(cluster: Cluster, service: str) -> None:
    again = cluster.run(service)
    assert again.returncode == 0, again.stderr


def test_the_dynamic_config_is_known_to_the_server(cluster: Cluster) -> None:
    path = cluster.compose.environment("temporal")["DYNAMIC_CONFIG_FILE_PATH"]
    checked = cluster.run("temporal", "temporal-server", "validate-dynamic-config", path)
    assert checked.returncode == 0, checked.stdout
    assert "warning" not in checked.stdout


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE events SET seq = 0",
        "DELETE FROM events",
        "DELETE FROM effects",
        "TRUNCATE effects",
        "UPDATE alembic_version SET version_num = 'none'",
        "CREATE TABLE mine (id int)",
        "ALTER TABLE effects DISABLE ROW LEVEL SECURITY",
    ],
)
def test_the_workers_role_cannot_rewrite_what_happened(cluster: Cluster, sql: str) -> None:
    tried = as_worker(cluster, sql)
    assert tried.returncode != 0
    assert "permission denied" in tried.stderr or "must be owner" in tried.stderr


def as_worker(cluster: Cluster, sql: str) -> subprocess.CompletedProcess[str]:
    """Run SQL with the very URL that the workers have."""
    where = cluster.compose.environment("worker")["SUREHAND_DATABASE_URL"]
    return cluster.run("ledger-grants", "psql", "-X", "-v", "ON_ERROR_STOP=1", where, "-c", sql)


def test_doctor_and_the_workers_health_check_find_everything(cluster: Cluster) -> None:
    report = cluster.starter("doctor", "--json")
    assert report.returncode == 0, report.stdout + report.stderr
    well = cluster.run("worker", *cluster.compose.health_check("worker"))
    assert well.returncode == 0, well.stderr


def test_workers_take_signed_decisions_only(cluster: Cluster) -> None:
    log = cluster.log("worker")
    assert log.count('"decisions": "signed"') == cluster.compose.replicas("worker")
    assert '"worker.decisions_open"' not in log


def test_a_refund_is_made_once_after_its_approval_though_a_worker_died(cluster: Cluster) -> None:
    # Given people with keys
    own, key = cluster.register("ada"), cluster.register("grace")
    # Given a run that waits for an approval
    begin = ["start", "examples/refund.yaml", "--run-id", "refund-1", "--as", "ada", "--wait"]
    nobodys = cluster.starter(*begin)
    assert (nobodys.returncode, "signed" in nobodys.stderr) == (2, True)
    begin += ["--key", own]
    waiting = cluster.starter(*begin)
    assert waiting.returncode == 10, waiting.stdout + waiting.stderr
    (request,) = json.loads(cluster.starter("pending", "--json").stdout)["approvals"]

    # When one of the workers is killed, and then somebody approves what they have seen
    cluster.workers[0].kill()
    answer = ["--params-hash", request["params_hash"], "--as", "grace"]
    unsigned = cluster.starter("approve", request["approval_id"], *answer)
    assert (unsigned.returncode, "signed" in unsigned.stderr) == (2, True)
    approved = cluster.starter("approve", request["approval_id"], *answer, "--key", key)
    assert approved.returncode == 0, approved.stderr

    # Then the run ends well, and the shop has seen each effect once
    ended = cluster.starter(*begin)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shop = cluster.compose.environment("worker")["SHOP_URL"]
    counts = httpx.get(f"{shop}/admin/counts", params={"order_id": "order-1001"}).json()
    assert {name: n for name, n in counts.items() if n} == {"refunds": 1, "restocks": 1, "mails": 1}
