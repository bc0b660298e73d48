"""Key-encryption keys: what the keys of runs are wrapped with before they are written anywhere.

They come from a file, from the environment, or from an object of the user's own that asks a key
management service. The first one wraps, each of them unwraps what names it.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from surehand.process.exits import WrongUse
from surehand.process.files import replace_whole
from surehand.process.named_objects import NotLoaded, is_named, load_named
from surehand.process.sources import KEYS
from surehand.workflows.encryption import KeyUnavailable

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
            key: 32 bytes.
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
        """Return a key, encrypted and bound to what it is for."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, key, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        """Return what was wrapped.

        Raises:
            ValueError: It was wrapped by another key of that name, or for something else.
        """
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
        """Make a ring.

        Args:
            keys: The first one wraps.
            file: Where they were read from: read again when a key is missing.
        """
        self._keys = {key.id: key for key in keys}
        self._file = file
        self._reading = threading.Lock()

    @property
    def first(self) -> KeyEncryptionKey:
        """The one that wraps."""
        return next(iter(self._keys.values()))

    @property
    def ids(self) -> list[str]:
        """All of them, the one that wraps first."""
        return list(self._keys)

    def wrap(self, key: bytes, about: bytes) -> Wrapped:
        """Return a key, wrapped by the first one.

        Raises:
            KeyUnavailable: A service does not do it now.
        """
        first = self.first
        try:
            return Wrapped(first.id, first.wrap(key, about))
        except Exception as error:  # a service's own
            raise KeyUnavailable(
                f"key-encryption key {first.id!r} does not wrap: {_line(error)}"
            ) from error

    def unwrap(self, wrapped: Wrapped, about: bytes) -> bytes:
        """Return a key that one of them has wrapped.

        Raises:
            KeyUnavailable: That one is not here, or is another one, or a service does not answer.
        """
        key = self._keys.get(wrapped.kek_id) or self._read_again().get(wrapped.kek_id)
        if key is None:
            raise KeyUnavailable(
                f"it needs key-encryption key {wrapped.kek_id!r}, which is not among those of"
                f" {KEYS}: {', '.join(self.ids)}"
            )
        try:
            unwrapped = key.unwrap(wrapped.key, about)
            if len(unwrapped) != KEY_BYTES:
                raise ValueError(f"what it gives is no key of {KEY_BYTES} bytes")
            return unwrapped
        except Exception as error:  # a service's own
            raise KeyUnavailable(
                f"key-encryption key {wrapped.kek_id!r} of {KEYS} does not unwrap it:"
                f" {_line(error)}"
            ) from error

    def _read_again(self) -> dict[str, KeyEncryptionKey]:
        """Take what was added to the file: a rotation waits for no restart."""
        if self._file is not None:
            with self._reading:
                try:
                    self._keys = {key.id: key for key in _of_file(self._file)}
                except WrongUse as error:
                    raise KeyUnavailable(str(error)) from error
        return self._keys


def read_key_ring(setting: str) -> KeyRing | None:
    """Return the key-encryption keys that the setting names; ``None``: it is empty.

    Args:
        setting: ``ID=KEY`` with commas between several, ``module:name`` of the user's own, or a
            file's path.

    Raises:
        WrongUse: One line that says what is wrong with it, and never shows a key.
    """
    setting = setting.strip()
    if not setting:
        return None
    if "=" in setting:
        return KeyRing(_parsed(setting.split(","), f"setting {KEYS}"))
    if is_named(setting):
        return KeyRing(_named(setting))
    return KeyRing(_of_file(Path(setting)), Path(setting))


def new_key(id_: str) -> LocalKey:
    """Return a new key-encryption key.

    Raises:
        WrongUse: It cannot be called so.
    """
    if not _ID.fullmatch(id_):
        raise WrongUse(f"key id {id_[:90]!r}: use 1 to {LONGEST_ID} letters, digits, '_', '.', '-'")
    return LocalKey(id_, secrets.token_bytes(KEY_BYTES))


def add_to_file(file: Path, key: LocalKey) -> int:
    """Write a key as the first one of a file, which is made if it is not there.

    Returns:
        How many keys it has now.

    Raises:
        WrongUse: It has one of that id already, or cannot be read or written.
    """
    there = _of_file(file) if file.exists() else []
    if key.id in {one.id for one in there}:
        raise WrongUse(f"{file} has a key {key.id!r} already: give the new one another id")
    keys = [key, *there]
    text = "".join(f"{one.id}={base64.b64encode(one.secret).decode()}\n" for one in keys)
    try:
        replace_whole(file, text, mode=0o600)
    except OSError as error:
        raise WrongUse(f"{file} cannot be written: {error.strerror}") from error
    return len(keys)


def _of_file(file: Path) -> list[LocalKey]:
    try:
        with file.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
                raise WrongUse(f"{file} ({KEYS}) can be read by others: chmod 600 {file}")
            lines = opened.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise WrongUse(f"{file} ({KEYS}) cannot be read: {reason}") from error
    return _parsed([line for line in lines if not line.lstrip().startswith("#")], str(file))


def _parsed(texts: Sequence[str], where: str) -> list[LocalKey]:
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


def _named(name: str) -> list[KeyEncryptionKey]:
    try:
        found = load_named(name)
    except NotLoaded as error:
        raise WrongUse(f"setting {KEYS}: {error}") from error
    keys = list(found) if isinstance(found, list | tuple) else [found]
    if not keys or not all(isinstance(key, KeyEncryptionKey) for key in keys):
        raise WrongUse(
            f"setting {KEYS}: {name} is no key, nor a list of keys, with `id`, `wrap` and `unwrap`"
        )
    if any(not _ID.fullmatch(key.id) for key in keys) or len({k.id for k in keys}) < len(keys):
        raise WrongUse(f"setting {KEYS}: {name}: each key needs an id of its own")
    return keys


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
