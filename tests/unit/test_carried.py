"""What a run carries into its next execution: all that it knows, cut short where it is large."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    ApprovalState,
    Decision,
    Verdict,
    VerdictCode,
)
from surehand.workflows.contracts.base import (
    ChainHead,
    ForeignContent,
    Quota,
    QuotaWait,
    Record,
    RunState,
    StepState,
)
from surehand.workflows.contracts.effects import EffectView, OpenIntervention
from surehand.workflows.contracts.runs import (
    Amend,
    ChildReport,
    RefusedSignal,
    StartRun,
    TimelineLine,
    TopUp,
)
from surehand.workflows.contracts.steering import (
    CancelRun,
    Interrupt,
    InterruptKind,
    IssuedToken,
    PauseRun,
    ResumeRun,
    Verb,
)
from surehand.workflows.contracts.tools import AttemptsUsed, Effect, FailedStep, Recovery, ToolSpec
from surehand.workflows.plan.plan import Plan
from surehand.workflows.run.deliveries import Delivery, Inbox, answer_of
from surehand.workflows.run.run_core import Continuing, RunCore
from surehand.workflows.run.run_data import RunData
from surehand.workflows.run.run_records import (
    MOST_SETTLED,
    ChildRuns,
    CodeState,
    Gate,
    KeptEvents,
    Saga,
    Spent,
    StepProgress,
    StepRecord,
)
from surehand.workflows.run.run_views import MOST_LISTED, MOST_OUTPUTS, snapshot

NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
#: What is one execution's own, or is not taken along.
NOT_CARRIED: Final = {
    "execution",
    "lives",
    "inbox.prefix",
    "children.early",  # who has not been come to is looked at then
}
#: What the parts of a run know that is not in its state: it ends with the execution.
OF_ONE_EXECUTION: Final = {
    "Completion._completed",
    "Continuing._hindered",
    "Continuing._not_before",
    "Continuing._opened_at",
    "BaseRun._cancelled_by_temporal",
    "BaseRun._declined",
    "RunCore._local_calls",
    "RunCore._making_room",
    "RunCore._shown",
    "RunCore._signals",
    "RunCore._telling_parent",
    "RunCore._told_parent",
    "RunCore.calls_under_way",
    "Conversations._kept",
    "Conversations._setups",
    "StepMaker._defined",
    "StepMaker._describing",
    "StepMaker.over",
    "StepMaker.places",
    "StepMaker.returned",
    "StepMaker.running",
    "ToolCalls._batching",
    "ToolCalls._uncertain",
    "ToolCalls._written",
}
WORKFLOWS: Final = Path(__file__).parents[2] / "workflows"
#: Where the state itself is defined.
STATE: Final = {
    WORKFLOWS / "run" / f"{name}.py" for name in ("deliveries", "run_data", "run_records")
}


def plan(steps: int = 3) -> Plan:
    return Plan.model_validate([{"id": f"s{n}", "tool": "t"} for n in range(steps)])


def fresh(plan: Plan) -> RunData:
    """Return the state of a run that has just begun."""
    request = StartRun(run_id="r", tenant="default", user="uma", plan=plan)
    return RunData.new(request, "w1", NOW)


def carried(data: RunData) -> RunData:
    """Return a run's state as its next execution has it."""
    text = json.dumps(snapshot(data))
    following = data.request.model_copy(update={"carried": json.loads(text)})
    return RunData.new(following, "w2", NOW + timedelta(days=1))


def request(number: int, step_id: str = "s1") -> ApprovalRequest:
    return ApprovalRequest(
        approval_id=f"r/{step_id}/{number}",
        step_id=step_id,
        tool="t",
        version="1",
        params={},
        params_hash="h",
        description="d",
        requested_by="uma",
        expires_at=NOW,
        undo="",
    )


