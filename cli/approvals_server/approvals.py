"""Approval requests as pages and scripts are told of them: the list, one request, own decisions.

A look at secret params is recorded before anything of them is shown (:class:`SecretReads`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import Response

from surehand.activities.ledger.approvals.decisions import Lifting
from surehand.activities.ledger.approvals.votes import label_vote, missing_votes, needs_of
from surehand.activities.ledger.approvals.waiting import (
    ListPage,
    ListPlace,
    list_own_decisions,
    list_waiting,
    record_question_read,
    record_read,
    secret_requests,
)
from surehand.activities.ledger.core.sealed import Erased, SealedValue
from surehand.activities.ledger.core.store import Ledger, Transaction
from surehand.activities.ledger.core.tables import has_expired
from surehand.activities.ledger.halts import Halt, list_under_way
from surehand.activities.ledger.history.run_display import OneApproval
from surehand.activities.ledger.people.principals import Key, Principal
from surehand.activities.ledger.runs.deletion import keep_run
from surehand.cli.approvals_server.pages import as_text, iso, link_more, page, rough_left, time_left
from surehand.cli.approvals_server.sign_in import digest_of
from surehand.client.messages import LONGEST_APPROVAL_ID
from surehand.process.exits import WrongUse
from surehand.process.program import shared_program
from surehand.verify import fold_name
from surehand.workflows.contracts.approvals import Assurance
from surehand.workflows.contracts.base import foreign_text
from surehand.workflows.contracts.effects import CANNOT_BE_UNDONE
from surehand.workflows.contracts.steering import Interrupt
from surehand.workflows.identity import short_hash
from surehand.workflows.plan.policy import Escalate

#: Lines of a page of the list, and of somebody's own decisions.
ON_A_PAGE: Final = 50
_LONGEST_DECISION_ID: Final = 400
#: Looks that are remembered as recorded. An older one is recorded once more.
_MOST_READS: Final = 10_000

#: What a request's state means to whoever looks.
_STATES: Final = {
    "pending": "Waiting for a decision.",
    "approved": "Approved",
    "rejected": "Rejected",
    "expired": "Expired: nobody decided in time.",
    "superseded": "Edited",
    "void": "No longer needed: the run has ended or gone on without it.",
}
_OUTCOMES: Final = {
    **{"approve": "Approved", "reject": "Rejected", "edit": "Edited"},
    **{"answer": "Answered", "resolve": "Settled"},
}
_KINDS: Final = {"approve": "good", "reject": "danger"}
#: States of an entry under the same key that say that another run has done the same, or may have.
_ELSEWHERE: Final = {
    "claimed": "Another run is doing this now.",
    "in_doubt": "Another run may have done this already.",
    "partial": "Another run has done a part of this already.",
    "committed": "Another run has done this already.",
}
_SEALED: Final = "This call is encrypted, and this server has no keys."


@dataclass(frozen=True)
class PagePart:
    """The part of the list that a page's address asks for."""

    tool: str | None
    mine: bool
    after: ListPlace | None

    @classmethod
    def of(cls, request: Request) -> PagePart:
        """Return what a request asks for; WrongUse: there is no such part of the list."""
        query = request.query_params
        return cls(
            tool=query.get("tool") or None,
            mine=query.get("of", "mine") == "mine",
            after=_begins_at(query.get("after"), LONGEST_APPROVAL_ID),
        )

    def query(self) -> dict[str, str]:
        return {"tool": self.tool or "", "of": "mine" if self.mine else "all"}

    def look(self, tx: Transaction, person: Principal) -> ListPage[ListPlace]:
        return list_waiting(
            tx,
            most=ON_A_PAGE,
            after=self.after,
            tool=self.tool,
            roles=person.roles if self.mine else None,
        )


def _begins_at(text: str | None, longest: int) -> ListPlace | None:
    """Return where a page of a list begins, by a time and an id."""
    if text is None:
        return None
    time, _, id_ = text.partition(":")
    known = 0 < len(id_) <= longest and id_.isprintable()
    if not (known and time.isascii() and time.isdecimal() and len(time) < 16):
        raise WrongUse("there is no such part of the list")
    return ListPlace(int(time), id_)


#: So many lines of one tool and plan are a flood: one line that opens.
_FLOOD: Final = 5
_SOON_MS: Final = 24 * 60 * 60 * 1000


