"""`pending` lists everything that waits for a person, and says so only when nothing does."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pytest

from surehand.cli.approvals import PendingList
from surehand.process.dev_server import DevServer
from surehand.process.exits import ExitCode
from tests.cli.starter import Verbs
from tests.worker_process import WorkerProcess

TOOL = '''
from pydantic import BaseModel

from surehand import READ, WRITE, OutcomeUnknown, ToolContext, tool


class Letter(BaseModel):
    to: str


@tool("letters.send", effect=WRITE, recovery="human", irreversible=True)
async def send(params: Letter, ctx: ToolContext) -> None:
    """Send a letter by a service that does not answer."""
    raise OutcomeUnknown("the connection was cut")


@tool("letters.read", effect=READ)
async def read(params: Letter, ctx: ToolContext) -> str:
    """Read a letter."""
    return "Dear Ada"
'''
PLANS = {
    "doubt": "- {id: letter, tool: letters.send, params: {to: ada}}\n",
    "waits": "- {id: parcel, wait: {event: parcel.returned, about: order-7}}\n",
    "spends": """
name: spends
budget: {steps: 1}
steps:
  - {id: one, tool: letters.read, params: {to: ada}}
  - {id: two, tool: letters.read, params: {to: bob}}
""",
}


def test_pending_lists_doubts_and_pauses_also_those_of_ended_runs(
    settings: dict[str, str],
    temporal_server: DevServer,
    temporal_cli: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "doubtful.py").write_text(TOOL)
    tenant = f"t{uuid.uuid4().hex[:8]}"
    own = {
        **settings,
        "SUREHAND_TASK_QUEUE": f"pending-{tenant}",
        "SUREHAND_TENANT": tenant,
        "SUREHAND_TOOL_MODULES": "doubtful",
        "PYTHONPATH": str(tmp_path),
    }
    verbs = Verbs(own, tmp_path, monkeypatch)

    def others() -> list[tuple[str, str]]:
        listed = PendingList.model_validate(verbs("pending", "--json").document())
        return sorted((one.kind, str(one.run_id)) for one in listed.others)

    with WorkerProcess(own, tmp_path / "worker") as worker:
        worker.wait_ready()
        assert "Nothing waits for a person" in verbs("pending").out
        for name, plan in PLANS.items():
            (tmp_path / f"{name}.yaml").write_text(plan)
            started = verbs("start", f"{name}.yaml", "--run-id", name, "--wait")
            assert started.code == 10, started
        assert verbs("pause", "waits", "--reason", "legal").code == 0

        waiting = [
            ("budget", f"{tenant}/spends"),
            ("intervention", f"{tenant}/doubt"),
            ("pause", f"{tenant}/waits"),
        ]
        assert others() == waiting
        shown = verbs("pending").out
        assert (
            f"not-happened --run {tenant}/doubt" in shown
            and f"starter.py resume {tenant}/waits" in shown
        )
        assert f"top-up {tenant}/spends" in shown
        assert "Nothing waits" not in shown
        blind = {**own, "SUREHAND_DATABASE_URL": f"sqlite:///{tmp_path / 'none.db'}"}
        without_ledger = Verbs(blind, tmp_path, monkeypatch)("pending")
        assert without_ledger.code == ExitCode.NOT_REACHABLE
        assert f"starter.py resume {tenant}/waits" in without_ledger.out
        where = ["--workflow-id", f"{tenant}/doubt", "--address", temporal_server.address]
        terminate = [temporal_cli, "workflow", "terminate", *where]
        subprocess.run(terminate, check=True, capture_output=True)
        assert others() == waiting
