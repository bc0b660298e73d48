"""Where settings come from: the environment over ``.env`` over a settings file.

Read by the command line and ``Client``, which need a few of them and nothing of ``activities/``,
and by ``activities/worker/settings.py``, which knows them all and judges what was given.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dotenv import dotenv_values

from surehand.process.cells import CellsError, read_cells, route
from surehand.workflows.identity import DEFAULT_TENANT

PREFIX: Final = "SUREHAND_"
ENV_FILE: Final = Path(".env")
#: Names the key-encryption keys (``key_encryption.py``).
KEYS: Final = f"{PREFIX}KEY_ENCRYPTION_KEYS"
CODEC_ENDPOINT: Final = f"{PREFIX}CODEC_ENDPOINT"
CODEC_TOKEN: Final = f"{PREFIX}CODEC_TOKEN"
SETTINGS_FILE: Final = Path("surehand.toml")
#: Names another settings file; itself no setting, so that a file cannot name the next one.
FILE_VARIABLE: Final = "SUREHAND_SETTINGS"
#: What docker-compose.yml takes from ``.env`` beside the settings, without prefix.
_OF_COMPOSE: Final = frozenset({"IMAGE", "PREVIOUS_IMAGE", "PREVIOUS_BUILD_ID"})
#: Settings that Temporal's worker controller gives to its workers by names of its own. It makes up
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


class SourceError(Exception):
    """A file cannot be read, or says one thing twice; the message names it."""


@dataclass(frozen=True)
class Given:
    """What one source says about one setting."""

    value: Any
    name: str
    """As it is written there: ``SUREHAND_LEASE``, ``lease`` or ``retries.transient``."""
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
    file: Path | None
    """The settings file, if there is one."""


def read_sources(
    environ: Mapping[str, str] | None = None,
    env_file: Path = ENV_FILE,
    settings_file: Path = SETTINGS_FILE,
    *,
    cells: bool = True,
) -> Sources:
    """Read environment, ``.env`` and settings file.

    Args:
        environ: The environment; ``None`` is this process's own.
        env_file: A ``.env`` file, which may be missing.
        settings_file: Taken unless ``SUREHAND_SETTINGS`` names another one; it may be missing.
        cells: Whether what a cell says stands in the place of all of them (``cells.routed``).

    Raises:
        SourceError: One line that names the file and what is wrong with it.
    """
    environ = os.environ if environ is None else environ
    try:
        dotenv = {name: value or "" for name, value in dotenv_values(env_file).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{env_file} cannot be read: {error}") from error
    environment = {**dotenv, **environ}
    named = environment.get(FILE_VARIABLE)
    file = Path(named) if named else settings_file if settings_file.is_file() else None
    settings = {} if file is None else _from_file(file)
    for origin, variables in ((str(env_file), dotenv), (ENVIRONMENT, environ)):
        for name, value in variables.items():
            ours = name.upper().startswith(PREFIX) and name.upper() != FILE_VARIABLE
            if ours and name.upper().removeprefix(PREFIX) not in _OF_COMPOSE:
                settings[name[len(PREFIX) :].lower()] = Given(value, name, origin)
    for name, variable in _OF_CONTROLLER.items():
        if name not in settings and environment.get(variable):
            settings[name] = Given(environment[variable], variable, ENVIRONMENT)
    sources = Sources(settings, environment, file)
    return _of_cell(sources) if cells and _text_of(sources, "cells") else sources


def _of_cell(sources: Sources) -> Sources:
    """Put what a cell says in the place of what was given.

    Raises:
        SourceError: The file of cells cannot be used, or does not know the tenant.
    """
    asked, file = route(), Path(_text_of(sources, "cells"))
    try:
        found = read_cells(file)
        name = asked.cell
        if name is None and asked.tenant is None:
            name = _text_of(sources, "cell")
        tenant = asked.tenant or _text_of(sources, "tenant") or DEFAULT_TENANT
        own = found.settings_of(name or found.cell_of(tenant), sources.environment)
    except CellsError as error:
        raise SourceError(str(error)) from error
    settings = dict(sources.settings)
    for variable, value in own.items():
        if variable.startswith(PREFIX):
            setting = variable.removeprefix(PREFIX).lower()
            settings[setting] = Given(value, variable, str(file))
    return Sources(settings, {**sources.environment, **own}, sources.file)


def _text_of(sources: Sources, name: str) -> str:
    given = sources.settings.get(name)
    return "" if given is None else str(given.value)


def _from_file(file: Path) -> dict[str, Given]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{file} cannot be read ({FILE_VARIABLE}): {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"{file} is not TOML: {error}") from error
    settings: dict[str, Given] = {}
    _flatten(document, (), str(file), settings)
    return settings


def _flatten(
    table: Mapping[str, Any], above: tuple[str, ...], origin: str, settings: dict[str, Given]
) -> None:
    """Take a table's keys: ``[retries] transient`` is ``retries_transient``."""
    for key, value in table.items():
        path = (*above, key)
        if isinstance(value, dict):
            _flatten(value, path, origin, settings)
            continue
        name, written = "_".join(path), ".".join(path)
        if name in settings:
            twice = f"{settings[name].name} and {written} are the same setting"
            raise SourceError(f"{origin}: {twice}: keep one of them")
        settings[name] = Given(value, written, origin)
