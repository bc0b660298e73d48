"""Resume tokens: one private key each, made here, whose public half the paused run keeps.

A bearer token would stand in the run's history for everybody to read. What is sent with a resume is
a signature made with the token instead, bound to the run and its user, and good once.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from datetime import timedelta
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from surehand.client.signing import fresh_claims, sign
from surehand.process.exits import WrongUse
from surehand.workflows.contracts.signing import ResumeClaims
from surehand.workflows.contracts.steering import ResumeKey, ResumeRun
from surehand.workflows.identity import digest

#: What a token begins with: its kind, and the version of its form.
PREFIX: Final = "shr1."
#: Characters; a token with the longest ids has about 700.
_LONGEST: Final = 4096


class ResumeToken(BaseModel):
    """What a token carries."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    tenant: str
    user: str
    seed: str
    """The private key (RFC 8032), 32 bytes in base64url."""

    def as_text(self) -> str:
        """Return the token as people hand it on."""
        return PREFIX + _encoded(self.model_dump_json().encode())

    def proof_of(self, message: ResumeRun) -> ResumeRun:
        """Return a message with what proves that its sender has the token, and counts once."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            key = Ed25519PrivateKey.from_private_bytes(_decoded(self.seed))
        except ValueError as error:
            raise WrongUse("this is no resume token") from error
        common = fresh_claims(self.user, self.tenant, int(time.time()))
        content = digest(message.content())
        claims = ResumeClaims(**common, run_id=self.run_id, content=content)
        return message.model_copy(update={"proof": sign(key, claims)})


def new_token(tenant: str, run_id: str, user: str, lasts: timedelta) -> tuple[str, ResumeKey]:
    """Return a token for a paused run, and what the run keeps of it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from joserfc.jwk import OKPKey

    key = Ed25519PrivateKey.generate()
    public = OKPKey.import_key(key.public_key()).as_dict()
    seed = _encoded(key.private_bytes_raw())
    token = ResumeToken(run_id=run_id, tenant=tenant, user=user, seed=seed)
    try:
        resume_key = ResumeKey.model_validate({"public_key": public, "lasts": lasts})
    except ValidationError as error:
        raise WrongUse("a resume token lasts at most 1 d") from error
    return token.as_text(), resume_key


def read_token(text: str, tenant: str, run_id: str) -> ResumeToken:
    """Return a token that was handed on.

    Raises:
        WrongUse: It is none, or another run's.
    """
    try:
        if not text.startswith(PREFIX) or len(text) > _LONGEST:
            raise ValueError("no token")
        token = ResumeToken.model_validate(json.loads(_decoded(text.removeprefix(PREFIX))))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise WrongUse(
            f"this is no resume token: it is one word that begins with {PREFIX}"
        ) from error
    if (token.tenant, token.run_id) != (tenant, run_id):
        raise WrongUse(
            f"that is no token of this run: it is for run {token.run_id}, not for {run_id}"
        )
    return token


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
