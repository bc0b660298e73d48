"""Settings: read once, at start; the environment wins over ``.env``.

In the environment and in ``.env`` their names have the prefix ``SUREHAND_``. Temporal's own
settings (``TEMPORAL_ADDRESS``, ``TEMPORAL_NAMESPACE``, profiles) are read by the SDK's environment
configuration. What is secret among them is kept out of logs, and out of the ledger's error texts.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from surehand.activities.tools.failures import Retries
from surehand.activities.worker.crash_points import Crash
from surehand.process.settings import (
    DEFAULT_ARTIFACTS,
    DEFAULT_DEPLOYMENT,
    DEFAULT_TASK_QUEUE,
    ENV_FILE,
    PREFIX,
    SettingsError,
    Sources,
    read_sources,
)
from surehand.verify import host_of
from surehand.workflows.identity import DEFAULT_TENANT, tenant_problem
from surehand.workflows.plain_text import reason_of
from surehand.workflows.plan.plan import NAME_FORM
from surehand.workflows.plan.policy import Duration

#: The default of a worker's context, too.
CHECKPOINT_EVERY: Final = timedelta(minutes=5)
_RETRIES: Final = Retries()
#: The worker controller writes NAMESPACE/NAME. Temporal itself takes neither "." nor ":".
_DEPLOYMENT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64})?")
_ADDRESS: Final = re.compile(r"(|[0-9.]+:[0-9]+|\[[0-9a-fA-F:]+\]:[0-9]+)")


#: Where a ledger can be, and the driver of each that its URL may name.
_DATABASES: Final = {"sqlite": "pysqlite", "postgresql": "psycopg"}
#: For `judge_settings(without=...)`.
_PLACEHOLDERS: Final = {"database_url": "sqlite:///none"}


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


_Time = Annotated[Duration, Field(ge=timedelta(0))]
_Interval = Annotated[Duration, Field(ge=timedelta(seconds=1))]
#: Pauses before the first, second, ... retry, comma separated.
Pauses = Annotated[tuple[_Time, ...], BeforeValidator(_split)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


class Settings(BaseModel):
    """What a worker and the operator verbs need to know."""

    # Sources are read by `read_sources`, once: an error names the file or variable that is wrong.
    model_config = ConfigDict(frozen=True, extra="ignore")

    database_url: str
    """SQLAlchemy URL of the ledger: ``sqlite:///file`` or ``postgresql://...``.

    SQLite is for one machine, and has one writer. A worker that is stopped (SIGSTOP, a debugger) in
    a write transaction stops every other one, until it goes on or is ended.
    """
    fsync_off: Literal["refuse", "allow"] = "refuse"
    """For tests: ``allow`` lets the ledger lie on a PostgreSQL with ``fsync=off``, which loses
    recorded effects with the power."""
    artifacts: str = Field(default=DEFAULT_ARTIFACTS, min_length=1)
    """Where large values and messages are kept: a folder all workers share, or a URL."""
    largest_inline: int = Field(default=8 * 1024, ge=1024, le=1024 * 1024)
    """Largest output, in bytes, that stays in history; what is larger becomes an artifact."""
    tool_modules: Names = ()
    """Modules with the user's tools, comma separated."""
    mcp: str = ""
    """File that says which tools of MCP servers may be called, such as ``surehand.mcp.yaml``."""
    limits: str = ""
    """File of limits, of who may halt and lift, and of your own policy, such as ``limits.yaml``."""
    workflow_modules: Names = ()
    """Modules with workflows of your own (code-first), comma separated."""
    agent_modules: Names = ()
    """Modules with agents and models that plans may name as ``module:name``; comma separated."""
    worker_plugins: Names = ()
    """Temporal plugins of your own or of a framework, for workers and starters, as
    ``module:object``; comma separated."""
    sandbox_passthrough: Names = ()
    """Modules, with all below them, that workflows of your own import and that Temporal's sandbox
    does not load again, such as ``pydantic_ai,httpx``; comma separated."""
    task_queue: str = Field(default=DEFAULT_TASK_QUEUE, min_length=1)
    """Temporal task queue."""
    deployment_name: str = DEFAULT_DEPLOYMENT
    """Name of the workers' deployment in Temporal; if not set, the one of Temporal's worker
    controller (``TEMPORAL_DEPLOYMENT_NAME``)."""
    build_id: str = ""
    """Version of the worker: a run ends on its first version. If not set, the one of Temporal's
    worker controller (``TEMPORAL_WORKER_BUILD_ID``); empty: workers have no versions."""
    decisions: Literal["open", "signed"] = "open"
    """``open``: unsigned decisions and starts count, marked unverified; ``signed``: they do not."""
    passkey_origins: Names = ()
    """Origins of the pages on which people sign decisions with passkeys, such as
    ``https://approvals.example.com``; comma separated. Empty: no passkey counts."""
    approvals_url: str = Field(default="", pattern=r"^(https?://[^/?#\s]+)?$")
    """Origin of the pages on which people approve (``approvals serve``), for the links in
    notifications, such as ``https://approvals.example.com``; ``{tenant}`` in it stands for the
    tenant. Empty: no links."""
    oidc_issuer: str = ""
    """Of ``approvals serve``: the identity provider by which people sign in, such as
    ``https://login.example.com``, letter by letter as it names itself. Empty: by links."""
    oidc_client_id: str = ""
    """The client id of the approvers' pages at that provider."""
    oidc_client_secret: SecretStr = SecretStr("")
    """The client's secret, or ``file:PATH`` of a file that nobody else can read. Empty: a public
    client."""
    oidc_principals: str = ""
    """File that says which subject of which issuer is which principal, such as
    ``oidc-principals.yaml``; read again when it has changed."""
    key_encryption_keys: SecretStr = SecretStr("")
    """Encrypts what goes through Temporal: ``ID=KEY,...``, a file with such lines that nobody else
    can read, or ``module:name``; the first key wraps the keys of runs. Empty: nothing is
    encrypted."""
    log_format: Literal["console", "json"] = "console"
    """``console`` for people, ``json`` for machines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    metrics: str = ""
    """Address of the Prometheus endpoint, such as ``127.0.0.1:9464``; empty: none."""
    health: str = ""
    """Address at which the worker says that it lives (``/livez``) and can work (``/readyz``), such
    as ``127.0.0.1:9465``; empty: none."""
    notify: Names = ("log",)
    """Notifiers: ``log``, ``webhook``, ``smtp``, ``slack``, ``teams``, or your own as
    ``module:name``; comma separated. Empty: none."""
    webhook_url: SecretStr = SecretStr("")
    """Where ``webhook`` posts to; it is not shown or logged, because it may carry a token."""
    webhook_secret: SecretStr = SecretStr("")
    """What ``webhook`` signs with: ``whsec_`` and the base64 of 24 to 64 random bytes."""
    smtp_url: SecretStr = SecretStr("")
    """The server that ``smtp`` sends through: ``smtp://user:password@host:587``, ``smtps://...``."""
    smtp_from: str = ""
    """The address that mails come from."""
    smtp_to: Names = ()
    """The addresses that mails go to, comma separated."""
    slack_token: SecretStr = SecretStr("")
    """The bot's token with which ``slack`` posts: ``xoxb-...``."""
    slack_channels: Names = ()
    """The channel in which ``slack`` posts for each role, such as ``finance=C0123,*=C0456``; ``*``:
    for all others. Put another tenant's name before its roles: ``acme/finance=C0789``."""
    slack_url: str = "https://slack.com/api"
    """Slack's Web API."""
    slack_signing_secret: SecretStr = SecretStr("")
    """Of ``approvals serve``: what Slack signs presses of buttons with. Empty: no button counts."""
    teams_app_id: str = ""
    """The id of the app as whose bot ``teams`` posts; for it Teams signs presses of buttons."""
    teams_app_secret: SecretStr = SecretStr("")
    """The app's client secret."""
    teams_token_url: str = ""
    """Where the bot gets its token with them, such as
    ``https://login.microsoftonline.com/DIRECTORY/oauth2/v2.0/token``."""
    teams_channels: Names = ()
    """The channel in which ``teams`` posts for each role, as in ``SUREHAND_SLACK_CHANNELS``:
    ``finance=19:0123abcd@thread.tacv2``."""
    teams_url: str = "https://smba.trafficmanager.net/teams"
    """The Bot Connector. The bot's token goes nowhere else."""
    chat_key: str = ""
    """Of ``approvals serve``: file of the private key of the principal ``chat``, which vouches for
    decisions by buttons. Empty: no button counts."""
    chat_principals: str = ""
    """Of ``approvals serve``: file that says which account of which chat is which principal, such
    as ``chat-principals.yaml``; read again when it has changed."""
    lease: _Interval = timedelta(seconds=3)
    """Time limit of an effect's lease: how long a dead attempt keeps others away. A live one renews
    it every third of that."""
    retries_transient: Pauses = _RETRIES.transient
    """Pauses before the retries of a call that failed for a moment."""
    retries_dependency_down: Pauses = _RETRIES.dependency_down
    """Pauses before the retries of a call whose outside system could not be reached."""
    retries_in_doubt: Pauses = _RETRIES.in_doubt
    """Pauses before an outcome in doubt is looked into again; then a human is asked."""
    recovery_limit: _Time = _RETRIES.recovery_limit
    """How long an effect's outcome may be missing before a human is asked."""
    compensation_limit: _Time = _RETRIES.compensation_limit
    """No retry of an undo begins later than this after its first call, or after an answer."""
    checkpoint_every: _Interval = CHECKPOINT_EVERY
    """How often the progress of a long call goes into the ledger."""
    retention: Annotated[_Time | None, BeforeValidator(lambda text: text or None)] = None
    """How long a run is kept after its end, before `retention` deletes it, such as ``365d``; empty:
    no run is deleted."""
    graceful_shutdown: _Time = timedelta(seconds=20)
    """How long calls under way may take to end after SIGTERM."""
    max_cached_workflows: int = Field(default=500, ge=0)
    """Runs kept in memory, some 180 kB each; others are replayed from their history at their next
    step. 0 keeps none, and is for tests of one worker: a call of `async` may begin on a second
    worker then."""
    cells: str = ""
    """File that lists the cells and each tenant's cell, such as ``cells.yaml``. Empty: one cell. A
    cell's settings in it win over others."""
    cell: str = ""
    """The cell of a worker, by its name in that file. Starters go by the tenant."""
    tenant: str = DEFAULT_TENANT
    """Tenant the starter acts for."""
    user: str = ""
    """User the starter acts as; empty takes the login name."""
    key: str = ""
    """File of the private key that the starter signs with: starts, decisions, steering."""
    crash_at: str = ""
    """For drills: ``tool:point`` or ``tool:point@step`` where the worker kills itself (SIGKILL)."""
    crash_by: Literal["SIGKILL", "SIGSTOP"] = "SIGKILL"
    """For drills: the signal; after SIGSTOP the worker is frozen until it gets SIGCONT."""
    crash_once: str = ""
    """For drills: a file that the crash makes; if it exists, no worker crashes."""

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        kind, _, rest = value.partition("://")
        database, _, driver = kind.partition("+")
        if database not in _DATABASES or not rest:
            raise ValueError("must start with sqlite:/// or postgresql://")
        if driver not in ("", _DATABASES[database]):
            raise ValueError(
                f"has the driver {driver}, which is not used here: write {database}:// instead of"
                f" {kind}://"
            )
        return value

    @field_validator("deployment_name")
    @classmethod
    def _possible_deployment(cls, value: str) -> str:
        if not _DEPLOYMENT.fullmatch(value):
            raise ValueError("must be 1 to 64 letters, digits, '_' or '-', or NAMESPACE/NAME")
        return value

    @field_validator("build_id")
    @classmethod
    def _no_separator_of_temporals(cls, value: str) -> str:
        if value and not re.fullmatch(NAME_FORM, value):
            raise ValueError("must be 1 to 64 letters, digits, '_', '.' or '-'")
        return value

    @field_validator("crash_at")
    @classmethod
    def _known_place(cls, value: str) -> str:
        Crash.parse(value)
        return value

    @field_validator("passkey_origins")
    @classmethod
    def _possible_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if host_of(origin) is None:
                raise ValueError(
                    f"{origin!r} is no origin of a page with passkeys, such as"
                    " https://approvals.example.com: no path, in lower case, no port 443"
                )
        return value

    @field_validator("tenant")
    @classmethod
    def _possible_tenant(cls, value: str) -> str:
        value = value or DEFAULT_TENANT  # as the starter takes it
        problem = tenant_problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    @field_validator("metrics", "health")
    @classmethod
    def _ip_and_port(cls, value: str, info: ValidationInfo) -> str:
        if not _ADDRESS.fullmatch(value):
            port = 9464 if info.field_name == "metrics" else 9465
            raise ValueError(f"must be an IP address and a port, such as 127.0.0.1:{port}")
        return value

    @property
    def retries(self) -> Retries:
        return Retries(
            transient=self.retries_transient,
            dependency_down=self.retries_dependency_down,
            in_doubt=self.retries_in_doubt,
            recovery_limit=self.recovery_limit,
            compensation_limit=self.compensation_limit,
        )


