"""What people see of a run, and what its next execution takes over."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from pydantic import JsonValue

from surehand.workflows.contracts import runs
from surehand.workflows.contracts.approvals import ApprovalRequest, Assurance, Decision, VerdictCode
from surehand.workflows.contracts.approvals import DecisionOutcome as Outcome
from surehand.workflows.contracts.base import ENDED, RunState, StepState, as_artifact, foreign_text
from surehand.workflows.contracts.steering import Interrupt, Verb
from surehand.workflows.identity import DEFAULT_TENANT, run_of_approval, tenant_of_run
from surehand.workflows.names import YOUR_NAME
from surehand.workflows.plain_text import markdown, plain
from surehand.workflows.plan.plan import ITERATION
from surehand.workflows.plan.references import INPUT, ancestors
from surehand.workflows.run.run_data import OPEN, RunData, StepViews
from surehand.workflows.run.run_records import Gate, StepRecord

#: Steps of the plan and the newest others (items of lists, steps of earlier plans) that are listed.
MOST_LISTED: Final = 200
#: Effects that are listed; the ledger's own list replaces them at the end.
MOST_EFFECTS: Final = 200
#: Characters of JSON of outputs that nothing ahead refers to; another plan may.
MOST_OUTPUTS: Final = 8 * 1024 * 1024
#: Characters of one line of the story, and of a signal's refusal.
LONGEST_LINE: Final = 500


def snapshot(data: RunData) -> dict[str, Any]:
    """Return a run's state in JSON form, as its next execution takes it over."""
    plan, views = data.request.plan, list(data.steps.values())
    parents = {view.id: ITERATION.sub("", view.id) for view in views}
    items = {id_ for id_, parent in parents.items() if parent != id_ and parent in data.progress}

    # Whose outputs are needed: steps that are not done refer to them, or they are items of a list
    # under way. What is made again needs what it was made of.
    ahead = [step.id for step in plan.steps if step.id not in data.settled]
    needed = {name for step_id in ahead for name in plan.dependencies[step_id]}
    if any(one.read_at for one in data.records.values()):
        needed |= ancestors(plan.uses, *needed)
    needed |= items

    # Which steps are shown from now on: those of the plan or under way, and the newest others.
    listed = {step.id for step in plan.steps} | items | data.progress.keys()
    listed |= {view.id for view in views if view.child is not None or view.state in OPEN}
    listed |= set([view.id for view in views if view.id not in listed][-MOST_LISTED:])
    shown = [
        view
        if view.id in needed or view.original is None or _is_small(view.original)
        else view.model_copy(update={"original": None})
        for view in views
        if view.id in listed
    ]
    # Outputs are cut where there is no room for them; those that are needed have it first.
    by_need = sorted(shown, key=lambda one: (one.id not in needed, parents[one.id] != one.id))
    cut = {view.id: view for view in runs.cut_to_fit(by_need, MOST_OUTPUTS, whole=needed)}
    kept = {view.id: cut[view.id] for view in shown}
    dropped = [view for view in views if view.id not in kept]

    facts = dict[str, Any]()
    for name, fact in data.facts.items():
        view = kept.get(name)
        if name != INPUT and (name in needed or (view is not None and _is_small(fact))):
            done = view is not None and view.state is StepState.SUCCEEDED
            if not done or view is None or view.output != fact or runs.is_cut(fact):
                facts[name] = fact

    short = data.model_copy(
        update={
            "steps": StepViews(kept),
            "more_steps": data.more_steps + len(dropped),
            "replays": data.replays or any(view.made_by for view in dropped),
            "facts": facts,
            "records": _records_to_carry(data),
            "effects": dict(list(data.effects.items())[-MOST_EFFECTS:]),
            "gate": _gate_to_carry(data),
            # Child runs that nothing has come to yet are looked at when it does.
            "children": data.children.model_copy(update={"early": {}}),
            "timeline": [
                line.model_copy(update={"text": line.text[:LONGEST_LINE]}) for line in data.timeline
            ],
            "refused_signals": [
                one.model_copy(update={"reason": one.reason[:LONGEST_LINE]})
                for one in data.refused_signals
            ],
        }
    )
    return short.model_dump(mode="json")


def _is_small(value: Any) -> bool:
    return len(json.dumps(value)) <= LONGEST_LINE


def _gate_to_carry(data: RunData) -> Gate:
    """Return the gate; of steps that ask for nothing any more it keeps the newest requests only."""
    done = {view.id for view in data.in_state(StepState.SUCCEEDED, StepState.FAILED)}
    gate = data.gate
    kept = {
        name
        for name in gate.states
        if name in gate.settled or (run_of_approval(name) or ("", ""))[1] not in done
    }
    return gate.model_copy(
        update={
            "states": {name: state for name, state in gate.states.items() if name in kept},
            "accepted": {name: one for name, one in gate.accepted.items() if name in kept},
            "verified": gate.verified & kept,
        }
    )


