"""Requests and decisions of a run, as envelopes of AAIS that its own library judges.

``aais.yaml`` says what was changed. The library comes from the package index when the test runs.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from typing import Any, Final

import pytest

from surehand.activities.ledger.approvals.waiting import list_waiting
from surehand.activities.ledger.core.tables import approvals, decisions
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.approvals import Decision
from surehand.workflows.contracts.base import RunState
from tests.ledger.scene import OTHER_RUN, RUN, WINDOW, Scene
from tests.proof.packages import Package

pytestmark = pytest.mark.slow

PACKAGE: Final = (
    "agent-approval-interchange==0.2.0 "
    "--hash=sha256:47eb4cf14cf28dae989991f46b5ef296de7b5569e57c2f374240400626a54d20"
)
#: Plays each request and decision in their store, by the clock that the ledger had. Prints what is
#: wrong with each envelope, what comes of each decision, and which requests wait in the end.
THEIRS: Final = """
import json, sys
from aais import ApprovalStore, ConflictError, ValidationError, validate
from aais.core import _parse_time
def judge(one):
    try:
        validate(one)
    except ValidationError as error:
        return str(error)
store, actions, came = ApprovalStore(), {}, {}
envelopes = json.load(sys.stdin)
wrong = [judge(one) for one in envelopes]
for one in envelopes:
    if any(wrong):
        break
    if one["type"] == "approval.requested":
        actions[one["request"]["id"]] = one["request"]["action"]
        store.add(one)
    if one["type"] == "approval.decided":
        of, at = one["decision"], _parse_time(one["occurred_at"])
        try:
            resolved = store.decide(one, now=at, current_action=actions[of["request_id"]])
            came[of["id"]] = resolved["resolution"]["outcome"]
        except ConflictError:
            came[of["id"]] = "conflict"
