"""Cells: each is a Temporal namespace, a task queue and a ledger for some tenants.

A file says which there are, and of which one each tenant is. What it says of a cell stands in the
place of the settings of the same names. It routes; what keeps a tenant's effects in one place are
the ledgers themselves (``activities/ledger/runs/tenant_cell.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from surehand.process.yaml_file import Unreadable, read_document
from surehand.workflows.identity import tenant_problem

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Settings that a cell may have of its own.
_OF_CELL: Final = re.compile(r"(TEMPORAL|SUREHAND)_[A-Z0-9_]+")
#: Of these, what says itself which cell it is, or whose runs.
_NEVER: Final = frozenset(
    {"SUREHAND_CELLS", "SUREHAND_CELL", "SUREHAND_SETTINGS", "SUREHAND_TENANT", "SUREHAND_USER"}
)
#: What no two cells share: each names its own, or the environment has it for one alone.
_APART: Final = ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "SUREHAND_TASK_QUEUE")
_LEDGER: Final = "SUREHAND_DATABASE_URL"
#: ``${NAME}``: the file has no secrets, so that it can be the same everywhere.
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class CellsError(Exception):
    """The file of cells cannot be used; the message names it and says what is wrong."""


@dataclass(frozen=True)
class Route:
    """For whom settings are read: a tenant, or a cell by its name."""

    tenant: str | None = None
    cell: str | None = None


_ROUTE: Final[ContextVar[Route | None]] = ContextVar("route", default=None)


@contextmanager
def routed(*, tenant: str | None = None, cell: str | None = None) -> Iterator[None]:
    """Have settings be those of a cell, or of the one that a tenant is of, in this block."""
    token = _ROUTE.set(Route(tenant, cell))
    try:
        yield
    finally:
        _ROUTE.reset(token)


def route() -> Route:
    """Return for whom settings are read."""
    return _ROUTE.get() or Route()


@dataclass(frozen=True)
class Cells:
    """What a file says."""

    file: Path
    cells: Mapping[str, Mapping[str, str]]
    """By name: settings as the environment has them."""
    tenants: Mapping[str, str]
    default: str | None = None
    """The cell of tenants that are not named."""

    def cell_of(self, tenant: str) -> str:
        """Return the cell that a tenant is of.

        Raises:
            CellsError: The file does not say it.
        """
        found = self.tenants.get(tenant, self.default)
        if found is None:
            raise CellsError(f"{self.file}: tenant {tenant} is of no cell: name it in `tenants`")
        return found

    def require(self, name: str) -> None:
        """See that there is such a cell.

        Raises:
            CellsError: There is none.
        """
        if name not in self.cells:
            known = ", ".join(self.cells)
            raise CellsError(f"{self.file}: there is no cell {name!r}: it has {known}")

    def settings_of(self, name: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of a cell, with variables filled in; one that is not set is left out.

        Raises:
            CellsError: There is no such cell.
        """
        self.require(name)
        filled = {}
        for setting, value in self.cells[name].items():
            variables = _VARIABLE.findall(value)
            if all(environment.get(variable) for variable in variables):
                filled[setting] = _VARIABLE.sub(lambda found: environment[found[1]], value)
        return filled


def read_cells(file: Path) -> Cells:
    """Read a file of cells.

    Raises:
        CellsError: It cannot be read, or does not say what it has to.
    """
    try:
        return _judged(file, read_document(file))
    except Unreadable as error:
        raise CellsError(f"{file} (SUREHAND_CELLS): {error}") from error


def _judged(file: Path, document: Any) -> Cells:
    def wrong(problem: str) -> CellsError:
        return CellsError(f"{file} (SUREHAND_CELLS): {problem}")

    if not isinstance(document, dict) or not isinstance(document.get("cells"), dict):
        raise wrong("needs `cells`: settings by the cell's name")
    unknown = document.keys() - {"cells", "tenants", "default"}
    if unknown:
        raise wrong(f"has {sorted(unknown)[0]!r}, which is none of cells, tenants, default")
    cells, tenants = document["cells"], document.get("tenants") or {}
    for name, settings in cells.items():
        if not _NAME.fullmatch(name):
            raise wrong(f"cell {name!r}: a name has 1 to 64 letters, digits, '_' or '-'")
        if not isinstance(settings, dict):
            raise wrong(f"cell {name}: needs settings by their names")
        for setting, value in settings.items():
            if not _OF_CELL.fullmatch(setting) or setting in _NEVER:
                raise wrong(f"cell {name}: {setting} is no setting that a cell can have")
            if not isinstance(value, str):
                raise wrong(f"cell {name}: {setting} is no text: write it in quotes")
    for ours, of in _shared(cells):
        raise wrong(f"cells {ours} and {of} have one ledger, or one queue: each has its own")
    if not isinstance(tenants, dict):
        raise wrong("tenants: needs the name of a cell by the tenant's name")
    for tenant, cell in tenants.items():
        problem = tenant_problem(tenant)
        if problem is not None:
            raise wrong(f"tenant {tenant[:80]!r}: {problem}")
        if not isinstance(cell, str) or cell not in cells:
            raise wrong(f"tenant {tenant}: there is no cell {cell!r}")
    default = document.get("default")
    if default is not None and default not in cells:
        raise wrong(f"default: there is no cell {default!r}")
    return Cells(file, cells, tenants, default)


def _shared(cells: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    places = dict[tuple[str | None, ...], str]()
    for name, settings in cells.items():
        queue = tuple(settings.get(one) for one in _APART)
        for place in (queue, ("ledger", settings.get(_LEDGER))):
            if place[-1] is None and place[0] == "ledger":
                continue  # each one's environment says it
            if place in places:
                yield places[place], name
            places[place] = name


class OwnCell:
    """The cell that a worker is of, and which tenants are of it; a changed file is read again."""

    def __init__(self, file: Path, name: str) -> None:
        """Read the file.

        Raises:
            CellsError: It cannot be used, or has no such cell.
        """
        self.name = name
        self._file = file
        self._stamp = self._stamp_now()
        self._cells = read_cells(file)
        self._cells.require(name)

    def problem(self, tenant: str) -> str | None:
        """Return in one line why a tenant's work is not this worker's; ``None``: it is."""
        stamp = self._stamp_now()
        if stamp is not None and stamp != self._stamp:
            # One that is just being written, or that is wrong, changes nothing.
            with suppress(CellsError):
                self._cells, self._stamp = read_cells(self._file), stamp
        try:
            cell = self._cells.cell_of(tenant)
        except CellsError as error:
            return str(error)
        if cell == self.name:
            return None
        return f"tenant {tenant} is of cell {cell}, and this worker of cell {self.name}"

    def _stamp_now(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
