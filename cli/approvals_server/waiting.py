"""What part of the list somebody wants to see, as the address of its page says it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from starlette.requests import Request

from surehand.activities.ledger.approvals.waiting import DECIMAL, Place, Search, Waiting, waiting
from surehand.activities.ledger.core.store import Transaction
from surehand.activities.ledger.people.principals import Principal
from surehand.cli.approvals_server.texts import OF_PAGES
from surehand.client.messages import LONGEST_APPROVAL_ID
from surehand.process.exits import WrongUse

#: Lines of a page of the list.
ON_A_PAGE: Final = 25
#: Characters of what the list is searched for.
LONGEST_SEARCH: Final = 200


@dataclass(frozen=True)
class Part:
    """A part of the list."""

    tool: str | None
    mine: bool
    says: str | None
    least: str | None
    most: str | None
    after: Place | None

    @classmethod
    def of(cls, request: Request) -> Part:
        """Return what a request asks for.

        Raises:
            WrongUse: There is no such part of the list.
        """
        query = request.query_params
        return cls(
            tool=query.get("tool") or None,
            mine=query.get("of", "mine") == "mine",
            says=query.get("says", "").strip()[:LONGEST_SEARCH] or None,
            least=_amount(query.get("least", "")),
            most=_amount(query.get("most", "")),
            after=_place(query.get("after")),
        )

    def unsearched(self) -> Part:
        """Return the same part with all that a search would leave out."""
        return replace(self, says=None, least=None, most=None)

    @property
    def search(self) -> Search | None:
        """What is searched for; ``None``: nothing is."""
        if (self.says, self.least, self.most) == (None, None, None):
            return None
        least, most = (None if one is None else Decimal(one) for one in (self.least, self.most))
        return Search(self.says, least, most)

    def query(self) -> dict[str, str]:
        """Return what asks for this part of the list, from its first page on."""
        of = "mine" if self.mine else "all"
        amounts = {"least": self.least or "", "most": self.most or ""}
        return {"tool": self.tool or "", "of": of, "says": self.says or "", **amounts}

    def look(self, tx: Transaction, person: Principal) -> Waiting:
        """Return that part, as the person sees it."""
        return waiting(
            tx,
            most=ON_A_PAGE,
            after=self.after,
            tool=self.tool,
            roles=person.roles if self.mine else None,
            search=self.search,
        )


def _amount(text: str) -> str | None:
    """Return an amount as it was written; ``None``: none is asked for.

    Raises:
        WrongUse: It is no number.
    """
    if not text.strip():
        return None
    if not DECIMAL.fullmatch(text.strip()):
        raise WrongUse(OF_PAGES.list_bad_amount)
    return text.strip()


def _place(text: str | None) -> Place | None:
    """Return where a page of the list begins.

    Raises:
        WrongUse: The text was not made by the page before.
    """
    if text is None:
        return None
    number, _, approval_id = text.partition(":")
    known = 0 < len(approval_id) <= LONGEST_APPROVAL_ID and approval_id.isprintable()
    if not (number.isascii() and number.isdecimal() and len(number) < 16 and known):
        raise WrongUse("there is no such part of the list")
    return Place(int(number), approval_id)
