"""Verbs of administrators: each command is done in full or not at all."""

from __future__ import annotations

import json
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from sqlalchemy import make_url

from surehand.activities.ledger.core.tables import (
    grants,
    principal_changes,
    principal_keys,
    principals,
    quotas,
)
from surehand.activities.ledger.quotas import TenantQuotas
from surehand.cli.people import PrincipalChanged, PrincipalHistory, PrincipalList
from surehand.client.messages import new_key
from surehand.verify import kid_of, read_public_key
from tests.cli.office import LedgerOffice
from tests.cli.starter import Starter
from tests.ledger_databases import DATABASES, WORKER
from tests.passkeys import Authenticator

both = pytest.mark.parametrize("database", DATABASES)
postgresql = pytest.mark.parametrize("database", DATABASES[1:])


class Office(LedgerOffice):
    """``principal`` at a ledger of its own."""

    group = "principal"
    tables = (principals, grants, principal_keys, principal_changes)

    def shown(self, *arguments: str) -> list[dict[str, Any]]:
        listed = self.done("list", "--json", *arguments).document()
        PrincipalList.model_validate(listed)
        found: list[dict[str, Any]] = listed["principals"]
        return found

    def history(self, *arguments: str) -> list[tuple[str, str, str]]:
        past = self.done("list", "--history", "--json", *arguments).document()
        told = PrincipalHistory.model_validate(past).changes
        return [(one.change, one.what, one.actor) for one in told]

    def keys(self, name: str) -> tuple[str, str]:
        """A new key: its id, and the file of its public half."""
        file = self.folder / f"{name}.pem"
        return new_key(file), f"{file}.pub"


@pytest.fixture
def office(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office.opened(ledger_url, tmp_path, monkeypatch, SUREHAND_USER="root")


# Adding, granting, revoking
@both
def test_a_principal_is_added_with_roles_permissions_and_a_key(office: Office) -> None:
    kid, file = office.keys("ana")

    told = office.done(
        "add", "ana", "--role", "ops", "--role", "finance", "--permission", "refunds.make",
        "--key", file, "--json",
    ).document()  # fmt: skip

    ana = {
        "name": "ana",
        "roles": ["finance", "ops"],
        "permissions": ["refunds.make"],
        "keys": [kid],
        "passkeys": [],
    }
    assert PrincipalChanged.model_validate(told).principal.name == "ana"
    assert told["principal"] == ana
    assert [(part["kind"], part["what"], part["changed"]) for part in told["parts"]] == [
        ("principal", "ana", True),
        ("role", "ops", True),
        ("role", "finance", True),
        ("permission", "refunds.make", True),
        ("key", kid, True),
    ]
    assert office.shown() == office.shown("ana") == [ana]
    [key] = office.rows()["principal_keys"]
    assert key["public_key"] == read_public_key(Path(file).read_text())
    listed = office.done("list").out.splitlines()
    assert listed[1].split() == ["ana", "finance,", "ops", "refunds.make", kid]


def test_chat_has_a_key_and_nothing_else(office: Office) -> None:
    _, file = office.keys("chat")
    office.done("add", "chat", "--key", file)

    for grant in (["--role", "finance"], ["--permission", "refunds.make"]):
        assert "chat signs presses, and nothing else" in office.refused("grant", "chat", *grant)


@both
def test_what_is_revoked_is_gone_and_what_is_left_stays(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--role", "ops", "--role", "finance", "--key", file)

    told = office.done("revoke", "ana", "--role", "ops", "--key", kid)

    assert told.out.splitlines() == ["ana: role ops revoked", f"ana: key {kid} revoked"]
    assert office.shown() == [
        {"name": "ana", "roles": ["finance"], "permissions": [], "keys": [], "passkeys": []}
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["grant", "ana", "--role", "ops"], "ana: has role ops already: nothing changed"),
        (["revoke", "ana", "--role", "x"], "ana: no role x to revoke: nothing changed"),
        (["revoke", "ana", "--permission", "x"], "ana: no permission x to revoke: nothing changed"),
    ],
)
def test_an_empty_change_exits_with_0(office: Office, arguments: list[str], says: str) -> None:
    office.done("add", "ana", "--role", "ops")
    before = office.rows()

    told = office.done(*arguments)

    assert told.out.splitlines() == [says]
    assert office.done(*arguments, "--json").document()["parts"][0]["changed"] is False
    assert office.rows() == before


