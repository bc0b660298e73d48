"""What is sent to a run: its ids, composed, and signed where there is a key.

joserfc and cryptography are imported when they are used: other verbs need not wait for them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import stat
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from surehand.process.exits import NoSuchRun, WrongUse
from surehand.process.files import FOR_OTHERS
from surehand.process.settings import ClientSettings
from surehand.verify import ALGORITHM, decode_base64url, encode_base64url
from surehand.workflows.canonical_json import NotCanonical, canonical_json, digest
from surehand.workflows.contracts.approvals import (
    ApprovalRequest,
    Decision,
    DecisionClaims,
    DecisionOutcome,
    ResumeClaims,
    Signed,
    StartClaims,
    SteeringClaims,
    audience,
)
from surehand.workflows.contracts.base import Message
from surehand.workflows.contracts.runs import StartRun
from surehand.workflows.contracts.steering import ResumeKey, ResumeRun, Steering, Verb
from surehand.workflows.identity import approval_id, run_id_for, run_of_approval, tenant_of_run
from surehand.workflows.run.deliveries import Malformed, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from joserfc.jws import JWSRegistry

#: Child runs have their step's name behind their parent's.
_FOUND: Final = re.compile(r"[A-Za-z0-9_.:-]{1,120}(~[A-Za-z0-9_-]{1,64}(\[[0-9]+\])?(\.[0-9]+)?)*")
#: In full: of a part of it, somebody could make another one that begins so.
_HASH: Final = re.compile("sha256:[0-9a-f]{64}")
#: Characters; a run's id, a step's and a number have fewer together.
LONGEST_APPROVAL_ID: Final = 400
_ALLOWED: Final = "a run's name has 1 to 120 letters, digits, '_', '.', ':' and '-'"


def make_run_name(plan_name: str) -> str:
    """Return a run name that nobody has used: the plan's name and 8 random hex digits."""
    return f"{plan_name}-{secrets.token_hex(4)}"


def choose_run_id(tenant: str, text: str) -> str:
    """Return the full id for the name of a run that is to be started."""
    if "~" in text:
        raise WrongUse(f"run id {text!r}: {_ALLOWED}")
    try:
        return find_run_id(tenant, text)
    except NoSuchRun as error:
        raise WrongUse(
            f"run id {text!r}: {_ALLOWED}, and no tenant but {tenant!r} before it"
        ) from error


def find_run_id(tenant: str, text: str) -> str:
    """Return the full run id for ``refund-1`` or ``acme/refund-1``."""
    name = text.rpartition("/")[2] if text.count("/") == 1 else text
    if not _FOUND.fullmatch(name) or text.startswith("/"):
        raise WrongUse(f"run id {text!r}: {_ALLOWED}")
    if "/" in text and tenant_of_run(text) != tenant:
        raise NoSuchRun(f"run not found: {text}")
    return run_id_for(tenant, name)


def find_approval(tenant: str, text: str) -> tuple[str, str]:
    """Return ``(run id, approval id)`` for ``refund-1/refund/1`` or ``acme/refund-1/refund/1``."""
    known = len(text) <= LONGEST_APPROVAL_ID and text.isascii() and text.isprintable()
    parts = run_of_approval(text) if known else None
    if parts is None:
        raise WrongUse(
            f"approval id {text[:LONGEST_APPROVAL_ID]!r}: it looks like RUN/STEP/NUMBER, "
            "for example refund-1/refund/1; `pending` lists them"
        )
    run, step = parts
    run_id = find_run_id(tenant, run)
    return run_id, approval_id(run_id, step, int(text.rpartition("/")[2]))


#: From signing to expiry: a decision is sent at once, or by hand a little later.
USUAL_SIGNATURE: Final = timedelta(minutes=5)
#: How long a resume token counts: for today's work, and gone tomorrow.
_TOKEN_LASTS: Final = timedelta(hours=1)
#: Bytes of a nonce: nobody meets another one's by chance.
NONCE: Final = 24
#: Bytes; a key file has about 120.
_LARGEST_FILE: Final = 16_384