def _records_to_carry(data: RunData) -> dict[str, StepRecord]:
    """Return what is known of the steps: of those that have ended what a new beginning needs."""
    nothing, records = StepRecord(), dict[str, StepRecord]()
    for step_id, record in data.records.items():
        view = data.steps.get(step_id)
        if step_id not in data.progress:
            ended: dict[str, Any] = {"begun": None, "edited": None, "settles": False}
            if view is None or view.state is not StepState.PENDING:
                ended["attempts_used"] = 0
            record = record.model_copy(update=ended)
        if record != nothing:
            records[step_id] = record
    return records


#: States of a step that looks again after a while.
_LOOKING: Final = (StepState.WAITING_RATE_LIMIT, StepState.WAITING_QUOTA, StepState.HALTED)
#: Params longer than this are cut in the details; the view has them whole.
_LONGEST_PARAMS: Final = 2000
_IN_LINES: Final = json.JSONEncoder(indent=2, ensure_ascii=False)


def current_details(data: RunData) -> str:
    """Return where the run stands, what it waits for, and how to answer."""
    lines = [f"**{data.state}** · {data.request.plan.name} · for {markdown(data.request.user)}"]
    if data.last_error:
        lines.append(f"> {markdown(data.last_error)}")
    lines += _refusal_lines(data)
    for view in data.in_state(StepState.RUNNING):
        lines.append(f"- running `{view.id}`: {view.tool}")
    for view in data.in_state(*_LOOKING):
        lines.append(f"- waiting `{view.id}`: {markdown(view.error or '')}")
    if data.queued is not None:
        lines.append(f"- {markdown(data.queued.story)}")
    if data.paused is not None:
        reason = f": {markdown(data.paused.reason)}" if data.paused.reason else ""
        lines.append(f"- paused by {markdown(data.paused.actor)}{reason}; then `resume`")
    for view in data.in_state(StepState.PAUSED_PERMISSION):
        lines.append(f"- `{view.id}` {markdown(view.error or '')}; then `resume`")
    if data.foreign:
        lines.append(f"- has read content from outside: {markdown(foreign_text(data.foreign))}")
    for request in data.gate.pending.values():
        lines += _approval_lines(data.request.run_id, request)
    for held in data.held_approvals():
        by, waits = markdown(held.approver), markdown(held.waits_for)
        what = f"{held.outcome} by {by}, waits for {waits}"
        lines.append(f"- decided early `{held.approval_id}`: {what}")
    for interrupt in data.interrupts.values():
        lines += _question_lines(interrupt)
    for question in data.interventions.values():
        lines += [
            "",
            f"### Needs a human: `{question.intervention_id}`",
            markdown(question.question),
        ]
    # The Web UI's pane is a little lower than what it shows: let it cut off nothing but this.
    return "\n".join([*lines, "", "&nbsp;"])


def _refusal_lines(data: RunData) -> list[str]:
    lines = []
    verdict = next(reversed(data.inbox.verdicts.values()), None)
    if verdict is not None and verdict.code not in (VerdictCode.ACCEPTED, VerdictCode.HELD):
        lines += ["", f"**Last decision refused** ({verdict.code}): {markdown(verdict.message)}"]
    if data.refused_signals:
        newest = data.refused_signals[-1]
        name, reason = markdown(newest.name), markdown(newest.reason)
        lines += ["", f"**Last signal refused**: {name}: {reason}"]
    return [*lines, ""]


def _approval_lines(run_id: str, request: ApprovalRequest) -> list[str]:
    params = _indent_json(request.params)
    cut = len(params) > _LONGEST_PARAMS
    return [
        "",
        f"### Waiting for approval: `{request.approval_id}`",
        markdown(request.description),
        "",
        f"- tool: `{request.tool}` version {request.version}; {request.undo}",
        f"- asked by {markdown(request.askers)}, until {request.expires_at.isoformat()}",
        *_requirement_lines(request),
        "",
        "```json",
        params[:_LONGEST_PARAMS],
        "```",
        "",
        *(["**Cut here**: the query `view` has all params.", ""] if cut else []),
        "Params hash (of tool, version and params):",
        "",
        f"`{request.params_hash}`",  # not in a list: indented, it would run out of the pane
        "",
        *how_to_decide(run_id, request),
    ]


