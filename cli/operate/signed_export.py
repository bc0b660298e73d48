"""The signed head of an export: making it, and saying who has signed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from surehand.cli.verb.shapes import ExportSignature
from surehand.cli.verb.text import shown_time
from surehand.client.signing import read_key, sign
from surehand.process.exits import ExitCode, SurehandError
from surehand.process.settings import ClientSettings
from surehand.workflows.contracts.base import ChainHead
from surehand.workflows.contracts.signing import ExportClaims, Signed, audience


def signed_head(
    settings: ClientSettings, events: Sequence[Mapping[str, Any]], head: ChainHead
) -> str:
    """Return the line that ends a signed export; nothing where no key is named.

    Args:
        settings: Who signs, for which tenant, and with which key.
        events: All events of the run, in order.
        head: As the run's row in the ledger records it.

    Raises:
        WrongUse: The key cannot be used.
        SurehandError: The chain is broken: nobody shall vouch for it.
    """
    if settings.key is None:
        return ""
    from surehand.activities.ledger.history.audit import verify_chain
    from surehand.activities.ledger.history.signatures import signature_line

    key = read_key(settings.key)
    found = verify_chain(events, [head])
    if found is not None:
        run_id = str(events[0]["run_id"]) if events else ""
        raise SurehandError(
            f"not signed, and not written: the chain is broken at {found}"
            f" (`{settings.command('audit', run_id)}`)",
            code=ExitCode.BROKEN,
        )
    claims = ExportClaims(
        aud=audience(settings.tenant),
        sub=settings.user,
        iat=int(time.time()),
        run_id=str(events[-1]["run_id"]),
        seq=head.seq,
        head=head.hash,
    )
    return signature_line(sign(key, claims))


def shown_signature(token: str, claims_of: type[Signed], *, verified: bool) -> ExportSignature:
    """Return what a signature of the right form says.

    Args:
        token: The compact JWS.
        claims_of: What it is a signature of.
        verified: Whether it was made with the key of the signer who was named.
    """
    from surehand.activities.ledger.history.signatures import claims_to_be

    kid, claims = claims_to_be(token, claims_of)
    return ExportSignature(
        signer=claims.sub,
        kid=kid,
        tenant=claims.aud.removeprefix(audience("")),
        signed_at=datetime.fromtimestamp(claims.iat, UTC),
        verified=verified,
    )


def signature_text(signature: ExportSignature) -> str:
    """Return in one line who has signed an export, or who is said to have."""
    who = (
        f"{signature.signer} (key {signature.kid}) at {shown_time(signature.signed_at)},"
        f" for tenant {signature.tenant}"
    )
    if signature.verified:
        return f"Signed by {who}: verified."
    return f"Claims to be signed by {who}: NOT verified, name the public key (--signer FILE)."
