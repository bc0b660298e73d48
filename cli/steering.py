"""Verbs that steer a run or answer it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from temporalio.client import WorkflowExecutionStatus

from surehand.cli import options
from surehand.cli.approvals import change_params, diff
from surehand.cli.options import Caller, Steered, argument, duration_option, flag, option
from surehand.cli.printer import Reply
from surehand.client.connection import Connection
from surehand.client.messages import compose_message, read_token
from surehand.client.plan_file import PlanDraft
from surehand.client.run import Run
from surehand.process.exits import ExitCode, NotFound, NoWorker, Refused, WrongUse
from surehand.process.files import BadDocument, parse_json
from surehand.workflows.canonical_json import digest
from surehand.workflows.contracts.base import Acknowledged, WaitKind
from surehand.workflows.contracts.effects import Resolution, ResolutionOutcome
from surehand.workflows.contracts.steering import CancelMode, Way
from surehand.workflows.plan.plan import Plan


class RunPaused(Steered):
    """``pause``."""

    resume_token: str
    """In the place of the user's key: resumes the run once, in that name. Shown nowhere else."""


#: What the id of a question looks like: one that does not wait is a slip of the pen, no value.
_QUESTION: Final = re.compile(r"[A-Za-z0-9_/\[\]-]+\.[0-9]+")


def tell_steered(run_id: str, answer: Acknowledged) -> Reply:
    told = answer.message
    return Reply(Steered(run_id=run_id, message=told), f"Run {run_id}: {told}")


async def pause(caller: options.Sender, run: options.Run, reason: options.Reason = "") -> Reply:
    """Have a run stop before its next call; prints a token that resumes it, once, within an hour.

    Example: surehand pause refund-1 --reason 'waiting for legal'
    """
    found = await caller.run(run)
    paused = await found.pause(reason=reason)
    resume = ["resume", found.run_id, "--as", caller.settings.user, "--token", paused.resume_token]
    return Reply(
        RunPaused(run_id=found.run_id, message=paused.message, resume_token=paused.resume_token),
        [
            f"Run {found.run_id}: {paused.message}",
            "Who has this token may resume it, once:",
            f"  {caller.settings.command(*resume)}",
        ],
    )


