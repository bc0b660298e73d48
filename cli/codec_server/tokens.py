"""Who may have what decrypted: a file of tokens' digests, with tenants and a right."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from surehand.process.exits import WrongUse
from surehand.workflows.identity import tenant_problem

Right = Literal["read", "write"]

_LINE: Final = re.compile(r"sha256:(?P<digest>[0-9a-f]{64})\s+(?P<tenants>\S+)\s+(?P<right>\S+)")
_FORM: Final = "sha256:DIGEST TENANT[,TENANT] read|write"
#: A new token, and one that somebody shows, have at most so many characters.
LONGEST_TOKEN: Final = 400
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True)
class Holder:
    """What whoever holds a token may do."""

    tenants: tuple[str, ...]
    right: Right

    @property
    def may_encrypt(self) -> bool:
        """Whether it may have something encrypted, too."""
        return self.right == "write"


class TokenFile:
    """The tokens of a file, by their digests; read again when the file has changed."""

    def __init__(self, file: Path, *, may_be_missing: bool = False) -> None:
        """Read the file.

        Args:
            file: Its lines are what ``codec token`` writes.
            may_be_missing: Whether a file that is not there has no tokens; else that is an error.

        Raises:
            WrongUse: It cannot be read, or a line of it is wrong.
        """
        self._file = file
        self._may_be_missing = may_be_missing
        self._stamp, self._holders = self._read()

    def holder(self, token: str) -> Holder | None:
        """Return what a token's holder may do; ``None``: it is no token, or not any more.

        Raises:
            WrongUse: The file cannot be read any more: then nobody may do anything.
        """
        if self._stamp != self._stamp_now():
            self._stamp, self._holders = self._read()
        # Compared by digest: how long that takes tells nothing of a token.
        return self._holders.get(digest_of(token)) if len(token) <= LONGEST_TOKEN else None

    def _read(self) -> tuple[tuple[int, ...], dict[str, Holder]]:
        stamp = self._stamp_now()
        if not stamp:
            return stamp, {}
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"tokens {self._file} cannot be read: {error}") from error
        holders = dict[str, Holder]()
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                digest, holder = _parsed(line.strip(), f"tokens {self._file}, line {number}")
                holders[digest] = holder
        return stamp, holders

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._file)
        except OSError as error:
            if self._may_be_missing and isinstance(error, FileNotFoundError):
                return ()
            raise WrongUse(f"tokens {self._file} cannot be read: {error.strerror}") from error
        return found.st_mtime_ns, found.st_ino, found.st_size


def digest_of(token: str) -> str:
    """Return what the file has of a token."""
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def line_of(token: str, holder: Holder) -> str:
    """Return the line of the file for a token."""
    return f"sha256:{digest_of(token)} {','.join(holder.tenants)} {holder.right}"


def checked_holder(tenants: str, right: str, where: str) -> Holder:
    """Return what a holder may do."""
    names = tuple(dict.fromkeys(tenants.split(",")))
    for name in names:
        problem = tenant_problem(name)
        if problem is not None:
            raise WrongUse(f"{where}: tenant {name[:80]!r}: {problem}")
    match right:
        case "read" | "write":
            return Holder(names, right)
    raise WrongUse(f"{where}: right {right[:20]!r}: use read or write")


def _parsed(line: str, where: str) -> tuple[str, Holder]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise WrongUse(f"{where} is not {_FORM}")
    return match["digest"], checked_holder(match["tenants"], match["right"], where)
