"""``settings``: what counts, and where it comes from; and the starter goes by the file, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surehand.activities.worker.settings import Settings
from surehand.process.settings import read_environment
from tests.cli.starter import REFUND, Verbs

DATABASE = "postgresql://worker:p%40ss:w@rd@db/surehand?sslmode=require&sslpassword=geheim"


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs({}, tmp_path, monkeypatch)


def listed(verbs: Verbs, **environment: str) -> dict[str, dict[str, Any]]:
    document = verbs("settings", "--json", **environment).document()
    return {row["name"]: row for row in document["settings"]}


def test_settings_are_listed_with_value_and_origin(alone: Verbs, tmp_path: Path) -> None:
    (tmp_path / "surehand.toml").write_text("lease = '6s'\n[retries]\ntransient = ['1s']\n")
    (tmp_path / ".env").write_text("SUREHAND_JITTER=0.1\n")

    rows = listed(alone, SUREHAND_TENANT="acme")

    assert list(rows) == list(Settings.model_fields)
    assert all(row["meaning"] and "``" not in row["meaning"] for row in rows.values())
    found = {n: (rows[n]["value"], rows[n]["unit"], rows[n]["origin"]) for n in rows}
    assert found["lease"] == (6, "s", "surehand.toml")
    assert found["retries_transient"] == ([1], "s", "surehand.toml")
    assert found["jitter"] == (0.1, "", ".env")
    assert found["tenant"] == ("acme", "", "environment")
    assert found["recovery_limit"] == (300, "s", "default")
    assert found["compensation_limit"] == (30, "s", "default")
    assert found["largest_inline"] == (8192, "bytes", "default")
    assert found["database_url"] == (None, "", "missing")


@pytest.mark.parametrize("how", ["--json", ""])
def test_passwords_are_not_shown(alone: Verbs, how: str) -> None:
    secrets = {
        "SUREHAND_WEBHOOK_URL": "https://hooks.example/services/T0KEN",
        "SUREHAND_WEBHOOK_SECRET": "whsec_T0KEN",
        "SUREHAND_SMTP_URL": "smtp://robot:geheim@mail.example",
    }
    ended = alone("settings", *filter(None, [how]), SUREHAND_DATABASE_URL=DATABASE, **secrets)

    assert ended.code == 0
    assert "https://hooks.example/***" in ended.out
    assert "T0KEN" not in ended.out
    assert "postgresql://worker:***@db/surehand?sslmode=require" in ended.out
    for secret in ("p%40ss", "w@rd", "geheim"):
        assert secret not in ended.out


def test_a_wrong_setting_names_its_file(alone: Verbs, tmp_path: Path) -> None:
    (tmp_path / "surehand.toml").write_text("leese = '6s'\n")

    ended = alone("settings")

    assert ended.code == 2
    assert ended.line() == ("surehand: surehand.toml: unknown setting leese; did you mean lease?")


@pytest.mark.parametrize("verb", ["show r", "start", "pending", "approve r/s/1 --params-hash x"])
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"SUREHAND_LEESE": "4s"}, "unknown setting SUREHAND_LEESE; did you mean SUREHAND_LEASE?"),
        ({"SUREHAND_LEASE": "soon"}, "setting SUREHAND_LEASE: "),
    ],
    ids=["unknown", "wrong"],
)
def test_every_verb_refuses_the_settings_that_a_worker_refuses(
    alone: Verbs, verb: str, setting: dict[str, str], says: str
) -> None:
    arguments = verb.split()
    ended = alone(*arguments, *([REFUND] if verb == "start" else []), **setting)

    assert ended.code == 2
    assert ended.line().startswith(f"surehand: {says}")


def test_settings_of_docker_compose_are_known(alone: Verbs, tmp_path: Path) -> None:
    names = ("IMAGE", "PREVIOUS_IMAGE", "PREVIOUS_BUILD_ID")
    (tmp_path / ".env").write_text("".join(f"SUREHAND_{name}=1\n" for name in names))

    assert alone("settings").code == 0


def test_starter_and_worker_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "surehand.toml").write_text(
        "task_queue = 'file'\nuser = 'file'\n[retries]\ntransient = ['1s', '2s']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHAND_TASK_QUEUE", raising=False)
    monkeypatch.setenv("SUREHAND_USER", "ana")

    environment = read_environment()

    assert environment["SUREHAND_TASK_QUEUE"] == "file"
    assert environment["SUREHAND_USER"] == "ana"
    # For workers that are started elsewhere, as a drill does.
    assert environment["SUREHAND_RETRIES_TRANSIENT"] == "1s,2s"