def describe_line(
    row: Mapping[str, Any], me: Principal, now_ms: int, standing: Sequence[Halt]
) -> dict[str, Any]:
    """Return a request's line in the list; ``standing``: the halts, of which one may cover it."""
    halted = any(one.covers(row["tool"], row["run_id"]) for one in standing)
    sealed = isinstance(row["description"], SealedValue | Erased)
    mine = fold_name(me.name)
    voted = mine in map(fold_name, row["voters"])
    asked = mine in map(fold_name, (row["user_id"], *row["editors"]))
    tags = (
        (str(row["undo"]).startswith(CANNOT_BE_UNDONE), "danger", "cannot be undone"),
        (bool(row["editors"]), "warn", "edited"),
        (row["foreign"], "warn", "text from outside"),
        (voted, "good", "you approved"),
        (asked, "", "you asked for it"),
    )
    return {
        "id": row["approval_id"],
        "description": _SEALED if sealed else row["description"],
        "tool": row["tool"],
        "plan": row["plan_name"],
        "asked_by": row["user_id"],
        "progress": _progress_text(row, len(row["voters"])),
        "tags": [(kind, text) for told, kind, text in tags if told],
        "soon": row["expires_ms"] - now_ms < _SOON_MS,
        # While calls are halted its time stands still.
        "left": "halted" if halted else rough_left(row["expires_ms"], now_ms),
        "expires_at": iso(row["expires_ms"]),
    }


def group_lines(lines: Sequence[dict[str, Any]]) -> list[tuple[str, list[list[dict[str, Any]]]]]:
    """Return lines beneath their headings, each by itself or in a flood of lines like it."""
    alike = defaultdict[tuple[str, ...], list[dict[str, Any]]](list)
    for line in lines:
        alike[line["tool"], line["plan"]].append(line)
    found = dict[str, list[list[dict[str, Any]]]]()
    for line in lines:
        flood = alike[line["tool"], line["plan"]]
        groups = found.setdefault("Expires within a day" if line["soon"] else "Later", [])
        if len(flood) < _FLOOD:
            groups.append([line])
        elif line is flood[0]:
            columns = zip(*(one["description"].split() for one in flood), strict=False)
            words = [same[0] for same in takewhile(lambda same: len({*same}) == 1, columns)]
            groups.append([{**one, "alike": " ".join(words) or one["tool"]} for one in flood])
    return list(found.items())


def _progress_text(row: Mapping[str, Any], votes: int) -> str:
    """Return how far a request has come: ``1 of 2 approvals``."""
    [first, *more] = requirements = needs_of(row).requirements
    signed = ", signed by a passkey" if Assurance(row["assurance"]).by_passkey else ""
    if more or (first.quorum == 1 and not votes):
        so_far = f"; so far {votes}" if votes else ""
        return f"Needs {'; '.join(one.as_text() for one in requirements)}{signed}{so_far}."
    roles = f" by {' or '.join(first.roles)}" if first.roles else ""
    return f"{votes} of {first.quorum} approval{'s' if first.quorum > 1 else ''}{roles}{signed}."


