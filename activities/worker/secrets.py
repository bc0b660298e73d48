"""Secrets of the settings, kept out of logs and out of the ledger's error texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Final
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from surehand.activities.ledger.core.engine import passwords_of
from surehand.activities.worker.settings import Settings

#: A shorter one would take half of every line with it.
_SHORTEST: Final = 5
#: Backslashes that one has become where a text was quoted three times.
_QUOTED: Final = 8


@dataclass(frozen=True)
class Secrets:
    """Texts that nobody may read."""

    texts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Secrets:
        """Return the secret settings, and the parts of URLs among them that are secret alone."""
        values = [
            value.get_secret_value()
            for name in Settings.model_fields
            if isinstance(value := getattr(settings, name), SecretStr)
        ]
        texts = {part for value in values for part in _parts(value)}
        texts |= passwords_of(settings.database_url)
        return cls(frozenset(text for text in texts if len(text) >= _SHORTEST))

    def hide(self, text: str) -> str:
        """Return a text with ``***`` in the place of each secret."""
        if not self.texts:
            return text
        return self._pattern.sub("***", text)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The longest first: one may be part of another.
        texts = sorted(self.texts, key=len, reverse=True)
        return re.compile(
            "|".join(
                "".join(_written(one, len(list(run))) for one, run in groupby(text))
                for text in texts
            )
        )


def _written(character: str, times: int) -> str:
    """Return a pattern of equal characters as logs have them: quoted by Python or JSON.

    How often they may be quoted has an end. Without one, a long row of backslashes in a stranger's
    text would be gone through again from each of them.
    """
    if character == "\\":
        return rf"\\{{{times},{times * _QUOTED}}}"
    if character in "'\"":
        return rf"\\{{0,{_QUOTED}}}{character}" * times
    if character.isascii() and character.isprintable():
        return re.escape(character) * times
    quoted = (
        ascii(character),
        json.dumps(character),
        str(character.encode("utf-8", "replace"))[1:],
    )
    slashes = rf"\\\\{{1,{_QUOTED}}}"
    escapes = "|".join(re.sub(r"\\\\", slashes, re.escape(one[1:-1])) for one in quoted)
    return f"(?:{re.escape(character)}|{escapes})" * times


def _parts(value: str) -> list[str]:
    parts = [value]
    try:
        url = urlsplit(value)
        path = f"{url.path}?{url.query}" if url.query else url.path
        parts += [path, url.path, url.query, unquote(url.password or ""), url.password or ""]
    except ValueError:
        pass  # no URL, which is said elsewhere
    return parts if "://" in value else [value, value.removeprefix("whsec_")]
