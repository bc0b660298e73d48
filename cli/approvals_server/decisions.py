"""What a browser has decided or answered, on its way to the run: nothing of it is changed here.

The signature in it was made by the approver's key, which this process does not have. It covers the
run, the request, the hash of the params, the answer and an edit's params. So what is altered on the
way counts for nothing. Who is signed in is compared only to say what is wrong early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from surehand.client.client import Client
from surehand.client.messages import find_approval, find_run_id
from surehand.process.exits import (
    CutOff,
    DecisionRefused,
    NotFound,
    NotReachable,
    NoWorker,
    OutOfReach,
    Refused,
    SurehandError,
    Unanswered,
    WrongUse,
)
from surehand.workflows.contracts.steering import Verb

#: Of errors, the status that tells a script what to do; any other one is a mistake of ours.
_STATUS: Final = (
    (Unanswered, 202),
    (NoWorker, 503),
    (NotReachable, 503),
    (OutOfReach, 503),
    (NotFound, 404),
    (Refused, 409),
    (CutOff, 409),
    (WrongUse, 400),
)

#: What the pages have a run told, besides decisions.
_VERBS: Final = frozenset((Verb.ANSWER, Verb.RESOLVE))


def status_of(error: SurehandError) -> int:
    """Return the status of the answer that tells of an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def _not_delivered(error: SurehandError) -> Response:
    """Return the answer that tells why a run has not answered; 504: it may have been sent."""
    lost = isinstance(error, NotReachable) and not isinstance(error, NoWorker)
    return JSONResponse({"error": str(error)}, status_code=504 if lost else status_of(error))


async def forward(
    way: Callable[[], Awaitable[Client]], sent: Any, *, me: str, tenant: str
) -> Response:
    """Send a decision to its run, and return the run's verdict.

    Args:
        way: Returns the way to runs; its own user signs and decides nothing.
        sent: What the browser has sent.
        me: Who is signed in.
        tenant: Whose runs may be decided on.
    """
    try:
        if not isinstance(sent, dict):
            raise WrongUse("a decision is an object")
        if sent.get("approver") != me:
            raise WrongUse(f"you are signed in as {me}, and decide in no other name")
        run_id, _ = find_approval(tenant, str(sent.get("approval_id")))
        verdict = await (await way()).run(run_id).forward(sent)
    except DecisionRefused as refused:
        return JSONResponse({"verdict": refused.verdict.model_dump(mode="json")}, status_code=409)
    except SurehandError as error:
        return _not_delivered(error)
    return JSONResponse({"verdict": verdict.model_dump(mode="json")})


async def steer(
    way: Callable[[], Awaitable[Client]], sent: Any, *, me: str, tenant: str
) -> Response:
    """Send an answer, or the settlement of a doubt, to its run, and return what the run says.

    Args:
        way: As for :func:`forward`.
        sent: What the browser has sent: ``run``, ``verb`` and ``message``.
        me: Who is signed in.
        tenant: Whose runs may be steered.
    """
    try:
        match sent:
            case {"run": str(run), "verb": str(verb), "message": dict(message)}:
                pass
            case _:
                raise WrongUse("what is sent has a run, a verb and a message")
        if verb not in _VERBS:
            raise WrongUse(f"these pages send no {verb[:40]!r}")
        if message.get("actor") != me:
            raise WrongUse(f"you are signed in as {me}, and act in no other name")
        run_id = find_run_id(tenant, run)
        said = await (await way()).run(run_id).forward_steering(verb, message)
    except SurehandError as error:
        return _not_delivered(error)
    return JSONResponse({"message": said.message})
