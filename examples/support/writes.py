"""The effects that the help desk applies, each inside the caller's transaction."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Final

from surehand.examples.shop.bodies import Body
from surehand.examples.shop.writes import Applied, Refused, Write
from surehand.examples.support.store import ticket_of


class OfTicket(Body):
    """Which ticket."""

    ticket_id: str


class ReportBody(OfTicket):
    """Where a ticket's report is."""

    report: str


def _close(connection: Connection, body: OfTicket, half: bool) -> Applied | Refused:
    return _moved(connection, body, "open", "closed")


def _reopen(connection: Connection, body: OfTicket, half: bool) -> Applied | Refused:
    return _moved(connection, body, "closed", "open")


def _file(connection: Connection, body: ReportBody, half: bool) -> Applied | Refused:
    connection.execute(
        "UPDATE tickets SET report = :report WHERE ticket_id = :ticket_id", body.model_dump()
    )
    return Applied(body.model_dump(), body.ticket_id)


def _moved(connection: Connection, body: OfTicket, old: str, new: str) -> Applied | Refused:
    ticket = ticket_of(connection, body.ticket_id)
    if ticket is None:
        return Refused(404, "no_ticket", f"there is no ticket {body.ticket_id}")
    if ticket["status"] != old:
        return Refused(409, f"not_{old}", f"{body.ticket_id} is {ticket['status']}")
    connection.execute("UPDATE tickets SET status = ? WHERE ticket_id = ?", (new, body.ticket_id))
    return Applied({"ticket_id": body.ticket_id, "status": new}, body.ticket_id)


WRITES: Final = (
    Write("closings", "/tickets/{ticket_id}/close", OfTicket, _close),
    Write("reopenings", "/tickets/{ticket_id}/reopen", OfTicket, _reopen),
    Write("reports", "/tickets/{ticket_id}/report", ReportBody, _file),
)