def test_a_key_registered_again_and_one_revoked_again_change_nothing(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--key", file)
    before = office.rows()
    assert (
        office.done("grant", "ana", "--key", file).out
        == f"ana: has key {kid} already: nothing changed\n"
    )
    assert office.rows() == before
    office.done("revoke", "ana", "--key", kid)
    before = office.rows()

    again = office.done("revoke", "ana", "--key", kid)

    assert again.out == f"ana: no key {kid} to revoke: nothing changed\n"
    assert office.rows() == before


def test_what_is_named_twice_in_one_command_is_granted_once(office: Office) -> None:
    told = office.done("add", "ana", "--role", "ops", "--role", "ops")

    assert told.out.splitlines() == ["ana: principal added", "ana: role ops added"]


@both
def test_a_command_that_is_refused_in_its_middle_has_changed_nothing(office: Office) -> None:
    office.done("add", "ana", "--role", "ops")

    said = office.refused("revoke", "ana", "--role", "ops", "--key", "none")

    assert said == "surehand: 'ana' has no key none"
    assert office.shown("ana")[0]["roles"] == ["ops"]


def test_somebody_who_is_there_is_not_added_again(office: Office) -> None:
    office.done("add", "ana")

    said = office.refused("add", "ana", "--role", "ops")

    assert "there is a principal 'ana' already: use `principal grant`" in said


@pytest.mark.parametrize("verb", ["grant", "revoke", "list"])
def test_an_unknown_principal_is_named_and_not_made(office: Office, verb: str) -> None:
    options = [] if verb == "list" else ["--role", "ops"]

    assert office.refused(verb, "ana", *options).startswith("surehand: there is no principal 'ana'")
    assert office.shown() == []


# Keys
@both
def test_somebody_elses_key_is_refused_and_nobody_is_added(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--key", file)

    said = office.refused("add", "bob", "--role", "ops", "--key", file)

    assert f"key {kid} belongs to 'ana'" in said
    assert [one["name"] for one in office.shown()] == ["ana"]
    office.done("add", "bob")
    assert "belongs to 'ana'" in office.refused("grant", "bob", "--key", file)
    assert "'bob' has no key" in office.refused("revoke", "bob", "--key", kid)


@both
def test_a_revoked_key_cannot_come_back(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--key", file)
    office.done("revoke", "ana", "--key", kid)

    assert "was revoked" in office.refused("grant", "ana", "--key", file)
    assert "belongs to 'ana'" in office.refused("add", "bob", "--key", file)
    assert office.shown("ana")[0]["keys"] == []


@pytest.mark.parametrize("verb", [["add", "bob", "--key"], ["grant", "ana", "--key"]])
def test_a_private_key_is_refused_and_nothing_is_written(office: Office, verb: list[str]) -> None:
    office.done("add", "ana")
    _, public = office.keys("bob")
    private = public.removesuffix(".pub")

    said = office.refused(*verb, private)

    assert said.startswith(f"surehand: public key {private}: it is a private key")
    assert [one["name"] for one in office.shown()] == ["ana"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "neither one public key in PEM nor a JWK"),
        (b"\xff\xfe", "neither PEM nor a JWK"),
        (b'{"kty": "RSA"}', "Ed25519"),
        (b"{" + b" " * 20_000, "too large"),
    ],
    ids=["empty", "bytes", "another kind", "large"],
)
def test_a_file_without_public_key_is_refused(office: Office, content: bytes, says: str) -> None:
    office.done("add", "ana")
    file = office.folder / "ana.pub"
    file.write_bytes(content)

    assert says in office.refused("grant", "ana", "--key", str(file))
    assert "Is a directory" in office.refused("grant", "ana", "--key", str(office.folder))


@both
def test_a_passkey_is_registered_by_the_file_of_a_page_and_shown_as_one(office: Office) -> None:
    passkey, kid = Authenticator(), office.keys("ana")[0]
    file = office.folder / "passkey.json"
    file.write_text(json.dumps(passkey.file))
    office.done("add", "ana", "--key", str(office.folder / "ana.pem.pub"))

    told = office.done("grant", "ana", "--key", str(file))

    assert told.out.splitlines() == [f"ana: key {passkey.kid} granted"]
    assert office.shown("ana")[0]["passkeys"] == [passkey.kid]
    assert sorted(office.shown("ana")[0]["keys"]) == sorted([kid, passkey.kid])
    assert f"{passkey.kid} (passkey)" in office.done("list").out
    [row] = [one for one in office.rows()["principal_keys"] if one["kid"] == passkey.kid]
    assert row["public_key"] == passkey.jwk
    assert row["passkey"] == {
        "credential_id": passkey.file["credential_id"], "rp_id": passkey.rp_id,
        "device_bound": False,
    }  # fmt: skip
    assert "nothing changed" in office.done("grant", "ana", "--key", str(file)).out


def test_a_key_is_not_registered_as_a_passkey_s_as_well(office: Office) -> None:
    kid, public = office.keys("ana")
    office.done("add", "ana", "--key", public)
    jwk = json.loads(Path(public).read_text())
    file = office.folder / "passkey.json"
    file.write_text(json.dumps({**Authenticator().file, "public_key": jwk}))

    assert f"key {kid} is registered as another kind of key" in office.refused(
        "grant", "ana", "--key", str(file)
    )


def test_a_pem_key_is_taken_and_revoked_by_a_dashed_id(office: Office) -> None:
    kid, pem = "", b""
    while not kid.startswith("-"):  # one of 64 does
        made = Ed25519PrivateKey.generate().public_key()
        pem = made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        kid = kid_of(read_public_key(pem.decode()))
    file = office.folder / "ana.pub"
    file.write_bytes(pem)
    office.done("add", "ana", "--key", str(file))
    assert office.shown("ana")[0]["keys"] == [kid]

    office.done("revoke", "ana", "--key", kid)

    assert office.shown("ana")[0]["keys"] == []


# Names
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ana ", "no blanks before or after"),
        ("\u00a0ana", "no blanks before or after"),
        ("", "1 to 200 characters"),
        ("a" * 201, "1 to 200 characters"),
        ("a\u001bna", "no control characters"),
        ("an\u200ba", "cannot be seen"),
        ("an\u202ea", "cannot be seen"),
        ("Jose\u0301", "NFC-normalised, use this spelling of it: 'Jos\u00e9'"),
    ],
)
def test_lookalike_names_are_refused(office: Office, name: str, says: str) -> None:
    for verb in (["add"], ["grant", "--role=ops"], ["revoke", "--role=ops"], ["list"]):
        assert says in office.refused(*verb, name)
    assert office.rows()["principals"] == []