def load_settings(environ: Mapping[str, str] | None = None, env_file: Path = ENV_FILE) -> Settings:
    """Read the settings. Raises ``SettingsError``."""
    return judge_settings(read_sources(environ, env_file))


def missing_settings(sources: Sources) -> list[str]:
    """Return the names of what must be set and is not; a variable may be set to nothing."""
    needed = (name for name, field in Settings.model_fields.items() if field.is_required())
    given = sources.settings
    return [name for name in needed if name not in given or given[name].value == ""]


def judge_settings(sources: Sources, *, without: Sequence[str] = ()) -> Settings:
    """Return what was given as settings.

    Settings in ``without`` may be missing; they must not be asked for afterwards. Raises
    ``SettingsError``.
    """
    known = list(Settings.model_fields)
    for name, given in sources.settings.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
            raise SettingsError(str(given).replace("setting ", "unknown setting ", 1) + hint)
    values = {name: given.value for name, given in sources.settings.items()}
    values |= {name: _PLACEHOLDERS[name] for name in without}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "missing":
            here = "" if ENV_FILE.exists() else f" (no .env here: {Path.cwd()})"
            fix = f"set it, or put it into .env{here}"
            raise SettingsError(f"setting {PREFIX}{name.upper()} is missing: {fix}") from error
        source = sources.settings.get(name)
        where = str(source) if source else f"setting {PREFIX}{name.upper()}"
        raise SettingsError(f"{where}: {reason_of(first)}") from error


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
        # Here, because starters judge settings, too, and most need no SQLAlchemy.
        from surehand.activities.ledger.core.engine import passwords_of

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
