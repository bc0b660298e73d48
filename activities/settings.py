"""Settings: read once, at start, from the environment and a ``.env`` file; prefix ``SUREHAND_``.

Temporal's own settings (``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, profiles) are read by the
SDK's environment configuration.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from dotenv import dotenv_values
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from workflows.plan import Duration

PREFIX: Final = "SUREHAND_"


class SettingsError(Exception):
    """A setting is unknown, missing or wrong; the message names it and says what to do."""


class Settings(BaseSettings):
    """What a worker and the operator verbs need to know."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    database_url: str
    """SQLAlchemy URL of the ledger: ``sqlite+aiosqlite:///file`` or ``postgresql+asyncpg://...``."""
    artifacts: str = Field(default=".surehand/artifacts", min_length=1)
    """Where values over 8 KiB are kept: a folder all workers share, or a URL (``s3://``, ...)."""
    tool_modules: Annotated[tuple[str, ...], NoDecode] = ()
    """Modules with the user's tools, comma separated."""
    task_queue: str = Field(default="surehand", min_length=1)
    decisions: Literal["open"] = "open"
    """``open``: unsigned decisions count, and are marked unverified."""
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    lease: Duration = timedelta(seconds=3)
    """Time limit of an effect's lease: how long a dead attempt keeps others away."""
    lease_renewal: Duration = timedelta(seconds=1)
    """A third of the lease, so that two renewals may fail before it is lost; at most half."""
    graceful_shutdown: Duration = timedelta(seconds=20)
    """How long calls under way may take to end after SIGTERM."""
    max_cached_workflows: int = Field(default=1000, ge=0)
    """Parked runs kept in memory; 0 replays each run from its history at every step."""
    tenant: str = "default"
    """Tenant the starter acts for."""
    user: str = ""
    """User the starter acts as; empty takes the login name."""
    crash_at: str = ""
    """For drills: ``tool:point`` or ``tool:point@step`` where the worker kills itself (SIGKILL)."""
    crash_once: str = ""
    """For drills: file made at the crash; where it is there already nobody crashes."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what ``load_settings`` has read, once, and look nowhere else."""
        return (init_settings,)

    @field_validator("tool_modules", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("lease_renewal")
    @classmethod
    def _well_before_the_lease_ends(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        if value <= timedelta(0):
            raise ValueError("must be longer than nothing")
        lease: timedelta | None = info.data.get("lease")  # missing when it is wrong itself
        if lease is not None and value > lease / 2:
            raise ValueError(
                f"{value.total_seconds():g}s is more than half of {PREFIX}LEASE"
                f" ({lease.total_seconds():g}s), so a live call would lose its lease as soon as one"
                " renewal failed: shorten it, or lengthen the lease"
            )
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if not value.startswith(("sqlite+aiosqlite://", "postgresql+asyncpg://")):
            raise ValueError("must start with sqlite+aiosqlite:// or postgresql+asyncpg://")
        return value


def load_settings(
    environ: Mapping[str, str] | None = None, env_file: Path = Path(".env")
) -> Settings:
    """Read the settings.

    Args:
        environ: The environment; wins over the file.
        env_file: A ``.env`` file, which may be missing.

    Raises:
        SettingsError: One line that names what is unknown, missing or wrong.
    """
    from_file = {key: value or "" for key, value in dotenv_values(env_file).items()}
    merged = {**from_file, **(os.environ if environ is None else environ)}
    given = {
        key[len(PREFIX) :].lower(): value
        for key, value in merged.items()
        if key.upper().startswith(PREFIX)
    }
    known = list(Settings.model_fields)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
            raise SettingsError(f"unknown setting {PREFIX}{name.upper()}{hint}")
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = f"{PREFIX}{str(first['loc'][0]).upper()}"
        if first["type"] == "missing":
            raise SettingsError(f"setting {name} is missing: set it or put it into .env") from error
        reason = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"setting {name}: {reason}") from error
