"""How an endpoint misbehaves, as told by ``PUT /admin/faults/{endpoint}``."""

from __future__ import annotations

from dataclasses import dataclass
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
class _Told:
    fault: Fault
    remaining: int | None


class Faults:
    """The faults in force, by endpoint. Kept in memory: a restarted shop behaves well."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def tell(self, endpoint: str, fault: Fault) -> None:
        """Replace the endpoint's fault."""
        self._told[endpoint] = _Told(fault, fault.times)

    def clear(self) -> None:
        """Let all endpoints behave well."""
        self._told.clear()

    def take(self, endpoint: str) -> Fault:
        """Return the fault that disturbs the request at hand, and count it."""
        told = self._told.get(endpoint)
        if told is None or told.remaining == 0:
            return WELL_BEHAVED
        if told.remaining is not None:
            told.remaining -= 1
        return told.fault

    def ignores_lookup(self, endpoint: str) -> bool:
        """Return whether the endpoint refuses to be asked by key."""
        told = self._told.get(endpoint)
        return told is not None and told.fault.ignore_lookup
