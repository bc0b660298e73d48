"""``pause``, ``resume``, ``token`` and ``cancel``, and sending what steers a run."""

from __future__ import annotations

import sys
import time
import uuid
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar

import typer

from cli import options
from cli.caller import Caller, perform
from cli.delivery import LEFT, deliver, say_left
from cli.editing import changed
from cli.exits import ExitCode, WrongUse
from cli.follow import follow
from cli.ids import find_run_id
from cli.resume_token import new_token, read_token
from cli.shapes import Paused, Steered
from cli.signing import fresh_claims, read_key, sign
from cli.text import command
from workflows.contracts import (
    Acknowledged,
    CancelMode,
    CancelRun,
    PauseRun,
    ReissueToken,
    ResumeRun,
    Steering,
    Verb,
    Way,
)
from workflows.contracts.signing import SteeringClaims
from workflows.identity import digest
from workflows.payloads import Malformed, parse

CANCEL_EXAMPLE = "Example: python starter.py cancel refund-1 --mode keep --reason 'all well'"
PAUSE_EXAMPLE = "Example: python starter.py pause refund-1 --reason 'waiting for legal'"
RESUME_EXAMPLE = "Example: python starter.py resume refund-1 --reason 'role given back'"
TOKEN_EXAMPLE = "Example: python starter.py token refund-1 --lasts 30m"

#: How long a resume token counts: for today's work, and gone tomorrow.
_TOKEN_LASTS: Final = timedelta(hours=1)

S = TypeVar("S", bound=Steering)

TokenLasts = Annotated[
    timedelta,
    typer.Option(
        "--lasts",
        parser=options.duration,
        metavar="DURATION",
        help="How long the resume token counts, at most 1 d.",
    ),
]


def composed(model: type[S], **values: Any) -> S:
    """Return a message with what the command line says.

    Raises:
        WrongUse: It is none, and why.
    """
    try:
        return parse(model, values)
    except Malformed as error:
        raise WrongUse(str(error)) from error


def signed(caller: Caller, run_id: str, verb: Verb, message: S) -> S:
    """Return a message as it is sent: with an id of its own, and signed where there is a key."""
    if message.id is None:
        message = message.model_copy(update={"id": uuid.uuid4().hex})
    path = caller.settings.key
    if path is None:
        return message
    common = fresh_claims(message.actor, caller.settings.tenant, int(time.time()))
    content = digest(message.content())
    claims = SteeringClaims(**common, run_id=run_id, verb=verb.value, content=content)
    return message.model_copy(update={"signature": sign(read_key(path), claims)})


async def steer(
    caller: Caller, run_id: str, verb: Verb, message: Steering, *, leave: bool = False
) -> Acknowledged | None:
    """Send something that steers a run; ``None`` if it was left with the server.

    Raises:
        Refused: It does not count; with the reason.
    """
    server = await caller.server()
    sent = signed(caller, run_id, verb, message)
    return await deliver(server, run_id, verb.value, sent, Acknowledged, leave=leave)


def say(caller: Caller, run_id: str, answer: Acknowledged | None) -> int:
    """Say what the run has answered, or that it was left with the server."""
    if answer is None:
        return say_left(caller, run_id)
    if caller.printer.json_output:
        caller.printer.document(Steered(run_id=run_id, message=answer.message))
    else:
        caller.printer.say(f"Run {run_id}: {answer.message}")
    return ExitCode.DONE