@pytest.mark.parametrize("name", ["Jos\u00e9 Pérez <jose@example.com>", "a" * 200, "\u674e\u96f7"])
def test_any_other_name_is_taken_as_it_is(office: Office, name: str) -> None:
    office.done("add", name)

    assert [one["name"] for one in office.shown()] == [name]


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("--role", ""),
        ("--role", "a b"),
        ("--permission", "ops\n"),
        ("--role", "x" * 81),
        ("--permission", "\u00e9"),
    ],
)
def test_an_unusable_role_is_refused(office: Office, option: str, what: str) -> None:
    office.done("add", "ana")

    for verb in ("grant", "revoke"):
        assert "use 1 to 80 letters" in office.refused(verb, "ana", option, what)
    assert "use 1 to 80 letters" in office.refused("add", "bob", option, what)


# Who may change principals, and who did
@postgresql
def test_a_workers_url_changes_nothing_and_may_look(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--role", "ops", "--key", file)
    _, another = office.keys("another")
    url = make_url(office.url).set(username=WORKER).render_as_string(hide_password=False)

    for command in (
        ["add", "bob"],
        ["grant", "ana", "--role", "admin"],
        ["grant", "ana", "--permission", "refunds.make"],
        ["revoke", "ana", "--role", "ops"],
        ["revoke", "ana", "--key", kid],
        ["grant", "ana", "--key", another],
    ):
        said = office.refused(*command, SUREHAND_DATABASE_URL=url)
        assert said == (
            f"surehand: permission denied: database role '{WORKER}' may not change principals,"
            " standing approvals, quotas, halts, keys of runs, epochs or a tenant's cell; name the"
            " role that owns the ledger's tables in SUREHAND_DATABASE_URL"
        )

    assert "ana" in office.done("list", SUREHAND_DATABASE_URL=url).out
    assert "role_granted" in office.done("list", "--history", SUREHAND_DATABASE_URL=url).out


@both
def test_the_history_says_who_changed_what_and_in_which_order(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--role", "ops", "--as", "zoe")
    office.done("add", "bob")
    office.done("grant", "ana", "--key", file)
    office.done("grant", "ana", "--permission", "refunds.make", SUREHAND_USER="max")
    office.done("grant", "ana", "--role", "ops")  # has it: nothing to note
    office.done("revoke", "ana", "--role", "ops")

    assert office.history("ana") == [
        ("added", "", "zoe"),
        ("role_granted", "ops", "zoe"),
        ("key_added", kid, "root"),
        ("permission_granted", "refunds.make", "max"),
        ("role_revoked", "ops", "root"),
    ]
    assert len(office.history()) == 6
    lines = office.done("list", "ana", "--history").out.splitlines()
    assert lines[0].split() == ["AT", "PRINCIPAL", "CHANGE", "WHAT", "BY"]
    assert lines[2].split()[-4:] == ["ana", "role_granted", "ops", "zoe"]


@both
def test_another_tenants_principals_are_others(office: Office) -> None:
    kid, file = office.keys("ana")
    office.done("add", "ana", "--role", "ops", "--key", file)
    theirs = office.rows()

    office.done("add", "ana", "--key", file, "--tenant", "acme")
    office.done("revoke", "ana", "--key", kid, "--tenant", "acme")

    assert office.shown("--tenant", "acme") == [
        {"name": "ana", "roles": [], "permissions": [], "keys": [], "passkeys": []}
    ]
    assert len(office.history("--tenant", "acme")) == 3
    assert office.rows() == theirs


# In a process of its own
@pytest.fixture
def approver(tmp_path: Path) -> Starter:
    """Somebody with no database."""
    return Starter({"SUREHAND_USER": "ana lopez"}, tmp_path)


def test_a_new_key_prints_its_registration(approver: Starter, office: Office) -> None:
    office.done("add", "ana lopez", "--tenant", "acme")

    made = approver("principal", "keygen", "ana.pem", "--tenant", "acme")

    file = approver.folder / "ana.pem"
    kid = kid_of(read_public_key((approver.folder / "ana.pem.pub").read_text()))
    assert made.code == 0, made
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made.out.startswith(f"Key {kid}: ")
    _, starter, *arguments = shlex.split(made.out.splitlines()[-1])
    assert starter.endswith("starter.py")
    assert office.verbs(*arguments).out == f"ana lopez: key {kid} granted\n"


def test_no_key_is_made_for_a_name_that_cannot_be_registered(approver: Starter) -> None:
    ended = approver("principal", "keygen", "ana.pem", "--as", "ana ")

    assert ended.code == 2
    assert "no blanks" in ended.line()
    assert list(approver.folder.glob("ana*")) == []


@pytest.mark.slow
def test_a_public_key_is_read_from_stdin(office: Office) -> None:
    kid, file = office.keys("ana")
    starter = Starter({"SUREHAND_DATABASE_URL": office.url}, office.folder)

    with open(file, "rb") as stdin:
        ended = subprocess.run(
            starter.command("principal", "add", "ana", "--key", "-", "--as", "root"),
            env=starter.environment,
            cwd=starter.folder,
            stdin=stdin,
            capture_output=True,
            text=True,
        )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert office.shown("ana")[0]["keys"] == [kid]
    empty = starter("principal", "grant", "ana", "--key", "-")
    assert empty.code == 2
    assert "public key -: it is neither" in empty.line()


class QuotaOffice(LedgerOffice):
    """``quota`` at a ledger of its own."""

    group = "quota"
    tables = (quotas,)

    def limits(self, *arguments: str) -> dict[str, str | None]:
        shown = TenantQuotas.model_validate(self.done("show", "--json", *arguments).document())
        return {one.quota: one.limit for one in shown.uses}


@pytest.fixture
def quota_office(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuotaOffice:
    return QuotaOffice.opened(ledger_url, tmp_path, monkeypatch, SUREHAND_USER="root")


def test_what_is_set_is_shown_and_what_is_not_named_stays(quota_office: QuotaOffice) -> None:
    quota_office.done("set", "--open-runs", "5", "--effects-per-hour", "100", "--weight", "2")
    quota_office.done("set", "--money-per-day", "12.50", "--open-runs", "none", "--over", "reject")

    assert quota_office.limits() == {
        "open_runs": None,
        "effects_per_hour": "100",
        "pending_approvals": None,
        "tokens_per_day": None,
        "money_per_day": "12.50",
    }
    [row] = quota_office.rows()["quotas"]
    assert (row["over"], row["weight"], row["set_by"]) == ("reject", 2.0, "root")
    told = quota_office.done("show").out
    assert "effects_per_hour" in told and "0 runs in the queue" in told
    assert set(quota_office.limits("--tenant", "acme").values()) == {None}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "nothing is set: name a quota, --over or --weight"),
        (("--open-runs", "-1"), "--open-runs '-1': use a whole number of at most"),
        (("--effects-per-hour", "1.5"), "--effects-per-hour '1.5': use a whole number"),
        (("--tokens-per-day", "9" * 19), "use a whole number of at most 1000000000000000000"),
        (("--money-per-day", "NaN"), "--money-per-day 'NaN': use a decimal of at most"),
        (("--money-per-day", "9000000000.1"), "use a decimal of at most 9000000000"),
        (("--over", "wait"), "'wait' is not one of 'queue', 'reject'"),
        (("--weight", "0"), "--weight 0: use 0.001 to 1000"),
        (("--weight", "nan"), "--weight nan: use 0.001 to 1000"),
    ],
)
def test_what_is_no_quota_is_refused_in_one_line(
    quota_office: QuotaOffice, arguments: tuple[str, ...], why: str
) -> None:
    assert why in quota_office.refused("set", *arguments)
