"""What encrypts: key-encryption keys, and the keys of runs.

Key-encryption keys wrap the keys of runs. They come from a file, from the environment, or from an
object of the user's own that asks a key management service. The first one wraps, each of them
unwraps what names it.

A payload is encrypted with the key of its run: AES-256-GCM, bound to where it belongs. Its nonce is
random. What goes into the artifact store has a nonce that is derived from its content and the key:
so it is the same when a run is replayed, and is kept once. Two payloads share a nonce only if they
are the same.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from temporalio.api.common.v1 import Payload

from surehand.process import settings
from surehand.process.exits import WrongUse
from surehand.process.files import read_private, replace_whole
from surehand.process.off_loop import call_off_loop
from surehand.workflows import payload_codec
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.identity import tenant_of_run

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


#: Of AES-256.
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
LONGEST_ID: Final = 80
_ID: Final = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_ID}}}", re.ASCII)
_FORM: Final = f"ID=KEY, where KEY is the base64 of {KEY_BYTES} random bytes"


@runtime_checkable
class KeyEncryptionKey(Protocol):
    """A key that wraps keys: one of a file, or one that a key management service has."""

    @property
    def id(self) -> str:
        """Its name, which is written beside what it has wrapped; 1 to 80 characters."""

    def wrap(self, key: bytes, about: bytes) -> bytes:
        """Return a key, encrypted and bound to what it is for. It is called in a thread.

        Args:
            about: Tenant and run; whoever unwraps has to name the same (associated data, or what
                a service calls encryption context).
        """

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        """Return what was wrapped; it raises whatever it likes if that was not for ``about``."""


@dataclass(frozen=True, repr=False)
class LocalKey:
    """A key-encryption key in memory."""

    id: str
    secret: bytes

    def wrap(self, key: bytes, about: bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, key, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, rest = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            return AESGCM(self.secret).decrypt(nonce, rest, about)
        except InvalidTag as error:
            raise ValueError("it is another key of that id, or the row is another run's") from error


@dataclass(frozen=True)
class Wrapped:
    """A key as it is written."""

    kek_id: str
    key: bytes


class KeyRing:
    """The key-encryption keys of this process."""

    def __init__(self, keys: Sequence[KeyEncryptionKey], file: Path | None = None) -> None:
        self._keys = {key.id: key for key in keys}
        self._file = file
        self._reading = threading.Lock()

    @property
    def first(self) -> KeyEncryptionKey:
        return next(iter(self._keys.values()))

    @property
    def ids(self) -> list[str]:
        return list(self._keys)

    def wrap(self, key: bytes, about: bytes) -> Wrapped:
        first = self.first
        try:
            return Wrapped(first.id, first.wrap(key, about))
        except Exception as error:  # a service's own
            raise payload_codec.KeyUnavailable(
                f"key-encryption key {first.id!r} does not wrap: {_one_line(error)}"
            ) from error

    def unwrap(self, wrapped: Wrapped, about: bytes) -> bytes:
        key = self._keys.get(wrapped.kek_id) or self._read_again().get(wrapped.kek_id)
        if key is None:
            raise payload_codec.KeyUnavailable(
                f"it needs key-encryption key {wrapped.kek_id!r}, which is not among those of"
                f" {settings.KEYS}: {', '.join(self.ids)}"
            )
        try:
            unwrapped = key.unwrap(wrapped.key, about)
            if len(unwrapped) != KEY_BYTES:
                raise ValueError(f"what it gives is no key of {KEY_BYTES} bytes")
            return unwrapped
        except Exception as error:  # a service's own
            raise payload_codec.KeyUnavailable(
                f"key-encryption key {wrapped.kek_id!r} of {settings.KEYS} does not unwrap it:"
                f" {_one_line(error)}"
            ) from error

    def _read_again(self) -> dict[str, KeyEncryptionKey]:
        """Take what was added to the file: a rotation waits for no restart."""
        if self._file is not None:
            with self._reading:
                try:
                    self._keys = {key.id: key for key in _read_keys(self._file)}
                except WrongUse as error:
                    raise payload_codec.KeyUnavailable(str(error)) from error
        return self._keys


def read_key_ring(setting: str) -> KeyRing | None:
    """Return the keys of ``ID=KEY,...``, ``module:name`` or a file; ``None``: none is named."""
    setting = setting.strip()
    if not setting:
        return None
    if "=" in setting:
        return KeyRing(_parse_keys(setting.split(","), f"setting {settings.KEYS}"))
    if settings.is_named(setting):
        return KeyRing(_load_keys(setting))
    return KeyRing(_read_keys(Path(setting)), Path(setting))


def new_key(id_: str) -> LocalKey:
    if not _ID.fullmatch(id_):
        raise WrongUse(f"key id {id_[:90]!r}: use 1 to {LONGEST_ID} letters, digits, '_', '.', '-'")
    return LocalKey(id_, secrets.token_bytes(KEY_BYTES))


def add_to_file(file: Path, key: LocalKey) -> int:
    """Write a key as the first one of a file, which is made if it is not there."""
    there = _read_keys(file) if file.exists() else []
    if key.id in {one.id for one in there}:
        raise WrongUse(f"{file} has a key {key.id!r} already: give the new one another id")
    keys = [key, *there]
    text = "".join(f"{one.id}={base64.b64encode(one.secret).decode()}\n" for one in keys)
    try:
        replace_whole(file, text, mode=0o600)
    except OSError as error:
        raise WrongUse(f"{file} cannot be written: {error.strerror}") from error
    return len(keys)


def _read_keys(file: Path) -> list[LocalKey]:
    lines = read_private(file, f"{file} ({settings.KEYS})").splitlines()
    return _parse_keys([line for line in lines if not line.lstrip().startswith("#")], str(file))


def _parse_keys(texts: Sequence[str], where: str) -> list[LocalKey]:
    keys = list[LocalKey]()
    for text in filter(None, map(str.strip, texts)):
        id_, _, encoded = text.partition("=")
        try:
            secret = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not _ID.fullmatch(id_) or len(secret) != KEY_BYTES:
            raise WrongUse(f"{where}: key {len(keys) + 1} is not {_FORM}")
        if id_ in {key.id for key in keys}:
            raise WrongUse(f"{where}: there are two keys {id_!r}")
        keys.append(LocalKey(id_, secret))
    if not keys:
        raise WrongUse(f"{where}: there is no key in it: write {_FORM}")
    return keys


def _load_keys(name: str) -> list[KeyEncryptionKey]:
    found = settings.load_named(name, f"setting {settings.KEYS}")
    keys = list(found) if isinstance(found, list | tuple) else [found]
    if not keys or not all(isinstance(key, KeyEncryptionKey) for key in keys):
        raise WrongUse(
            f"setting {settings.KEYS}: {name} is no key, nor a list of keys, with `id`, `wrap` and"
            " `unwrap`"
        )
    if any(not _ID.fullmatch(key.id) for key in keys) or len({k.id for k in keys}) < len(keys):
        raise WrongUse(f"setting {settings.KEYS}: {name}: each key needs an id of its own")
    return keys


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


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
        # Late, as elsewhere in this module: most programs encrypt nothing.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        uses = (b"payloads", b"nonces", b"contents", b"content nonces", b"digests")
        payloads, nonces, contents, content_nonces, digests = (
            HKDFExpand(SHA256(), KEY_BYTES, b"surehand/1 " + use).derive(secret) for use in uses
        )
        return cls(AESGCM(payloads), nonces, AESGCM(contents), content_nonces, digests)

    def seal(self, about: bytes, content: bytes, *, kept: bool = False) -> bytes:
        """Return what the ledger or the artifact store keeps, encrypted."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        if kept:
            nonce = _nonce_of(self.content_nonces, about, content)
        return _VERSION + nonce + self.contents.encrypt(nonce, content, about)

    def open(self, about: bytes, sealed: bytes) -> bytes:
        return _open_sealed(self.contents, about, sealed)

    def salt_of(self, content: bytes) -> str:
        """Return what is hashed with something, so that nobody finds it by guessing."""
        return hmac.digest(self.digests, b"salt" + content, sha256).hex()[:32]

    def digest_of(self, sha256_hex: str) -> str:
        """Return the digest that is written in place of another: nobody guesses it."""
        return hmac.digest(self.digests, bytes.fromhex(sha256_hex), sha256).hex()