class Viewed(NamedTuple):
    """One request as somebody looks at it."""

    one: OneApproval
    me: Principal
    keys: list[Key]
    """Those that are registered for them."""
    tenant: str

    def waits(self) -> bool:
        one = self.one
        expired = has_expired(one.row, one.now_ms)
        return one.row["state"] == "pending" and one.run_open and not expired

    def standing(self) -> dict[str, Any]:
        """Return what of a request changes while somebody looks at it."""
        one = self.one
        votes = [
            label_vote(said["approver"], None, said["deputy_for"]) + _signed_mark(said["verified"])
            for said in self._list_yeses()
        ]
        votes += one.standing
        return {
            "state": self._state_text(),
            "kind": "good" if one.row["state"] == "approved" else "",
            "waits": self.waits(),
            "votes": votes,
            "progress": _progress_text(one.row, len(votes)),
            "next": one.next_id,
        }

    def detailed(self) -> dict[str, Any]:
        """Return what a page shows of a request, but for the call itself."""
        one, row = self.one, self.one.row
        now, before = row["precondition"], one.precondition_before
        refused = [said for said in one.decisions if said["verdict"] != "accepted"]
        by = f"{row['user_id']}, started by {one.started_by}" if one.started_by else row["user_id"]
        return {
            "id": row["approval_id"],
            "description": row["description"] or _SEALED,
            **self.standing(),
            "flags": list(self._list_flags()),
            "row": row,
            "undo": row["undo"] or _SEALED,
            "asked_by": by,
            "needs": [requirement.as_text() for requirement in one.needs.requirements],
            "four_eyes": any(requirement.four_eyes for requirement in one.needs.requirements),
            "excluded": one.excluded,
            "decisions": Assurance(row["assurance"]).as_text(),
            "expires_at": iso(row["expires_ms"]),
            "left": time_left(row["expires_ms"], one.now_ms),
            "halted": self.one.halt is not None,
            "then": self._expiry_text(),
            "precondition": now and short_hash(now),
            "precondition_before": before and short_hash(before),
            "requested_at": iso(row["requested_ms"]),
            "replaces": one.replaces["approval_id"] if one.replaces else None,
            "entries": [{**entry, "at": iso(entry["claimed_ms"])} for entry in one.entries],
            "said": [
                {**said, "at": iso(said["at_ms"]), "words": _OUTCOMES[said["outcome"]].lower()}
                for said in one.decisions
                if said["verdict"] == "accepted"
            ],
            "not_counted": dict.fromkeys(map(_refusal_text, refused)),
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
            # ``None``: its time stands still.
            "left_ms": None if self.one.halt else row["expires_ms"] - self.one.now_ms,
        }

    def document(self, salt: str | None, schema: JsonValue) -> dict[str, Any]:
        """Return what the script draws the call from, and has signed.

        The salt is hashed with sealed params; the schema is for their labels and the form.
        """
        row, replaces = self.one.row, self.one.replaces
        return {
            **self.asked(),
            "tool": row["tool"],
            "version": row["tool_version"],
            "params": row["params"],
            "answers": row["answers"] or [],
            "salt": salt,
            "schema": as_text(schema),
            "before": as_text(replaces["params"] if replaces else None),
        }

    def _list_flags(self) -> Iterator[dict[str, Any]]:
        """Yield what could make somebody say no, the worst first."""
        one, row = self.one, self.one.row
        for entry in one.entries:
            if entry["run_id"] != row["run_id"] and entry["state"] in _ELSEWHERE:
                text = "Your approval would not make it happen a second time."
                yield _flag("danger", _ELSEWHERE[entry["state"]], text, run=entry["run_id"])
        if str(row["undo"]).startswith(CANNOT_BE_UNDONE):
            yield _flag("danger", "Cannot be undone.", "Nothing takes it back once it is done.")
        if one.replaces is not None:
            yield _flag("warn", f"Edited by {', '.join(row['editors'])}.", edit=True)
        if one.halt is not None:
            by, why = one.halt.halted_by, one.halt.reason
            text = f"{by}: {why}. You can decide; the call is made once that is lifted."
            yield _flag("warn", "Calls are halted.", text)
        if one.foreign:
            text = (
                f"Strangers may have written what this run has read: {foreign_text(one.foreign)}."
            )
            yield _flag("warn", "Contains text from outside.", text)
        if one.precondition_before not in (None, row["precondition"]):
            yield _flag("warn", "The situation has changed", "since this was requested last.")
        if self.waits() and (hint := self._hint_text()):
            yield _flag("warn", "Your approval does not count here.", hint)

    def _state_text(self) -> str:
        one, row = self.one, self.one.row
        if row["state"] == "pending" and has_expired(row, one.now_ms):
            return _STATES["expired"]
        if row["state"] == "pending" and not one.run_open:
            return f"{_STATES['void']} ({one.run_state})"
        by = row["decided_by"]
        return _STATES[row["state"]] + (f" by {by}{_signed_mark(row['verified'])}." if by else "")

    def _list_yeses(self) -> list[Mapping[str, Any]]:
        said = self.one.decisions
        return [one for one in said if (one["verdict"], one["outcome"]) == ("accepted", "approve")]

    def _expiry_text(self) -> str:
        on_expiry = self.one.needs.on_expiry
        if on_expiry == "ask_again":
            return "Then you are asked again."
        if isinstance(on_expiry, Escalate):
            return f"Then {on_expiry.escalate} decides."
        return "If nobody decides by then, it counts as rejected."

    def _hint_text(self) -> str | None:
        """Return why the vote of whoever looks will not count, as far as that is known here."""
        mine = fold_name(self.me.name)
        if mine in map(fold_name, self.one.excluded):
            return (
                "You asked for this, or answered a question of its run: somebody else has to"
                " approve it."
            )
        if mine in (fold_name(said["approver"]) for said in self._list_yeses()):
            return "You have approved it already, and each person counts once."
        roles = [set(requirement.roles) for requirement in self.one.needs.requirements]
        if all(asked and asked.isdisjoint(self.me.roles) for asked in roles):
            return f"It needs somebody with the role {' or '.join(sorted(set().union(*roles)))}."
        return None


def _flag(
    kind: str, title: str, text: str = "", *, run: str | None = None, edit: bool = False
) -> dict[str, Any]:
    return {"kind": kind, "title": title, "text": text, "run": run, "edit": edit}


def _signed_mark(verified: bool) -> str:
    return "" if verified else " (not signed)"


