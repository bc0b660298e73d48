"""``settings``: what counts, and where it comes from; and those of an identity provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from surehand.activities.worker.settings import Settings
from surehand.cli.approvals_server.oidc import client_of
from surehand.cli.approvals_server.sign_in import BadLink, Links, Server, Subjects
from surehand.cli.approvals_server.verbs import only_here
from surehand.process.exits import ExitCode, WrongUse
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
    (tmp_path / ".env").write_text("SUREHAND_LEASE=6s\nSUREHAND_RETRIES_TRANSIENT=1s\n")

    rows = listed(alone, SUREHAND_TENANT="acme")

    assert list(rows) == list(Settings.model_fields)
    found = {n: (rows[n]["value"], rows[n]["unit"], rows[n]["origin"]) for n in rows}
    assert found["lease"] == (6, "s", ".env")
    assert found["retries_transient"] == ([1], "s", ".env")
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
    (tmp_path / ".env").write_text("SUREHAND_LEESE=6s\n")

    ended = alone("settings")

    assert ended.code == 2
    assert ended.line() == (
        "surehand: .env: unknown setting SUREHAND_LEESE; did you mean SUREHAND_LEASE?"
    )


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
    (tmp_path / ".env").write_text("SUREHAND_TASK_QUEUE=file\nSUREHAND_USER=file\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHAND_TASK_QUEUE", raising=False)
    monkeypatch.setenv("SUREHAND_USER", "ana")

    environment = read_environment()

    assert environment["SUREHAND_TASK_QUEUE"] == "file"
    assert environment["SUREHAND_USER"] == "ana"


ISSUER: Final = "https://login.example.com"


def settings(**given: Any) -> Settings:
    usual = {"database_url": "sqlite:///x", "oidc_issuer": ISSUER, "oidc_client_id": "pages"}
    return Settings.model_validate({**usual, **given})


@pytest.fixture
def oidc_verbs(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verbs:
    return Verbs({"SUREHAND_DATABASE_URL": ledger_url}, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "issuer",
    [
        "http://login.example.com",
        "login.example.com",
        "ftp://login.example.com",
        "https://eve@login.example.com",
        "https://login.example.com?tenant=1",
        "https://login.example.com#x",
        "https://",
        "http://localhost.evil.example",
    ],
)
def test_an_issuer_that_others_could_speak_for_is_refused(issuer: str) -> None:
    with pytest.raises(WrongUse, match="OIDC_ISSUER"):
        client_of(settings(oidc_issuer=issuer))


def test_a_client_without_an_id_is_refused() -> None:
    with pytest.raises(WrongUse, match="OIDC_CLIENT_ID is missing"):
        client_of(settings(oidc_client_id=""))


def test_a_secret_is_read_from_a_file_of_its_owner_s_alone(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hush\n")
    file.chmod(0o600)
    assert client_of(settings(oidc_client_secret=f"file:{file}")).client_secret == "hush"
    assert client_of(settings(oidc_client_secret="file-like")).client_secret == "file-like"
    file.chmod(0o640)
    with pytest.raises(WrongUse, match="can be read by others") as loose:
        client_of(settings(oidc_client_secret=f"file:{file}"))
    assert "hush" not in str(loose.value)
    with pytest.raises(WrongUse, match="cannot be read"):
        client_of(settings(oidc_client_secret=f"file:{tmp_path / 'none'}"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "default: s-ann",
        "default: {s-ann: ann}",
        f"default: {{'{ISSUER}': [ann]}}",
        f"default: {{'{ISSUER}': {{s-ann: 7}}}}",
        f"default: {{'{ISSUER}': {{s-ann: ''}}}}",
        f"default: {{'{ISSUER}': {{s-ann: ' ann'}}}}",
        f"default: {{'{ISSUER}': {{7: ann}}}}",
        # Who it is would depend on which line is read last.
        f"default: {{'{ISSUER}': {{s-ann: ann, s-ann: bob}}}}",
        f"default: {{'{ISSUER}': {{s-ann: ann}}, '{ISSUER}': {{s-bob: bob}}}}",
    ],
)
def test_a_file_that_does_not_say_who_somebody_is_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "principals.yaml"
    file.write_text(text)
    with pytest.raises(WrongUse, match=r"principals\.yaml"):
        Subjects(file, "default")


def test_equal_subjects_of_two_issuers_are_two_people(tmp_path: Path) -> None:
    file = tmp_path / "principals.yaml"
    file.write_text(
        f"default:\n  {ISSUER}: {{'1': ann}}\n  https://other.example.com: {{'1': bob}}\n"
        f"acme:\n  {ISSUER}: {{'1': cora}}\n"
    )
    own = Subjects(file, "default")
    assert own.principal(ISSUER, "1") == "ann"
    assert own.principal("https://other.example.com", "1") == "bob"
    assert own.principal("https://third.example.com", "1") is None
    assert Subjects(file, "acme").principal(ISSUER, "1") == "cora"


def test_a_file_that_is_wrong_meanwhile_says_of_nobody_who_they_are(tmp_path: Path) -> None:
    file = tmp_path / "principals.yaml"
    file.write_text(f"default:\n  {ISSUER}: {{s-ann: ann}}\n")
    own = Subjects(file, "default")
    file.write_text("default: [\n")
    assert own.principal(ISSUER, "s-ann") is None
    file.write_text(f"default:\n  {ISSUER}: {{s-ann: bob}}\n")
    assert own.principal(ISSUER, "s-ann") == "bob"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"SUREHAND_OIDC_CLIENT_ID": "pages"}, "OIDC_PRINCIPALS is missing"),
        ({}, "OIDC_CLIENT_ID is missing"),
        (
            {"SUREHAND_OIDC_CLIENT_ID": "pages", "SUREHAND_OIDC_PRINCIPALS": "none.yaml"},
            "none.yaml cannot be read",
        ),
    ],
)
def test_a_half_set_provider_is_refused(
    oidc_verbs: Verbs, given: dict[str, str], what: str
) -> None:
    done = oidc_verbs(
        "approvals", "serve", "--http", "127.0.0.1:0", SUREHAND_OIDC_ISSUER=ISSUER, **given
    )
    assert (done.code, what in done.line()) == (ExitCode.WRONG_USE, True)


@pytest.mark.parametrize(
    ("host", "origin", "counts"),
    [
        ("127.0.0.1", None, True),
        ("localhost", "http://localhost:8082", True),
        ("::1", None, True),
        # A proxy on this machine: others reach it.
        ("127.0.0.1", "https://approvals.example.com", False),
        ("0.0.0.0", "https://approvals.example.com", False),
        ("0.0.0.0", "http://localhost:8082", False),
    ],
)
def test_local_links_count_beside_a_provider(host: str, origin: str | None, counts: bool) -> None:
    assert only_here(host, origin) is counts


def test_no_link_is_made_for_a_server_that_takes_none(oidc_verbs: Verbs, tmp_path: Path) -> None:
    server = Server.new("https://approvals.example.com", "default", takes_links=False)
    server.write(tmp_path / "state")
    done = oidc_verbs("approvals", "link", "--as", "ann", "--state", str(tmp_path / "state"))
    assert (done.code, done.out) == (ExitCode.WRONG_USE, "")
    assert "takes no links" in done.line()
    with pytest.raises(BadLink, match="takes no links"):
        Links(server).spend(server.link("ann", 0).partition("#")[2])
