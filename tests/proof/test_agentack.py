"""What a run has on record, as a trace that AgentAck judges: a checker that others wrote.

AgentAck comes from the package index when the test runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.ledger.core.tables import approvals, effects
from surehand.activities.ledger.effects.run_tree import bar_tree
from surehand.workflows.contracts.base import RunState
from surehand.workflows.plan.policy import Requirement
from tests.ledger.scene import RUN, WINDOW, Scene
from tests.proof.packages import Package

pytestmark = pytest.mark.slow

PACKAGE: Final = (
    "agentack==0.6.3 --hash=sha256:e9ee30e3ffa191b44215241c3521b8aa0bd153b06ff71bfcefa951b5a99c1bd1"
)
POLICY: Final = """
version = 1
[approval]
require_for = ["payments.refund:*"]
max_age_seconds = 86400
"""
Trace = list[dict[str, Any]]
#: What a run's events are in a trace. An edit, too, is a no to what was asked.
DECIDED: Final = {
    "approval.approved": "allow",
    "approval.rejected": "deny",
    "approval.expired": "deny",
}


@pytest.fixture(scope="session")
def agentack(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package.install(tmp_path_factory.mktemp("agentack"), PACKAGE)


def judge(agentack: Package, tmp_path: Path, trace: Trace) -> tuple[str, set[str]]:
    """Return AgentAck's verdict and the rules that it says are broken."""
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(one) + "\n" for one in trace))
    command = ["agentack", "check", "trace.jsonl", "--policy", "policy.toml"]
    ended = agentack.run("-m", *command, "--json", "report.json", at=tmp_path)
    assert ended.returncode in (0, 1, 3), ended.stderr
    result = json.loads((tmp_path / "report.json").read_text())["result"]
    return result["status"], set(result["rule_counts"])


def play(scene: Scene) -> None:
    """Have calls approved, rejected, asked about anew, expired and stopped, and all tried again.

    A call that is let through although it must not be is in the trace, and AgentAck finds it.
    """
    two = Requirement(quorum=2)
    made = scene.ask_approval(scene.call(step_id="made", key="refund:1"), requirement=two)
    scene.claim(made)
    scene.decide(made, approver="ann")
    scene.claim(made)
    scene.decide(made, approver="bob")
    scene.committed(made)
    scene.claim(replace(made, key="refund:5"))
    no = scene.ask_approval(scene.call(step_id="no", key="refund:2"))
    scene.decide(no, "reject", approver="ann")
    scene.claim(no)
    again = scene.ask_approval(scene.call(step_id="again", key="refund:2"))
    scene.decide(again, approver="ann")
    scene.committed(again)
    silent = scene.ask_approval(scene.call(step_id="silent", key="refund:3"))
    scene.close(silent, "expired", after=WINDOW)
    scene.claim(silent)
    late = scene.approved(scene.call(step_id="late", key="refund:4"))
    scene.claim(late, after=WINDOW)
    stopped = scene.approved(scene.call(step_id="stopped", key="refund:6"))
    with scene.tx() as tx:
        bar_tree(tx, RUN)
    scene.claim(stopped)
    scene.end(state=RunState.CANCELLED)


def export(scene: Scene) -> Trace:
    """Return a run's trace. What was asked and what was made are read from different rows."""
    asked = {row["approval_id"]: row for row in scene.rows(approvals)}
    entries = {row["entry_id"]: row for row in scene.rows(effects)}
    trace: Trace = []

    def add(event: dict[str, Any], type_: str, id_: str | None = None, **said: Any) -> None:
        if id_ is not None:
            said |= {"action_id": id_, "approval_id": id_, "intent_id": asked[id_]["key"]}
        if type_ == "action_proposed":
            del said["approval_id"]
        base = {"schema_version": 2, "session_id": RUN, "timestamp": at(event["at_ms"])}
        trace.append({**base, "type": type_, **said})

    for event in scene.events():
        body, id_ = event["body"], event["body"].get("approval_id")
        match event["type"]:
            case "approval.requested":
                add(event, "action_proposed", id_, action=action(asked[id_]))
                add(event, "approval_requested", id_, action=action(asked[id_]))
            case "approval.approved" | "approval.rejected" | "approval.expired" as type_:
                until = {"expires_at": at(asked[id_]["expires_ms"])}
                add(event, "approval_decision", id_, decision=DECIDED[type_], **until)
                if DECIDED[type_] == "deny":
                    add(event, "action_blocked", id_, reason=type_)
            case "effect.refused":
                # Of the attempts that were refused, the last one ends a call that never was made.
                id_ = next(one for one in asked if f"/{event['step_id']}/" in one)
                if event["step_id"] in ("late", "stopped"):
                    add(event, "action_blocked", id_, reason=body["rule"])
            case "effect.claimed":
                add(event, "action_executed", id_, action=action(entries[body["entry_id"]]))
            case "run.barred":
                add(event, "interrupt")
            case "run.cancelled":
                add(event, "session_end")
    return trace


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def action(row: dict[str, Any]) -> dict[str, Any]:
    return {"tool": row["tool"], "operation": "call", "parameters": row["params"]}


def find(trace: Trace, type_: str, step: str = "made") -> dict[str, Any]:
    return next(
        one for one in trace if one["type"] == type_ and f"/{step}/" in one.get("action_id", "")
    )


def move(trace: Trace, type_: str, to: int) -> None:
    one = find(trace, type_)
    trace.remove(one)
    trace.insert(to, one)


def route_around(trace: Trace) -> None:
    """Let the rejected effect be made by another call that nobody was asked about."""
    other = {"action_id": "other", "intent_id": "refund:2"}
    proposed, made = (find(trace, f"action_{how}", "again") for how in ("proposed", "executed"))
    for one in [one for one in trace if one.get("action_id") == made["action_id"]]:
        trace.remove(one)
    denied = trace.index(find(trace, "action_blocked", "no"))
    trace[denied + 1 : denied + 1] = [
        {k: v for k, v in {**one, **other}.items() if k != "approval_id"}
        for one in (proposed, made)
    ]


def unapproved(trace: Trace) -> None:
    del find(trace, "action_executed")["approval_id"]


#: One change to a good trace for each rule of AgentAck.
BROKEN: Final[dict[str, Callable[[Trace], Any]]] = {
    "ACK001": unapproved,
    "ACK002": lambda trace: find(trace, "approval_decision").update(decision="deny"),
    "ACK003": lambda trace: find(trace, "action_executed")["action"]["parameters"].update(
        order="2"
    ),
    "ACK004": lambda trace: trace.insert(-1, find(trace, "action_executed")),
    "ACK005": lambda trace: find(trace, "approval_decision").update(expires_at=at(1)),
    "ACK006": lambda trace: move(trace, "action_executed", 0),
    "ACK007": route_around,
    "ACK008": lambda trace: move(trace, "action_executed", len(trace) - 2),
    "ACK009": lambda trace: trace.pop(),
}


def test_the_trace_of_a_run_passes(scene: Scene, agentack: Package, tmp_path: Path) -> None:
    play(scene)
    trace = export(scene)
    assert judge(agentack, tmp_path, trace) == ("PASS", set())
    assert [one["type"] for one in trace].count("action_executed") == 2


def test_nine_broken_traces_are_refused(scene: Scene, agentack: Package, tmp_path: Path) -> None:
    play(scene)
    for rule, change in BROKEN.items():
        trace = export(scene)
        change(trace)
        status, broken = judge(agentack, tmp_path, trace)
        assert status == ("INCOMPLETE" if rule == "ACK009" else "FAIL"), rule
        assert rule in broken, (rule, broken)
