"""No statement reads a growing table as a whole, and none takes a trip more than it has to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Connection, event, make_url

from surehand.activities.ledger.core.engine import make_engine
from surehand.activities.ledger.core.store import Ledger
from surehand.activities.ledger.core.tables import metadata
from surehand.activities.ledger.effects import claims, outcomes
from surehand.activities.ledger.steps import artifacts
from surehand.activities.ledger.steps.artifacts import Kept
from surehand.activities.ledger.steps.entries import Claimed
from surehand.workflows.contracts.base import Artifact
from surehand.workflows.identity import DEFAULT_TENANT
from tests.ledger import statements
from tests.ledger.grown import grow
from tests.ledger.scene import OTHER_RUN, RUN, STEP, Scene, said
from tests.ledger.statements import Statements
from tests.ledger_databases import DATABASES, OWNER

ROOT: Final = Path(__file__).parent.parent.parent
#: The tests that between them send what workers, commands and pages send.
ONLY: Final = {
    "artifacts": (
        "an_overtaken_attempt_adds_nothing_and_leaves_nothing",
        "the_ledger_keeps_what_the_store_lost",
    ),
    "batches": (
        "a_round_reaches_every_entry_behind_stuck_ones",
        "late_attempts_wipe_no_answer_that_counts",
    ),
    "compensations": ("a_human_agrees_to_the_undo_of_the_question_alone",),
    "chat_outbox": ("a_message_says_what_has_become_of_its_request",),
    "claims": (
        "a_renewal_extends_the_lease_from_now",
        "after_a_no_a_lookup_settles_both_calls",
        "an_expired_deduping_call_is_repeated_with_its_key",
    ),
    "interventions": ("an_answer_may_bring_the_receipt_that_the_call_would_have_returned",),
    "limits": ("ten_limits_cost_a_claim_as_many_statements_as_one",),
    "orders": (
        "a_call_is_made_only_once_the_effect_before_it_stands",
        "what_a_runs_whole_tree_has_made_at_most_decides",
    ),
    "outbox": (
        "a_gone_receiver_is_asked_again_at_the_next_start",
        "a_new_reminder_replaces_an_unsent_one",
        "a_notifier_that_blocks_or_quits_fails_and_the_others_tell",
        "a_settled_intervention_is_told_nobody",
        "each_permission_pause_is_told_once",
        "several_workers_share_the_outbox_and_each_row_goes_to_one",
    ),
    "passkeys": ("a_standing_approval_is_no_passkey_for_an_audit",),
    "planners": ("whoever_has_given_a_run_no_value_is_a_second_pair_of_eyes",),
    "quotas": (
        "a_new_hour_begins_anew",
        "all_that_wait_are_admitted_once_the_quota_is_lifted",
    ),
    "resources": (
        "a_call_that_fails_gives_its_resource_back",
        "a_call_whose_resource_was_lost_before_it_began_is_not_made_and_not_in_doubt",
        "an_attempt_that_learns_that_it_has_lost_its_resource_stops_its_call",
        "the_next_attempt_takes_a_dead_calls_resource",
    ),
    "retention": (
        "statistics_pass_over_a_deleted_run",
        "the_digest_of_what_an_approval_rested_on_goes_with_its_run",
    ),
    "run_tree": (
        "a_child_run_undone_later_stops_completion",
        "a_completed_child_run_of_which_something_was_undone_later_is_told",
        "a_run_completes_on_what_it_knows_and_on_nothing_else",
        "a_run_is_told_when_what_it_has_taken_over_is_undone",
        "a_run_takes_over_what_stands_also_where_an_earlier_life_was_undone",
        "an_effect_is_told_with_the_child_runs_that_go_on_with_it",
        "of_a_tree_those_child_runs_are_open_that_have_not_ended",
        "pages_of_any_size_list_each_effect_once_in_the_same_order",
    ),
    "used_outputs": ("whoever_has_used_a_replay_in_a_child_run_has_used_the_effect",),
    "late_calls": (
        "a_first_call_that_lies_ahead_of_the_clock_is_out_of_the_window",
        "a_late_recovery_stops_it",
        "a_read_and_its_health_check_are_watched",
        "a_window_bounds_repeated_calls",
    ),
    "receipts": (
        "a_part_taken_for_the_whole_marks_each_run_that_takes_it",
        "a_refused_part_marks_nobody_who_makes_the_effect_again",
    ),
    "recovery": (
        "a_key_is_held_by_its_newest_entry_until_its_effect_is_undone",
        "how_an_outcome_was_found_out_is_told_of_its_own_step_alone",
        "the_view_has_steps_effects_approvals_doubts_and_the_story",
        "what_does_not_hold_any_more_is_named",
    ),
    "runs": (
        "a_completed_run_that_is_reset_is_open_again",
        "an_attempt_of_an_earlier_execution_undoes_nothing",
        "an_earlier_execution_claims_no_next_write",
        "people_are_told_each_time_that_a_run_is_stopped",
        "people_read_times_and_no_tenant",
    ),
    "standing": (
        "a_call_in_the_scope_is_approved_at_once_and_said_to_be_so_in_advance",
        "a_revocation_takes_back_what_was_approved_and_not_yet_called",
        "a_use_is_given_back_when_its_approval_ends_unused",
        "what_an_effect_has_used_stays_used",
    ),
    "starts": ("a_key_revoked_later_has_started",),
    "steering": ("where_signatures_are_asked_for_nothing_unsigned_counts",),
    "votes": (
        "a_call_whose_effect_is_recorded_needs_nobody_to_be_asked",
        "a_request_that_is_decided_already_needs_no_place",
        "of_a_request_that_still_waits_after_that_people_are_told",
    ),
    "waiting": (
        "a_line_tells_its_undo_and_foreign_content",
        "how_far_a_run_has_come_grows_with_each_event",
        "mine_is_what_my_roles_or_everybody_may_vote_for",
        "my_decisions_are_listed_newest_first_page_by_page",
        "nobody_sees_another_ones_decisions",
        "requests_are_listed_by_expiry_page_by_page",
    ),
}
IN_A_CLASS: Final = (
    "tests/ledger/test_steering.py::TestWhatAParentHandsOn"
    "::test_an_answer_is_for_the_question_that_it_names"
)
#: What reads a whole tenant by its nature, when somebody asks for it or once a round.
WHOLE: Final = {
    "activities/ledger/history/stats.py": "figures over a stretch of time",
    "activities/ledger/runs/deletion.py": "files that nothing refers to",
}
#: Copies of the run that has been, which make each of its tables long.
COPIES: Final = 3000


@pytest.fixture
def sent(database: str, tmp_path: Path) -> Statements:
    """What the suites send to a database, once each, with values it came with."""
    file = tmp_path / "sent"
    chosen = [f"tests/ledger/test_{of}.py::test_{one}" for of, own in ONLY.items() for one in own]
    chosen.append(IN_A_CLASS)
    done = subprocess.run(
        [sys.executable, "-m", "tests", "-p", "tests.ledger.statements", "-q", "-m", "", "-n", "0",
         *chosen],
        cwd=ROOT, env={**os.environ, statements.FILE: str(file), statements.DATABASE: database},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return statements.read(file)


@pytest.fixture
def grown(ledger_url: str) -> Iterator[Ledger]:
    """A ledger with thousands of runs, each with something of everything."""
    with closing(Ledger(make_engine(ledger_url), channels=("log",))) as ledger:
        scene = Scene.begin(ledger, DEFAULT_TENANT)
        scene.open_run(OTHER_RUN)
        scene.committed(scene.call(run_id=OTHER_RUN, key="theirs"))
        scene.claim(scene.call(key="theirs", step_id="replayed"))
        scene.committed(scene.approved(scene.call()))
        _, question = scene.asked(scene.call(key="asked", step_id="asked"))
        assert scene.settle(said(question, "happened"))[0]
        with scene.tx() as tx:
            artifact = Artifact(sha256="a" * 64, uri="a", bytes=1)
            artifacts.record_artifact(tx, RUN, STEP, Kept({}, artifact, b"a"))
        scene.end()
        grow(ledger_url, DEFAULT_TENANT, RUN, COPIES)
    url = make_url(ledger_url)
    if url.get_backend_name() == "postgresql":  # some of what is sent is sent by administrators
        url = url.set(username=OWNER)
    with closing(Ledger(make_engine(url.render_as_string(hide_password=False)))) as ledger:
        yield ledger


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database", DATABASES)
def test_no_statement_reads_a_growing_table_whole(grown: Ledger, sent: Statements) -> None:
    with grown.transaction(DEFAULT_TENANT) as tx:
        long = [
            table.name
            for table in metadata.sorted_tables
            if _rows(tx.connection, table.name) >= COPIES
        ]
        read = {
            sql: tables
            for sql, (values, by) in sent.items()
            if by not in WHOLE and (tables := _read_whole(tx.connection, sql, _ours(values), long))
        }

    assert {"effects", "events", "runs", "approvals", "decisions"} <= set(long)
    assert len(sent) > 310
    assert not read


def _rows(connection: Connection, table: str) -> int:
    return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


#: Of SQLite's plan: a table read from end to end, or as far as it is one tenant's.
_WHOLE: Final = re.compile(
    r"SCAN (\w+)|SEARCH (\w+) USING (?:COVERING )?INDEX (\w+) \(tenant_id=\?\)"
)
#: Indexes of some rows only, such as those of open runs.
_PARTIAL: Final = frozenset(
    index.name
    for table in metadata.sorted_tables
    for index in table.indexes
    if index.dialect_options["sqlite"]["where"] is not None
)


def _read_whole(connection: Connection, sql: str, values: Any, long: Collection[str]) -> set[str]:
    """Return which of the long tables a statement reads as a whole."""
    if connection.dialect.name == "postgresql":
        (plan,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {sql}", values).scalar_one()
        found = set(_scanned(plan["Plan"]))
    else:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
        parts = [part for row in rows for part in _WHOLE.findall(row[-1])]
        found = {scanned or searched for scanned, searched, by in parts if by not in _PARTIAL}
    # An alias is a table's name with a number.
    return {re.sub(r"_\d+$", "", name) for name in found} & set(long)


#: Of PostgreSQL's plan: what is looked up in an index.
_KEYS: Final = frozenset(("Index Cond", "Recheck Cond"))


def _scanned(node: Mapping[str, Any]) -> Iterator[str]:
    if "Scan" in node["Node Type"] and "Relation Name" in node and not _KEYS & node.keys():
        yield node["Relation Name"]
    # Nothing equals NULL: what lies below such a condition is never run.
    for below in node.get("Plans", ()) if node.get("One-Time Filter") != "false" else ():
        yield from _scanned(below)


def _ours(values: Any) -> Any:
    """Return a statement's values with the grown ledger's tenant in the place of a test's own."""
    if isinstance(values, Mapping):
        return {name: _ours(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(map(_ours, values))
    ours = isinstance(values, str) and re.fullmatch(r"tenant-\d+", values)
    return DEFAULT_TENANT if ours else values


@contextmanager
def counted_trips(ledger: Ledger, trace: Path) -> Iterator[list[int]]:
    """Yield a list that has, at the end, how often the server has said that it is ready again."""
    found = list[int]()

    def begin(connection: Any, *_: Any) -> None:
        connection.pgconn.trace(file.fileno())

    def end(connection: Any, *_: Any) -> None:
        connection.pgconn.untrace()

    with trace.open("w") as file:
        event.listen(ledger.engine, "checkout", begin)
        event.listen(ledger.engine, "checkin", end)
        try:
            yield found
        finally:
            event.remove(ledger.engine, "checkout", begin)
            event.remove(ledger.engine, "checkin", end)
    found.append(trace.read_text().count("ReadyForQuery"))


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_claim_and_an_outcome_take_four_trips_each(scene: Scene, tmp_path: Path) -> None:
    call = scene.call()
    with counted_trips(scene.ledger, tmp_path / "claim") as claiming, scene.tx() as tx:
        claimed = claims.claim_effect(tx, call)
    assert isinstance(claimed, Claimed)
    with counted_trips(scene.ledger, tmp_path / "outcome") as recording, scene.tx() as tx:
        assert outcomes.commit_effect(tx, call, claimed.entry, Kept({"paid": True})) is not None

    assert (claiming, recording) == ([4], [4])


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_unread_statement_takes_one_trip(scene: Scene, tmp_path: Path) -> None:
    with counted_trips(scene.ledger, tmp_path / "trace") as trips, scene.tx() as tx:
        tx.tick()

    assert trips == [3]  # with the transaction's begin and its end
