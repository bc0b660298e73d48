"""Approval requests as pages and scripts are told of them: the list, one request, own decisions.

A look at secret params is recorded before anything of them is shown (:class:`SecretReads`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import Response

from surehand.activities.ledger.approvals.own_decisions import Moment, own_decisions
from surehand.activities.ledger.approvals.votes import folded, needs_of
from surehand.activities.ledger.approvals.waiting import (
    DECIMAL,
    ListPlace,
    Search,
    WaitingPage,
    record_question_read,
    record_read,
    secret_requests,
    waiting,
)
from surehand.activities.ledger.core.sealed import Erased, SealedValue
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import has_expired
from surehand.activities.ledger.history.run_display import OneApproval
from surehand.activities.ledger.people.principals import Key, Principal
from surehand.cli.approvals import diff
from surehand.cli.approvals_server.pages import as_text, iso, page, time_left
from surehand.cli.approvals_server.sign_in import digest_of
from surehand.client.messages import LONGEST_APPROVAL_ID
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import foreign_text
from surehand.workflows.contracts.effects import CANNOT_BE_UNDONE
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.identity import short_hash
from surehand.workflows.plan.policy import Escalate

#: Lines of a page of the list, and of somebody's own decisions.
ON_A_PAGE: Final = 25
#: Characters that the list is searched for.
LONGEST_SEARCH: Final = 200
_LONGEST_DECISION_ID: Final = 400
#: Looks that are remembered as recorded. An older one is recorded once more.
_MOST_READS: Final = 10_000

#: What a request's state means to whoever looks.
_STATES: Final = {
    "pending": "Waits for a decision",
    "approved": "Approved",
    "rejected": "Rejected",
    "expired": "Expired: nobody has decided in time",
    "superseded": "Edited: another request asks for the new params",
    "void": "Void: the run stopped asking",
}
_OUTCOMES: Final = {"approve": "Approved", "reject": "Rejected", "edit": "Edited"}
_SEALED: Final = "This call is encrypted, and this server has no keys."


@dataclass(frozen=True)
class PagePart:
    """The part of the list that a page's address asks for."""

    tool: str | None
    mine: bool
    says: str | None
    least: str | None
    most: str | None
    after: ListPlace | None

    @classmethod
    def of(cls, request: Request) -> PagePart:
        """Return what a request asks for; WrongUse: there is no such part of the list."""
        query = request.query_params
        return cls(
            tool=query.get("tool") or None,
            mine=query.get("of", "mine") == "mine",
            says=query.get("says", "").strip()[:LONGEST_SEARCH] or None,
            least=_amount(query.get("least", "")),
            most=_amount(query.get("most", "")),
            after=_place(query.get("after")),
        )

    def unsearched(self) -> PagePart:
        """Return the same part without its search."""
        return replace(self, says=None, least=None, most=None)

    @property
    def search(self) -> Search | None:
        """What is searched for; ``None``: nothing is."""
        if (self.says, self.least, self.most) == (None, None, None):
            return None
        least, most = (None if one is None else Decimal(one) for one in (self.least, self.most))
        return Search(self.says, least, most)

    def query(self) -> dict[str, str]:
        """Return the query of this part's first page."""
        of = "mine" if self.mine else "all"
        amounts = {"least": self.least or "", "most": self.most or ""}
        return {"tool": self.tool or "", "of": of, "says": self.says or "", **amounts}

    def look(self, tx: Transaction, person: Principal) -> WaitingPage:
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
    if not text.strip():
        return None
    if not DECIMAL.fullmatch(text.strip()):
        raise WrongUse("an amount is a number such as 12 or 12.50")
    return text.strip()


def _place(text: str | None) -> ListPlace | None:
    """Return where a page of the list begins."""
    if text is None:
        return None
    number, _, approval_id = text.partition(":")
    known = 0 < len(approval_id) <= LONGEST_APPROVAL_ID and approval_id.isprintable()
    if not (_is_time(number) and known):
        raise WrongUse("there is no such part of the list")
    return ListPlace(int(number), approval_id)


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 16


def listed(row: Mapping[str, Any], me: Principal, now_ms: int) -> dict[str, Any]:
    """Return one line of the list."""
    sealed = isinstance(row["description"], SealedValue | Erased)
    mine, assurance = folded(me.name), Assurance(row["assurance"])
    open_ = assurance is Assurance.OPEN
    return {
        "id": row["approval_id"],
        "tool": row["tool"],
        "description": _SEALED if sealed else row["description"],
        "irreversible": str(row["undo"]).startswith(CANNOT_BE_UNDONE),
        "foreign": row["foreign"],
        "asked_by": row["user_id"],
        "needs": [one.as_text() for one in needs_of(row).requirements],
        "voters": row["voters"],
        "decisions": None if open_ else assurance.as_text(),
        "left": time_left(row["expires_ms"], now_ms),
        "expires_at": iso(row["expires_ms"]),
        "hash": short_hash(row["params_hash"]),
        "voted": any(folded(one) == mine for one in row["voters"]),
        "asked": any(folded(one) == mine for one in (row["user_id"], *row["editors"])),
    }


