"""Delivering what people decide to a run: with its answer, or why there is none."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from surehand.client.connection import Connection, Message
from surehand.process.exits import Left, NoWorker, Unanswered

#: What is true of a message that no worker has taken.
LEFT: Final = (
    "it is with the server, counts as soon as a worker can record it, and cannot be taken back"
)


async def deliver(
    connection: Connection,
    run_id: str,
    name: str,
    message: BaseModel,
    answer: type[Message],
    *,
    leave: bool | None,
) -> Message:
    """Send something to a run and return its answer; nothing is sent that nobody answers.

    The run is looked at first: what is sent while no worker is there cannot be taken back, and
    counts whenever one comes.

    Args:
        connection: Where the run is.
        run_id: The run.
        name: Of the update, and of the signal.
        message: What to send.
        answer: What the run answers with.
        leave: If no worker answers, leave it with the server; ``None``: nobody can wish that.

    Raises:
        WrongUse: The run has ended.
        Refused: With the run's reason.
        NoWorker: No worker answers, and nothing was sent.
        Left: No worker answers, and it was left with the server, as was wished.
        Unanswered: The worker has gone in the middle of it: sent, and it counts later.
    """
    await connection.open_run(run_id)
    try:
        await connection.require_answer(run_id)
    except NoWorker as error:
        if not leave:
            hint = "" if leave is None else " (`--leave`, `leave=True`: left with the server)"
            raise NoWorker(f"{error}; nothing was sent{hint}") from error
        await connection.signal(run_id, name, message)
        raise Left(f"run {run_id}: nobody has answered yet; {LEFT}", run_id) from error
    try:
        return await connection.update(run_id, name, message, answer)
    except NoWorker as error:
        # An update that nobody has taken does not outlive the server; a signal is in the run's
        # history. The run takes the same thing once.
        await connection.signal(run_id, name, message)
        if leave:
            raise Left(f"run {run_id}: nobody has answered yet; {LEFT}", run_id) from error
        raise Unanswered(
            f"run {run_id}: {await _why_not(connection, run_id)}; {LEFT}: look with "
            f"`{connection.settings.command('show', run_id)}`"
        ) from error


async def _why_not(connection: Connection, run_id: str) -> str:
    """Return why what was sent is not answered: its worker has gone, or cannot record it."""
    try:
        await connection.require_answer(run_id)
    except NoWorker:
        return "no worker has answered yet"
    return (
        "its worker answers, and has not recorded it yet (its log says whether the ledger is away)"
    )
