"""``quota``: what a tenant may use; each command is done in full or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from surehand.activities.ledger.core.statements import rows_of
from surehand.activities.ledger.core.store import open_ledger
from surehand.activities.ledger.core.tables import quotas
from surehand.cli.tenants import QuotaShown
from surehand.workflows.identity import DEFAULT_TENANT
from tests.cli.office import LedgerOffice
from tests.ledger_databases import DATABASES, WORKER


class Office(LedgerOffice):
    """``quota`` at a ledger of its own."""

    group = "quota"

    def rows(self, tenant: str = DEFAULT_TENANT) -> list[dict[str, Any]]:
        async def read() -> list[dict[str, Any]]:
            async with open_ledger(self.url) as ledger:
                with ledger.transaction(tenant) as tx:
                    return tx.all(rows_of(quotas))

        return asyncio.run(read())

    def limits(self, *arguments: str) -> dict[str, str | None]:
        shown = QuotaShown.model_validate(self.done("show", "--json", *arguments).document())
        return {one.quota: one.limit for one in shown.quotas}


@pytest.fixture
def office(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office.opened(ledger_url, tmp_path, monkeypatch, SUREHAND_USER="root")


def test_what_is_set_is_shown_and_what_is_not_named_stays(office: Office) -> None:
    office.done("set", "--open-runs", "5", "--effects-per-hour", "100", "--weight", "2")
    office.done("set", "--money-per-day", "12.50", "--open-runs", "none", "--over", "reject")

    assert office.limits() == {
        "open_runs": None,
        "effects_per_hour": "100",
        "pending_approvals": None,
        "tokens_per_day": None,
        "money_per_day": "12.50",
    }
    [row] = office.rows()
    assert (row["over"], row["weight"], row["set_by"]) == ("reject", 2.0, "root")
    told = office.done("show").out
    assert "effects_per_hour" in told and "0 runs in the queue" in told
    assert set(office.limits("--tenant", "acme").values()) == {None}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "nothing is set: name a quota, --over or --weight"),
        (("--open-runs", "-1"), "--open-runs '-1': use a whole number of at most"),
        (("--effects-per-hour", "1.5"), "--effects-per-hour '1.5': use a whole number"),
        (("--tokens-per-day", "9" * 19), "use a whole number of at most 1000000000000000000"),
        (("--money-per-day", "NaN"), "--money-per-day 'NaN': use a decimal of at most"),
        (("--money-per-day", "9000000000.1"), "use a decimal of at most 9000000000"),
        (("--over", "wait"), "--over 'wait': use queue or reject"),
        (("--weight", "0"), "--weight 0: use 0.001 to 1000"),
        (("--weight", "nan"), "--weight nan: use 0.001 to 1000"),
    ],
)
def test_what_is_no_quota_is_refused_in_one_line(
    office: Office, arguments: tuple[str, ...], why: str
) -> None:
    assert why in office.refused("set", *arguments)


@pytest.mark.parametrize("database", DATABASES[1:])
def test_a_worker_may_not_raise_its_tenants_quota(office: Office) -> None:
    office.done("set", "--effects-per-hour", "1")
    url = make_url(office.url).set(username=WORKER).render_as_string(hide_password=False)

    said = office.refused("set", "--effects-per-hour", "1000", SUREHAND_DATABASE_URL=url)
    assert said.startswith(f"surehand: permission denied: database role '{WORKER}' may not change")