class Viewed(NamedTuple):
    """One request as somebody looks at it."""

    one: OneApproval
    me: Principal
    keys: list[Key]
    """Those that are registered for them."""
    tenant: str

    def waits(self) -> bool:
        """Return whether a decision can still count."""
        one = self.one
        expired = has_expired(one.row, one.now_ms)
        return one.row["state"] == "pending" and one.run_open and not expired

    def standing(self) -> dict[str, Any]:
        """Return what of a request changes while somebody looks at it."""
        one = self.one
        voters = [said["approver"] + _mark(said["verified"]) for said in self._yeses()]
        return {
            "state": self._state(),
            "waits": self.waits(),
            "votes": [*voters, *one.standing],
            "run_state": one.run_state,
        }

    def detailed(self) -> dict[str, Any]:
        """Return what a page shows of a request, but for the call itself."""
        one, row = self.one, self.one.row
        old = one.replaces["params"] if one.replaces else None
        new = row["params"]
        return {
            "id": row["approval_id"],
            "description": row["description"] or _SEALED,
            **self.standing(),
            "run_id": row["run_id"],
            "step_id": row["step_id"],
            "key": row["key"],
            "hash": row["params_hash"],
            "undo": row["undo"] or _SEALED,
            "asked_by": f"{row['user_id']}, started by {one.started_by}"
            if one.started_by
            else row["user_id"],
            "editors": row["editors"],
            "foreign": foreign_text(one.foreign),
            "needs": [requirement.as_text() for requirement in one.needs.requirements],
            "excluded": one.excluded,
            "decisions": Assurance(row["assurance"]).as_text(),
            "expires_at": iso(row["expires_ms"]),
            "left": time_left(row["expires_ms"], one.now_ms),
            "then": self._then() if self.waits() else None,
            "precondition": None if row["precondition"] is None else self._precondition(),
            "replaces": one.replaces["approval_id"] if one.replaces else None,
            "changes": diff(old, new) if old is not None and new is not None else [],
            "entries": [{**entry, "at": iso(entry["claimed_ms"])} for entry in one.entries],
            "said": [{**said, "at": iso(said["at_ms"])} for said in one.decisions],
            "hint": self._hint(),
        }

    def asked(self) -> dict[str, Any]:
        """Return what it takes to reject: the page has it before anything of the call."""
        row = self.one.row
        return {
            "tenant": self.tenant,
            "principal": self.me.name,
            **own_keys(self.keys),
            "approval_id": row["approval_id"],
            "params_hash": row["params_hash"],
            "proof": row["assurance"],
            "waits": self.waits(),
            "left_ms": row["expires_ms"] - self.one.now_ms,
        }

    def document(self, salt: str | None, schema: JsonValue) -> dict[str, Any]:
        """Return what the script draws the call from, and has signed.

        Args:
            salt: What is hashed with sealed params.
            schema: JSON Schema of the params, for the form to edit them by; ``None``: unknown.
        """
        row = self.one.row
        return {
            **self.asked(),
            "run_id": row["run_id"],
            "tool": row["tool"],
            "version": row["tool_version"],
            "params": row["params"],
            "answers": row["answers"] or [],
            "salt": salt,
            "schema": as_text(guessed_schema(row["params"]) if schema is None else schema),
            "state": row["state"],
        }

    def _state(self) -> str:
        one, row = self.one, self.one.row
        if row["state"] == "pending" and has_expired(row, one.now_ms):
            return _STATES["expired"]
        if row["state"] == "pending" and not one.run_open:
            return f"{_STATES['void']} ({one.run_state})"
        by = row["decided_by"]
        return _STATES[row["state"]] + (f" by {by}{_mark(row['verified'])}" if by else "")

    def _precondition(self) -> dict[str, Any]:
        """Return the precondition's digest, and when it was made."""
        now, before = self.one.row["precondition"], self.one.precondition_before
        return {
            "digest": short_hash(now),
            "at": iso(self.one.row["requested_ms"]),
            "before": None if before is None else short_hash(before),
            "changed": before not in (None, now),
        }

    def _yeses(self) -> list[Mapping[str, Any]]:
        said = self.one.decisions
        return [one for one in said if (one["verdict"], one["outcome"]) == ("accepted", "approve")]

    def _then(self) -> str:
        on_expiry = self.one.needs.on_expiry
        if on_expiry == "ask_again":
            return "Then it is asked again."
        if isinstance(on_expiry, Escalate):
            return f"Then this role is asked: {on_expiry.escalate}"
        return "Then the run ends as if it was rejected."

    def _hint(self) -> str | None:
        """Return why the vote of whoever looks will not count, as far as that is known here."""
        mine = folded(self.me.name)
        if mine in map(folded, self.one.excluded):
            return (
                "Your own yes does not count: you have asked for this call, or given its run a"
                " value."
            )
        if mine in (folded(said["approver"]) for said in self._yeses()):
            return "You have said yes already. One person has one yes."
        roles = [set(requirement.roles) for requirement in self.one.needs.requirements]
        if all(asked and asked.isdisjoint(self.me.roles) for asked in roles):
            return "You have none of the roles that are asked."
        return None


