"""Standing approvals: votes that are given in advance, for calls within a scope."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from surehand.workflows.contracts.base import Actor, Text
from surehand.workflows.contracts.signing import Claims
from surehand.workflows.identity import digest

#: Most uses that one can be granted for: each use looks at the ones before it.
MOST_USES: Final = 100_000
#: Until when it can be granted at most, from the time of the grant.
LONGEST_STANDING: Final = timedelta(days=3650)
#: Characters.
LONGEST_REASON: Final = 1000
#: Decimals as they are written and signed: one spelling, no exponent.
DECIMAL_FORM: Final = r"^(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?$"
#: A param, or one within others: ``amount``, ``order.amount``.
PATH_FORM: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"

#: Hex digits of an id: enough for people to tell them apart, and the ledger takes none twice.
_DIGITS: Final = 12


class Scope(BaseModel):
    """The calls that a standing approval covers; whoever grants it signs exactly this."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tool: Annotated[Text, Field(min_length=1, max_length=120)]
    version: Annotated[Text, Field(max_length=40)]
    schema_hash: Annotated[Text, Field(max_length=80)]
    """With the version: what was looked at. A tool that has changed since is not covered."""
    when: Annotated[Text, Field(min_length=1, max_length=500)] | None = None
    """An expression over the params that has to be true, as in the rules of policies."""
    count: Annotated[int, Field(ge=1, le=MOST_USES)] | None = None
    """Most calls."""
    total_of: Annotated[str, Field(pattern=PATH_FORM, max_length=200)] | None = None
    """The param whose sum over all calls is limited."""
    total: Annotated[str, Field(pattern=DECIMAL_FORM)] | None = None
    """What that sum may come to."""
    foreign: bool = False
    """Also calls of runs that have read content from outside."""
    until: Annotated[int, Field(ge=0, lt=2**43)]
    """When it ends, in seconds since 1970."""

    @model_validator(mode="after")
    def _whole(self) -> Scope:
        if (self.total_of is None) != (self.total is None):
            raise ValueError("a total needs both the param and the limit")
        return self


class StandingClaims(Claims):
    """A granter's standing approval. ``exp`` ends its arrival, ``scope.until`` its use."""

    typ: ClassVar[str] = "surehand-standing+jws"

    scope: Scope


class StandingGrant(BaseModel):
    """A standing approval on its way to the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    granter: Actor
    scope: Scope
    nonce: Annotated[Text, Field(min_length=16, max_length=100)]
    signature: Annotated[Text, Field(max_length=4096)] | None = None
    """Compact JWS over ``StandingClaims``, by a key of the granter's."""
    reason: Annotated[Text, Field(max_length=LONGEST_REASON)] = ""


def standing_id_of(nonce: str) -> str:
    """Return the id of the standing approval with that nonce, which its granter signs."""
    return f"SA-{digest(nonce).removeprefix('sha256:')[:_DIGITS]}"


def standing_label(granter: str, standing_id: str) -> str:
    """Return how people are told whose vote it is: nobody shall believe that they looked."""
    return f"{granter}'s standing approval {standing_id}"
