"""What one end-to-end test works with: its ledger, its task queue, and the servers it shares."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text
from temporalio.client import Client
from temporalio.worker import Worker

from surehand.activities.artifacts import ArtifactStore
from surehand.activities.ledger.core.statements import rows_of, update_rows
from surehand.activities.ledger.core.store import Ledger, RunNotFound
from surehand.activities.ledger.core.tables import (
    approvals,
    decisions,
    effects,
    interventions,
    runs,
    steerings,
    steps,
)
from surehand.activities.ledger.effects.reconcile import may_arrive_until
from surehand.activities.ledger.history.audit import first_unproven, verify_run
from surehand.activities.ledger.history.reads import chain_of, effects_of, events_of
from surehand.activities.ledger.steps.entries import Entry
from surehand.activities.mcp.tools import mcp_tools
from surehand.activities.run_keys import LedgerKeys
from surehand.activities.tools.toolbox import load_toolbox
from surehand.activities.worker.context import WorkerContext
from surehand.activities.worker.crash_points import Crash
from surehand.activities.worker.settings import load_settings
from surehand.client.messages import sign_start
from surehand.client.run import Run as ClientRun
from surehand.process.blobs import Blobs
from surehand.process.ciphers import RunEncryption
from surehand.worker import make_worker
from surehand.workflows.contracts.approvals import ApprovalRequest
from surehand.workflows.contracts.runs import Linked, RunResult, StartRun
from surehand.workflows.identity import DEFAULT_TENANT, run_id_for, tenant_of_run
from surehand.workflows.names import WORKFLOW
from surehand.workflows.payload_codec import data_converter
from surehand.workflows.plan.plan import Durability, Plan
from surehand.workflows.ports import move_timeout
from tests.e2e.runs import Run, refund_plan, until
from tests.shop_process import ShopProcess
from tests.worker_process import ROOT, WorkerProcess

SHOP_TOOLS = "surehand.examples.shop.tools"


def speaking(client: Client, artifacts: Path, ledger: Ledger, keys: str) -> Client:
    """Return a client on the same connection that encrypts and keeps payloads as workers do."""
    ledger.keys = of_runs = LedgerKeys.of(keys, lambda: ledger)
    encryption = None if of_runs is None else RunEncryption(of_runs)
    converter = data_converter(lambda: Blobs(str(artifacts)), waits=True, encryption=encryption)
    return Client(**{**client.config(), "data_converter": converter})


@dataclass(frozen=True)
class Stage:
    """Starts workers and runs, and looks at the rows they leave."""

    client: Client
    shop: ShopProcess
    ledger: Ledger
    ledger_url: str
    task_queue: str
    folder: Path
    keys: str = ""
    """The key-encryption keys; empty: nothing is encrypted."""
    started: list[Run] = field(default_factory=list)

    @property
    def tenant(self) -> str:
        """Whose runs these are."""
        return DEFAULT_TENANT

    def environment(self, **settings: str) -> dict[str, str]:
        """Return a worker's environment; settings by their names without prefix."""
        given = {
            "database_url": self.ledger_url,
            "artifacts": str(self.folder / "artifacts"),
            "tool_modules": SHOP_TOOLS,
            "task_queue": self.task_queue,
            "key_encryption_keys": self.keys,
            **settings,
        }
        return {
            "TEMPORAL_ADDRESS": self.client.service_client.config.target_host,
            "SHOP_URL": self.shop.url,
            **{f"SUREHAND_{name.upper()}": value for name, value in given.items()},
        }

    def worker(self, **settings: str) -> WorkerProcess:
        return WorkerProcess(self.environment(**settings), self.folder)

    @contextmanager
    def ready_worker(self, **settings: str) -> Iterator[WorkerProcess]:
        with self.worker(**settings) as worker:
            yield worker.wait_ready()

    def freezing_worker(self, **settings: str) -> WorkerProcess:
        """Start a worker that freezes at its crash point (``tests/freezing_worker.py``)."""
        environment = self.environment(**settings) | {"PYTHONPATH": str(ROOT)}
        return WorkerProcess(environment, self.folder, ["-m", "tests.freezing_worker"])

    @asynccontextmanager
    async def worker_here(
        self, *, client: Client | None = None, crash: Crash | None = None, **settings: str
    ) -> AsyncIterator[Worker]:
        """Work in this process, with this test's ledger; for tests that kill and freeze no worker.

        Nothing watches it: a watchdog would end the process of the tests.
        """
        loaded = load_settings(self.environment(**settings), Path(os.devnull))
        context = WorkerContext.of(
            loaded,
            ledger=self.ledger,
            toolbox=load_toolbox(loaded.tool_modules, mcp_tools(loaded.mcp)),
            artifacts=ArtifactStore(
                loaded.artifacts, self.ledger, largest_inline=loaded.largest_inline
            ),
            crash=crash or Crash(),
        )
        async with make_worker(client or self.client, loaded, context) as worker:
            # Tests share this process: a pause of theirs is no deadlock of a workflow's.
            assert worker._workflow_worker is not None
            worker._workflow_worker._deadlock_timeout_seconds = 20
            yield worker

    async def start(
        self,
        plan: Plan,
        *,
        name: str | None = None,
        tenant: str = DEFAULT_TENANT,
        linked: Linked | None = None,
        durability: str | None = None,
        continue_after: int | None = None,
        started_by: str | None = None,
        key: Ed25519PrivateKey | None = None,
    ) -> Run:
        """Start a run of a plan for uma; signed, if there is a key of whoever starts it."""
        run_id = run_id_for(tenant, name or f"run-{uuid.uuid4().hex[:12]}")
        request = StartRun(
            run_id=run_id,
            tenant=tenant,
            user="uma",
            plan=plan,
            linked=linked,
            durability=None if durability is None else Durability(durability),
            continue_after=continue_after,
            started_by=started_by,
        )
        if key is not None:
            request = sign_start(request, key, int(time.time()))
        handle = await self.client.start_workflow(
            plan.code or WORKFLOW,
            request,
            id=run_id,
            task_queue=self.task_queue,
            result_type=RunResult,
            # As the starter has it: local activities hold up what is sent for part of that time.
            task_timeout=None if durability is None else move_timeout(len(plan.steps)),
        )
        run = Run(run_id, handle)
        self.started.append(run)
        return run

    async def play(
        self,
        plan: Plan,
        *,
        approve: bool = False,
        durability: str | None = None,
        continue_after: int | None = None,
        **worker: Any,
    ) -> tuple[Run, RunResult]:
        """Start a run, approve what it asks for if it asks, and return it with its result."""
        async with self.worker_here(**worker):
            run = await self.start(plan, durability=durability, continue_after=continue_after)
            if approve:
                await run.approve()
            return run, await run.result()

    async def die_at(
        self,
        point: str,
        plan: Plan,
        *,
        approve: bool = False,
        durability: str | None = None,
        continue_after: int | None = None,
        **settings: str,
    ) -> Run:
        """Start a run whose worker is killed at a crash point, and return it without any worker."""
        with self.ready_worker(crash_at=point, **settings) as doomed:
            run = await self.start(plan, durability=durability, continue_after=continue_after)
            if approve:
                await run.approve()
            await asyncio.to_thread(doomed.wait_killed)
        return run

    async def at_the_shop(self, order_id: str) -> tuple[Run, int]:
        """Return a run of the example's plan whose refund has arrived at the shop.

        And how many refunds the shop had been asked for before.
        """
        before = self.shop.requests("refunds")["received"]
        run = await self.start(refund_plan(order_id))
        await run.approve()
        await asyncio.to_thread(self.shop.wait_requests, "refunds", before + 1)
        return run, before

    async def finish(self, run: Run, **worker: Any) -> RunResult:
        """Have a worker end a run that was begun, and return its result."""
        async with self.worker_here(**worker):
            return await run.result()

    def paid(self, order_id: str) -> tuple[int, int]:
        """Return how often an order was paid back, and how often that was taken back."""
        counts = self.shop.counts(order_id)
        return counts["refunds"], counts["refund_cancellations"]

    def made(self, order_id: str) -> tuple[int, int, int]:
        """Return how often an order was paid back, restocked and written a mail about."""
        counts = self.shop.counts(order_id)
        return counts["refunds"], counts["restocks"], counts["mails"]

    async def audit(self) -> None:
        """Prove of all runs that their events are whole, and tell of nothing that must not be."""
        for run in self.started:
            tenant = tenant_of_run(run.run_id)
            try:
                events, entries, head = await self.ledger.transact(tenant, chain_of, run.run_id)
            except RunNotFound:
                continue  # refused before it was opened
            broken = verify_run(events, entries, [head, *await run.heads()])
            broken = broken or await self.ledger.transact(
                tenant, first_unproven, run.run_id, events
            )
            assert broken is None, f"{run.run_id}: {broken}"

    def now(self) -> datetime:
        with self.ledger.transaction(DEFAULT_TENANT) as tx:
            return datetime.fromtimestamp(tx.now_ms / 1000, UTC)

    def expire(self, request: ApprovalRequest) -> None:
        """Let the time of a request be over by the database's clock, which decides.

        What was asked is kept by a trigger, which only the database's owner can take away.
        """
        expired = update_rows(approvals, approval_id=request.approval_id)
        kept = text("SELECT sql FROM sqlite_master WHERE name = 'approvals_kept'")
        with self.ledger.transaction(self.tenant) as tx:
            trigger = tx.connection.execute(kept).scalar_one()
            tx.connection.execute(text("DROP TRIGGER approvals_kept"))
            tx.execute(expired.values(expires_ms=tx.now_ms))
            tx.connection.execute(text(trigger))

    async def no_call_may_arrive(self, run: Run | ClientRun) -> None:
        """Wait until the calls of a run's effects in doubt are over: then a human can tell."""

        def awaited() -> list[str]:
            with self.ledger.transaction(tenant_of_run(run.run_id)) as tx:
                rows = tx.all(rows_of(effects, run_id=run.run_id))
                entries = [Entry.from_row(row) for row in rows]
                return [at for one in entries if (at := may_arrive_until(tx, one)) is not None]

        await until(awaited, lambda times: not times)

    async def effects(self, run: Run) -> list[dict[str, Any]]:
        """Return a run's ledger entries, in the order of their claims."""
        return await self.ledger.transact(DEFAULT_TENANT, effects_of, run.run_id)

    async def effect_states(self, run: Run) -> dict[str, str]:
        """Return the states of a run's ledger entries, by tool."""
        return {row["tool"]: row["state"] for row in await self.effects(run)}

    async def events(self, run: Run, *types: str) -> list[dict[str, Any]]:
        """Return a run's events, or those of some types, oldest first."""
        rows = await self.ledger.transact(DEFAULT_TENANT, events_of, run.run_id)
        return [row for row in rows if not types or row["type"] in types]

    def run_rows(self, run: Run) -> list[dict[str, Any]]:
        return self._rows(runs, run, runs.c.run_id)

    def approval_rows(self, run: Run) -> list[dict[str, Any]]:
        return self._rows(approvals, run, approvals.c.requested_ms)

    def decision_rows(self, run: Run) -> list[dict[str, Any]]:
        """Return the decisions that a run was sent, in their order."""
        return self._rows(decisions, run, decisions.c.at_ms)

    def steering_rows(self, run: Run) -> list[dict[str, Any]]:
        return self._rows(steerings, run, steerings.c.at_ms)

    def intervention_rows(self, run: Run) -> list[dict[str, Any]]:
        return self._rows(interventions, run, interventions.c.opened_ms)

    def step_rows(self, run: Run) -> list[dict[str, Any]]:
        return self._rows(steps, run, steps.c.started_ms)

    def _rows(self, table: Any, run: Run, order: Any) -> list[dict[str, Any]]:
        with self.ledger.transaction(DEFAULT_TENANT) as tx:
            return tx.all(rows_of(table, run_id=run.run_id).order_by(order))
