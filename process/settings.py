"""What the starter has to know; it reads no more than that, so it needs no database and no tools.

Where they come from is in ``sources.py``. Temporal's own settings are read by ``connect.py``.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from surehand.process.cells import routed
from surehand.process.exits import WrongUse
from surehand.process.program import command
from surehand.process.sources import (
    DEFAULT_DEPLOYMENT,
    DEFAULT_TASK_QUEUE,
    PREFIX,
    SourceError,
    Sources,
    read_sources,
)
from surehand.workflows.contracts.base import LONGEST_NAME
from surehand.workflows.identity import DEFAULT_TENANT, tenant_problem

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
        """Return a command of ours that acts in this tenant, ready to paste."""
        tenant = [] if self.tenant == DEFAULT_TENANT else ["--tenant", self.tenant]
        return command(*parts, *tenant)


def read_environment(tenant: str | None = None) -> dict[str, str]:
    """Return the environment over ``.env`` over what the settings file says of ours.

    Args:
        tenant: Whose cell it is of, if there are cells; ``None``: that of SUREHAND_TENANT.

    Raises:
        WrongUse: A file cannot be read.
    """
    if tenant is not None:
        with routed(tenant=tenant):
            return read_environment()
    sources = given_sources()
    ours = {
        f"{PREFIX}{name.upper()}": _as_variable(given.value)
        for name, given in sources.settings.items()
    }
    return {**ours, **sources.environment}


def given_sources() -> Sources:
    """Return what environment, ``.env`` and settings file say.

    Raises:
        WrongUse: A file cannot be read.
    """
    try:
        return read_sources()
    except SourceError as error:
        raise WrongUse(str(error)) from error


def given_tenant() -> str:
    """Return the tenant that the settings name, whatever cell it is of; empty: none.

    Raises:
        WrongUse: A file cannot be read.
    """
    try:
        given = read_sources(cells=False).settings.get("tenant")
    except SourceError as error:
        raise WrongUse(str(error)) from error
    return "" if given is None else str(given.value)


def _as_variable(value: Any) -> str:
    """Return a value of the settings file as the environment would have it."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def client_settings(
    environment: Mapping[str, str],
    *,
    tenant: str | None = None,
    user: str | None = None,
    ui_url: str | None = None,
    key: Path | None = None,
) -> ClientSettings:
    """Return the settings; what the command line says wins.

    Raises:
        WrongUse: If the tenant cannot be part of a run id, or nobody is named.
    """
    chosen = environment.get("SUREHAND_TENANT") or DEFAULT_TENANT if tenant is None else tenant
    problem = tenant_problem(chosen)
    if problem is not None:
        raise WrongUse(f"tenant {chosen!r}: {problem} (`--tenant`, `tenant=` or SUREHAND_TENANT)")
    # An empty --as is no wish to act as somebody else: it is a variable that was never set.
    named = environment.get("SUREHAND_USER") or _login_name() if user is None else user
    if not named.strip() or len(named) > LONGEST_NAME:
        raise WrongUse(f"user {named[:20]!r}: name yourself in 1 to {LONGEST_NAME} characters")
    return ClientSettings(
        tenant=chosen,
        user=named,
        task_queue=environment.get("SUREHAND_TASK_QUEUE") or DEFAULT_TASK_QUEUE,
        deployment_name=environment.get("SUREHAND_DEPLOYMENT_NAME") or DEFAULT_DEPLOYMENT,
        key=key or (Path(environment["SUREHAND_KEY"]) if environment.get("SUREHAND_KEY") else None),
        ui_url=(ui_url or environment.get("TEMPORAL_UI_URL") or DEFAULT_UI_URL).rstrip("/"),
    )


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError) as error:  # a container's user without a passwd entry
        raise WrongUse("nobody is named: say who you are, or set SUREHAND_USER") from error
