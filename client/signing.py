"""The key file of whoever decides or steers, and signing with it.

joserfc and cryptography are imported when they are used: other verbs need not wait for them.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import stat
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from surehand.process.exits import WrongUse
from surehand.workflows.contracts.approvals import Decision
from surehand.workflows.contracts.signing import (
    ALGORITHM,
    LONGEST_SIGNATURE,
    DecisionClaims,
    Signed,
    StartClaims,
    audience,
)
from surehand.workflows.contracts.starting import StartRun
from surehand.workflows.identity import NotCanonical, canonical_json, digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: From signing to expiry: a decision is sent at once, or by hand a little later.
USUAL_SIGNATURE: Final = timedelta(minutes=5)
#: Bytes of a nonce: nobody meets another one's by chance.
NONCE: Final = 24
#: Bytes; a key file has about 120.
_LARGEST_FILE: Final = 16_384
#: Permissions of group and others.
_OTHERS: Final = 0o077


def new_key(path: Path) -> str:
    """Make a key pair: the private key as PEM, and ``PATH.pub``, a JWK for who may know it.

    Returns:
        The key id: the public key's RFC 7638 thumbprint.

    Raises:
        WrongUse: A file is there already, or cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    document = public_jwk(key)
    _create(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    try:
        _create(_public_half(path), json.dumps(document, sort_keys=True).encode() + b"\n", 0o644)
    except WrongUse:
        path.unlink()  # nobody knows its public half, and the next attempt needs the name
        raise
    return str(document["kid"])


def public_jwk(key: Ed25519PrivateKey) -> dict[str, Any]:
    """Return the public half of a key, as a JWK."""
    from joserfc.jwk import OKPKey

    public = OKPKey.import_key(key.public_key())
    return {**public.as_dict(), "alg": ALGORITHM, "kid": public.thumbprint(), "use": "sig"}


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file that only its owner, who asks, can read.

    Raises:
        WrongUse: There is no such key, others can read it, or it is of another kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pem = _read_own(path)
    if b"PRIVATE KEY-----" not in pem:
        known = b"PUBLIC KEY-----" in pem or b'"kty"' in pem
        raise _refused(
            path,
            "it is a public key, or a JWK: name the private key in PEM"
            if known
            else "it is no private key in PEM",
        )
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        plain = shlex.quote(f"{path}.plain")
        raise _refused(
            path,
            "it is encrypted: decrypt it, "
            f"(umask 077; openssl pkey -in {shlex.quote(str(path))} -out {plain})",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refused(path, "it is no private key in PEM (PKCS8) that can be read") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _refused(path, "it is not an Ed25519 key: make one")
    return key


def claims_for(
    decision: Decision,
    tenant: str,
    run_id: str,
    now: int,
    *,
    lasts: timedelta = USUAL_SIGNATURE,
    edited: str | None = None,
) -> DecisionClaims:
    """Return what is to be signed for a decision.

    Args:
        decision: The decision; its approver signs.
        tenant: Whose run it is.
        run_id: The full id of the run that the approval belongs to.
        now: Seconds since 1970.
        lasts: From now to expiry, in whole seconds.
        edited: Digest of the new params of an edit.

    Raises:
        WrongUse: It would last longer than a signature may, or end at once.
    """
    seconds = int(lasts.total_seconds())
    longest = int(LONGEST_SIGNATURE.total_seconds())
    if not 0 < seconds <= longest:
        raise WrongUse(f"a signature lasts 1 to {longest} s, not {seconds} s")
    return DecisionClaims(
        **fresh_claims(decision.approver, tenant, now, seconds),
        approval_id=decision.approval_id,
        run_id=run_id,
        params_hash=decision.params_hash,
        outcome=decision.outcome,
        edited=edited,
        reason=digest(decision.reason) if decision.reason else None,
    )


def signed_start(request: StartRun, key: Ed25519PrivateKey, now: int) -> StartRun:
    """Return the start of a run, signed by whoever starts it; ``now`` in seconds since 1970.

    Raises:
        WrongUse: There is a value in it that cannot be signed.
    """
    try:
        content = digest(request.content())
    except NotCanonical as error:
        raise WrongUse(f"the plan cannot be signed: {error}") from error
    claims = StartClaims(
        **fresh_claims(request.started_by or request.user, request.tenant, now),
        run_id=request.run_id,
        user=request.user,
        content=content,
    )
    return request.model_copy(update={"signature": sign(key, claims)})


def fresh_claims(
    signer: str, tenant: str, now: int, seconds: int = int(USUAL_SIGNATURE.total_seconds())
) -> dict[str, Any]:
    """Return what all claims begin with, and a nonce that was never used.

    Args:
        signer: Who signs.
        tenant: For whom.
        now: Seconds since 1970.
        seconds: From now to expiry.
    """
    return {
        "aud": audience(tenant),
        "sub": signer,
        "iat": now,
        "exp": now + seconds,
        "jti": secrets.token_urlsafe(NONCE),
    }


def sign(key: Ed25519PrivateKey, claims: Signed) -> str:
    """Return the claims as a compact JWS that names the key by its thumbprint."""
    from joserfc import jws
    from joserfc.jwk import OKPKey

    from surehand.process.ciphers import signature_registry

    own = OKPKey.import_key(key)
    header = {"alg": ALGORITHM, "kid": own.thumbprint(), "typ": claims.typ}
    payload = canonical_json(claims.model_dump(mode="json", exclude_none=True))
    return jws.serialize_compact(header, payload, own, registry=signature_registry())


def _public_half(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def _create(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet, with its permissions from the first byte on."""
    try:
        # O_EXCL follows no link either, so nobody can lay one under the name.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise WrongUse(f"key file {path}: it is there already, and is not overwritten") from error
    except OSError as error:
        raise WrongUse(f"key file {path}: {error.strerror}") from error
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
    except OSError as error:
        path.unlink()
        raise WrongUse(f"key file {path}: {error.strerror}") from error


def _read_own(path: Path) -> bytes:
    """Return the content of a file that is ours alone; judged as opened, not by its name."""
    try:
        with open(path, "rb", opener=_not_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _refused(path, "it is not a file")
            if found.st_uid != os.geteuid():
                raise _refused(
                    path, f"user {found.st_uid} owns it, not you: a key is used by its owner only"
                )
            if found.st_mode & _OTHERS:
                raise _refused(path, f"others may use it: chmod 600 {shlex.quote(str(path))}")
            return file.read(_LARGEST_FILE)
    except FileNotFoundError as error:
        raise _refused(path, "there is no such file") from error
    except OSError as error:
        raise _refused(path, error.strerror or "cannot be read") from error


def _not_waiting(name: str, flags: int) -> int:
    """Open a file, or a pipe without a writer, which would keep us waiting for ever."""
    return os.open(name, flags | os.O_NONBLOCK)


def _refused(path: Path, why: str) -> WrongUse:
    return WrongUse(f"key file {path}: {why}")
