"""Where settings come from: the environment over ``.env``, and cells over both.

The command line and ``Client`` need a few of them and nothing of ``activities/``. The worker's
``activities/worker/settings.py`` knows them all and validates them; ``connect.py`` has Temporal's.

Each cell is a Temporal namespace, a task queue and a ledger for some tenants. A file lists the
cells and says which tenant is in which. What it says about a cell replaces the settings of the same
names. It routes; the ledgers keep a tenant's effects in one place
(``activities/ledger/runs/keys.py``).
"""

from __future__ import annotations

import getpass
import importlib
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import BaseModel, ConfigDict

from surehand.process.exits import WrongUse
from surehand.process.files import BadDocument, read_document, stamp_of
from surehand.process.program import command
from surehand.workflows.contracts.base import LONGEST_NAME
from surehand.workflows.identity import DEFAULT_TENANT, tenant_problem
from surehand.workflows.plan.plan import LONGEST_OBJECT, OBJECT_FORM


class NotLoaded(WrongUse):
    """There is no such object, or its module cannot be imported; in one line."""


def is_named(text: str) -> bool:
    return len(text) <= LONGEST_OBJECT and re.fullmatch(OBJECT_FORM, text) is not None


def load_named(name: str, what: str = "") -> Any:
    """Return an object by ``module:name``; ``what``: what names it, for the error."""
    before = f"{what}: " if what else ""
    if not is_named(name):
        raise NotLoaded(f"{before}{name!r} is not module:name")
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise NotLoaded(
            f"{before}{name} cannot be loaded: {reason}; its module must be installed, or lie on"
            " PYTHONPATH"
        ) from error


def load_extra(module: str, extra: str, need: str) -> ModuleType:
    """Return one of our modules that needs what an extra installs; ``need``: who needs what."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotLoaded(f"{need}: {error}: pip install 'surehand[{extra}]'") from error


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: object) -> bool:
    """Return whether nobody between can read what is sent to a URL: by TLS, or on this machine."""
    try:
        parts = urlsplit(str(url))
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.fragment or parts.username is not None or not host:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Settings that a cell may have.
_OF_CELL: Final = re.compile(r"(TEMPORAL|SUREHAND)_[A-Z0-9_]+")
#: Of these, what says itself which cell it is, or whose runs.
_NEVER: Final = frozenset({"SUREHAND_CELLS", "SUREHAND_CELL", "SUREHAND_TENANT", "SUREHAND_USER"})
#: What no two cells share: each names its own, or the environment has it for one alone.
_APART: Final = ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "SUREHAND_TASK_QUEUE")
_LEDGER: Final = "SUREHAND_DATABASE_URL"
#: ``${NAME}``: the file has no secrets, so that it can be the same everywhere.
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class SettingsError(WrongUse):
    """A setting is unknown, missing or wrong; the message names it and says what to do."""


class CellsError(SettingsError):
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
        found = self.tenants.get(tenant, self.default)
        if found is None:
            raise CellsError(f"{self.file}: tenant {tenant} is of no cell: name it in `tenants`")
        return found

    def require(self, name: str) -> None:
        if name not in self.cells:
            known = ", ".join(self.cells)
            raise CellsError(f"{self.file}: there is no cell {name!r}: it has {known}")

    def settings_of(self, name: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return a cell's settings, with variables filled in; one that is not set is left out."""
        self.require(name)
        filled = {}
        for setting, value in self.cells[name].items():
            variables = _VARIABLE.findall(value)
            if all(environment.get(variable) for variable in variables):
                filled[setting] = _VARIABLE.sub(lambda found: environment[found[1]], value)
        return filled


def read_cells(file: Path) -> Cells:
    try:
        return _check_cells(file, read_document(file))
    except BadDocument as error:
        raise CellsError(f"{file} (SUREHAND_CELLS): {error}") from error