def new_key(path: Path) -> str:
    """Make a key pair: the private key as PEM, and ``PATH.pub``, a JWK for who may know it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    document, public = public_jwk(key), path.with_name(f"{path.name}.pub")
    _create_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    try:
        _create_file(public, json.dumps(document, sort_keys=True).encode() + b"\n", 0o644)
    except WrongUse:
        path.unlink()  # nobody knows its public half, and the next attempt needs the name
        raise
    return str(document["kid"])


def public_jwk(key: Ed25519PrivateKey) -> dict[str, Any]:
    from joserfc.jwk import OKPKey

    public = OKPKey.import_key(key.public_key())
    return {**public.as_dict(), "alg": ALGORITHM, "kid": public.thumbprint(), "use": "sig"}


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a file that only its owner, who asks, can read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pem = _read_own(path)
    if b"PRIVATE KEY-----" not in pem:
        known = b"PUBLIC KEY-----" in pem or b'"kty"' in pem
        raise _refuse_key(
            path,
            "it is a public key, or a JWK: name the private key in PEM"
            if known
            else "it is no private key in PEM",
        )
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        plain = shlex.quote(f"{path}.plain")
        raise _refuse_key(
            path,
            "it is encrypted: decrypt it, "
            f"(umask 077; openssl pkey -in {shlex.quote(str(path))} -out {plain})",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _refuse_key(path, "it is no private key in PEM (PKCS8) that can be read") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _refuse_key(path, "it is not an Ed25519 key: make one")
    return key


def claims_for(
    decision: Decision, tenant: str, run_id: str, now: int, *, edited: str | None = None
) -> DecisionClaims:
    return DecisionClaims(
        **fresh_claims(decision.approver, tenant, now),
        approval_id=decision.approval_id,
        run_id=run_id,
        params_hash=decision.params_hash,
        outcome=decision.outcome,
        edited=edited,
        reason=digest(decision.reason) if decision.reason else None,
    )


def sign_start(request: StartRun, key: Ed25519PrivateKey, now: int) -> StartRun:
    """Return the start of a run, signed by whoever starts it; ``now`` in seconds since 1970."""
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


def fresh_claims(signer: str, tenant: str, now: int) -> dict[str, Any]:
    """Return what all claims begin with, and a nonce that was never used."""
    return {
        "aud": audience(tenant),
        "sub": signer,
        "iat": now,
        "exp": now + int(USUAL_SIGNATURE.total_seconds()),
        "jti": secrets.token_urlsafe(NONCE),
    }


@cache
def signature_registry() -> JWSRegistry:
    """Return the one algorithm of signed decisions: `ALGORITHM`, with a key on Ed25519."""
    # Late: it costs a tenth of a second, and most verbs sign nothing.
    from joserfc.jws import JWSRegistry

    class Pinned(JWSRegistry):
        # RFC 9864 deprecates the name EdDSA, because it leaves the curve open, and joserfc warns.
        # Here it is not open: the name stands for RFC 9864's Ed25519, which takes no other curve.
        algorithms = {ALGORITHM: JWSRegistry.algorithms["Ed25519"]}

    return Pinned(algorithms=[ALGORITHM])


def sign(key: Ed25519PrivateKey, claims: Signed) -> str:
    """Return the claims as a compact JWS that names the key by its thumbprint."""
    from joserfc import jws
    from joserfc.jwk import OKPKey

    own = OKPKey.import_key(key)
    header = {"alg": ALGORITHM, "kid": own.thumbprint(), "typ": claims.typ}
    payload = canonical_json(claims.model_dump(mode="json", exclude_none=True))
    return jws.serialize_compact(header, payload, own, registry=signature_registry())


def _create_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file that is not there yet, with its permissions from the first byte on."""
    made = False
    try:
        # "x" follows no link either, so nobody can lay one under the name.
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            made = True
            file.write(content)
    except FileExistsError as error:
        raise WrongUse(f"key file {path}: it is there already, and is not overwritten") from error
    except OSError as error:
        if made:
            path.unlink()
        raise _refuse_key(path, error.strerror or "cannot be written") from error


def _read_own(path: Path) -> bytes:
    """Return the content of a file that is ours alone; judged as opened, not by its name."""
    try:
        # A pipe without a writer would keep us waiting for ever.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _refuse_key(path, "it is not a file")
            if found.st_uid != os.geteuid():
                raise _refuse_key(
                    path, f"user {found.st_uid} owns it, not you: a key is used by its owner only"
                )
            if found.st_mode & FOR_OTHERS:
                raise _refuse_key(path, f"others may use it: chmod 600 {shlex.quote(str(path))}")
            return file.read(_LARGEST_FILE)
    except FileNotFoundError as error:
        raise _refuse_key(path, "there is no such file") from error
    except OSError as error:
        raise _refuse_key(path, error.strerror or "cannot be read") from error


def _refuse_key(path: Path, why: str) -> WrongUse:
    return WrongUse(f"key file {path}: {why}")


M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Steering)


