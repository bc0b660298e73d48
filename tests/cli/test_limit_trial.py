"""``limits try``: what a file would have stopped is told from the ledger alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from surehand.activities.ledger.core.store import open_ledger
from surehand.cli.limit_trial import LimitsTried
from tests.cli.office import LedgerOffice
from tests.ledger.scene import Scene
from tests.ledger_databases import DATABASES

TOOL = "payments.refund"
LIMIT = {
    "name": "refunds",
    "tools": [TOOL],
    "per": ["order_id"],
    "total_of": "amount",
    "most": "50.00",
    "within": "1d",
}


CHAIN = {"total_of": None, "most": None, "per": [], "run_at_most": "undoable"}
CHAINED = {"name": "chain", "tools": [TOOL], "run_at_most": "read"}
ORDER = {"total_of": None, "most": None, "after": {"tool": "mail.send", "by_other": True}}


class Office(LedgerOffice):
    """``limits`` at a ledger of its own, with the shop's tools."""

    group = "limits"

    def file(self, *limits: dict[str, Any]) -> str:
        path = self.folder / "limits.yaml"
        path.write_text(yaml.safe_dump({"limits": list(limits)}))
        return str(path)

    def made(self, *calls: tuple[str, str]) -> None:
        """Have refunds made: of an order, an amount."""

        async def make() -> None:
            async with open_ledger(self.url) as ledger:
                scene = Scene(ledger, "default")
                scene.open_run("run-1")
                for number, (order, amount) in enumerate(calls):
                    params = {"order_id": order, "amount": amount, "currency": "EUR"}
                    name = f"s-{number}"
                    scene.committed(scene.call(step_id=name, key=name, params=params))

        asyncio.run(make())


@pytest.fixture
def office(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    tools = {"SUREHAND_TOOL_MODULES": "surehand.examples.shop.tools"}
    return Office.opened(ledger_url, tmp_path, monkeypatch, **tools)


@pytest.mark.parametrize("database", DATABASES)
def test_a_file_is_tried_on_what_was_done_before(office: Office) -> None:
    office.made(("o-1", "30.00"), ("o-2", "50.00"), ("o-1", "20.01"), ("o-1", "20.00"))
    asks = {**LIMIT, "name": "asks", "ask": {"roles": ["finance"]}}
    file = office.file(LIMIT, asks)
    tried = LimitsTried.model_validate(office.done("try", file, "--json").document())

    refuses, asks_ = tried.limits
    # A refused refund leaves room for the next one; one that is let through does not.
    assert (refuses.calls, refuses.over, [one.step_id for one in refuses.newest]) == (4, 1, ["s-2"])
    assert (asks_.over, [one.used for one in asks_.newest]) == (2, ["30", "50.01"])
    text = office.done("try", file).out
    assert "1 refused" in text and "2 asked about" in text
    assert "refunds: payments.refund of run-1 s-2, 30 used before it" in text


@pytest.mark.parametrize("database", DATABASES)
def test_a_limit_of_order_is_tried_by_who_stands_behind_what_came_before(office: Office) -> None:
    async def make() -> None:
        async with open_ledger(office.url) as ledger:
            scene = Scene(ledger, "default")
            for run_id, user in (("run-1", "ada"), ("run-2", "eve")):
                scene.open_run(run_id, user=user)

            def made(name: str, order: str, tool: str = TOOL, run_id: str = "run-1") -> None:
                params = {"order_id": order, "amount": "5.00", "currency": "EUR"}
                if tool == "mail.send":
                    params = {"order_id": order, "kind": name, "to": "a@b.example"}
                    params |= {"subject": "checked", "body": "by a person"}
                call = {"step_id": name, "key": name, "params": params, "tool": tool}
                scene.committed(scene.call(run_id=run_id, **call))

            made("too-early", "o-1")
            made("check", "o-1", "mail.send", "run-2")
            made("checked", "o-1")
            made("own-check", "o-2", "mail.send")
            made("by-nobody-else", "o-2")

    asyncio.run(make())
    tried = LimitsTried.model_validate(
        office.done("try", office.file({**LIMIT, **ORDER}), "--json").document()
    )
    [order] = tried.limits
    chain = LimitsTried.model_validate(
        office.done("try", office.file(CHAINED), "--json").document()
    ).limits[0]
    # Of each run the first one comes before nothing.
    assert [one.step_id for one in chain.newest] == ["checked", "by-nobody-else"]
    assert (order.calls, tried.unread) == (3, 0)
    assert [one.step_id for one in order.newest] == ["too-early", "by-nobody-else"]


@pytest.mark.parametrize("database", DATABASES[:1])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tools": ["no.tool"]}, "refunds: no.tool: it is not loaded here (SUREHAND_TOOL_M"),
        ({"tools": ["payments.refnd"]}, "did you mean 'payments.refund'? (SUREHAND_TOOL_MODULES"),
        ({"tools": ["orders.read"]}, "refunds: orders.read: it only reads"),
        ({"per": ["customer"]}, "it has no param customer; there are order_id"),
        ({"most": -5}, 'limits.0 (refunds).most: must be a number such as "12.50", not negative'),
        ({"within": "0s"}, "limits.0 (refunds).within: "),
        (
            {"after": {"tool": "mail.send"}},
            "limits.0 (refunds): say one of most, after and run_at_most",
        ),
        ({"name": None}, "limits.0 (None).name: must be text"),
        ({"most": None}, "limits.0 (refunds): say one of most, after and run_at_most"),
        ({**ORDER, "after": {"tool": TOOL}}, "limits.0 (refunds): after: it adds nothing up"),
        ({**ORDER, "after": {"tool": "orders.read"}}, "orders.read: it only reads"),
        ({**ORDER, "per": ["amount"]}, "mail.send: it has no param amount"),
        ({"withn": "1d"}, "limits.0 (refunds).withn: unknown field; did you mean 'within'?"),
        (
            {**ORDER, "after": {"tool": "mail.send", "by_others": True}},
            "unknown field; did you mean 'by_other'?",
        ),
        ({**CHAIN}, "limits.0 (refunds): run_at_most: it is about runs, so without per, total_of"),
        ({**CHAIN, "per": ["order_id"]}, "limits.0 (refunds): run_at_most: it is about runs"),
        (
            {"ask": {"rules": [{"when": "amount < 5", "required": False}]}},
            "limits.0 (refunds).ask: a rule cannot let pass what is over a limit",
        ),
        (
            {"ask": {"rules": [{"when": "amounts < 5", "quorum": 2}]}},
            "refunds: payments.refund: ask: ",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    office: Office, change: dict[str, Any], said: str
) -> None:
    line = office.refused("try", office.file({**LIMIT, **change}))
    assert f"limits file {office.folder}/limits.yaml: " in line and said in line


@pytest.mark.parametrize("database", DATABASES[:1])
def test_without_limits_or_calls_it_says_what_to_do(office: Office) -> None:
    assert "it names no limits: list at least one" in office.refused("try", office.file())
    assert "look further back with --since" in office.done("try", office.file(LIMIT)).out


@pytest.mark.parametrize("database", DATABASES[:1])
def test_two_limits_of_one_name_and_no_file_are_one_line(office: Office) -> None:
    assert "two limits are called refunds" in office.refused("try", office.file(LIMIT, LIMIT))
    unbound = {name: value for name, value in LIMIT.items() if name != "within"}
    line = office.refused("try", office.file({**LIMIT, "name": "mails"}, unbound))
    assert "limits.1 (refunds): most and after need within" in line
    assert "none.yaml" in office.refused("try", "none.yaml")
