"""The outside world of the ledger's state machine: it does what it is told, and counts.

A provider that dedupes forgets a key when its window is over; the others do not know keys at all,
so that a blind repetition shows as a second application. Requests of dead attempts stay on the wire
until their deadline and settle time are over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic import BaseModel

from surehand.activities.tools.failures import OutcomeUnknown, Permanent, ReportedFailure, Transient
from surehand.activities.tools.tool import (
    Dedupes,
    Found,
    No,
    NotFound,
    Partial,
    Tool,
    ToolContext,
    Undo,
    Unknown,
)
from surehand.activities.tools.toolbox import WRITE, Toolbox, tool
from tests.property.attempts import Attempt, Clock, current

#: Long, so that none of them runs out in real time: only the test's clock moves.
LEASE: Final = timedelta(minutes=5)
TIMEOUT: Final = timedelta(minutes=50)
SETTLE: Final = timedelta(minutes=10)
WINDOW: Final = timedelta(hours=9)


@dataclass(frozen=True)
class Release:
    """What a deploy changes: how long a call may take, and how long a lease lasts."""

    timeout: timedelta = TIMEOUT
    lease: timedelta = LEASE


SHORTER: Final = Release(timedelta(minutes=4), timedelta(seconds=20))
#: The same tools, as workers of one release after another have them.
RELEASES: Final = {"as ever": Release(), "shorter": SHORTER}

#: What a provider makes of a request, and what the caller gets to hear of that; what leaves a doubt
#: more often than what ends the matter.
CALL_ANSWERS: Final = (
    "done",
    *["done, answer held up"] * 2,
    "done, just in time",
    "transient",
    "permanent",
    "no",
    *["lost on the way"] * 3,
    *["done, answer lost"] * 3,
    "done, says it failed",
    "says it failed, still on its way",
    "half done",
)
LOOKUP_ANSWERS: Final = (
    "truth",
    "truth, answer held up",
    *["truth, told after the settle time"] * 2,
    "cannot tell",
    "error",
    "nonsense",
)
#: How a forward tool's unknown outcome is settled, and how the tool that undoes it does it.
KINDS: Final = {
    "dedupes": "looked_up",
    "both": "dedupes",
    "looked_up": "human",
    "never_settles": "both",
    "human": None,
}
_MILLISECOND: Final = timedelta(milliseconds=1)


class Payment(BaseModel):
    """A forward call."""

    order: str
    amount: str


class Taking(BaseModel):
    """Undoes the payment of that id."""

    of: str


@dataclass(eq=False)
class Request:
    """A request that may still arrive."""

    key: str
    kind: str
    undoes: str | None
    until_ms: int


@dataclass
class ExternalEvents:
    """What has been applied, by provider key."""

    clock: Clock
    applied: Counter[str] = field(default_factory=Counter)
    undone: Counter[str] = field(default_factory=Counter)
    half: set[str] = field(default_factory=set)
    wire: list[Request] = field(default_factory=list)
    _seen_ms: dict[str, int] = field(default_factory=dict)

    def under_way(self, key: str) -> bool:
        """Return whether a request of that key may still arrive."""
        return any(request.key == key for request in self.wire)

    def knows(self, request: Request) -> bool:
        """Return whether the provider answers by the key: as it did the first time."""
        seen = self._seen_ms.get(request.key)
        return seen is not None and self.clock.now_ms - seen < WINDOW / _MILLISECOND

    def arrive(self, request: Request, *, half: bool = False) -> None:
        """Apply a request, unless the provider knows its key."""
        if request.kind in ("dedupes", "both"):
            half = False  # such a provider does a thing or does not
            if self.knows(request):
                return
            self._seen_ms[request.key] = self.clock.now_ms
        if half:
            self.half.add(request.key)
            return
        self.applied[request.key] += 1
        if request.undoes:
            self.undone[request.undoes] += 1

    def time_passes(self, until_ms: int, *, late: bool) -> None:
        """Move the clock; what has not arrived comes at the last moment it may, or never."""
        for request in sorted(self.wire, key=lambda request: request.until_ms):
            if request.until_ms <= until_ms:
                self.wire.remove(request)
                if late:
                    self.clock.now_ms = max(self.clock.now_ms, request.until_ms - 1)
                    self.arrive(request)
        self.clock.now_ms = until_ms

    async def call(
        self, kind: str, ctx: ToolContext, undoes: str | None, timeout: timedelta
    ) -> dict[str, str] | No:
        """Answer as the test decides, when it decides."""
        attempt = current()
        late = timedelta(0) if kind == "dedupes" else SETTLE  # that one declares no settle time
        lasts = int((timeout + late) / _MILLISECOND)
        request = Request(ctx.idempotency_key, kind, undoes, self.clock.now_ms + lasts)
        self.wire.append(request)
        attempt.deadline_ms = self.clock.now_ms + int(timeout / _MILLISECOND)
        try:
            return await self._answer(attempt, request)
        finally:
            attempt.deadline_ms = None

    async def _answer(self, attempt: Attempt, request: Request) -> dict[str, str] | No:
        answer = await attempt.stands_at("call")
        if answer == "lost on the way":
            raise OutcomeUnknown("no answer")
        if answer == "says it failed, still on its way":
            settle = timedelta(0) if request.kind == "dedupes" else SETTLE
            ends_ms = self.clock.now_ms + int(settle / _MILLISECOND)
            request.until_ms = min(request.until_ms, ends_ms)
            raise ReportedFailure("it has failed")
        # From here on it has arrived or never will.
        if request in self.wire:
            self.wire.remove(request)
        match answer:
            case "transient":
                raise Transient("busy")
            case "permanent":
                raise Permanent("refused")
            case "no" if not self.knows(request):
                return No("not this one")
            case "half done":
                self.arrive(request, half=True)
                raise OutcomeUnknown("an error in the middle")
        self.arrive(request)
        if answer == "done, answer held up":
            answer = await attempt.stands_at("answer")
        if answer == "done, answer lost":
            raise OutcomeUnknown("cut off")
        if answer == "done, says it failed":
            raise ReportedFailure("it has failed")
        return {"id": request.key}

    async def look(self, ctx: ToolContext) -> Any:
        """Tell the truth about a key as it is when the answer is given, or nothing."""
        attempt = current()
        said = await attempt.stands_at("lookup")
        match said:
            case "cannot tell":
                return Unknown("the books are closed")
            case "error":
                raise ConnectionError("no route")
            case "nonsense":
                return "yes"
        answer = self.truth(ctx.idempotency_key)
        if said == "truth, answer held up":
            await attempt.stands_at("answer")
        return answer

    def truth(self, key: str) -> Found | NotFound | Partial:
        """Return what is there at this moment."""
        if self.applied[key]:
            return Found({"id": key})
        return Partial("half of it") if key in self.half else NotFound()

    def toolbox(self, timeout: timedelta = TIMEOUT) -> Toolbox:
        """Return a forward tool of each kind, and the tools that undo them."""
        undoing = sorted({f"undo.{kind}" for kind in KINDS.values() if kind})
        return Toolbox(
            [self._tool(f"pay.{kind}", kind, timeout) for kind in KINDS]
            + [self._tool(name, name.removeprefix("undo."), timeout) for name in undoing]
        )

    def _tool(self, name: str, kind: str, timeout: timedelta) -> Tool:
        undo = KINDS[kind] if name.startswith("pay.") else None
        options: dict[str, Any] = {"irreversible": undo is None}
        if undo:
            options["compensate"] = Undo(f"undo.{undo}", lambda params, got: {"of": got["id"]})
        if kind in ("dedupes", "both"):
            options["dedupes"] = Dedupes(WINDOW)
        if kind in ("both", "looked_up", "never_settles"):
            options["lookup"] = lambda params, ctx: self.look(ctx)
        if kind in ("both", "looked_up"):
            options["settle"] = SETTLE
        if kind == "human":
            options["recovery"] = "human"
        make: Callable[..., Any] = tool(name, effect=WRITE, timeout=timeout, **options)
        if name.startswith("undo."):

            async def take_back(params: Taking, ctx: ToolContext) -> Any:
                return await self.call(kind, ctx, params.of, timeout)

            undoing: Tool = make(take_back)
            return undoing

        async def pay(params: Payment, ctx: ToolContext) -> Any:
            return await self.call(kind, ctx, None, timeout)

        paying: Tool = tool(
            name,
            effect=WRITE,
            timeout=timeout,
            key=lambda params: f"order:{params.order}",
            **options,
        )(pay)
        return paying