def filled() -> RunData:
    """Return a state each of whose fields differs from that of a run that has just begun."""
    decision = Decision(approval_id="r/s2/1", params_hash="h", outcome="approve", approver="ann")
    effect = EffectView(
        entry_id="e", tool="t", key="k", generation=1, state="committed", step_id="s0"
    )
    held = Delivery(id="d", number=1, verb=Verb.DECIDE, message=decision)
    paused = Delivery(id="p", number=2, verb=Verb.PAUSE, message=PauseRun(actor="a"))
    verdict = Verdict(decision_id="d", approval_id="r/s2/1", code=VerdictCode.HELD, message="m")
    asked = Interrupt(interrupt_id="s1.1", step_id="s1", kind=InterruptKind.ASK, question="?")
    report = ChildReport(step_id="s1", run_id="r~s1", state=RunState.RUNNING)
    tool = ToolSpec(
        name="t",
        version="1",
        schema_hash="sha256:0",
        effect=Effect.READ,
        recovery=Recovery.DEDUPES,
        timeout=timedelta(seconds=1),
    )
    data = fresh(plan())
    data.set_step("s0", StepState.SUCCEEDED, output={"a": 1}, made_by="other")
    data.set_step("s1", StepState.WAITING_APPROVAL)
    fields: dict[str, Any] = {
        "started_at": datetime(2025, 1, 1, tzinfo=UTC),
        "lives": ("w0",),
        "plan_version": 2,
        "next_plan": Amend(actor="a", plan=plan(2), based_on=2),
        "amending": True,
        "tools": {"t": tool},
        "records": {
            "s1": StepRecord(
                begun=NOW,
                read_at=NOW,
                attempts_used=2,
                editors=("eve",),
                edited={"a": 1},
                settles=True,
                renewed=True,
                unanswered=3,
                asked=1,
                spec=tool,
                way=ResumeRun(actor="a"),
            )
        },
        "more_steps": 4,
        "replays": True,
        "settled": {"s0"},
        "facts": {"input": {}, "s0": {"a": 2}},
        "progress": {"s1": StepProgress(interrupt=asked, asks=True)},
        "code": CodeState(
            handed_on=[1], ids={"a", "b"}, numbers={"a": 2}, turns=3, offered={"a.*": {"a.b"}}
        ),
        "stale": {"s0": [1]},
        "held": {"s1"},
        "calls": {"s1": "h"},
        "reported": {
            "s1": FailedStep(step_id="s1", type="T", message="m", used=AttemptsUsed(attempts=1))
        },
        "batches": 1,
        "revoked_batches": ["b"],
        "unacknowledged": {"s1"},
        "saga": Saga(
            started={"s1": None},
            made={"e": "s0"},
            found={"f": "s1"},
            relied={"s3": "g"},
            reused={"s4": "h"},
            children={"r~s2": "s2"},
            barred={"s5"},
            undoing={"s5"},
        ),
        "effects": {"e": effect},
        "spent": Spent(steps=1, tokens=2, money=Decimal("0.5")),
        "more_budget": TopUp(actor="plan", steps=4),
        "children": ChildRuns(
            running={"s1": "r~s1"},
            starting={"s1": [paused]},
            told_to_end={"s1"},
            reports={"s1": report},
            reported={"s1"},
            early={"r~s1": report},
            tries={"s1": 2},
        ),
        "inbox": Inbox(
            prefix="r#w1.",
            received=3,
            queue=[paused],
            judging=held,
            answers={"d": answer_of(verdict)},
            by_content={"content": "d"},
        ),
        "gate": Gate(
            run_id="r",
            held=[held],
            asking={"s2"},
            pending={"r/s1/2": request(2)},
            states={"r/s1/2": ApprovalState.PENDING, "r/s1/1": ApprovalState.REJECTED},
            numbers={"s1": 2},
            settled={"r/s1/1": request(1)},
            accepted={"r/s1/1": decision},
            verified={"r/s1/1"},
        ),
        "interventions": {"i": OpenIntervention(intervention_id="i", step_id="s1", question="?")},
        "settled_interventions": {"j"},
        "to_undo": {"i": "ann"},
        "interrupts": {"s1.1": asked},
        "opening": {"s1.2"},
        "answers": {"s1.1": "yes"},
        "events": KeptEvents(kept={"e": {"k": [1, {"a": 2}]}}, ids={"e1": None}),
        "queued": QuotaWait(quota=Quota.OPEN_RUNS, used="1", limit="1", pause=timedelta(1)),
        "queue_looks": 3,
        "weight": 2.0,
        "paused": PauseRun(actor="a"),
        "token": IssuedToken(user="a", public_key={}, expires_at=NOW, calls="c"),
        "resumed": 1,
        "cancel": CancelRun(actor="a"),
        "stopping": True,
        "closing": True,
        "compensating": True,
        "error": "e",
        "lost": "l",
        "ended": RunState.FAILED,
        "output": [1],
        "final_effects": [effect],
        "more_effects": 1,
        "uncompensated": [effect],
        "more_uncompensated": 1,
        "timeline": [TimelineLine(at=NOW, text="x")],
        "refused_signals": [RefusedSignal(at=NOW, name="n", reason="r")],
        "foreign": (ForeignContent(tool="mail.read", step_id="s1"),),
        "head": ChainHead(seq=3, hash="h"),
    }
    for name, value in fields.items():
        setattr(data, name, value)
    return data


def fields_of(record: BaseModel, inside: str = "") -> Iterator[tuple[str, Any, bool]]:
    """Yield each field's path and value, and whether it says something, down to the last record."""
    for name, field in type(record).model_fields.items():
        value, path = getattr(record, name), f"{inside}{name}"
        if isinstance(value, Record):
            yield from fields_of(value, f"{path}.")
            continue
        default = field.get_default(call_default_factory=True)
        yield path, value, default is PydanticUndefined or value != default


def test_every_field_of_a_state_is_carried() -> None:
    before, after = filled(), carried(filled())
    assert all(says for _, _, says in fields_of(before.records["s1"])), "fill it here"

    for (path, value, says), (_, found, _) in zip(fields_of(before), fields_of(after), strict=True):
        assert says, f"{path}: fill it here"
        if path not in NOT_CARRIED:
            assert found == value, f"{path} is lost"
    assert (after.execution, after.lives) == ("w2", ("w1", "w0"))
    assert after.inbox.prefix == "r#w2."