def pause(
    run: options.Run,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    lasts: TokenLasts = _TOKEN_LASTS,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Have a run stop before its next call; prints a token that resumes it, once."""

    async def verb(caller: Caller) -> int:
        run_id, actor = find_run_id(caller.settings.tenant, run), caller.settings.user
        token, resume_key = new_token(caller.settings.tenant, run_id, actor, lasts)
        message = PauseRun(actor=actor, reason=reason, resume_key=resume_key)
        answer = await steer(caller, run_id, Verb.PAUSE, message)
        return _say_token(caller, run_id, answer, token)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def token(
    run: options.Run,
    user: options.Actor = None,
    key: options.Key = None,
    lasts: TokenLasts = _TOKEN_LASTS,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Print another resume token of a paused run; the one before is void."""

    async def verb(caller: Caller) -> int:
        run_id, actor = find_run_id(caller.settings.tenant, run), caller.settings.user
        text, resume_key = new_token(caller.settings.tenant, run_id, actor, lasts)
        message = ReissueToken(actor=actor, resume_key=resume_key)
        answer = await steer(caller, run_id, Verb.TOKEN, message)
        return _say_token(caller, run_id, answer, text)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


def _say_token(caller: Caller, run_id: str, answer: Acknowledged | None, text: str) -> int:
    message = answer.message if answer else LEFT
    if caller.printer.json_output:
        caller.printer.document(Paused(run_id=run_id, message=message, resume_token=text))
        return ExitCode.DONE
    caller.printer.say(f"Run {run_id}: {message}")
    caller.printer.say("Who has this token may resume it, once:")
    caller.printer.say(
        f"  {command('resume', run_id, '--as', caller.settings.user)} --token {text}"
    )
    return ExitCode.DONE


def resume(
    run: options.Run,
    user: options.Actor = None,
    key: options.Key = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="A resume token in the place of a key; `-` reads it."),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--step", help="Only this step, of several that have failed.")
    ] = None,
    way: Annotated[
        Way,
        typer.Option("--way", help="Of a step that has failed: again, without it, or not at all."),
    ] = Way.RETRY,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Retry with another param."),
    ] = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    json_output: options.Json = False,
) -> int:
    """Have a paused run go on: the reason for its pause is looked at again."""

    async def verb(caller: Caller) -> int:
        run_id, held = find_run_id(caller.settings.tenant, run), None
        if token is not None:
            text = sys.stdin.readline() if token == "-" else token
            held = read_token(text.strip(), caller.settings.tenant, run_id)
        params = None if not changes else await _changed(caller, run_id, step, changes)
        message = ResumeRun(
            actor=caller.settings.user,
            reason=reason,
            id=uuid.uuid4().hex,
            step=step,
            way=way,
            params=params,
        )
        if held is not None:
            message = held.proof_of(message)
        answer = await steer(caller, run_id, Verb.RESUME, message, leave=leave)
        return say(caller, run_id, answer)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)


async def _changed(
    caller: Caller, run_id: str, step_id: str | None, changes: list[str]
) -> dict[str, Any]:
    """Return the params of the step that has failed, with the changes made."""
    view = await (await caller.server()).view(run_id)
    failed = [item.step_id for item in view.result.waiting_for if item.kind == "failure"]
    named = [one for one in failed if step_id in (None, one)]
    if len(named) != 1:
        raise WrongUse(f"--set: name one step that has failed (--step): {', '.join(failed)}")
    return changed(dict(view.plan.step(named[0]).params), changes)


def cancel(
    run: options.Run,
    mode: Annotated[
        CancelMode,
        typer.Option("--mode", help="What happens to effects: undo all, keep, undo temporary."),
    ] = CancelMode.COMPENSATE,
    user: options.Actor = None,
    key: options.Key = None,
    reason: options.Reason = "",
    leave: options.Leave = False,
    tenant: options.Tenant = None,
    wait: options.Wait = False,
    timeout: options.Timeout = None,
    json_output: options.Json = False,
) -> int:
    """End a run before its plan does."""

    async def verb(caller: Caller) -> int:
        run_id = find_run_id(caller.settings.tenant, run)
        message = CancelRun(mode=mode, actor=caller.settings.user, reason=reason)
        answer = await steer(caller, run_id, Verb.CANCEL, message, leave=leave)
        if not wait:
            return say(caller, run_id, answer)
        caller.printer.say(f"Run {run_id}: {answer.message if answer else LEFT}")
        return await follow(caller.printer, await caller.server(), run_id, limit=timeout)

    return perform(verb, json_output=json_output, tenant=tenant, user=user, key=key)