class RunKeys(Protocol):
    """Where the keys of runs are."""

    async def key_of(self, root: str, *, make: bool) -> RunKey:
        """Return the key of a run and its child runs."""


class RememberedKeys(RunKeys, Protocol):
    """Where they are, some of them at hand."""

    def known(self, root: str) -> RunKey | None:
        """Return the key of a run, if this process remembers it; any thread may ask."""


class RunEncryption:
    """Encrypts with keys that are at hand."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys

    async def encrypt(self, payload: Payload, place: payload_codec.Place, *, kept: bool) -> Payload:
        """Encrypt a payload, as the port says."""
        key = await self._keys.key_of(place.root, make=True)
        about, content = _associated_data(place), payload.SerializeToString(deterministic=True)

        def encrypted(content: bytes) -> bytes:
            nonce = (
                _nonce_of(key.nonces, about, content) if kept else secrets.token_bytes(NONCE_BYTES)
            )
            return _VERSION + nonce + key.payloads.encrypt(nonce, content, about)

        data = await call_off_loop(encrypted, content)
        metadata = {
            payload_codec.ENCODING_KEY: payload_codec.ENCRYPTED,
            payload_codec.KEY_ID: place.root.encode(),
            payload_codec.WORKFLOW_ID: place.workflow_id.encode(),
            payload_codec.PART: place.part.encode(),
        }
        return Payload(metadata=metadata, data=data)

    async def decrypt(self, payload: Payload, place: payload_codec.Place | None) -> Payload:
        named = payload_codec.require_place(payload, place)
        key = await self._keys.key_of(named.root, make=False)
        opened = partial(_open_sealed, key.payloads, _associated_data(named))
        return Payload.FromString(await call_off_loop(opened, payload.data))


def _nonce_of(key: bytes, about: bytes, content: bytes) -> bytes:
    """Return the nonce of what has to come out the same each time."""
    lengths = len(about).to_bytes(8, "big")
    return hmac.digest(key, lengths + about + content, sha256)[:NONCE_BYTES]


def _open_sealed(cipher: AESGCM, about: bytes, data: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    start = len(_VERSION) + NONCE_BYTES
    if not data.startswith(_VERSION):
        raise payload_codec.NotDecrypted(
            "it was not encrypted by this version, nor by one before it"
        )
    try:
        return cipher.decrypt(data[len(_VERSION) : start], data[start:], about)
    except InvalidTag as error:
        raise payload_codec.NotDecrypted(
            "it was changed, or encrypted for something else"
        ) from error
    except ValueError as error:  # too short
        raise payload_codec.NotDecrypted("it is nothing that was encrypted") from error


def _associated_data(place: payload_codec.Place) -> bytes:
    """Return what a payload is bound to beside its key: whose it is, of which run, and where.

    Not to one activity: workflow code does not know the activity's id.
    """
    tenant, root = tenant_of_run(place.workflow_id), place.root
    return canonical_json([tenant, root, place.workflow_id, place.part.value])
