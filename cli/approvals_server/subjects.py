"""Who an identity provider's subjects are: a file that says which one is which principal.

A subject is one person of one issuer, and nothing more: two providers may give the same subject to
two people. So it is looked up by tenant, issuer and subject, all three letter by letter, and no
other claim takes part. The file is not in the ledger, because a sign-in proves nothing there: it
lets somebody look. It is reviewed as other settings are, and holds no secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from surehand.cli.principals import checked_name
from surehand.process.exits import WrongUse
from surehand.process.files import Unreadable, read_document

_FORM: Final = "TENANT: {ISSUER: {SUBJECT: PRINCIPAL}}"

_Subjects = Mapping[str, Mapping[str, str]]


class Subjects:
    """The subjects of a tenant; read again when the file has changed."""

    def __init__(self, file: Path, tenant: str) -> None:
        """Read the file.

        Raises:
            WrongUse: It cannot be read, or says something else.
        """
        self._file = file
        self._tenant = tenant
        self._stamp = self._stamp_now()
        self._subjects = self._read()

    def principal(self, issuer: str, subject: str) -> str | None:
        """Return who that is; ``None``: nobody, or not any more, or the file cannot be read."""
        try:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._subjects, self._stamp = self._read(), stamp
        except WrongUse:
            return None
        return self._subjects.get(issuer, {}).get(subject)

    def count(self, issuer: str) -> int:
        """Return how many subjects of an issuer there are."""
        return len(self._subjects.get(issuer, {}))

    def _read(self) -> _Subjects:
        try:
            document = read_document(self._file)
        except Unreadable as error:
            raise WrongUse(f"{self._file} cannot be read: {error}") from error
        found: dict[str, dict[str, str]] = {}
        for tenant, issuers in self._level(document):
            for issuer, subjects in self._level(issuers):
                for subject, name in self._level(subjects):
                    if not isinstance(name, str):
                        raise self._wrong()
                    try:
                        checked_name(name)
                    except WrongUse as error:
                        raise WrongUse(f"{self._file}: {error}") from error
                    if tenant == self._tenant:
                        found.setdefault(issuer, {})[subject] = name
        return found

    def _level(self, document: object) -> list[tuple[str, object]]:
        if not isinstance(document, dict):
            raise self._wrong()
        return list(document.items())

    def _wrong(self) -> WrongUse:
        return WrongUse(f"{self._file} is not {_FORM}")

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._file)
        except OSError as error:
            raise WrongUse(f"{self._file} cannot be read: {error.strerror}") from error
        return found.st_mtime_ns, found.st_ino, found.st_size
