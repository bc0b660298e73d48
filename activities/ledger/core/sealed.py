"""Sealed cells: what columns hold of people's values, encrypted with the key of their run.

A column's type says that it is sealed. A transaction seals what it writes there and opens what it
reads, each in one place; where runs have no keys, both leave it as it is. A cell counts only for
its tenant, its run, its table and its column. So one that was copied elsewhere is refused.

No key is fetched while a transaction is open: it says which one it needs, is rolled back, and is
done again once the key is there (``Ledger.transact``).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import JSON, Dialect, Text
from sqlalchemy.types import TypeDecorator

from surehand.process.ciphers import RunKey
from surehand.workflows.canonical_json import canonical_json
from surehand.workflows.identity import root_run_id
from surehand.workflows.payload_codec import KeyErased, NotDecrypted

#: The one key of a sealed value in JSON: its run, the one at the top, and the ciphertext.
SEALED: Final = "$sealed"
#: The one key of a plain value that would be taken for a sealed one.
_PLAIN: Final = "$plain"
_MARKED: Final = tuple(json.dumps({name: 0})[:-2] for name in (SEALED, _PLAIN))
#: How a statement's execution options name the run that its rows are of.
OF_RUN: Final = "of_run"
#: The members of an event that are sealed: what people and systems have said, and digests that
#: could be guessed. By type: what is one only there.
_OF_EVENTS: Final = frozenset(
    ("evidence", "reason", "receipt", "content", "question", "answer", "progress", "plan_digest")
)


class Erased(str):
    """What is shown in the place of a value whose run was erased, where that is asked for."""

    __slots__ = ()


class KeyNeeded(Exception):
    """A transaction needs keys of runs: it is to be done again once they are there."""

    def __init__(self, roots: Iterable[str], *, make: bool) -> None:
        """Make it; ``make``: they are made where there are none."""
        self.roots = frozenset(roots)
        self.make = make
        super().__init__(f"keys of runs: {', '.join(sorted(self.roots))}")


#: Returns the key of a run, or that it was erased; ``None``: it is not at hand.
KnownKey = Callable[[str], RunKey | KeyErased | None]


@dataclass(frozen=True)
class Sealing:
    """With what the values of one run are sealed and opened."""

    tenant: str
    run_id: str | None
    known: KnownKey

    def seal(self, column: str, value: Any) -> dict[str, Any]:
        assert self.run_id is not None, f"the statement does not say of which run {column} is"
        root = root_run_id(self.run_id)
        key = self.known(root)
        if key is None:
            raise KeyNeeded([root], make=True)
        if isinstance(key, KeyErased):
            raise key
        data = key.seal(_about(self.tenant, root, column), json.dumps(value).encode())
        return {SEALED: [root, base64.b64encode(data).decode()]}


_CURRENT: ContextVar[Sealing | None] = ContextVar("sealing", default=None)


@contextmanager
def sealing(current: Sealing) -> Iterator[None]:
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@dataclass(frozen=True)
class SealedValue:
    """A sealed value, as it was read."""

    column: str
    root: str
    data: str

    def roots(self) -> Iterable[str]:
        return (self.root,)

    def opened(self, tenant: str, run_id: str | None, known: KnownKey, *, shown: bool) -> Any:
        """Return the value; ``shown``: a mark in its place, where its run was erased."""
        where = f"{self.column} of run {run_id!r}"
        if run_id is None or self.root != root_run_id(run_id):
            raise NotDecrypted(f"{where} was sealed for run {self.root[:200]!r}")
        key = known(self.root)
        assert key is not None, "the transaction has seen to it"
        if isinstance(key, KeyErased):
            if shown:
                return Erased("(erased)")
            raise key
        try:
            data = base64.b64decode(self.data, validate=True)
            return json.loads(key.open(_about(tenant, self.root, self.column), data))
        except (NotDecrypted, binascii.Error) as error:
            raise NotDecrypted(f"{where}: {error}") from error


@dataclass(frozen=True)
class Members:
    """A document of which some members are sealed, as it was read."""

    column: str
    stored: dict[str, Any]

    def _cells(self) -> dict[str, SealedValue]:
        found = {name: _cell(self.column, value) for name, value in self.stored.items()}
        return {name: cell for name, cell in found.items() if cell is not None}

    def roots(self) -> Iterable[str]:
        return {cell.root for cell in self._cells().values()}

    def opened(
        self, tenant: str, run_id: str | None, known: KnownKey, *, shown: bool
    ) -> dict[str, Any]:
        cells = {
            name: cell.opened(tenant, run_id, known, shown=shown)
            for name, cell in self._cells().items()
        }
        plain = {name: _unescaped(value) for name, value in self.stored.items()}
        return {**plain, **cells}


class Sealed(TypeDecorator[Any]):
    """A column of JSON that is sealed."""

    impl = JSON
    cache_ok = True

    def __init__(self, column: str) -> None:
        super().__init__(none_as_null=True)
        self.column = column

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Have paths into a document work as on JSON."""
        return self.impl_instance.coerce_compared_value(op, value)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else _written(self.column, value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return _cell(self.column, value) or _unescaped(value)


class SealedText(TypeDecorator[str]):
    """A column of text that is sealed."""

    impl = Text
    cache_ok = True

    def __init__(self, column: str) -> None:
        super().__init__()
        self.column = column

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        if _CURRENT.get() is None and not value.startswith(_MARKED):
            return value
        written = _written(self.column, value)
        return json.dumps({_PLAIN: written} if written is value else written)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is None or not value.startswith(_MARKED):
            return value
        try:
            stored = json.loads(value)
        except ValueError:
            return value
        return _cell(self.column, stored) or _unescaped(stored)


class SealedMembers(Sealed):
    """A column of JSON objects whose members are sealed."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is None:
            return None
        return {
            name: None if one is None else _written(self.column, one) for name, one in value.items()
        }

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if not isinstance(value, dict) or not any(map(_is_marked, value.values())):
            return value
        return Members(self.column, value)


class SealedEvent(SealedMembers):
    """The bodies of events: sealed before they are chained, so that the chain holds without keys.

    What is chained is what is written: the chain can be proven when the key is gone.
    """

    cache_ok = True

    def __init__(self) -> None:
        super().__init__("events.body")

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value


def sealed_body(of: Sealing, body: Mapping[str, Any], open_: frozenset[str]) -> dict[str, Any]:
    """Return the body of an event as it is chained.

    Values that are ``open_`` tell nothing: SQL asks for them.
    """
    return {
        name: of.seal("events.body", value) if name in _OF_EVENTS and value not in open_ else value
        for name, value in body.items()
    }


def _written(column: str, value: Any) -> Any:
    current = _CURRENT.get()
    if current is not None:
        return current.seal(column, value)
    return {_PLAIN: value} if _is_marked(value) else value


def _cell(column: str, value: Any) -> SealedValue | None:
    if not (isinstance(value, dict) and value.keys() == {SEALED}):
        return None
    match value[SEALED]:
        case [str(root), str(data)]:
            return SealedValue(column, root, data)
    raise NotDecrypted(f"{column} has nothing that was sealed")


def _unescaped(value: Any) -> Any:
    return value[_PLAIN] if isinstance(value, dict) and value.keys() == {_PLAIN} else value


def _is_marked(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() in ({SEALED}, {_PLAIN})


def _about(tenant: str, root: str, column: str) -> bytes:
    """Return what a cell is bound to beside its key."""
    return canonical_json(["cell", tenant, root, column])
