"""The page of what whoever is signed in has decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from surehand.activities.ledger.approvals.own_decisions import Moment, own_decisions
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.cli.approvals_server.pages import page
from surehand.cli.approvals_server.texts import OF_PAGES, OUTCOMES
from surehand.cli.approvals_server.times import iso
from surehand.process.exits import WrongUse

#: Decisions on a page.
ON_A_PAGE: Final = 25
_LONGEST_ID: Final = 400


async def show_own_decisions(ledger: Ledger, tenant: str, request: Request, me: str) -> Response:
    """Return a page of somebody's own decisions, the newest ones first.

    Args:
        ledger: Has them.
        tenant: Whose runs they are on.
        request: For which page.
        me: Who is signed in: nobody sees another one's.

    Raises:
        WrongUse: There is no such page.
    """
    after = _moment(request.query_params.get("before"))

    def look(tx: Transaction) -> Any:
        return own_decisions(tx, me, most=ON_A_PAGE, after=after)

    found = await ledger.transact(tenant, look)
    more = None
    if found.more is not None:
        more = f"/mine?{urlencode({'before': f'{found.more.at_ms}:{found.more.decision_id}'})}"
    lines = [_line(row) for row in found.rows]
    return page("mine", me=me, lines=lines, more=more, later=after is not None)


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["hidden"]:
        description = OF_PAGES.mine_hidden
    elif row["tool"] is None:
        description = OF_PAGES.mine_no_request
    else:
        description = row["description"] or f"{row['tool']} {OF_PAGES.mine_unread}"
    return {
        "approval_id": None if row["tool"] is None else row["approval_id"],
        "run_id": None if row["hidden"] else row["run_id"],
        "description": description,
        "outcome": OUTCOMES.get(row["outcome"], row["outcome"]),
        "counts": row["verdict"] == "accepted",
        "verdict": row["message"] or row["verdict"],
        "verified": row["verified"],
        "reason": row["reason"],
        "at": iso(row["at_ms"]),
    }


def _moment(text: str | None) -> Moment | None:
    """Return where a page begins.

    Raises:
        WrongUse: The text was not made by the page before.
    """
    if text is None:
        return None
    number, _, decision_id = text.partition(":")
    known = number.isascii() and number.isdecimal() and len(number) < 16
    if not known or not 0 < len(decision_id) <= _LONGEST_ID or "\0" in decision_id:
        raise WrongUse("there is no such page of decisions")
    return Moment(int(number), decision_id)