def _check_cells(file: Path, document: Any) -> Cells:
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
    places = dict[tuple[str | None, ...], str]()
    for name, settings in cells.items():
        ledger = settings.get(_LEDGER)  # if it names none, each one's environment says it
        queue = tuple(settings.get(one) for one in _APART)
        for place in (queue, *([("ledger", ledger)] if ledger is not None else [])):
            other = places.setdefault(place, name)
            if other != name:
                raise wrong(
                    f"cells {other} and {name} have one ledger, or one queue: each has its own"
                )
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


class OwnCell:
    """The cell that a worker is of, and which tenants are of it; a changed file is read again."""

    def __init__(self, file: Path, name: str) -> None:
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
            return stamp_of(self._file)
        except OSError:
            return None


PREFIX: Final = "SUREHAND_"
ENV_FILE: Final = Path(".env")
#: Names the key-encryption keys (``ciphers.py``).
KEYS: Final = f"{PREFIX}KEY_ENCRYPTION_KEYS"
#: What docker-compose.yml takes from ``.env`` beside the settings, without prefix.
_OF_COMPOSE: Final = frozenset({"IMAGE", "PREVIOUS_IMAGE", "PREVIOUS_BUILD_ID"})
#: Settings that Temporal's worker controller gives to its workers by its own names. It makes up
#: both for each version, so nobody could write them down.
_OF_CONTROLLER: Final = {
    "deployment_name": "TEMPORAL_DEPLOYMENT_NAME",
    "build_id": "TEMPORAL_WORKER_BUILD_ID",
}
ENVIRONMENT: Final = "environment"
#: Large values of workers and starters that name no other place: those of one folder share it.
DEFAULT_ARTIFACTS: Final = ".surehand/artifacts"
#: Where starters put runs and workers take them, if nothing else is said.
DEFAULT_TASK_QUEUE: Final = "surehand"
DEFAULT_DEPLOYMENT: Final = "surehand"


@dataclass(frozen=True)
class Given:
    """What one source says about one setting."""

    value: str
    name: str
    """As it is written there, such as ``SUREHAND_LEASE``."""
    origin: str
    """``environment``, or the file's path."""

    def __str__(self) -> str:
        """Return where it is, for an error's one line."""
        return f"{'' if self.origin == ENVIRONMENT else f'{self.origin}: '}setting {self.name}"


@dataclass(frozen=True)
class Sources:
    """All that is given."""

    settings: Mapping[str, Given]
    """By the setting's name in lower case, without prefix: the source that wins."""
    environment: Mapping[str, str]
    """The environment over ``.env``, for what is not ours (``TEMPORAL_*``)."""


