"""``list``: the runs that were started last, whatever order they ended in."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest
from temporalio.client import Client

from surehand.client import launch
from surehand.process.dev_server import DevServer
from tests.cli.starter import Run, Verbs


@pytest.fixture
def quick(lonely: Verbs, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    """The verbs of a tenant of its own, whose runs no worker takes up."""
    monkeypatch.setattr(launch, "TAKEN_UP_WITHIN", timedelta(seconds=0.1))
    lonely.environment["SUREHAND_TENANT"] = f"t{uuid.uuid4().hex[:8]}"
    return lonely


async def terminated(address: str, verbs: Verbs, *names: str) -> None:
    """End runs in this order, and return once the server lists them so."""
    client = await Client.connect(address)
    tenant = verbs.environment["SUREHAND_TENANT"]
    for number, name in enumerate(names, 1):
        await client.get_workflow_handle(f"{tenant}/{name}").terminate()
        ended = f"Tenant = '{tenant}' AND ExecutionStatus = 'Terminated'"
        while (await client.count_workflows(ended)).count < number:
            pass


def test_the_run_that_was_started_last_is_listed_first_also_among_ended_ones(
    quick: Verbs, temporal_server: DevServer
) -> None:
    for name in ("first", "second", "third", "goes-on", "last"):
        quick(*Run(name, "order-1").start)
    ends = ("last", "third", "second", "first")
    asyncio.run(terminated(temporal_server.address, quick, *ends))

    def listed(*arguments: str) -> list[str]:
        runs = quick("list", "--json", *arguments).document()["runs"]
        return [run["run_id"].rpartition("/")[2] for run in runs]

    assert listed() == ["last", "goes-on", "third", "second", "first"]
    assert listed("--limit", "1") == ["last"]
    assert listed("--limit", "3") == ["last", "goes-on", "third"]
    assert listed("--state", "terminated", "--limit", "2") == ["last", "third"]
