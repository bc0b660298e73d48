"""Settings: an unknown, missing or wrong one is named in one clear line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from activities.settings import SettingsError, load_settings

DATABASE = "sqlite+aiosqlite:///ledger.db"
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
    assert (settings.lease, settings.lease_renewal) == (timedelta(seconds=3), timedelta(seconds=1))


@pytest.mark.parametrize(
    ("name", "value", "attribute", "means"),
    [
        ("TOOL_MODULES", "acme.billing, acme.mail,", "tool_modules", ("acme.billing", "acme.mail")),
        ("TOOL_MODULES", "", "tool_modules", ()),
        ("LEASE", "5s", "lease", timedelta(seconds=5)),
        ("LEASE_RENEWAL", "1.5s", "lease_renewal", timedelta(seconds=1.5)),
        ("GRACEFUL_SHUTDOWN", "1.5m", "graceful_shutdown", timedelta(seconds=90)),
        ("MAX_CACHED_WORKFLOWS", "0", "max_cached_workflows", 0),
    ],
)
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
        ({"SUREHAND_DATABASE_URL": "postgres://x"}, ["SUREHAND_DATABASE_URL", "postgresql+asyncpg://"]),
        ({"SUREHAND_DATABASE_URL": ""}, ["SUREHAND_DATABASE_URL", "must start with"]),
        ({**GIVEN, "SUREHAND_LOG_LEVEL": "loud"}, ["SUREHAND_LOG_LEVEL", "'debug'"]),
        ({**GIVEN, "SUREHAND_DECISIONS": "closed"}, ["SUREHAND_DECISIONS", "'open'"]),
        ({**GIVEN, "SUREHAND_LEASE": "soon"}, ["SUREHAND_LEASE"]),
        ({**GIVEN, "SUREHAND_LEASE": "99999999999999d"}, ["SUREHAND_LEASE"]),
        ({**GIVEN, "SUREHAND_LEASE_RENEWAL": "0s"}, ["SUREHAND_LEASE_RENEWAL", "longer than"]),
        ({**GIVEN, "SUREHAND_LEASE_RENEWAL": "3s"}, ["RENEWAL: 3s", "half of SUREHAND_LEASE (3s)"]),
        ({**GIVEN, "SUREHAND_LEASE_RENEWAL": "1.6s"}, ["SUREHAND_LEASE_RENEWAL: 1.6s", "half of"]),
        ({**GIVEN, "SUREHAND_LEASE": "1s"}, ["SUREHAND_LEASE_RENEWAL: 1s", "SUREHAND_LEASE (1s)"]),
        ({**GIVEN, "SUREHAND_MAX_CACHED_WORKFLOWS": "-1"}, ["SUREHAND_MAX_CACHED_WORKFLOWS"]),
        ({**GIVEN, "SUREHAND_TASK_QUEUE": ""}, ["SUREHAND_TASK_QUEUE"]),
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
    env_file.write_text(
        "SUREHAND_DATABASE_URL=sqlite+aiosqlite:///file\nSUREHAND_TASK_QUEUE=mine\n"
    )

    settings = load_settings(GIVEN, env_file)
    assert (settings.database_url, settings.task_queue) == (DATABASE, "mine")

    env_file.write_text("SUREHAND_QUEUE=mine\nOTHER=x\n")
    with pytest.raises(SettingsError, match="SUREHAND_QUEUE"):
        load_settings(GIVEN, env_file)


def test_settings_of_others_are_not_ours(env_file: Path) -> None:
    load_settings({**GIVEN, "TEMPORAL_ADDRESS": "x", "HOME": "/", "SURE": "y"}, env_file)


def test_settings_are_what_was_passed_and_nothing_behind_its_back(
    env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHAND_DATABASE_URL", "sqlite+aiosqlite:///shell")
    monkeypatch.setenv("SUREHAND_TASK_QUEUE", "shell")

    assert load_settings(GIVEN, env_file).task_queue == "surehand"
    with pytest.raises(SettingsError, match="SUREHAND_DATABASE_URL is missing"):
        load_settings({}, env_file)