def read_sources(
    environ: Mapping[str, str] | None = None, env_file: Path = ENV_FILE, *, cells: bool = True
) -> Sources:
    environ = os.environ if environ is None else environ
    try:
        dotenv = {name: value or "" for name, value in dotenv_values(env_file).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{env_file} cannot be read: {error}") from error
    environment, settings = {**dotenv, **environ}, dict[str, Given]()
    for origin, variables in ((str(env_file), dotenv), (ENVIRONMENT, environ)):
        for name, value in variables.items():
            own = name.upper().removeprefix(PREFIX)
            if own != name.upper() and own not in _OF_COMPOSE:
                settings[own.lower()] = Given(value, name, origin)
    for name, variable in _OF_CONTROLLER.items():
        if name not in settings and environment.get(variable):
            settings[name] = Given(environment[variable], variable, ENVIRONMENT)
    sources = Sources(settings, environment)
    return _apply_cell(sources) if cells and _text_of(sources, "cells") else sources


def _apply_cell(sources: Sources) -> Sources:
    """Put what a cell says in the place of what was given."""
    asked, file = route(), Path(_text_of(sources, "cells"))
    found, name = read_cells(file), asked.cell
    if name is None and asked.tenant is None:
        name = _text_of(sources, "cell")
    tenant = asked.tenant or _text_of(sources, "tenant") or DEFAULT_TENANT
    own = found.settings_of(name or found.cell_of(tenant), sources.environment)
    settings = dict(sources.settings)
    for variable, value in own.items():
        if variable.startswith(PREFIX):
            setting = variable.removeprefix(PREFIX).lower()
            settings[setting] = Given(value, variable, str(file))
    return Sources(settings, {**sources.environment, **own})


def _text_of(sources: Sources, name: str) -> str:
    given = sources.settings.get(name)
    return "" if given is None else given.value


#: Where the development server shows its Web UI.
DEFAULT_UI_URL: Final = "http://localhost:8233"
#: Settings of the starter's own, judged by ``client_settings``.
JUDGED_HERE: Final = frozenset({"tenant", "user", "key", "task_queue", "cells"})


class ClientSettings(BaseModel):
    """Whom the starter acts for, and where runs are started."""

    model_config = ConfigDict(frozen=True)

    tenant: str
    user: str
    task_queue: str
    deployment_name: str = DEFAULT_DEPLOYMENT
    ui_url: str
    key: Path | None = None
    """The private key that decisions are signed with."""

    def command(self, *parts: str) -> str:
        """Return one of our commands that acts in this tenant, ready to paste."""
        tenant = [] if self.tenant == DEFAULT_TENANT else ["--tenant", self.tenant]
        return command(*parts, *tenant)


def read_environment(tenant: str | None = None) -> dict[str, str]:
    """Return the environment over ``.env``, with what the cell says of ours."""
    if tenant is not None:
        with routed(tenant=tenant):
            return read_environment()
    sources = read_sources()
    ours = {f"{PREFIX}{name.upper()}": one.value for name, one in sources.settings.items()}
    return {**ours, **sources.environment}


def find_tenant() -> str:
    """Return the tenant that the settings name, whatever cell it is of; empty: none."""
    return _text_of(read_sources(cells=False), "tenant")


def client_settings(
    environment: Mapping[str, str],
    *,
    tenant: str | None = None,
    user: str | None = None,
    ui_url: str | None = None,
    key: Path | None = None,
) -> ClientSettings:
    """Return the settings; what the command line says wins."""
    chosen = environment.get("SUREHAND_TENANT") or DEFAULT_TENANT if tenant is None else tenant
    problem = tenant_problem(chosen)
    if problem is not None:
        raise WrongUse(f"tenant {chosen!r}: {problem} (`--tenant`, `tenant=` or SUREHAND_TENANT)")
    # An empty --as is no wish to act as somebody else: it is a variable that was never set.
    try:
        named = environment.get("SUREHAND_USER") or getpass.getuser() if user is None else user
    except (OSError, KeyError) as error:  # a container's user without a passwd entry
        raise WrongUse("nobody is named: say who you are, or set SUREHAND_USER") from error
    if not named.strip() or len(named) > LONGEST_NAME:
        raise WrongUse(f"user {named[:20]!r}: name yourself in 1 to {LONGEST_NAME} characters")
    return ClientSettings(
        tenant=chosen,
        user=named,
        task_queue=environment.get("SUREHAND_TASK_QUEUE") or DEFAULT_TASK_QUEUE,
        deployment_name=environment.get("SUREHAND_DEPLOYMENT_NAME") or DEFAULT_DEPLOYMENT,
        key=key or (Path(environment["SUREHAND_KEY"]) if environment.get("SUREHAND_KEY") else None),
        ui_url=(ui_url or environment.get("TEMPORAL_UI_URL") or _find_ui(environment)).rstrip("/"),
    )


def _find_ui(environment: Mapping[str, str]) -> str:
    """Return where a development server at the address shows its Web UI: 1000 ports higher."""
    host, _, port = environment.get("TEMPORAL_ADDRESS", "").rpartition(":")
    if host in ("127.0.0.1", "localhost") and port.isdecimal() and int(port) < 64_536:
        return f"http://localhost:{int(port) + 1000}"
    return DEFAULT_UI_URL
