"""What a run's page is told of an effect in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from surehand.activities.ledger.history.doubts import Doubt, EntryEvent
from surehand.cli.approvals_server.runs import doubted
from surehand.workflows.contracts.states import Waiting

ASKED: Final = Waiting(kind="intervention", id="iv-1", step_id="refund", question="Did it happen?")
KNOWN: Final = Doubt(
    run_id="run-1",
    tool="payments.refund",
    key="refund:order-7",
    provider_key="sh-abc",
    entry_id="ef-1",
    generation=2,
    state="in_doubt",
    calls=3,
    called_ms=0,
    error="connection lost",
    part=None,
    told=(EntryEvent("effect.in_doubt", 1000, "lease_over", "its lease ran out", "reconcile"),),
    outcomes=("happened", "call_off"),
    later=("call_off",),
    left_ms=5000,
)


def test_the_evidence_is_told_in_words_with_what_each_of_it_is() -> None:
    told = doubted(ASKED, KNOWN, "run-1")

    evidence = dict(told["evidence"])
    assert evidence["Key of the effect"] == "refund:order-7 (generation 2)"
    assert evidence["Key that the outside system was given"] == "sh-abc"
    assert evidence["Calls"] == "3, the first one at 1970-01-01 00:00:00Z"
    assert evidence["What the newest call has ended with"] == "connection lost"
    said = evidence["1970-01-01 00:00:01Z"]
    assert said == "It came to be in doubt (lease_over): its lease ran out"
    assert (told["text"], told["elsewhere"]) == ("Did it happen?", None)
    assert told["outcomes"] == ("happened", "call_off")
    assert told["later"] == {"outcomes": ("call_off",), "left_ms": 5000}


def test_what_happened_in_part_is_told_as_json_text_whatever_numbers_it_has() -> None:
    told = doubted(ASKED, replace(KNOWN, part={"id": 2**60, "to": "Zoë"}), "run-1")
    assert told["part"] == '{"id": 1152921504606846976, "to": "Zoë"}'


def test_keys_of_secret_params_are_not_told() -> None:
    told = doubted(ASKED, replace(KNOWN, key=None), "run-1")
    assert "Key of the effect" not in dict(told["evidence"])


def test_what_another_run_settles_names_that_run_and_offers_nothing() -> None:
    told = doubted(ASKED, replace(KNOWN, outcomes=(), later=(), left_ms=0), "run-above")
    assert (told["elsewhere"], told["outcomes"], told["later"]) == ("run-1", (), None)


def test_of_what_the_ledger_does_not_know_only_the_text_is_told() -> None:
    told = doubted(ASKED, None, "run-1")
    assert (told["text"], told["evidence"], told["outcomes"]) == ("Did it happen?", [], [])