def _mark(verified: bool) -> str:
    return "" if verified else " (unverified)"


def own_keys(keys: Iterable[Key]) -> dict[str, Any]:
    """Return the registered keys of whoever looks, as the scripts choose among them."""
    known = list(keys)
    passkeys = [
        {"kid": one.kid, "public_key": one.public_key, **asdict(one.passkey)}
        for one in known
        if one.passkey is not None
    ]
    return {"keys": [one.kid for one in known if one.passkey is None], "passkeys": passkeys}


def guessed_schema(value: JsonValue) -> dict[str, JsonValue]:
    """Return a JSON Schema for the form, if nobody knows the tool's own."""
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case dict():
            members: dict[str, JsonValue] = {
                name: guessed_schema(one) for name, one in value.items()
            }
            return {"type": "object", "properties": members, "required": [*value]}
    return {}


async def show_own_decisions(ledger: Ledger, tenant: str, request: Request, me: str) -> Response:
    """Return a page of one's own decisions, the newest ones first; nobody sees another's."""
    after = _moment(request.query_params.get("before"))
    found = await ledger.transact(tenant, own_decisions, me, most=ON_A_PAGE, after=after)
    more = None
    if found.more is not None:
        more = f"/mine?{urlencode({'before': f'{found.more.at_ms}:{found.more.decision_id}'})}"
    lines = [_decision(row) for row in found.rows]
    return page("mine", me=me, lines=lines, more=more, later=after is not None)


def _decision(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["hidden"]:
        description = "Its run is hidden or deleted: it has been kept for long enough."
    elif row["tool"] is None:
        description = "A request that was never made"
    else:
        unread = f"{row['tool']} (what the call says cannot be read here)"
        description = row["description"] or unread
    return {
        "approval_id": None if row["tool"] is None else row["approval_id"],
        "run_id": None if row["hidden"] else row["run_id"],
        "description": description,
        "outcome": _OUTCOMES.get(row["outcome"], row["outcome"]),
        "counts": row["verdict"] == "accepted",
        "verdict": row["message"] or row["verdict"],
        "verified": row["verified"],
        "reason": row["reason"],
        "at": iso(row["at_ms"]),
    }


def _moment(text: str | None) -> Moment | None:
    """Return where a page of one's own decisions begins."""
    if text is None:
        return None
    number, _, decision_id = text.partition(":")
    known = 0 < len(decision_id) <= _LONGEST_DECISION_ID and "\0" not in decision_id
    if not (_is_time(number) and known):
        raise WrongUse("there is no such page of decisions")
    return Moment(int(number), decision_id)


class SecretReads:
    """Records each look at secret params, once for each sign-in and request or question.

    If the ledger cannot record it, it raises LedgerUnavailable and nothing may be shown.
    """

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        """Make it for a tenant's requests."""
        self._ledger = ledger
        self._tenant = tenant
        self._known = OrderedDict[tuple[str, ...], None]()
        self._recording = asyncio.Lock()

    async def record(self, one: OneApproval, reader: str, cookie: str) -> None:
        """Record that somebody is shown a request, if its params are secret and can be read."""
        if not one.row["secret"] or one.row["params"] is None:
            return
        look = ("approval", one.row["approval_id"])
        await self._once(look, cookie, partial(record_read, row=one.row, reader=reader))

    async def record_questions(
        self, run_id: str, questions: Iterable[Interrupt], reader: str, cookie: str
    ) -> None:
        """Record that somebody is shown what a run's secret questions are about."""
        for asked in questions:
            if asked.secret:
                look = ("question", run_id, asked.interrupt_id)
                write = partial(record_question_read, run_id=run_id, asked=asked, reader=reader)
                await self._once(look, cookie, write)

    async def record_artifact(self, run_id: str, step_id: str, reader: str, cookie: str) -> None:
        """Record that somebody is handed what a step has kept: large params are kept, too."""
        for row in await self._ledger.transact(self._tenant, secret_requests, run_id, step_id):
            look = ("approval", row["approval_id"])
            await self._once(look, cookie, partial(record_read, row=row, reader=reader))

    async def _once(
        self, look: tuple[str, ...], cookie: str, write: Callable[[Transaction], None]
    ) -> None:
        known = (digest_of(cookie), *look)
        async with self._recording:
            if known in self._known:
                return
            await self._ledger.transact(self._tenant, write)
            self._known[known] = None
            if len(self._known) > _MOST_READS:
                self._known.popitem(last=False)
