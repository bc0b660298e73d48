"""Tenants and cells: an odd name stops nobody else, and each cell has its own runs."""

from __future__ import annotations

import re
import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from google.protobuf.duration_pb2 import Duration
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import effects, runs
from surehand.activities.worker import health
from surehand.activities.worker.health import learn
from surehand.workflows.contracts.base import RunState
from surehand.workflows.contracts.effects import ReconcileLedger, UnwindRun
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.names import RECONCILE, UNWIND, WORKFLOW
from surehand.workflows.plan.plan import Plan
from surehand.workflows.ports import SEARCH_ATTRIBUTES, TENANT
from tests.cli.starter import Ended, Starter
from tests.e2e.plans import plan
from tests.e2e.runs import until
from tests.e2e.stage import Stage
from tests.worker_process import ROOT, WorkerProcess

ODD = ["a'b", "..", ".", "a b", "t" * 40]


def asking() -> Any:
    return plan({"id": "go", "ask": "Go on?"})


async def why(handle: Any) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as failure:
        await handle.result()
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return cause


async def test_nothing_is_done_for_no_tenant(stage: Stage) -> None:
    async with stage.worker_here():
        for tenant in ODD:
            run_id = f"{tenant}/{uuid.uuid4().hex}"
            for name, asked in (
                (WORKFLOW, StartRun(run_id=run_id, tenant=tenant, user="uma", plan=asking())),
                (RECONCILE, ReconcileLedger(tenant=tenant)),
                (UNWIND, UnwindRun(tenant=tenant, run_id=run_id, actor="olga")),
            ):
                workflow_id = run_id if name == WORKFLOW else f"odd-{uuid.uuid4().hex}"
                handle = await stage.client.start_workflow(
                    name, asked, id=workflow_id, task_queue=stage.task_queue
                )
                cause = await why(handle)
                assert (cause.type, "letters, digits" in cause.message) == ("RunIdInvalid", True)
                found = await handle.describe()
                assert found.typed_search_attributes.get(TENANT) is None
            assert tenant not in stage.ledger.tenants


async def test_a_worker_learns_of_tenants_beside_runs_of_odd_names(stage: Stage) -> None:
    """Nobody works on those: they stay open, and are found first."""
    new = f"tenant-{uuid.uuid4().hex[:12]}"
    odd = []
    async with stage.worker_here():
        run = await stage.start(asking(), tenant=new)
        await run.in_state(RunState.WAITING_INPUT)
        for tenant in ("o'dd", "..", "default"):
            named = TypedSearchAttributes([SearchAttributePair(TENANT, f"{tenant}'?")])
            odd.append(
                await stage.client.start_workflow(
                    WORKFLOW, {}, id=f"{tenant}/{uuid.uuid4().hex}", task_queue="nobodys",
                    search_attributes=named,
                )
            )  # fmt: skip
        fresh = Ledger(stage.ledger.engine)

        async def learnt() -> set[str]:
            await learn(stage.client, fresh)
            return fresh.tenants

        assert new in await until(learnt, lambda known: new in known)
        assert fresh.tenants.isdisjoint({"o'dd", ".."})
        for handle in odd:
            await handle.terminate("done with")
        await run.handle.terminate("done with")


