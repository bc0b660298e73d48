"""Who may let which call pass, said once more: an oracle for G3 that shares no code with the gate.

It follows what people sent, what administrators changed and what the clock said, and knows nothing
of verdicts or rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

#: Milliseconds that a request and its approval last, and a signature.
REQUEST_MS: Final = 10 * 60_000
SIGNATURE_MS: Final = 5 * 60_000
#: What a "rule" of the policies below calls much, and what needs nobody.
MUCH: Final = 50
LITTLE: Final = 15


def same_person(name: str) -> str:
    """Return what tells people apart; the machine only varies the case of names."""
    return name.casefold()


@dataclass(frozen=True)
class Asks:
    """What one policy asks for; the machine writes it as an ``ApprovalPolicy``."""

    quorum: int = 1
    roles: tuple[str, ...] = ()
    four_eyes: bool = False
    may_edit: tuple[str, ...] = ()
    boss_when_late: bool = False
    two_for_much: bool = False
    none_for_little: bool = False

    def of(self, amount: int, *, late: bool) -> Asks | None:
        """Return what it asks for a call of that amount, once an earlier request is over or not."""
        if self.none_for_little and amount < LITTLE:
            return None
        quorum = 2 if self.two_for_much and amount >= MUCH else self.quorum
        if late and self.boss_when_late:
            return Asks(1, ("boss",), self.four_eyes, self.may_edit, True)
        return Asks(quorum, self.roles, self.four_eyes, self.may_edit, self.boss_when_late)

    def within(self, other: Asks) -> bool:
        """Return whether what satisfies another satisfies this one."""
        return (
            self != other
            and not self.roles
            and not self.may_edit
            and not self.boss_when_late
            and self.quorum <= other.quorum
            and (other.four_eyes or not self.four_eyes)
        )


def together(policies: list[Asks], amount: int, *, late: bool) -> list[Asks]:
    """Return what several policies ask for."""
    asked = [one for policy in policies if (one := policy.of(amount, late=late)) is not None]
    return [one for one in asked if not any(one.within(other) for other in asked)]


@dataclass(frozen=True)
class Token:
    """A signature: what it was made for, by whose key, when, under which nonce."""

    key: str
    made_s: int
    nonce: str
    content: tuple[str, ...]


@dataclass
class Request:
    """One request as people see it."""

    id: str
    step: str
    amount: int
    asked: list[Asks]
    late: bool
    strict: bool
    until_ms: int
    state: str = "pending"
    yes: dict[str, str | None] = field(default_factory=dict)
    """Who has said yes, with the key that proves it."""
    used_for: set[str] = field(default_factory=set)
    """Provider keys of the calls it has let pass."""


@dataclass
class Sent:
    """One decision that was sent."""

    request: Request
    outcome: str
    approver: str
    right_hash: bool
    token: Token | None
    content: tuple[str, ...]
    """What a signature of it has to be for."""
    amount: int | None = None
    """Of an edit."""
    reason: str = ""


@dataclass
class People:
    """Who has which role and key, and what has counted."""

    roles: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    owners: dict[str, str] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    nonces: set[tuple[str, str]] = field(default_factory=set)
    planners: set[str] = field(default_factory=set)
    """Who has asked, edited a call, or said why one is rejected: the next may be as they said."""

    def proves(self, sent: Sent, now_ms: int) -> bool:
        """Return whether a signature is the approver's, of this decision, in time and fresh."""
        token = sent.token
        assert token is not None
        return (
            self.owners.get(token.key) == sent.approver
            and token.key not in self.revoked
            and token.content == sent.content
            and token.made_s * 1000 + SIGNATURE_MS > now_ms // 1000 * 1000
            and (sent.approver, token.nonce) not in self.nonces
        )

    def counts(self, sent: Sent, now_ms: int, *, strict: bool, taken: bool) -> bool:
        """Return whether a decision has to be taken.

        Args:
            sent: The decision.
            now_ms: When it is judged.
            strict: Whether the worker that judges it takes signed decisions only.
            taken: Whether the effect is there or may be, so that no edit reaches it any more.
        """
        request = sent.request
        if not self._asks_still(request, strict=strict):
            return False
        if now_ms >= request.until_ms or not sent.right_hash:
            return False
        if sent.token is None:
            if strict or request.strict:
                return False
        elif not self.proves(sent, now_ms):
            return False
        mine = self.roles[sent.approver]
        if not any(not asks.roles or mine & {*asks.roles} for asks in request.asked):
            return False
        if self._is_out(sent.approver, request.asked):
            return False
        if sent.outcome == "edit":
            editable = all(
                not (asks.may_edit or asks.roles) or mine & {*(asks.may_edit or asks.roles)}
                for asks in request.asked
            )
            new = sent.amount is not None and sent.amount != request.amount
            return editable and new and not taken
        yes_already = {same_person(name) for name in request.yes}
        return sent.outcome == "reject" or same_person(sent.approver) not in yes_already

    def heard(self, sent: Sent, now_ms: int) -> None:
        """Follow that a decision was judged: its signature is worth nothing more."""
        if sent.token is not None and self.proves(sent, now_ms):
            self.nonces.add((sent.approver, sent.token.nonce))

    def took(self, sent: Sent, *, strict: bool) -> None:
        request, token = sent.request, sent.token
        if sent.outcome == "approve":
            request.yes[sent.approver] = token.key if token else None
            # The new vote counts as it was proven a moment ago.
            if self.enough(request, request.asked, strict=strict):
                request.state = "approved"
        else:
            request.state = "rejected" if sent.outcome == "reject" else "superseded"
            if sent.outcome == "edit" or sent.reason:
                self.planners.add(same_person(sent.approver))

    def enough(self, request: Request, asked: list[Asks], *, strict: bool) -> bool:
        """Return whether enough distinct, permitted, verified people stand by their yes now."""
        verified = [
            name
            for name, key in request.yes.items()
            if (key is None and not strict and not request.strict)
            or (key is not None and key not in self.revoked)
        ]
        for asks in asked:
            permitted = {
                same_person(name)
                for name in verified
                if (not asks.roles or self.roles[name] & {*asks.roles})
                and not self._is_out(name, asked)
            }
            if len(permitted) < asks.quorum:
                return False
        return True

    def _asks_still(self, request: Request, *, strict: bool) -> bool:
        """Return whether a decision may still count: undecided, or its yes no longer stands."""
        if request.state != "approved":
            return request.state == "pending"
        return not request.used_for and not self.enough(request, request.asked, strict=strict)

    def _is_out(self, name: str, asked: list[Asks]) -> bool:
        return any(asks.four_eyes for asks in asked) and same_person(name) in self.planners


def why_not(
    request: Request | None,
    step: str,
    amount: int,
    provider_key: str,
    people: People,
    now_ms: int,
    policies: list[Asks],
    *,
    strict: bool,
) -> str | None:
    """Return why a call must not reach the world outside at this moment, or ``None``."""
    if request is None:
        asked = together(policies, amount, late=False)
        return "nobody has approved it" if asked else None
    asked = request.asked + [
        one for policy in policies if (one := policy.of(amount, late=request.late)) is not None
    ]
    checks = {
        "it was approved for another step": request.step != step,
        "other params were approved": request.amount != amount,
        f"it is {request.state}": request.state != "approved",
        "its approval has expired": now_ms >= request.until_ms,
        "not enough people stand by it": not people.enough(request, asked, strict=strict),
        "its approval was used for another effect": bool(request.used_for - {provider_key}),
    }
    return next((why for why, wrong in checks.items() if wrong), None)
