"""What people sign: the payload of a compact JWS (RFC 7515) with EdDSA (RFC 8037).

Decisions, and what steers a run, may also be signed by a passkey, over the same claims.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from surehand.workflows.contracts.approvals import DecisionOutcome
from surehand.workflows.contracts.base import Actor, Text

#: The one algorithm, with keys on the curve Ed25519: what a header says never chooses another.
ALGORITHM: Final = "EdDSA"
#: Longest time from signing to expiry.
LONGEST_SIGNATURE: Final = timedelta(minutes=10)
#: Of a passkey's proof, as ``typ`` is of a JWS; its challenge begins with it.
PASSKEY_TYP: Final = "surehand-decision+webauthn"
#: The same of what steers a run.
STEERING_PASSKEY_TYP: Final = "surehand-steering+webauthn"
#: What the challenge begins with that is made of several decisions.
PASSKEY_LIST: Final = "surehand-decision+webauthn-list"
#: Decisions that one gesture may be over.
MOST_DECISIONS: Final = 50
#: As browsers write the origin of a page that can have passkeys.
_ORIGIN: Final = re.compile(
    r"(?:https://(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)*)"
    r"|http://(?P<local>(?:[a-z0-9-]+\.)*localhost))(?::(?!443$)[1-9][0-9]{0,4})?"
)


class Signed(BaseModel):
    """What every signature claims; each kind adds what it is bound to, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    typ: ClassVar[str]
    """Of the protected header: a signature made for one thing never counts as another."""
    passkey_typ: ClassVar[str | None] = None
    """The same of a passkey's proof, whose challenge begins with it; ``None``: there is none."""

    aud: Text
    """Whom it is meant for: :func:`audience` of the tenant."""
    sub: Actor
    """Who signs."""
    iat: int
    """When it was signed, in seconds since 1970."""


class Claims(Signed):
    """What a signature claims that is sent: it counts once, and not for long."""

    exp: int
    """Until when it is taken, in seconds since 1970."""
    jti: Annotated[Text, Field(min_length=16, max_length=100)]
    """The nonce: a signature counts once."""


class DecisionClaims(Claims):
    """An approver's decision; each claim is bound to the decision that carries the signature."""

    typ: ClassVar[str] = "surehand-decision+jws"
    passkey_typ: ClassVar[str | None] = PASSKEY_TYP

    approval_id: Text
    run_id: Text
    params_hash: Text
    outcome: Annotated[DecisionOutcome, Field(strict=False)]
    edited: Text | None = None
    """Digest of the params that an ``edit`` puts in the place of those that were asked for."""
    reason: Text | None = None
    """Digest of the decision's reason, if it has one."""


class SteeringClaims(Claims):
    """What steers a run: bound to the whole of what was sent."""

    typ: ClassVar[str] = "surehand-steering+jws"
    passkey_typ: ClassVar[str | None] = STEERING_PASSKEY_TYP

    run_id: Text
    verb: Text
    content: Text
    """Digest of ``Steering.content()``."""


class StartClaims(Claims):
    """The start of a run: bound to the whole of what is started, and to whom it acts for."""

    typ: ClassVar[str] = "surehand-start+jws"

    run_id: Text
    user: Actor
    content: Text
    """Digest of ``StartRun.content()``."""


class ResumeClaims(Claims):
    """Proof that whoever resumes a run has its resume token; the token itself stays at home."""

    typ: ClassVar[str] = "surehand-resume+jws"

    run_id: Text
    content: Text
    """Digest of what is sent, but for the proof itself."""


class ExportClaims(Signed):
    """The head of a run's exported events, as it was at ``iat``; it stays true for ever."""

    typ: ClassVar[str] = "surehand-export+jws"

    run_id: Text
    seq: int
    """Of the newest event."""
    head: Text
    """Its hash."""


class ContentClaims(Signed):
    """What of a run was deleted with a kind of its data; it stays true for ever."""

    typ: ClassVar[str] = "surehand-content+jws"

    run_id: Text
    kind: Text
    content: Text
    """Digest of all lines above the signature."""


def host_of(origin: str) -> str | None:
    """Return the host of a page that can have passkeys, by its origin; ``None``: it is none."""
    found = _ORIGIN.fullmatch(origin)
    return None if found is None else found["host"] or found["local"]


def audience(tenant: str) -> str:
    """Return the audience of what is signed for a tenant."""
    return f"surehand:{tenant}"
