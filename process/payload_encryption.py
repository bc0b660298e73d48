"""Encrypts payloads with the key of their run: AES-256-GCM, bound to where a payload belongs.

A payload's nonce is random. What goes into the artifact store has one that is derived from its
content and the key: so it comes out the same when a run is replayed, and is kept once. Two payloads
share a nonce only where they are the same.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from temporalio.api.common.v1 import Payload

from surehand.process.key_encryption import KEY_BYTES, NONCE_BYTES
from surehand.process.off_loop import call_off_loop
from surehand.workflows.encryption import (
    ENCODING_KEY,
    ENCRYPTED,
    KEY_ID,
    PART,
    WORKFLOW_ID,
    NotDecrypted,
    Place,
    require_place,
)
from surehand.workflows.identity import canonical_json, tenant_of_run

#: First byte of what is encrypted: how it is made.
_VERSION: Final = b"\x01"


@dataclass(frozen=True, repr=False)
class RunKey:
    """The key of a run, for one use each: no two uses share a key."""

    payloads: AESGCM
    nonces: bytes
    contents: AESGCM
    content_nonces: bytes
    digests: bytes

    @classmethod
    def of(cls, secret: bytes) -> RunKey:
        """Return the keys that are derived from the one that is wrapped."""
        uses = (b"payloads", b"nonces", b"contents", b"content nonces", b"digests")
        payloads, nonces, contents, content_nonces, digests = (
            HKDFExpand(SHA256(), KEY_BYTES, b"surehand/1 " + use).derive(secret) for use in uses
        )
        return cls(AESGCM(payloads), nonces, AESGCM(contents), content_nonces, digests)

    def nonce_of(self, about: bytes, content: bytes) -> bytes:
        """Return the nonce of what has to come out the same each time."""
        return _nonce_of(self.nonces, about, content)

    def seal(self, about: bytes, content: bytes, *, kept: bool = False) -> bytes:
        """Return what the ledger or the artifact store keeps, encrypted.

        Args:
            about: What it is bound to: whoever opens it has to name the same.
            content: What it is.
            kept: The same content comes out the same each time.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        if kept:
            nonce = _nonce_of(self.content_nonces, about, content)
        return _VERSION + nonce + self.contents.encrypt(nonce, content, about)

    def open(self, about: bytes, sealed: bytes) -> bytes:
        """Return what was sealed.

        Raises:
            NotDecrypted: It was changed, or sealed for something else.
        """
        return _opened(self.contents, about, sealed)

    def salt_of(self, content: bytes) -> str:
        """Return what is hashed with something, so that nobody finds it by guessing."""
        return hmac.digest(self.digests, b"salt" + content, sha256).hex()[:32]

    def digest_of(self, sha256_hex: str) -> str:
        """Return the digest that is written in place of another: nobody guesses it."""
        return hmac.digest(self.digests, bytes.fromhex(sha256_hex), sha256).hex()


class RunKeys(Protocol):
    """Where the keys of runs are."""

    async def key_of(self, root: str, *, make: bool) -> RunKey:
        """Return the key of a run and its child runs.

        Args:
            root: The run at the top of the tree.
            make: Whether it is made where there is none.

        Raises:
            KeyUnavailable: It cannot be had now.
            NotDecrypted: There is none, or it was erased.
        """


class RememberedKeys(RunKeys, Protocol):
    """Where they are, some of them at hand."""

    def known(self, root: str) -> RunKey | None:
        """Return the key of a run, if this process remembers it; any thread may ask."""


class RunEncryption:
    """Encrypts with keys that are at hand."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys

    async def encrypt(self, payload: Payload, place: Place, *, kept: bool) -> Payload:
        """Encrypt a payload, as the port says."""
        key = await self._keys.key_of(place.root, make=True)
        about, content = _about(place), payload.SerializeToString(deterministic=True)

        def encrypted(content: bytes) -> bytes:
            nonce = key.nonce_of(about, content) if kept else secrets.token_bytes(NONCE_BYTES)
            return _VERSION + nonce + key.payloads.encrypt(nonce, content, about)

        data = await call_off_loop(encrypted, content)
        metadata = {
            ENCODING_KEY: ENCRYPTED,
            KEY_ID: place.root.encode(),
            WORKFLOW_ID: place.workflow_id.encode(),
            PART: place.part.encode(),
        }
        return Payload(metadata=metadata, data=data)

    async def decrypt(self, payload: Payload, place: Place | None) -> Payload:
        """Decrypt a payload, as the port says."""
        named = require_place(payload, place)
        key = await self._keys.key_of(named.root, make=False)
        opened = partial(_opened, key.payloads, _about(named))
        return Payload.FromString(await call_off_loop(opened, payload.data))


def _nonce_of(key: bytes, about: bytes, content: bytes) -> bytes:
    lengths = len(about).to_bytes(8, "big")
    return hmac.digest(key, lengths + about + content, sha256)[:NONCE_BYTES]


def _opened(cipher: AESGCM, about: bytes, data: bytes) -> bytes:
    start = len(_VERSION) + NONCE_BYTES
    if not data.startswith(_VERSION):
        raise NotDecrypted("it was not encrypted by this version, nor by one before it")
    try:
        return cipher.decrypt(data[len(_VERSION) : start], data[start:], about)
    except InvalidTag as error:
        raise NotDecrypted("it was changed, or encrypted for something else") from error
    except ValueError as error:  # too short
        raise NotDecrypted("it is nothing that was encrypted") from error


def _about(place: Place) -> bytes:
    """Return what a payload is bound to beside its key: whose it is, of which run, and where.

    Not to one activity: workflow code does not know the activity's id.
    """
    tenant, root = tenant_of_run(place.workflow_id), place.root
    return canonical_json([tenant, root, place.workflow_id, place.part.value])