@dataclass(frozen=True)
class SeenRequest:
    """A request as somebody has seen it, where the request itself is not at hand any more.

    A page that shows a request carries both values, and sends them back with the answer. Who looks
    the hash up when the answer comes, approves what nobody has seen.

    Example:
        >>> SeenRequest("refund-1/refund/1", "sha256:" + 64 * "0").approval_id
        'refund-1/refund/1'
    """

    approval_id: str
    params_hash: str


#: What an approver has seen.
Seen = ApprovalRequest | SeenRequest


def compose_decision(
    settings: ClientSettings,
    seen: Seen,
    outcome: DecisionOutcome,
    *,
    reason: str = "",
    params: dict[str, JsonValue] | None = None,
) -> tuple[str, Decision]:
    """Return the run's id and a decision on what was seen, signed if there is a key."""
    run_id, approval_id = find_approval(settings.tenant, seen.approval_id)
    decision = compose_message(
        Decision,
        approval_id=approval_id,
        params_hash=seen.params_hash,
        outcome=outcome,
        approver=settings.user,
        reason=reason,
        params=params,
    )
    if not _HASH.fullmatch(decision.params_hash):
        shows = f"sha256: and 64 hex digits, as `{settings.command('show', run_id)}` shows it"
        raise WrongUse(f"{decision.params_hash!r} is no hash of params: {shows}")
    return run_id, _sign_decision(settings, run_id, decision)


def compose_lift(settings: ClientSettings, halt_id: str, params_hash: str) -> Decision:
    """Return a yes to lifting a halt as it was seen, signed if there is a key."""
    said = {"approval_id": halt_id, "params_hash": params_hash, "approver": settings.user}
    decision = compose_message(Decision, outcome=DecisionOutcome.APPROVE, **said)
    return _sign_decision(settings, halt_id, decision)


def _sign_decision(settings: ClientSettings, run_id: str, decision: Decision) -> Decision:
    if settings.key is None:
        return decision
    key, now = read_key(settings.key), int(time.time())
    try:
        edited = None if decision.params is None else digest(decision.params)
    except NotCanonical as error:
        raise WrongUse(f"the params cannot be signed: {error}") from error
    claims = claims_for(decision, settings.tenant, run_id, now, edited=edited)
    return decision.model_copy(update={"signature": sign(key, claims)})


def compose_message(model: type[M], /, **values: Any) -> M:
    try:
        return parse(model, values)
    except Malformed as error:
        raise WrongUse(str(error)) from error


def sign_message(settings: ClientSettings, run_id: str, verb: Verb, message: S) -> S:
    """Return a message as it is sent: signed where there is a key."""
    if settings.key is None:
        return message
    common = fresh_claims(message.actor, settings.tenant, int(time.time()))
    content = digest(message.content())
    claims = SteeringClaims(**common, run_id=run_id, verb=verb.value, content=content)
    return message.model_copy(update={"signature": sign(read_key(settings.key), claims)})


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
        return PREFIX + encode_base64url(self.model_dump_json().encode())

    def proof_of(self, message: ResumeRun) -> ResumeRun:
        """Return a message with what proves that its sender has the token, and counts once."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            key = Ed25519PrivateKey.from_private_bytes(decode_base64url(self.seed))
        except ValueError as error:
            raise WrongUse("this is no resume token") from error
        common = fresh_claims(self.user, self.tenant, int(time.time()))
        content = digest(message.content())
        claims = ResumeClaims(**common, run_id=self.run_id, content=content)
        return message.model_copy(update={"proof": sign(key, claims)})


def new_token(tenant: str, run_id: str, user: str) -> tuple[str, ResumeKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from joserfc.jwk import OKPKey

    key = Ed25519PrivateKey.generate()
    public = OKPKey.import_key(key.public_key()).as_dict()
    seed = encode_base64url(key.private_bytes_raw())
    token = ResumeToken(run_id=run_id, tenant=tenant, user=user, seed=seed)
    return token.as_text(), ResumeKey.model_validate({"public_key": public, "lasts": _TOKEN_LASTS})


def read_token(text: str, tenant: str, run_id: str) -> ResumeToken:
    try:
        if not text.startswith(PREFIX) or len(text) > _LONGEST:
            raise ValueError("no token")
        token = ResumeToken.model_validate(json.loads(decode_base64url(text.removeprefix(PREFIX))))
    except (ValueError, RecursionError) as error:
        raise WrongUse(
            f"this is no resume token: it is one word that begins with {PREFIX}"
        ) from error
    if (token.tenant, token.run_id) != (tenant, run_id):
        raise WrongUse(
            f"that is no token of this run: it is for run {token.run_id}, not for {run_id}"
        )
    return token
