"""``halt``, ``lift`` and ``halts``: they need the ledger alone, no server and no worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import make_url

from surehand.activities.ledger.core.store import Ledger, open_ledger
from surehand.activities.ledger.core.tables import halts
from surehand.cli.halt_calls import HaltList, HaltShown
from surehand.workflows.identity import DEFAULT_TENANT
from tests.cli.office import LedgerOffice
from tests.ledger.people import key_of, person
from tests.ledger.scene import Scene
from tests.ledger_databases import DATABASES, WORKER

both = pytest.mark.parametrize("database", DATABASES)
REASON = "it pays twice"
PEM = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Office(LedgerOffice):
    """The three verbs at a ledger of its own."""

    group = "halt"
    tables = (halts,)

    @contextmanager
    def scene(self) -> Iterator[Scene]:
        async def opened() -> Ledger:
            return await open_ledger(self.url).__aenter__()

        ledger = asyncio.run(opened())
        try:
            yield Scene(ledger, DEFAULT_TENANT)
        finally:
            ledger.close()

    def say(self, *arguments: str, **settings: str) -> Any:
        return self.verbs(*arguments, **settings)


@pytest.fixture
def office(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office.opened(ledger_url, tmp_path, monkeypatch, SUREHAND_USER="oscar")


@both
def test_calls_are_halted_shown_and_let_begin_again(office: Office) -> None:
    with office.scene() as scene:
        scene.open_run("run-1")
        entry = scene.claimed(scene.call())
        ended = office.say("halt", "--reason", REASON, "--tool", "payments.refund", "--json")
        assert ended.code == 0, ended
        made = HaltShown.model_validate(ended.document())
        assert (made.halt.halted_by, made.halt.reason) == ("oscar", REASON)
        assert [one.entry_id for one in made.under_way] == [entry.entry_id]

        text = office.say("halts").out
        assert f"{made.halt.halt_id}: calls of payments.refund, by oscar" in text
        assert "1 write has no outcome yet:" in text
        assert "knows no" not in ended.err
        assert f"lift {made.halt.halt_id}" in text

        lifted = office.say("lift", made.halt.halt_id)
        assert lifted.code == 0, lifted
        assert office.say("halts").out.strip() == "No calls are halted."
        listed = HaltList.model_validate(office.say("halts", "--all", "--json").document())
        assert [one.halt.lifted_by for one in listed.halts] == ["oscar"]


@both
def test_whoever_follows_hears_how_each_call_has_ended(office: Office) -> None:
    with office.scene() as scene:
        scene.open_run("run-1")
        call, other = scene.call(), scene.call(key="other", step_id="other")
        entry, doubt = scene.claimed(call), scene.in_doubt(other)

        def settle() -> None:
            while not scene.rows(halts):
                pass
            scene.commit(call, entry)

        settling = threading.Thread(target=settle)
        settling.start()
        ended = office.say("halt", "--reason", REASON, "--follow")
        settling.join()

    assert ended.code == 0, ended
    assert f"payments.refund {entry.key}: it happened" in ended.out
    assert f"payments.refund {doubt.key}: unknown" in ended.out
    assert ended.out.strip().endswith("No write is under way.")


def test_nearly_the_name_of_a_tool_of_this_folder_is_refused_and_halts_nothing(
    office: Office,
) -> None:
    asked = ("halt", "--reason", REASON, "--tool", "payment.refund")
    ended = office.say(*asked, SUREHAND_TOOL_MODULES="surehand.examples.shop.tools")
    assert ended.code == 2, ended
    assert "nothing is halted: there is no tool 'payment.refund' here; did you mean" in ended.line()
    assert office.rows()["halts"] == []

    assert office.say(*asked, SUREHAND_TOOL_MODULES="not_there").code == 0, "no tools stop a halt"
    with office.scene() as scene:
        scene.open_run("run-1")
        scene.claimed(scene.call(tool="payments.refunds"))
    called = ("halt", "--reason", REASON, "--tool", "payments.refunds")
    ended = office.say(*called, SUREHAND_TOOL_MODULES="surehand.examples.shop.tools")
    assert (ended.code, len(office.rows()["halts"])) == (0, 2), "others have called it"


@both
def test_a_scope_of_which_nothing_is_recorded_may_be_misspelt(office: Office) -> None:
    ended = office.say("halt", "--reason", REASON, "--tool", "payment.refund", "--run", "run-7")
    assert ended.code == 0, ended
    assert "the ledger knows no run run-7: is that how it is written?" in ended.err
    assert "the ledger knows no call of payment.refund: is that how it is written?" in ended.err
    assert len(office.rows()["halts"]) == 1


def test_what_cannot_be_halted_or_lifted_is_one_line(office: Office) -> None:
    assert "--reason is empty" in office.say("halt", "--reason", " ").line()
    for wrong in ("", "x" * 121):  # as of a variable of a shell that is not set
        ended = office.say("halt", "--reason", REASON, "--tool", wrong)
        assert "--tool: a tool's name has 1 to 120 characters" in ended.line()
    assert "there is no halt 'none'" in office.say("lift", "none").line()
    assert "Missing option '--reason'" in office.say("halt").line()
    assert office.rows()["halts"] == []


@pytest.mark.parametrize("database", DATABASES[1:])
def test_a_worker_may_halt_and_not_lift(office: Office) -> None:
    worker = make_url(office.url).set(username=WORKER).render_as_string(hide_password=False)
    made = office.say("halt", "--reason", REASON, "--json", SUREHAND_DATABASE_URL=worker)
    assert made.code == 0, made
    halt_id = made.document()["halt"]["halt_id"]
    refused = office.say("lift", halt_id, SUREHAND_DATABASE_URL=worker)

    assert refused.code == 2
    assert "permission denied" in refused.line()
    [row] = office.rows()["halts"]
    assert row["lifted_ms"] is None


POLICY = """
halts:
  may_halt: [operator]
  lift: {roles: [operator], quorum: 2, proof: signed}