# G5: people of every tenant are reminded after a start, however many tenants there are.
async def test_many_tenants_are_all_learned(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_MOST", 1)
    asks = Plan.model_validate([{"id": "a", "ask": "Go on?"}])
    names = {"t-one", "t-three", "t-two"}
    async with stage.worker_here():
        for name in names:
            run = await stage.start(asks, tenant=name)
            await run.in_state(RunState.WAITING_INPUT)
    # It has worked for one that comes first, and has no run.
    ledger = Ledger(stage.ledger.engine)
    ledger.tenants.add("a-tenant")

    async def learnt() -> set[str]:
        await health.learn(stage.client, ledger)
        return names & ledger.tenants

    # The server's list of runs lags a little behind.
    await until(learnt, names.__eq__)


#: What the page has its reader say to the old ledger.
HAND_OVER: Final = re.search(
    "```sql\n(.+?)```", (ROOT / "docs/howto/cells.md").read_text(), re.DOTALL
)


@dataclass(frozen=True)
class Cells:
    """Both cells of a test."""

    folder: Path
    environment: dict[str, str]
    namespaces: dict[str, str]

    @property
    def file(self) -> Path:
        return self.folder / "cells.yaml"

    def write(self, **tenants: str) -> None:
        cells = {
            name: {
                "TEMPORAL_NAMESPACE": namespace,
                "SUREHAND_TASK_QUEUE": f"queue-{name}",
                "SUREHAND_DATABASE_URL": f"${{LEDGER_{name.upper()}}}",
            }
            for name, namespace in self.namespaces.items()
        }
        self.file.write_text(yaml.safe_dump({"cells": cells, "tenants": tenants}))

    def worker(self, cell: str, **settings: str) -> WorkerProcess:
        own = {"SUREHAND_CELL": cell, "PYTHONPATH": str(ROOT), **settings}
        return WorkerProcess({**self.environment, **own}, self.folder / cell)

    def verb(self, *arguments: str, **settings: str) -> Ended:
        return Starter({**self.environment, **settings}, self.folder)(*arguments)

    def plan(self, *steps: dict[str, Any]) -> str:
        file = self.folder / f"{uuid.uuid4().hex}.yaml"
        file.write_text(yaml.safe_dump({"steps": list(steps)}))
        return str(file)

    def pay(self, tenant: str, bill: str, **settings: str) -> Ended:
        plan = self.plan({"id": "pay", "tool": "bills.pay", "params": {"bill": bill}})
        name = f"run-{uuid.uuid4().hex[:8]}"
        start = ["start", plan, "--run-id", name, "--tenant", tenant, "--wait"]
        return self.verb(*start, "--timeout", "60s", "--json", **settings)

    def paid(self) -> Counter[str]:
        file = Path(self.environment["BILLS_FILE"])
        return Counter(file.read_text().split() if file.exists() else ())

    async def rows(self, cell: str, tenant: str, table: Any) -> list[dict[str, Any]]:
        async with open_ledger(self.environment[f"LEDGER_{cell.upper()}"]) as ledger:
            with ledger.transaction(tenant) as tx:
                return tx.all(rows_of(table))


@pytest.fixture(scope="module")
async def namespaces(client: Client) -> dict[str, str]:
    """Two namespaces of the development server, with the search attributes that runs set."""
    made = {name: f"cell-{name}-{uuid.uuid4().hex[:8]}" for name in "ab"}
    retention = Duration()
    retention.FromTimedelta(timedelta(days=1))
    attributes = {key.name: key.indexed_value_type.value for key in SEARCH_ATTRIBUTES}
    for namespace in made.values():
        asked = RegisterNamespaceRequest(
            namespace=namespace, workflow_execution_retention_period=retention
        )
        await client.workflow_service.register_namespace(asked)
        adding = AddSearchAttributesRequest(namespace=namespace, search_attributes=attributes)

        async def added(adding: Any = adding, namespace: str = namespace) -> bool:
            """Whether all of the server knows the namespace; that takes some seconds."""
            try:
                await client.operator_service.add_search_attributes(adding)
            except RPCError as error:
                if "already exists" not in error.message:
                    return False
            own = await Client.connect(
                client.service_client.config.target_host, namespace=namespace
            )
            try:
                await own.count_workflows("RunState = 'running'")
            except RPCError:
                return False
            return True

        await until(added, lambda known: known)
    return made


@pytest.fixture
def cells(
    client: Client, namespaces: dict[str, str], sqlite_template: Path, tmp_path: Path
) -> Cells:
    environment = {
        "TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "SUREHAND_CELLS": str(tmp_path / "cells.yaml"),
        "SUREHAND_TOOL_MODULES": "tests.variants.bills",
        "SUREHAND_ARTIFACTS": str(tmp_path / "artifacts"),
        "SUREHAND_USER": "olga",
        "BILLS_FILE": str(tmp_path / "paid"),
        "PYTHONPATH": str(ROOT),
    }
    for name in namespaces:
        ledger = tmp_path / f"{name}.db"
        shutil.copy(sqlite_template, ledger)
        environment[f"LEDGER_{name.upper()}"] = f"sqlite:///{ledger}"
    found = Cells(tmp_path, environment, namespaces)
    found.write(acme="a", globex="b")
    return found


@pytest.fixture
def working(cells: Cells) -> Iterator[Cells]:
    """The same with a worker in each cell, which knows its tenant."""
    with ExitStack() as stack:
        started = [stack.enter_context(cells.worker(name)) for name in "ab"]
        for tenant in ("acme", "globex"):
            assert cells.verb("tenant", "add", "--tenant", tenant).code == 0
        for worker in started:
            worker.wait_ready()
        yield cells


async def test_a_run_goes_to_the_cell_of_its_tenant_and_to_no_other(
    working: Cells, tmp_path: Path
) -> None:
    # A starter that has an old file sends a run to the cell where its tenant is not.
    old = tmp_path / "old.yaml"
    old.write_text(working.file.read_text().replace("globex: b", "globex: a"))

    assert working.pay("acme", "water").code == 0
    assert working.pay("globex", "power").code == 0
    refused = working.pay("globex", "heat", SUREHAND_CELLS=str(old))

    assert refused.code == 2
    assert "tenant globex is of cell b, and this worker of cell a" in refused.err
    assert working.paid() == {"water": 1, "power": 1}
    for cell, tenant, other in (("a", "acme", "globex"), ("b", "globex", "acme")):
        assert [row["state"] for row in await working.rows(cell, tenant, effects)] == ["committed"]
        assert await working.rows(cell, other, runs) == []


async def test_a_cell_that_was_changed_by_hand_pays_nothing_again(working: Cells) -> None:
    assert working.pay("acme", "water").code == 0
    working.write(acme="b", globex="b")

    refused = working.pay("acme", "water")

    assert (refused.code, working.paid()) == (2, {"water": 1})
    assert "cell b does not know tenant acme" in refused.err
    added = working.verb("tenant", "add", "--tenant", "acme")
    assert (added.code, "the ledger of cell a knows it" in added.err) == (2, True)
    assert (working.pay("acme", "water").code, working.paid()) == (2, {"water": 1})


async def test_runs_wait_while_the_file_is_wrong(working: Cells, tmp_path: Path) -> None:
    right = tmp_path / "right.yaml"
    right.write_text(working.file.read_text())
    waiting = working.plan(
        {"id": "go", "ask": "Go on?"},
        {"id": "pay", "tool": "bills.pay", "params": {"bill": "rent"}},
    )
    start = ["start", waiting, "--run-id", "rent", "--tenant", "acme", "--wait"]
    asked = working.verb(*start, "--timeout", "60s")
    assert asked.code == 10, asked.err
    working.write(acme="b", globex="b")

    yes = working.verb(
        *("answer", "rent", "yes", "--tenant", "acme", "--leave"), SUREHAND_CELLS=str(right)
    )

    assert ("nobody has answered yet" in yes.out, working.paid()) == (True, {}), yes.err
    working.write(acme="a", globex="b")
    done = working.verb("show", "rent", "--tenant", "acme", "--follow")
    assert (done.code, working.paid()) == (0, {"rent": 1}), done.err


def test_a_tenant_moved_by_hand_pays_nothing_again(cells: Cells, tmp_path: Path) -> None:
    """As the page has it. The worker of the old cell and a starter keep the old file."""
    cells.write(acme="a", initech="a")
    old = tmp_path / "old.yaml"
    old.write_text(cells.file.read_text())
    a, b = (tmp_path / f"{name}.db" for name in "ab")
    b.unlink()
    with ExitStack() as stack:
        stack.enter_context(cells.worker("a", SUREHAND_CELLS=str(old))).wait_ready()
        for tenant in ("acme", "initech"):
            asked = cells.verb("tenant", "add", "--tenant", tenant, LEDGER_B="")
            assert asked.code == 0, asked.err
            assert cells.pay(tenant, f"{tenant}-water").code == 0

        assert HAND_OVER is not None
        statement = HAND_OVER[1].replace("globex", "acme").replace("west", "b")
        with closing(sqlite3.connect(a, isolation_level=None)) as ledger:
            assert ledger.execute(statement).rowcount == 1
            ledger.execute("VACUUM INTO ?", [str(b)])
        cells.write(acme="b", initech="a")
        stack.enter_context(cells.worker("b")).wait_ready()

        again = cells.pay("acme", "acme-water")
        assert (again.code, cells.pay("acme", "fresh").code) == (0, 0), again.err
        paid = {"acme-water": 1, "initech-water": 1, "fresh": 1}
        assert cells.paid() == paid
        late = cells.pay("acme", "fresh", SUREHAND_CELLS=str(old))
        assert (late.code, cells.paid()) == (2, paid)
        assert "the ledger of cell a says: tenant acme is of cell b" in late.err
        readded = cells.verb("tenant", "add", "--tenant", "acme", SUREHAND_CELLS=str(old))
        assert (readded.code, "the ledger of cell b knows it" in readded.err) == (2, True)

        # The other one is in the copied ledger, too, and the file is changed by mistake.
        cells.write(acme="b", initech="b")
        mistaken = cells.pay("initech", "initech-water")
        assert (mistaken.code, cells.paid()) == (2, paid)
        assert "the ledger of cell b says: tenant initech is of cell a" in mistaken.err