def test_a_part_of_a_run_knows_nothing_that_its_state_does_not() -> None:
    found = set[str]()
    for file in sorted(set((WORKFLOWS / "run").glob("*.py")) - STATE):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{name}" for name in own_variables(node)}

    assert found == OF_ONE_EXECUTION


def own_variables(class_: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes of a class that change, or that begin as something of its own."""
    for method in class_.body:
        if isinstance(method, ast.AnnAssign) and _begins_empty(method.value):  # of a dataclass
            yield ast.unparse(method.target)
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(method):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = [
                    part
                    for target in node.targets
                    for part in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            empty = _begins_empty(getattr(node, "value", None))
            for target in targets:
                own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                if own and (empty or method.name not in ("__init__", "__post_init__")):
                    assert isinstance(target, ast.Attribute)
                    yield target.attr


def _begins_empty(value: ast.expr | None) -> bool:
    made = ("set", "dict", "list", "deque", "Counter", "defaultdict", "field")
    return isinstance(value, ast.Constant | ast.Dict | ast.List | ast.Set) or (
        isinstance(value, ast.Call) and ast.unparse(value.func).partition("[")[0] in made
    )


@pytest.mark.parametrize(
    ("output", "fact"),
    [({"a": 1}, {"a": 1}), (None, {"rejected": {"reason": "no"}}), ("x" * 9000, "x" * 9000)],
)
def test_what_steps_ahead_refer_to_travels_whatever_its_size(output: Any, fact: Any) -> None:
    data = fresh(plan())
    data.set_step("s0", StepState.SUCCEEDED, output=output)
    data.settled, data.facts["s0"] = {"s0"}, fact

    assert carried(data).facts["s0"] == fact


def test_what_a_read_that_may_be_made_again_was_made_of_travels_whatever_its_size() -> None:
    # s2 is ahead and refers to the read s1 only, which was made of what s0 has returned.
    chain = Plan.model_validate(
        [
            {"id": "s0", "tool": "t"},
            {"id": "s1", "tool": "t", "params": {"x": "${s0}"}},
            {"id": "s2", "tool": "t", "params": {"x": "${s1}"}},
        ]
    )
    large = "x" * MOST_OUTPUTS
    data = fresh(chain)
    for step_id in ("s0", "s1"):
        data.set_step(step_id, StepState.SUCCEEDED, output=large + step_id)
        data.facts[step_id] = large + step_id
        data.settled.add(step_id)
    data.of_step("s1").read_at = NOW

    assert carried(data).facts == {"input": {}, "s0": large + "s0", "s1": large + "s1"}


def many(count: int, output: Callable[[int], Any]) -> RunData:
    data = fresh(plan())
    data.set_step("s0", StepState.SUCCEEDED)
    view = data.steps["s0"]
    for n in range(count):
        id_ = f"s0[{n}]"
        data.steps[id_] = view.model_copy(update={"id": id_, "output": output(n)})
        data.saga.note_commit(id_, f"ef-{n:024}")
    return data


def test_of_ten_thousand_steps_the_newest_are_carried_and_all_that_is_to_be_undone() -> None:
    data = many(10_000, lambda n: {"text": "x" * 8000})
    data.settled = {"s0"}

    found = carried(data)

    assert len(json.dumps(snapshot(data))) < 3_000_000
    assert len(found.steps) == 3 + MOST_LISTED
    assert found.more_steps == 10_000 - MOST_LISTED
    # All that is to be undone is known, whether it is listed or not.
    assert len(found.saga.steps()) == 10_000


def test_requests_are_numbered_on_where_those_before_are_not_carried() -> None:
    """A read that is made again would be given the answer to an older request."""
    data = fresh(plan())
    data.set_step("s0", StepState.SUCCEEDED)
    for number in (1, 2):
        data.gate.note_request(request(number, "s0"), ApprovalState.APPROVED)
    for number in range(MOST_SETTLED):
        data.gate.note_request(request(number + 1), ApprovalState.EXPIRED)

    found = carried(data)

    assert not any(name.startswith("r/s0/") for name in found.gate.states)
    assert found.gate.next_number("s0") == 3


def test_an_unknown_child_start_keeps_its_parent_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next execution would start another one under another id."""
    monkeypatch.setattr(
        "surehand.workflows.run.run_core.workflow.all_handlers_finished", lambda: True
    )
    plan = Plan.model_validate([{"id": "ship", "plan": {"steps": [{"id": "a", "tool": "a.b"}]}}])
    request = StartRun(run_id="r", tenant="default", user="ada", plan=plan)
    data = RunData.new(request, "first", datetime.now(UTC))
    continuing = Continuing(RunCore(data))

    assert continuing.is_quiet()
    data.children.running["ship"] = "r~ship"
    assert not continuing.is_quiet()