def _indent_json(value: Any) -> str:
    """Return a JSON value in lines for people, with more characters than are shown at most.

    A run's details are made whenever it has moved, so the rest of a large value is not looked at.
    """
    text = ""
    for part in _IN_LINES.iterencode(value):
        text += part[: _LONGEST_PARAMS + 1]
        if len(text) > _LONGEST_PARAMS:
            break
    return "\n".join(map(plain, text.split("\n")))


def _question_lines(interrupt: Interrupt) -> list[str]:
    answer = {"actor": YOUR_NAME, "answers": {interrupt.interrupt_id: "..."}}
    fence = ["```json", json.dumps(answer, indent=2, ensure_ascii=False), "```"]
    lines = ["", f"### Asks: `{interrupt.interrupt_id}`", markdown(interrupt.question), ""]
    if interrupt.answer_schema:
        schema = _indent_json(interrupt.answer_schema)[:_LONGEST_PARAMS]
        lines += ["The answer has to fit:", "", "```json", schema, "```", ""]
    how = f"To answer, choose *More Actions*, *Send a Signal*, `{Verb.ANSWER}`, and paste:"
    return [*lines, how, "", *fence]


def _requirement_lines(request: ApprovalRequest) -> list[str]:
    lines = [f"- needs {requirement.as_text()}" for requirement in request.requirements]
    if request.excluded:
        lines.append(f"- not by: {markdown(', '.join(request.excluded))}")
    if request.votes:
        lines.append(f"- so far: {markdown(', '.join(request.votes))}")
    return lines


def how_to_decide(run_id: str, request: ApprovalRequest) -> list[str]:
    """Return the lines that say how a request is answered from the Web UI."""
    if request.assurance.by_passkey:
        return [f"Decisions {request.assurance.as_text()}: not from here, nor by a command."]
    if request.assurance is not Assurance.OPEN:
        return [
            "Only signed decisions count. This prints the JSON for *More Actions*, *Send a Signal*,"
            f" `{Verb.DECIDE}` (with `--outcome reject` it rejects):",
            "",
            "```",
            _sign_command(run_id, request),
            "```",
        ]
    decision = Decision(
        approval_id=request.approval_id,
        params_hash=request.params_hash,
        outcome=Outcome.APPROVE,
        approver=YOUR_NAME,
    ).model_dump(mode="json", exclude_defaults=True)
    shown = json.dumps(decision, indent=2, ensure_ascii=False)
    return [
        f"To decide, choose *More Actions*, *Send a Signal*, `{Verb.DECIDE}`, and paste this with"
        f" your name (`{Outcome.REJECT}` in place of `{Outcome.APPROVE}` rejects):",
        "",
        "```json",
        shown,
        "```",
        "",
        "Or from a shell:",
        "",
        "```",
        # In short lines: the pane is narrow.
        "temporal workflow signal \\",
        f"  --workflow-id {shlex.quote(run_id)} \\",
        f"  --name {Verb.DECIDE} --input {shlex.quote(shown)}",
        "```",
    ]


def _sign_command(run_id: str, request: ApprovalRequest) -> str:
    parts = ["sign", request.approval_id, "--params-hash", request.params_hash]
    parts += ["--as", YOUR_NAME, "--key", "KEYFILE"]
    tenant = tenant_of_run(run_id)
    if tenant != DEFAULT_TENANT:
        parts += ["--tenant", tenant]
    return f"{request.program} {shlex.join(parts)}"


#: Characters of all outputs together that a view shows: a starter without the workers' artifact
#: store can read it all the same. The result of a run that has ended has all of them.
MOST_SHOWN: Final = 512 * 1024
#: How a run in these states is gone on with; in the others that depends on its effects.
_POLICIES: Final = {
    RunState.NEEDS_INTERVENTION: runs.ResumePolicy.MANUAL,
    RunState.PAUSED_BUDGET: runs.ResumePolicy.MANUAL,
    RunState.PAUSED_FAILURE: runs.ResumePolicy.MANUAL,
    RunState.WAITING_EVENT: runs.ResumePolicy.AFTER_EVENT,
    RunState.PAUSED_USER: runs.ResumePolicy.RECHECK_PERMISSIONS_THEN_CONTINUE,
    RunState.PAUSED_PERMISSION: runs.ResumePolicy.RECHECK_PERMISSIONS_THEN_CONTINUE,
    RunState.WAITING_APPROVAL: runs.ResumePolicy.AFTER_HUMAN_APPROVAL,
    RunState.WAITING_INPUT: runs.ResumePolicy.AFTER_HUMAN_APPROVAL,
}


