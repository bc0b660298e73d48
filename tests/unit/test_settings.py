"""Settings: an unknown, missing or wrong one is named in one clear line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from surehand.activities.worker.settings import load_settings
from surehand.process.settings import SettingsError, read_sources

DATABASE = "sqlite:///ledger.db"
GIVEN = {"SUREHAND_DATABASE_URL": DATABASE}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing from the shell that runs the tests."""
    for name in ("DATABASE_URL", "TASK_QUEUE", "LOG_LEVEL"):
        monkeypatch.delenv(f"SUREHAND_{name}", raising=False)


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def test_only_the_database_has_to_be_set(env_file: Path) -> None:
    settings = load_settings(GIVEN, env_file)

    assert settings.database_url == DATABASE
    assert settings.task_queue == "surehand"
    assert settings.lease == timedelta(seconds=3)


@pytest.mark.parametrize(
    ("name", "value", "attribute", "means"),
    [
        ("TOOL_MODULES", "acme.billing, acme.mail,", "tool_modules", ("acme.billing", "acme.mail")),
        ("TOOL_MODULES", "", "tool_modules", ()),
        (
            "PASSKEY_ORIGINS", "https://a.example.com, http://localhost:8080", "passkey_origins",
            ("https://a.example.com", "http://localhost:8080"),
        ),
        ("LEASE", "5s", "lease", timedelta(seconds=5)),
        ("GRACEFUL_SHUTDOWN", "1.5m", "graceful_shutdown", timedelta(seconds=90)),
        ("MAX_CACHED_WORKFLOWS", "0", "max_cached_workflows", 0),
    ],
)  # fmt: skip
def test_a_setting_is_written_as_people_write_it(
    env_file: Path, name: str, value: str, attribute: str, means: object
) -> None:
    settings = load_settings({**GIVEN, f"SUREHAND_{name}": value}, env_file)

    assert getattr(settings, attribute) == means


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, ["SUREHAND_DATABASE_URL", "missing", ".env"]),
        (
            {**GIVEN, "SUREHAND_DATABSE_URL": "x"},
            ["unknown setting SUREHAND_DATABSE_URL", "did you mean SUREHAND_DATABASE_URL?"],
        ),
        ({**GIVEN, "SUREHAND_COLOUR": "red"}, ["unknown setting SUREHAND_COLOUR"]),
        ({"SUREHAND_DATABASE_URL": "postgres://x"}, ["SUREHAND_DATABASE_URL", "postgresql://"]),
        (
            {"SUREHAND_DATABASE_URL": "sqlite+aiosqlite:///ledger.db"},
            ["SUREHAND_DATABASE_URL", "driver aiosqlite", "write sqlite:// instead"],
        ),
        (
            {"SUREHAND_DATABASE_URL": "postgresql+asyncpg://db/x"},
            ["SUREHAND_DATABASE_URL", "driver asyncpg", "write postgresql:// instead"],
        ),
        ({"SUREHAND_DATABASE_URL": ""}, ["SUREHAND_DATABASE_URL", "must start with"]),
        ({**GIVEN, "SUREHAND_LOG_LEVEL": "loud"}, ["SUREHAND_LOG_LEVEL", "'debug'"]),
        ({**GIVEN, "SUREHAND_DECISIONS": "closed"}, ["SUREHAND_DECISIONS", "'open'"]),
        ({**GIVEN, "SUREHAND_PASSKEY_ORIGINS": "https://a.example.com/"}, ["ORIGINS: ", "no path"]),
        ({**GIVEN, "SUREHAND_PASSKEY_ORIGINS": "https://A.test"}, ["ORIGINS: ", "lower case"]),
        ({**GIVEN, "SUREHAND_PASSKEY_ORIGINS": "https://a.test:443"}, ["ORIGINS: ", "no port 443"]),
        ({**GIVEN, "SUREHAND_PASSKEY_ORIGINS": "http://a.example.com"}, ["ORIGINS: ", "https://"]),
        ({**GIVEN, "SUREHAND_PASSKEY_ORIGINS": "*"}, ["ORIGINS: '*' is no origin"]),
        ({**GIVEN, "SUREHAND_TENANT": "a'b"}, ["SUREHAND_TENANT", "letters, digits"]),
        ({**GIVEN, "SUREHAND_TENANT": ".."}, ["SUREHAND_TENANT", "the first no '.' or '-'"]),
        ({**GIVEN, "SUREHAND_LEASE": "soon"}, ["SUREHAND_LEASE: must be a duration such as 90s"]),
        ({**GIVEN, "SUREHAND_RETRIES_TRANSIENT": "1s,x"}, ["TRANSIENT: must be a duration such"]),
        ({**GIVEN, "SUREHAND_LARGEST_INLINE": "all"}, ["INLINE: must be a whole number"]),
        (
            {**GIVEN, "SUREHAND_CRASH_AT": "payments.refund:later"},
            ["SUREHAND_CRASH_AT: 'payments.refund:later' is not tool:point", "after_claim"],
        ),
        ({**GIVEN, "SUREHAND_LEASE": "99999999999999d"}, ["SUREHAND_LEASE"]),
        ({**GIVEN, "SUREHAND_LEASE": "900ms"}, ["SUREHAND_LEASE: must be at least 1 s"]),
        ({**GIVEN, "SUREHAND_MAX_CACHED_WORKFLOWS": "-1"}, ["SUREHAND_MAX_CACHED_WORKFLOWS"]),
        ({**GIVEN, "SUREHAND_TASK_QUEUE": ""}, ["SUREHAND_TASK_QUEUE"]),
        ({**GIVEN, "SUREHAND_BUILD_ID": "a:b"}, ["BUILD_ID: must be 1 to 64 letters, digits"]),
        ({**GIVEN, "SUREHAND_DEPLOYMENT_NAME": "a.b"}, ["NAME: must be 1 to 64 letters, digits"]),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_in_one_line(
    env_file: Path, environ: dict[str, str], says: list[str]
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(environ, env_file)

    assert "\n" not in str(refused.value)
    for part in says:
        assert part in str(refused.value)


def test_the_environment_wins_over_the_file_and_the_file_is_checked_too(env_file: Path) -> None:
    env_file.write_text("SUREHAND_DATABASE_URL=sqlite:///file\nSUREHAND_TASK_QUEUE=mine\n")

    settings = load_settings(GIVEN, env_file)
    assert (settings.database_url, settings.task_queue) == (DATABASE, "mine")

    env_file.write_text("SUREHAND_QUEUE=mine\nOTHER=x\n")
    with pytest.raises(SettingsError, match="SUREHAND_QUEUE"):
        load_settings(GIVEN, env_file)


def test_settings_of_others_are_not_ours(env_file: Path) -> None:
    load_settings({**GIVEN, "TEMPORAL_ADDRESS": "x", "HOME": "/", "SURE": "y"}, env_file)


def test_settings_are_what_was_passed(env_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREHAND_DATABASE_URL", "sqlite:///shell")
    monkeypatch.setenv("SUREHAND_TASK_QUEUE", "shell")

    assert load_settings(GIVEN, env_file).task_queue == "surehand"
    with pytest.raises(SettingsError, match="SUREHAND_DATABASE_URL is missing"):
        load_settings({}, env_file)


def test_each_setting_tells_its_origin(env_file: Path) -> None:
    env_file.write_text("SUREHAND_TASK_QUEUE=dotenv\nSUREHAND_TENANT=dotenv\n")

    found = read_sources({**GIVEN, "SUREHAND_TASK_QUEUE": "environment"}, env_file).settings

    assert {name: given.origin for name, given in found.items()} == {
        "database_url": "environment",
        "task_queue": "environment",
        "tenant": str(env_file),
    }


def test_a_list_is_comma_separated_in_the_environment_and_may_be_empty(env_file: Path) -> None:
    environ = {**GIVEN, "SUREHAND_RETRIES_TRANSIENT": "2s, 3s", "SUREHAND_RETRIES_IN_DOUBT": ""}

    retries = load_settings(environ, env_file).retries

    assert retries.transient == (timedelta(seconds=2), timedelta(seconds=3))
    assert retries.in_doubt == ()
