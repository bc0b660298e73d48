"""``standing``: what people approve in advance, each command done in full or not at all."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from surehand.activities.ledger.core.tables import standing_approvals
from surehand.cli.people import StandingChanged, StandingList, StandingShown, parse_until
from surehand.client.messages import new_key
from surehand.process.exits import WrongUse
from surehand.workflows.identity import DEFAULT_TENANT
from tests.cli.office import LedgerOffice
from tests.ledger_databases import DATABASES

both = pytest.mark.parametrize("database", DATABASES)
TOOL = ("--tool", "payments.refund")


class Office(LedgerOffice):
    """``standing`` at a ledger of its own, with the shop's tools."""

    group = "standing"
    tables = (standing_approvals,)

    def granted(self, *arguments: str, **settings: str) -> StandingShown:
        ended = self.done("grant", *TOOL, "--until", "30d", "--json", *arguments, **settings)
        return StandingChanged.model_validate(ended.document()).standing

    def listed(self) -> list[StandingShown]:
        return StandingList.model_validate(self.done("list", "--json").document()).standing

    def key(self, name: str) -> str:
        file = self.folder / f"{name}.pem"
        new_key(file)
        ended = self.verbs("principal", "add", name, "--key", f"{file}.pub", SUREHAND_USER="root")
        assert ended.code == 0, ended
        return str(file)


@pytest.fixture
def office(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office.opened(
        ledger_url,
        tmp_path,
        monkeypatch,
        SUREHAND_TOOL_MODULES="surehand.examples.shop.tools",
        SUREHAND_USER="ann",
        SHOP_URL="http://127.0.0.1:1",
    )


@both
def test_a_grant_is_listed_until_it_is_revoked(office: Office) -> None:
    key = office.key("ann")
    one = office.granted(
        "--when", "amount <= 50", "--count", "20", "--total", "amount=500.00",
        "--reason", "small refunds", "--key", key,
    )  # fmt: skip

    [listed] = office.listed()
    assert listed == one
    assert (one.granter, one.scope.tool, one.scope.version) == ("ann", "payments.refund", "1")
    assert (one.scope.when, one.scope.count, one.uses_left) == ("amount <= 50", 20, 20)
    assert (one.scope.total_of, one.scope.total, one.total_left) == ("amount", "500.00", "500.00")
    assert (one.signed, one.state, one.reason) == (True, "active", "small refunds")
    assert 29 * 86400 < one.scope.until - time.time() <= 30 * 86400
    table = office.done("list").out
    for text in (one.standing_id, "20 of 20", "500.00 of 500.00 amount", "active"):
        assert text in table

    said = office.done("revoke", one.standing_id, "--as", "root").out
    assert said == f"ann's standing approval {one.standing_id}: revoked\n"
    [listed] = office.listed()
    assert (listed.state, listed.revoked_by) == ("revoked", "root")
    again = office.done("revoke", one.standing_id, "--json").document()
    assert StandingChanged.model_validate(again).changed is False


def test_an_unsigned_grant_is_marked_and_refused_where_signatures_count(office: Office) -> None:
    assert "(unverified)" in office.done("grant", *TOOL, "--until", "1d").out
    strict = {"SUREHAND_DECISIONS": "signed"}

    said = office.refused("grant", *TOOL, "--until", "1d", **strict)

    assert said == "surehand: only signed standing approvals count here: name your --key"
    assert "worthless: it is not signed" in office.done("list", **strict).out
    assert office.listed()[0].state == "active"


def test_an_administrator_adds_a_printed_grant_once(office: Office) -> None:
    key = office.key("ann")
    printed = office.done(
        "grant", *TOOL, "--until", "1d", "--key", key, "--print", SUREHAND_DATABASE_URL=""
    )
    assert office.rows()["standing_approvals"] == []
    file = office.folder / "grant.json"
    file.write_text(printed.out)

    added = office.done("add", str(file), "--json", "--tenant", DEFAULT_TENANT).document()

    one = StandingChanged.model_validate(added).standing
    assert (one.granter, one.signed, one.state) == ("ann", True, "active")
    assert office.refused("add", str(file)).endswith("this signature has counted already")
    wider = json.loads(printed.out)
    wider["scope"]["until"] += 1
    file.write_text(json.dumps(wider))
    assert office.refused("add", str(file)).endswith("its signature is for something else")


@pytest.mark.parametrize("content", ["", "{}", "[]", "nothing", '{"granter": "ann"}', "x" * 20_000])
def test_what_is_no_grant_is_refused_in_one_line(office: Office, content: str) -> None:
    file = office.folder / "grant.json"
    file.write_text(content)

    assert office.refused("add", str(file)).startswith(f"surehand: grant {file}: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tool", "payments.refnd", "--until", "1d"], "not among the tools named here: inv"),
        (["--tool", "orders.read", "--until", "1d"], "orders.read: it only reads"),
        ([*TOOL, "--until", "1d", "--when", "amont < 5"], "no param amont; there are order_id"),
        ([*TOOL, "--until", "1d", "--when", "amount <"], "invalid syntax"),
        ([*TOOL, "--until", "1d", "--when", "len(reason) < 5"], "calls no functions"),
        ([*TOOL, "--until", "1d", "--when", ""], "at least 1 character"),
        ([*TOOL, "--until", "1d", "--total", "amount"], "such as amount=500"),
        ([*TOOL, "--until", "1d", "--total", "amount=1e9"], "such as amount=500"),
        ([*TOOL, "--until", "1d", "--total", "amount=-5"], "such as amount=500"),
        ([*TOOL, "--until", "1d", "--total", "amount=05"], "such as amount=500"),
        ([*TOOL, "--until", "1d", "--total", "cost=5"], "no param cost; there are order_id"),
        ([*TOOL, "--until", "1d", "--key", "none.pem"], "key file none.pem: there is no such file"),
        ([*TOOL, "--until", "1d", "--reason", "x" * 1001], "--reason: at most 1000 characters"),
        ([*TOOL, "--until", "1d", "--as", " ann"], "no blanks before or after it"),
    ],
)  # fmt: skip
def test_a_scope_for_no_call_is_refused(office: Office, arguments: list[str], said: str) -> None:
    assert said in office.refused("grant", *arguments)