def _refusal_text(said: Mapping[str, Any]) -> str:
    """Return why a decision did not count."""
    if said["verdict"] == "wrong_hash":
        return f"A vote by {said['approver']} for another version of this call did not count."
    return f"A decision by {said['approver']} did not count: {said['message'] or said['verdict']}."


def own_keys(keys: Iterable[Key]) -> dict[str, Any]:
    """Return the registered keys of whoever looks, as the scripts choose among them."""
    known = list(keys)
    passkeys = [
        {"kid": one.kid, "public_key": one.public_key, **asdict(one.passkey)}
        for one in known
        if one.passkey is not None
    ]
    return {"keys": [one.kid for one in known if one.passkey is None], "passkeys": passkeys}


def describe_halt(tx: Transaction, halt: Halt, lifting: Lifting) -> dict[str, Any]:
    """Return what the list tells of a halt that stands, and what a yes to lifting it signs."""
    needs, proof = lifting.read_needs(halt)
    votes = lifting.count_votes(tx, halt)
    lacking = missing_votes(needs, votes, {halt.halted_by})
    under_way = list_under_way(tx, halt)
    return {
        "approval_id": halt.halt_id,
        "params_hash": halt.params_hash,
        "halt": halt.signed_parts,
        "proof": proof.value,
        "votes": [one.label for one in votes],
        "lacking": lacking,
        "command": f"{shared_program()} lift {halt.halt_id}",
        "under_way": [f"{one['tool']} {one['key']} ({one['run_id']})" for one in under_way],
    }


async def show_own_decisions(ledger: Ledger, tenant: str, request: Request, me: str) -> Response:
    """Return a page of one's own decisions, the newest ones first; nobody sees another's."""
    after = _begins_at(request.query_params.get("after"), _LONGEST_DECISION_ID)
    found = await ledger.transact(tenant, list_own_decisions, me, most=ON_A_PAGE, after=after)
    lines, more = [_describe_decision(row) for row in found.rows], link_more("/mine", found.more)
    return page("mine", me=me, lines=lines, more=more, later=after is not None)


def _describe_decision(row: Mapping[str, Any]) -> dict[str, Any]:
    description = row["description"] or f"{row['tool']} (what the call says cannot be read here)"
    if row["tool"] is None:
        description = "A request that was never made" if row["approval_id"] else row["run_id"]
    return {
        **row,
        "description": description,
        "outcome": _OUTCOMES.get(row["outcome"], row["outcome"]),
        "kind": _KINDS.get(row["outcome"], ""),
        "at": iso(row["at_ms"]),
    }


class SecretReads:
    """Records each look at secret params, once for each sign-in and request or question.

    If the ledger cannot record it, it raises LedgerUnavailable and nothing may be shown.
    """

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant
        self._known = OrderedDict[tuple[str, ...], None]()
        self._recording = asyncio.Lock()

    async def record(self, one: OneApproval, reader: str, cookie: str) -> None:
        """Record that somebody is shown a request, if its params are secret and can be read."""
        if one.row["secret"] and one.row["params"] is not None:
            await self._record_row(one.row, reader, cookie)

    async def record_questions(
        self, run_id: str, questions: Iterable[Interrupt], reader: str, cookie: str
    ) -> None:
        """Record that somebody is shown what a run's secret questions are about."""
        for asked in questions:
            if asked.secret:
                look = ("question", run_id, asked.interrupt_id)
                write = partial(record_question_read, run_id=run_id, asked=asked, reader=reader)
                await self._record_once(look, cookie, run_id, write)

    async def record_artifact(self, run_id: str, step_id: str, reader: str, cookie: str) -> None:
        """Record that somebody is handed what a step has kept: large params are kept, too."""
        for row in await self._ledger.transact(self._tenant, secret_requests, run_id, step_id):
            await self._record_row(row, reader, cookie)

    async def _record_row(self, row: Mapping[str, Any], reader: str, cookie: str) -> None:
        write = partial(record_read, row=row, reader=reader)
        await self._record_once(("approval", row["approval_id"]), cookie, row["run_id"], write)

    async def _record_once(
        self, look: tuple[str, ...], cookie: str, run_id: str, write: Callable[[Transaction], None]
    ) -> None:
        def write_if_kept(tx: Transaction) -> None:
            keep_run(tx, run_id)
            write(tx)

        known = (digest_of(cookie), *look)
        async with self._recording:
            if known in self._known:
                return
            await self._ledger.transact(self._tenant, write_if_kept)
            self._known[known] = None
            if len(self._known) > _MOST_READS:
                self._known.popitem(last=False)
