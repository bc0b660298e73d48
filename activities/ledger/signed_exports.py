"""Signed exports: the last line of the file is a signature over the head of its chain.

A file alone cannot show that its end was cut off, or that all of it was written anew with hashes
that fit: whoever signs its head, and keeps the key elsewhere, makes that show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from activities.ledger.audit import Break, Event, from_lines, lines_of, verify_chain
from activities.signatures import BadSignature, authentic, claimed, header_kid
from workflows.contracts import ChainHead
from workflows.contracts.signing import ExportClaims, audience
from workflows.identity import tenant_of_run

#: The one field of the last line.
_SIGNATURE: Final = "signature"
#: Of the year 9999: what follows is no date.
_LAST_SECOND: Final = 253_402_300_799


def signature_line(token: str) -> str:
    """Return the last line of a signed export."""
    return json.dumps({_SIGNATURE: token}) + "\n"


def read_export(text: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the events of an export, and its signature if it has one.

    Raises:
        NotAnExport: A line is not an exported event, or a signature is not the last line.
    """
    *above, last = lines_of(text) or [""]
    try:
        value = json.loads(last)
    except ValueError:
        value = None
    if isinstance(value, dict) and value.keys() == {_SIGNATURE}:
        return from_lines("\n".join(above)), str(value[_SIGNATURE])
    return from_lines(text), None


def claims_to_be(token: str) -> tuple[str, ExportClaims]:
    """Return the key id and the claims of a signature that nobody has verified.

    Raises:
        BadSignature: It has not the form of one.
    """
    return header_kid(token, ExportClaims.typ), claimed(token, ExportClaims)


def verify_signature(
    events: Sequence[Event], token: str | None, public_jwk: Mapping[str, Any] | None
) -> Break | None:
    """Return why a signature is not one over these events, or ``None``.

    Args:
        events: All events of the export, in order.
        token: Its signature; ``None``: it has none.
        public_jwk: Whose signature it has to be; ``None``: only what it claims is compared.
    """
    if token is None:
        return None if public_jwk is None else Break(0, "the export is not signed")
    try:
        claims = claims_to_be(token)[1]
        if public_jwk is not None:
            claims = authentic(token, public_jwk, ExportClaims)
    except BadSignature as error:
        return Break(0, str(error))
    if not 0 <= claims.iat <= _LAST_SECOND:
        return Break(0, "the signature is made at no time that there is")
    run_id = str(events[0]["run_id"]) if events else ""
    if claims.run_id != run_id:
        return Break(0, f"the signature is over the export of another run, {claims.run_id}")
    if claims.aud != audience(tenant_of_run(run_id)):
        return Break(0, "the signature is for another tenant")
    if claims.seq < len(events):
        return Break(claims.seq + 1, "was added after the export was signed")
    return verify_chain(events, [ChainHead(seq=claims.seq, hash=claims.head)])