def test_it_counts_in_its_tenant_and_the_line_that_revokes_it_names_that(office: Office) -> None:
    told = office.done("grant", *TOOL, "--until", "1d", "--tenant", "acme").out

    line = told.strip().splitlines()[-1]
    assert line.endswith(" --tenant acme")
    assert office.listed() == []
    assert "revoked" in office.done(*line.split()[3:]).out


def test_a_key_that_is_not_the_granters_grants_nothing(office: Office) -> None:
    bobs = office.key("bob")

    said = office.refused("grant", *TOOL, "--until", "1d", "--key", bobs)

    assert "would count for nothing: ann has no key" in said


def test_what_is_not_there_is_not_revoked(office: Office) -> None:
    assert office.refused("revoke", "SA-1").endswith("there is no standing approval 'SA-1'")


NOON = datetime(2026, 11, 21, 12, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("30d", NOON + timedelta(days=30)),
        ("12h", NOON + timedelta(hours=12)),
        ("2026-11-21T13:00+00:00", datetime(2026, 11, 21, 13, tzinfo=UTC)),
    ],
)
def test_until_is_a_time_from_now_or_a_time(text: str, until: datetime) -> None:
    assert parse_until(text, NOON) == until


@pytest.mark.parametrize(
    "text", ["", "0d", "d", "2026-11-21", "2026-11-21T13:00", "2026-11-21T11:59+02:00",
             "2026-02-30", "tomorrow", "4000d", "9999-12-31T00:00:00Z", f"{'9' * 30}d"],
)  # fmt: skip
def test_until_is_refused_when_it_is_over_too_far_ahead_or_no_time(text: str) -> None:
    with pytest.raises(WrongUse, match=r"^--until"):
        parse_until(text, NOON)
