"""An administrator at a ledger of their own: a group of verbs that write to the ledger."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from sqlalchemy import make_url

from tests.cli.starter import Ended, Verbs
from tests.ledger_databases import OWNER


@dataclass(frozen=True)
class LedgerOffice(ABC):
    """Calls the verbs of one group, as whoever owns the ledger."""

    group: ClassVar[str]

    url: str
    verbs: Verbs
    folder: Path

    @classmethod
    def opened(
        cls, ledger_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str
    ) -> Self:
        url = make_url(ledger_url)
        if url.get_backend_name() == "postgresql":
            url = url.set(username=OWNER)
        text = url.render_as_string(hide_password=False)
        environment = {"SUREHAND_DATABASE_URL": text, **settings}
        return cls(text, Verbs(environment, folder, monkeypatch), folder)

    def __call__(self, verb: str, *arguments: str, **settings: str) -> Ended:
        return self.verbs(self.group, verb, *arguments, **settings)

    def done(self, verb: str, *arguments: str, **settings: str) -> Ended:
        ended = self(verb, *arguments, **settings)
        assert ended.code == 0, ended
        return ended

    def refused(self, verb: str, *arguments: str, **settings: str) -> str:
        """The one line of a command that is refused and has written nothing."""
        before = self.rows()
        ended = self(verb, *arguments, **settings)
        assert ended.code == 2, ended
        assert self.rows() == before
        return ended.line()

    @abstractmethod
    def rows(self) -> Any:
        """What the group's verbs write."""
