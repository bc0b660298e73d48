"""Delivering what people decide to a run: with its answer, or why there is none."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from cli.caller import Caller
from cli.exits import ExitCode, NoWorker, Unanswered
from cli.shapes import Steered
from cli.tenant_client import Message, TenantClient
from cli.text import command

#: What is true of a message that no worker has taken.
LEFT: Final = "it is with the server, counts as soon as a worker is back, and cannot be taken back"


async def deliver(
    server: TenantClient,
    run_id: str,
    name: str,
    message: BaseModel,
    answer: type[Message],
    *,
    leave: bool,
) -> Message | None:
    """Send something to a run and return its answer; nothing is sent that nobody answers.

    The run is looked at first: what is sent while no worker is there cannot be taken back, and
    counts whenever one comes.

    Args:
        server: Where the run is.
        run_id: The run.
        name: Of the update, and of the signal.
        message: What to send.
        answer: What the run answers with.
        leave: If no worker answers, leave it with the server.

    Returns:
        The answer; ``None`` if it was left with the server.

    Raises:
        WrongUse: The run has ended.
        Refused: With the run's reason.
        NoWorker: No worker answers, and nothing was sent.
        Unanswered: The worker has gone in the middle of it: sent, and it counts later.
    """
    await server.open_run(run_id)
    try:
        await server.require_answer(run_id)
    except NoWorker as error:
        if not leave:
            raise NoWorker(
                f"{error}; nothing was sent (`--leave` leaves it with the server for later)"
            ) from error
        await server.signal(run_id, name, message)
        return None
    try:
        return await server.update(run_id, name, message, answer)
    except NoWorker as error:
        # An update that nobody has taken does not outlive the server; a signal is in the run's
        # history. The run takes the same thing once.
        await server.signal(run_id, name, message)
        if leave:
            return None
        raise Unanswered(
            f"run {run_id}: no worker has answered yet; {LEFT}: look with "
            f"`{command('show', run_id)}`"
        ) from error


def say_left(caller: Caller, run_id: str) -> int:
    """Say that a message was left with the server, as was wished."""
    if caller.printer.json_output:
        caller.printer.document(Steered(run_id=run_id, message=LEFT))
    else:
        caller.printer.say(f"Run {run_id}: no worker answers; {LEFT}")
    return ExitCode.DONE