async def resume(
    caller: options.Sender,
    run: options.Run,
    token: Annotated[
        str | None, option("A resume token in the place of a key; `-` reads it.")
    ] = None,
    step: Annotated[str | None, option("The step, if several have failed.")] = None,
    way: Annotated[
        Way, option("How to go on after a failed step: repeat it, skip it, or undo the run.")
    ] = Way.RETRY,
    changes: Annotated[
        list[str] | None, option("Retry with another param.", "--set", metavar="PATH=VALUE")
    ] = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    """Let a paused run go on; it checks the reason for its pause again.

    Example: surehand resume refund-1 --reason 'role given back'
    """
    if changes and leave:
        raise WrongUse("--leave: --set changes params of a step, which only a worker can show")
    run_id, text = caller.run_id(run), token
    if text is not None:
        text = (sys.stdin.readline() if text == "-" else text).strip()
        read_token(text, caller.tenant, run_id)
    found = await caller.run(run)
    params = None if not changes else await _change_failed(found, step, changes)
    answer = await found.resume(
        reason=reason, step=step, way=way, params=params, token=text, leave=leave
    )
    return tell_steered(found.run_id, answer)


async def _change_failed(run: Run, step_id: str | None, changes: list[str]) -> dict[str, Any]:
    view = await run.view()
    waiting = [item for item in view.result.waiting_for if item.kind is WaitKind.FAILURE]
    failed = {item.step_id: item for item in waiting if item.run_id is None}
    named = [one for one in failed if step_id in (None, one)]
    if len(named) != 1:
        listed = ", ".join(failed) or "none has"
        raise WrongUse(f"--set: name one step that has failed (--step): {listed}")
    params = failed[named[0]].value
    if not isinstance(params, dict):
        raise WrongUse(f"--set: step {named[0]} has no params")
    return change_params(dict(params), changes)


async def cancel(
    caller: options.Sender,
    run: options.Run,
    mode: Annotated[
        CancelMode, option("What happens to effects: undo all, keep, undo temporary.")
    ] = CancelMode.COMPENSATE,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    """End a run before its plan does.

    Example: surehand cancel refund-1 --mode keep --reason 'all well'
    """
    found = await caller.run(run)
    return tell_steered(found.run_id, await found.cancel(mode, reason=reason, leave=leave))


async def answer(
    caller: options.Sender,
    run: options.Run,
    answers: Annotated[
        list[str],
        argument(
            "[ID=]VALUE...", "JSON, or text. Without an ID it is for the only question that waits."
        ),
    ],
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    """Answer what a run asks; several answers count together, or not at all.

    Example: surehand answer refund-1 reason.1='sent twice'
    """
    found = await caller.run(run)
    try:
        view = await found.view()
    except NoWorker:
        if not leave:
            raise
        named = (text.partition("=")[0] for text in answers)
        asked = {id_ for id_ in named if _QUESTION.fullmatch(id_)}
    else:
        # With those of child runs, by the names under which they are answered here.
        asked = {item.id for item in view.result.waiting_for if item.kind is WaitKind.QUESTION}
    said = read_answers(answers, asked)
    if "answers" in said:
        sent = await found.answer_all(said["answers"], reason=reason, leave=leave)
    else:
        sent = await found.answer(said.get("answer"), reason=reason, leave=leave)
    return tell_steered(found.run_id, sent)


def read_answers(answers: list[str], asked: set[str]) -> dict[str, Any]:
    """Return answers as a run takes them; ``asked``: the ids of the questions that wait."""
    named: dict[str, Any] = {}
    steps = {one.rpartition(".")[0] for one in asked}
    for text in answers:
        id_, equals, value = text.partition("=")
        if not equals or id_ not in asked:
            if len(answers) == 1 and not (equals and (id_ in steps or _QUESTION.fullmatch(id_))):
                return {"answer": value_of(text)}
            listed = ", ".join(sorted(asked)) or "none"
            raise WrongUse(f"{text!r} does not begin with the id of a question: waiting: {listed}")
        if id_ in named:
            raise WrongUse(f"{id_} is answered twice")
        named[id_] = value_of(value)
    return {"answers": named}


def json_of(text: str, wrong: str) -> Any:
    try:
        return parse_json(text)
    except BadDocument as error:
        raise WrongUse(f"{wrong}: {error.where}: {error.reason}") from error


def value_of(text: str) -> Any:
    """Return JSON as its value, and anything else as the text that it is."""
    try:
        return parse_json(text)
    except BadDocument:
        return text


async def event(
    caller: options.Sender,
    run: options.Run,
    name: Annotated[str, argument("NAME", "As the waiting step names it.")],
    event_id: Annotated[
        str, option("The event's id: a second event with the same id is ignored.", "--id")
    ],
    about: Annotated[str, option("What it is about: the step's `about`.")] = "",
    payload: Annotated[str | None, option("The step's output.", metavar="JSON")] = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    """Tell a run of something that has happened outside; kept until a step waits for it.

    Example: surehand event refund-1 returned --about order-7 --id dhl-9
    """
    # An event is used once: nothing is guessed.
    output = None if payload is None else json_of(payload, "--payload is no JSON")
    found = await caller.run(run)
    sent = await found.send_event(
        name, event_id, about=about, payload=output, reason=reason, leave=leave
    )
    return tell_steered(found.run_id, sent)


async def top_up(
    caller: options.Sender,
    run: options.Run,
    steps: Annotated[int, option("More tool calls.", min=0)] = 0,
    tokens: Annotated[int, option("More tokens.", min=0)] = 0,
    money: Annotated[str, option("More money, such as 2.50.")] = "0",
    time: Annotated[timedelta | None, duration_option("More time.")] = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
) -> Reply:
    """Give a run more budget; one that was paused for it goes on.

    Example: surehand top-up refund-1 --steps 20 --money 5
    """
    found = await caller.run(run)
    more = time or timedelta(0)
    sent = await found.top_up(
        steps=steps, tokens=tokens, money=money, time=more, reason=reason, leave=leave
    )
    return tell_steered(found.run_id, sent)


async def amend(
    caller: options.Sender,
    run: options.Run,
    plan: options.PlanFile,
    changes: options.Changes = None,
    drops: Annotated[
        list[str] | None,
        option("Leave out this step although its effect stands.", "--drop", metavar="STEP"),
    ] = None,
    yes: Annotated[bool, flag("Do not ask for confirmation, as without a terminal.")] = False,
    reason: options.Reason = "",
) -> Reply | ExitCode:
    """Give a run another plan: finished steps stay, and waiting ones ask again.

    Example: surehand amend refund-1 refund-v2.yaml --reason 'other way'
    """
    draft = PlanDraft.of(plan)
    found = await caller.run(run)
    view = await found.view()
    document = draft.amending(view.plan, changes or [])
    lines = list(_compare_plans(view.plan, document))
    if not lines:
        raise WrongUse(f"{plan}: this is the plan that the run has")
    caller.printer.lines(lines)
    asks = caller.attended and not yes
    if asks and not typer.confirm(f"Go on with this plan in run {found.run_id}?"):
        caller.printer.say("Nothing was sent")
        return ExitCode.DONE
    sent = await found.amend(document, based_on=view.plan_version, drops=drops or (), reason=reason)
    return tell_steered(found.run_id, sent)


def _compare_plans(old: Plan, new: Plan) -> Iterator[str]:
    before, after = (plan.model_dump(mode="json", exclude_defaults=True) for plan in (old, new))
    was, will_be = (
        {step["id"]: step for step in plan.pop("steps", [])} for plan in (before, after)
    )
    steps = [(f"Step {id_}", was.get(id_), will_be.get(id_)) for id_ in {**was, **will_be}]
    for name, one, other in [("The plan", before, after), *steps]:
        what = " is left out" if other is None else " is new" if one is None else ""
        lines = diff(one or {}, other or {})
        if lines:
            yield f"{name}{what}:"
            yield from lines
    if [id_ for id_ in was if id_ in will_be] != [id_ for id_ in will_be if id_ in was]:
        yield f"The steps' order: {', '.join(will_be)}"


class DoubtAnswer(StrEnum):
    """What a human says about an effect in doubt."""

    HAPPENED = "happened"
    NOT_HAPPENED = "not-happened"
    CALL_OFF = "call-off"
    COMPENSATED = "compensated"
    UNDO = "undo"
    GIVE_UP = "give-up"


async def resolve(
    caller: options.Sender,
    intervention: Annotated[
        str, argument("INTERVENTION_ID", "As `pending` and `interventions` show it.")
    ],
    outcome: Annotated[
        DoubtAnswer, argument("OUTCOME", f"What happened: {', '.join(DoubtAnswer)}.")
    ],
    run: Annotated[str, option("Its run, as shown with it.", metavar="RUN")],
    evidence: Annotated[str, option("How you know.")] = "",
    receipt: Annotated[
        str | None,
        option(
            "What the call would have returned; later steps and the undo may need it.",
            metavar="JSON",
        ),
    ] = None,
    leave: options.Leave = False,
) -> Reply:
    r"""Settle an intervention: say whether the effect happened.

    If the run has ended, this needs SUREHAND_DATABASE_URL.

    Example: surehand resolve iv-7c1f...-1 happened --run refund-1 \
      --as ana --evidence 'bank statement' --receipt '{"refund_id": "refund-7"}'
    """
    wrong = '--receipt must be JSON, such as \'{"refund_id": "refund-7"}\' or null'
    returned = None if receipt is None else json_of(receipt, wrong)
    run_id, said = caller.run_id(run), ResolutionOutcome(outcome.replace("-", "_"))
    client = await caller.client()
    if await _has_ended(caller, client.connection, run_id):
        resolution = compose_message(
            Resolution,
            intervention_id=intervention,
            outcome=said,
            actor=caller.settings.user,
            evidence=evidence,
            receipt=returned,
        )
        message = await _settle_in_ledger(caller, run_id, resolution)
        return tell_steered(run_id, Acknowledged(message=message))
    answer = await client.run(run_id).resolve(
        intervention,
        said,
        evidence=evidence,
        receipt=returned,
        nothing_to_give=receipt is not None,
        leave=leave,
    )
    return tell_steered(run_id, answer)


async def _has_ended(caller: Caller, connection: Connection, run_id: str) -> bool:
    try:
        found = await connection.describe(run_id)
    except NotFound:
        if not caller.has_ledger:
            raise
        return True  # The server keeps runs for a while; the ledger keeps all, and its tenants.
    return found.status is not WorkflowExecutionStatus.RUNNING


async def _settle_in_ledger(caller: Caller, run_id: str, resolution: Resolution) -> str:
    if not caller.has_ledger:
        needs = "its interventions are settled in the ledger: set SUREHAND_DATABASE_URL"
        raise WrongUse(f"run {run_id} has ended: {needs} and try again")
    from surehand.activities.ledger.effects.reconcile import settle_intervention

    # Delivered once, however often it is sent.
    sent_as = f"ledger#{digest(resolution.model_dump(mode='json')).removeprefix('sha256:')}"
    accepted, message, _ = await caller.do_transaction(
        settle_intervention, run_id, sent_as, resolution
    )
    if not accepted:
        raise Refused(f"run {run_id}: {message}")
    return f"{message} (in the ledger: the run has ended)"