print(json.dumps([wrong, came, sorted(store.pending)]))
"""
Envelope = dict[str, Any]
#: What the ledger says of a decision, in AAIS's words.
OUTCOMES: Final = {
    ("accepted", "approve"): "approved",
    ("accepted", "reject"): "denied",
    ("expired", "approve"): "expired",
    ("wrong_hash", "approve"): "stale",
    ("already_decided", "reject"): "conflict",
}
RESOLVED: Final = {
    "approval.approved": "approved",
    "approval.rejected": "denied",
    "approval.expired": "expired",
    "approval.void": "cancelled",
}
CHOICES: Final = [
    {"decision": "approve", "scope": "once", "label": "Approve"},
    {"decision": "deny", "scope": "once", "label": "Reject"},
]


@pytest.fixture(scope="session")
def aais(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return Package.install(tmp_path_factory.mktemp("aais"), PACKAGE)


def judge(
    aais: Package, envelopes: list[Envelope]
) -> tuple[list[str | None], dict[str, str], list[str]]:
    ended = aais.run("-c", THEIRS, said=json.dumps(envelopes))
    assert not ended.returncode, ended.stderr
    wrong, came, pending = json.loads(ended.stdout)
    return wrong, came, pending


def play(scene: Scene) -> None:
    """Have requests approved, rejected, decided twice, too late and for other params; some wait."""
    yes = scene.ask_approval(scene.call(step_id="yes", key="refund:1"))
    scene.decide(yes, decision_id="yes")
    assert scene.decide(yes, decision_id="yes").code == "accepted"  # it has come twice
    scene.decide(yes, "reject", approver="bob", decision_id="other")
    no = scene.ask_approval(scene.call(step_id="no", key="refund:2"))
    scene.decide(no, "reject", decision_id="no")
    changed = scene.ask_approval(scene.call(step_id="changed", key="refund:3"))
    scene.decide(changed, decision_id="stale", params_hash=digest("other params"))
    late = scene.ask_approval(scene.call(step_id="late", key="refund:4"))
    scene.ask_approval(scene.call(step_id="waits", key="refund:5"), after=WINDOW)
    scene.open_run(OTHER_RUN)
    ended = scene.ask_approval(
        scene.call(run_id=OTHER_RUN, step_id="ended", key="refund:6"), after=WINDOW
    )
    scene.decide(late, decision_id="late", after=WINDOW)
    scene.close(late, "expired", after=WINDOW)
    scene.end(OTHER_RUN, state=RunState.CANCELLED)
    assert scene.row(approvals, approval_id=ended.approval_id)["state"] == "void"


def id_of(text: str) -> str:
    """Return an id as AAIS can have it, without slashes."""
    return text.replace("/", ":")


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def request_of(row: dict[str, Any]) -> dict[str, Any]:
    action = {
        "kind": "tool.call",
        "name": row["tool"],
        "summary": f"Call {row['tool']} {row['tool_version']} for {row['key']}",
        "arguments": row["params"],
        "effects": [row["undo"]],
    }
    return {
        "id": id_of(row["approval_id"]),
        "created_at": at(row["requested_ms"]),
        "expires_at": at(row["expires_ms"]),
        "status": "pending",
        "origin": {"harness": "surehand", "session_id": row["tenant_id"], "run_id": row["run_id"]},
        "action": action,
        "action_digest": digest(action),
        "risk": {"level": "medium", "reasons": ["its policy asks for an approval"]},
        "choices": CHOICES,
    }


def export(scene: Scene) -> list[Envelope]:
    """Return the envelopes of both runs. Decisions are read from their rows, others from events."""
    asked = {row["approval_id"]: row for row in scene.rows(approvals)}
    said = {row["decision_id"]: row for row in scene.rows(decisions)}
    envelopes: list[Envelope] = []
    for event in [*scene.events(RUN), *scene.events(OTHER_RUN)]:
        row = asked.get(event["body"].get("approval_id"))
        if row is None:
            continue
        request, type_ = request_of(row), event["type"]
        of = {"request_id": request["id"], "action_digest": request["action_digest"]}
        more: dict[str, Any] = {}
        if type_ == "approval.requested":
            more = {"type": type_, "request": request}
        elif decision := said.get(event["body"].get("decision_id")):
            if decision["params_hash"] != row["params_hash"]:
                of["action_digest"] = decision["params_hash"]
            more = {
                "type": "approval.decided",
                "decision": {
                    **of,
                    "id": decision["decision_id"],
                    "decided_at": at(decision["at_ms"]),
                    "decision": "approve" if decision["outcome"] == "approve" else "deny",
                    "scope": "once",
                    "actor": {"id": decision["approver"], "type": "human"},
                },
            }
        else:
            resolution = {
                **of,
                "id": f"{request['id']}:{event['seq']}",
                "resolved_at": at(event["at_ms"]),
                "outcome": RESOLVED[type_],
                "message": type_,
            }
            more = {"type": "approval.resolved", "resolution": resolution}
        base = {"aais": "1.0", "id": f"{event['run_id']}:{event['seq']}", "stream": event["run_id"]}
        envelopes.append(
            {**base, "occurred_at": at(event["at_ms"]), "sequence": event["seq"], **more}
        )
    return envelopes


def snapshot(scene: Scene) -> Envelope:
    """Return those that people are shown, an hour later than the first were asked for."""
    with scene.tx(WINDOW) as tx:
        shown = {row["approval_id"] for row in list_waiting(tx, most=100).rows}
    rows = [row for row in scene.rows(approvals) if row["approval_id"] in shown]
    last = max(event["seq"] for event in scene.events())
    return {
        "aais": "1.0",
        "type": "approval.snapshot",
        "id": f"snapshot:{last}",
        "occurred_at": at(max(row["requested_ms"] for row in rows)),
        "sequence": last,
        "snapshot": {"as_of_sequence": last, "pending": [request_of(row) for row in rows]},
    }


def test_each_envelope_of_a_run_is_valid(scene: Scene, aais: Package) -> None:
    play(scene)
    envelopes = [*export(scene), snapshot(scene)]
    wrong, _, _ = judge(aais, envelopes)
    assert wrong == [None] * len(envelopes)
    assert len({one["type"] for one in envelopes}) == 4


def test_each_decision_comes_to_what_it_comes_to_in_their_store(
    scene: Scene, aais: Package
) -> None:
    play(scene)
    rows = scene.rows(decisions)
    here = {row["decision_id"]: OUTCOMES[row["verdict"], row["outcome"]] for row in rows}
    envelopes = export(scene)
    twice = [one for one in envelopes if one["type"] == "approval.decided"][:1]
    wrong, there, _ = judge(aais, [*envelopes, *twice])
    assert wrong == [None] * (len(envelopes) + 1)
    assert here == there
    assert set(here.values()) == set(OUTCOMES.values())


def test_only_what_waits_is_in_a_snapshot(scene: Scene) -> None:
    play(scene)
    pending = [one["id"] for one in snapshot(scene)["snapshot"]["pending"]]
    assert [one.split(":")[1] for one in pending] == ["waits"]


def change(type_: str, **to: Any) -> tuple[str, dict[str, Any]]:
    return f"approval.{type_}", to


#: What is changed in the first envelope of a type; a name has two underlines between its parts.
BROKEN: Final = {
    "other arguments": change("requested", request__action__arguments={"amount": "121.00"}),
    "other effects": change("requested", request__action__effects=["none"]),
    "no longer pending": change("requested", request__status="approved"),
    "expired before": change("requested", request__expires_at=at(0)),
    "nothing but yes": change("requested", request__choices=CHOICES[:1]),
    "the same choice twice": change("requested", request__choices=[*CHOICES, CHOICES[0]]),
    "other params": change("decided", decision__params={"amount": "1.00"}),
    "an unknown decision": change("decided", decision__decision="edit"),
    "a no for ever": change("decided", decision__decision="deny", decision__scope="session"),
    "a model's decision": change("decided", decision__actor__type="model"),
    "an unknown outcome": change("resolved", resolution__outcome="done"),
    "an unknown field": change("resolved", authority="all"),
    "another version": change("decided", aais="2.0"),
}


def test_broken_envelopes_are_refused(scene: Scene, aais: Package) -> None:
    play(scene)
    broken = []
    for type_, to in BROKEN.values():
        envelopes = json.loads(json.dumps(export(scene)))
        broken.append(next(one for one in envelopes if one["type"] == type_))
        for name, value in to.items():
            *path, last = name.split("__")
            reduce(getitem, path, broken[-1])[last] = value
    wrong, _, _ = judge(aais, broken)
    assert [what for what, why in zip(BROKEN, wrong, strict=True) if why is None] == []


@pytest.mark.parametrize("more", [{"scope": "session"}, {"extensions": {"a.example/x": True}}])
def test_what_else_a_decision_says_counts_for_nothing(more: dict[str, Any]) -> None:
    said = {"approval_id": "run-1/a/1", "params_hash": "sha256:0", "approver": "ann"}
    said |= {"outcome": "approve"}
    assert Decision.model_validate({**said, **more}) == Decision.model_validate(said)