def result_of(data: RunData) -> runs.RunResult:
    own = list(data.effects.values()) if data.final_effects is None else data.final_effects
    return runs.RunResult(
        run_id=data.request.run_id,
        state=data.state,
        steps=list(data.steps.values()),
        more_steps=data.more_steps,
        more_effects=data.more_effects,
        more_uncompensated=data.more_uncompensated,
        effects=own,
        uncompensated=data.uncompensated,
        waiting_for=[] if data.ended else data.waiting(),
        foreign=data.foreign,
        error=data.last_error,
        output=data.output,
    )


def view_of(data: RunData) -> runs.RunView:
    """Return the answer of the query ``view``."""
    result = result_of(data)
    return runs.RunView(
        result=result.model_copy(update={"steps": runs.cut_to_fit(result.steps, MOST_SHOWN)}),
        tenant=data.request.tenant,
        user=data.request.user,
        started_by=data.request.started_by or data.request.user,
        plan=data.request.plan,
        plan_version=data.plan_version,
        durability=data.request.mode,
        started_at=data.started_at,
        # What was read since the request counts, too.
        pending=[
            request.model_copy(update={"foreign": data.foreign})
            for request in data.gate.pending.values()
        ],
        held=data.held_approvals(),
        interrupts=list(data.interrupts.values()),
        settled=data.gate.settled_views(),
        verdicts=list(data.inbox.verdicts.values()),
        timeline=list(data.timeline),
        refused_signals=list(data.refused_signals),
    )


def report_of(data: RunData, parent: runs.Parent) -> runs.ChildReport:
    """Return what a child run shows at its parent, with what its own children ask."""
    inside = [
        interrupt.model_copy(update={"interrupt_id": id_})
        for id_, interrupt in data.children.list_questions().items()
    ]
    return runs.ChildReport(
        step_id=parent.step_id,
        run_id=data.request.run_id,
        state=data.state,
        waiting=data.waiting(),
        interrupts=[*data.interrupts.values(), *inside],
    )


def _spent_and_allowed(data: RunData) -> dict[str, JsonValue]:
    limits, more, spent = data.request.plan.budget, data.more_budget, data.spent
    money = None if limits.money is None else str(Decimal(limits.money) + Decimal(more.money))
    return {
        "steps": spent.steps,
        "steps_limit": None if limits.steps is None else limits.steps + more.steps,
        "tokens": spent.tokens,
        "tokens_limit": None if limits.tokens is None else limits.tokens + more.tokens,
        "money": str(spent.money),
        "money_limit": money,
        "time_limit": None if limits.time is None else str(limits.time + more.time),
    }


def checkpoint_of(data: RunData, now: datetime) -> runs.Checkpoint:
    """Return the answer of the query ``checkpoint``."""
    done = [view.id for view in data.in_state(StepState.SUCCEEDED)]
    effects = data.effects.values() if data.final_effects is None else data.final_effects
    first = next(iter(data.gate.pending.values()), None)
    artifacts = [as_artifact(view.output) for view in data.steps.values()]
    return runs.Checkpoint(
        checkpoint_id=f"{data.request.run_id}@{data.head.seq if data.head else 0}",
        run_id=data.request.run_id,
        created_at=now,
        created_by=data.request.user,
        ttl=None,
        plan_version=data.plan_version,
        current_steps=[
            runs.CurrentStep(
                step_id=view.id,
                tool=view.tool,
                state=view.state,
                attempt=view.attempts + 1,
                started_at=data.records.get(view.id, StepRecord()).begun,
            )
            for view in data.in_state(*OPEN)
        ],
        completed_steps=done,
        recovery_point=done[-1] if done else "start",
        pending_call=runs.PendingCall(
            tool=first.tool, params_hash=first.params_hash, approval_id=first.approval_id
        )
        if first
        else None,
        pending_approvals=[] if data.ended else list(data.gate.pending),
        pending_side_effects=[] if data.ended else data.saga.unsettled(),
        side_effects=[
            runs.SideEffect(tool=view.tool, idempotency_key=view.key, state=view.state)
            for view in effects
        ],
        pending_interrupts=[waiting.id for waiting in result_of(data).waiting_for],
        artifact_refs=[one.uri for one in artifacts if one is not None],
        foreign=data.foreign,
        permissions_snapshot={"user": data.request.user, "tenant": data.request.tenant},
        budget=_spent_and_allowed(data),
        last_error=data.last_error,
        resume_policy=_resume_policy(data),
    )


def _resume_policy(data: RunData) -> runs.ResumePolicy:
    state = data.state
    if state in ENDED:
        return runs.ResumePolicy.MANUAL
    if state in _POLICIES:
        return _POLICIES[state]
    unsettled = data.saga.unsettled()
    return runs.ResumePolicy.RECONCILE_FIRST if unsettled else runs.ResumePolicy.RETRY_CURRENT_STEP