"""


@both
def test_a_file_says_who_halts_and_who_lifts(office: Office, tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(POLICY)
    named = {"SUREHAND_LIMITS": str(file)}
    with office.scene() as scene:
        for name in ("ana", "bea"):
            person(scene, name, "operator")
            (tmp_path / f"{name}.pem").write_bytes(key_of(scene, name).private_bytes(*PEM))
            (tmp_path / f"{name}.pem").chmod(0o600)

    refused = office.say("halt", "--reason", REASON, **named)
    assert "oscar has no role operator, and may not halt" in refused.line()
    made = office.say("halt", "--reason", REASON, "--as", "ana", "--json", **named)
    assert made.code == 0, made  # without a key
    halt_id = made.document()["halt"]["halt_id"]

    def lift(name: str, **settings: str) -> Any:
        key = str(tmp_path / f"{name}.pem")
        return office.say("lift", halt_id, "--as", name, "--key", key, **settings)

    # The halt asks for it, also where no file is named.
    assert "so far 0 of 2 approvals of operator; decisions have to be signed here" in (
        office.say("lift", halt_id, "--as", "ana").line()
    )
    assert f"{halt_id} stands: so far 1 of 2 approvals of operator" in lift("ana").out
    assert "yes to lifting it: ana" in office.say("halts").out
    assert "ana has halted, has no role that is asked, or has said yes before" in lift("ana").line()
    assert lift("bea", **named).code == 0
    listed = HaltList.model_validate(office.say("halts", "--all", "--json").document())
    assert [(one.votes, one.halt.lifted_by) for one in listed.halts] == [(["ana", "bea"], "bea")]


def test_a_file_that_cannot_be_read_keeps_nobody_from_halting(
    office: Office, tmp_path: Path
) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("halts: {lift: {quorum: 2}}")
    ended = office.say("halt", "--reason", REASON, "--json", SUREHAND_LIMITS=str(file))
    assert ended.code == 0, ended
    assert "anybody may halt" in ended.err
    halt_id = ended.document()["halt"]["halt_id"]
    refused = office.say("lift", halt_id, SUREHAND_LIMITS=str(file))
    assert "halts.lift.roles" in refused.line()
    [row] = office.rows()["halts"]
    assert row["lifted_ms"] is None


@pytest.mark.parametrize("database", DATABASES[1:])
def test_who_may_vote_need_not_be_the_owner(office: Office, tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("halts: {lift: {roles: [operator]}}")
    with office.scene() as scene:
        person(scene, "ana", "operator")
    worker = make_url(office.url).set(username=WORKER).render_as_string(hide_password=False)
    by = {"SUREHAND_DATABASE_URL": worker, "SUREHAND_LIMITS": str(file)}
    halt_id = office.say("halt", "--reason", REASON, "--json", **by).document()["halt"]["halt_id"]
    assert "permission denied" in office.say("lift", halt_id, "--as", "ana", **by).line()
    assert office.say("lift", halt_id).code == 0  # the owner's turn: the vote is there
