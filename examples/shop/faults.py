"""How an endpoint misbehaves, as told by ``PUT /admin/faults/{endpoint}``."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Fault(BaseModel):
    """The misbehaviour of one endpoint. The empty fault is a well-behaved endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ignore_keys: bool = False
    """Apply a request again although its ``Idempotency-Key`` was seen before."""
    ignore_lookup: bool = False
    """Answer 501 when asked for an effect by key. Does not use up ``times``."""
    delay_before_s: float = Field(default=0.0, ge=0)
    """Seconds before the request is applied: it is on the wire and its client may die."""
    delay_after_s: float = Field(default=0.0, ge=0)
    """Seconds between the application and the answer."""
    hold: Literal["before", "after"] | None = None
    """Hold a request before or after it is applied, until faults are told or cleared anew."""
    half: bool = False
    """Apply half of the request, then answer 500."""
    fail: Literal["before", "after", "drop_before", "drop_after"] | None = None
    """Fail before or after applying: with ``status``, or by closing the connection."""
    status: int = Field(default=500, ge=400, le=599)
    retry_after: int | str | None = None
    """``Retry-After`` of a failure: seconds or an HTTP date. Alone it means 429 before applying."""
    times: int | None = Field(default=None, ge=1)
    """Only the first so many requests are disturbed; ``None`` disturbs them all."""

    @model_validator(mode="before")
    @classmethod
    def _rate_limit(cls, value: object) -> object:
        if isinstance(value, dict) and value.get("retry_after") is not None:
            return {"status": 429, "fail": "before"} | value
        return value

    @model_validator(mode="after")
    def _half_needs_an_application(self) -> Self:
        if self.half and self.fail in ("before", "drop_before"):
            raise ValueError("a request that fails before it is applied cannot be half applied")
        return self


WELL_BEHAVED: Final = Fault()


@dataclass
class Told:
    """A fault in force."""

    fault: Fault
    remaining: int | None
    """Requests that it still disturbs; ``None``: all."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is in force no more: what it holds goes on."""

    async def before(self) -> None:
        """Wait as long as a request is to wait before it is applied."""
        await self._wait("before", self.fault.delay_before_s)

    async def after(self) -> None:
        """Wait as long as a request is to wait between its application and the answer."""
        await self._wait("after", self.fault.delay_after_s)

    async def _wait(self, moment: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if self.fault.hold == moment:
            await self.over.wait()


class Faults:
    """The faults in force, by endpoint. Kept in memory: a restarted shop behaves well."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}

    def tell(self, endpoint: str, fault: Fault) -> None:
        """Replace the endpoint's fault."""
        self._end(endpoint)
        self._told[endpoint] = Told(fault, fault.times)

    def clear(self) -> None:
        """Let all endpoints behave well."""
        for endpoint in list(self._told):
            self._end(endpoint)

    def take(self, endpoint: str) -> Told:
        """Return the fault that disturbs the request at hand, and count it."""
        told = self._told.get(endpoint)
        if told is None or told.remaining == 0:
            return Told(WELL_BEHAVED, None)
        if told.remaining is not None:
            told.remaining -= 1
        return told

    def ignores_lookup(self, endpoint: str) -> bool:
        """Return whether the endpoint refuses to be asked by key."""
        told = self._told.get(endpoint)
        return told is not None and told.fault.ignore_lookup

    def _end(self, endpoint: str) -> None:
        told = self._told.pop(endpoint, None)
        if told is not None:
            told.over.set()
