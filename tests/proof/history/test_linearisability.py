"""What clients saw of a ledger under kills and partitions, in a checker that others wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import missing
from tests.proof.history.clients import record_history

pytestmark = pytest.mark.slow

#: On each database. `HISTORY_SECONDS=3600 make proof` looks for an hour.
SECONDS: Final = float(os.environ.get("HISTORY_SECONDS", "30"))
HERE: Final = Path(__file__).parent


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go, program = shutil.which("go"), tmp_path_factory.mktemp("checker") / "checker"
    if go is None:
        missing("Go")
    build = [go, "build", "-mod=readonly", "-o", str(program), "."]
    built = subprocess.run(build, cwd=HERE, capture_output=True, text=True)
    if built.returncode:
        missing(f"Porcupine: {built.stderr[-300:]}")
    return program


def check(checker: Path, history: list[Any]) -> dict[str, Any]:
    given = json.dumps(history)
    done = subprocess.run([checker], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.crash
@pytest.mark.timeout(3 * SECONDS + 300)
def test_one_ledger_could_have_given_all_answers(
    checker: Path, ledger_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    history, disturbed = record_history(ledger_url, folder, SECONDS)
    report = check(checker, history)
    for part, seen in report["Illegal"].items():
        print(part, *seen, sep="\n  ")
    told = {name: found for name, found in report.items() if name != "Illegal"}
    print(json.dumps({**told, **disturbed}, indent=2))
    assert (list(report["Illegal"]), report["Unknown"]) == ([], None)


#: A run is asked about, claims and commits.
APPROVED: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("ask", "asked", {}),
    ("decide", "accepted", {"decision": "1", "yes": True}),
]
CLAIMED: Final = [*APPROVED, ("claim", "claimed", {"generation": 1, "token": 1})]
LEASED: Final = [*APPROVED, ("claim", "claimed", {"generation": 1, "token": 1, "lease": 10**10})]
OURS: Final = {"generation": 1, "token": 1, "state": "claimed"}
COMMITTED: Final = [*CLAIMED, ("commit", "recorded", OURS)]
TAKEN_OVER: Final = [*CLAIMED, ("claim", "doubtful", {"generation": 1, "token": 2, "holder": "z"})]
FAILED: Final = [*CLAIMED, ("fail", "recorded", OURS)]
BY_OTHER: Final = [(op, kind, {"run": 1, "of": 1, **more}) for op, kind, more in FAILED[:2]]
FAILED_TWICE: Final = [
    *FAILED,
    *BY_OTHER,
    ("claim", "claimed", {"generation": 2, "token": 1, "run": 1, "of": 1}),
    ("fail", "recorded", {**OURS, "generation": 2}),
]
THIRD: Final = ("claim", "claimed", {"generation": 3, "token": 1})
HALTED: Final = [*APPROVED, ("halt", "recorded", {"halt": "h"})]


@pytest.mark.parametrize(
    ("before", "right", "wrong"),
    [
        (COMMITTED, ("claim", "committed", OURS), ("claim", "claimed", OURS | {"token": 2})),
        (LEASED, ("claim", "held", {"holder": "z"}), TAKEN_OVER[-1]),
        (TAKEN_OVER, ("commit", "fenced", OURS), ("commit", "recorded", OURS)),
        (APPROVED[:1], ("claim", "approvalrefused", {}), CLAIMED[-1]),
        (FAILED_TWICE, ("claim", "approvalrefused", {}), THIRD),
        (HALTED, ("claim", "halted", {"halt": "h"}), CLAIMED[-1]),
    ],
    ids=["made twice", "not over", "fenced out", "not approved", "used twice", "halted"],
)  # fmt: skip
def test_a_history_that_no_ledger_could_have_is_refused(
    checker: Path, before: Any, right: Any, wrong: Any
) -> None:
    assert check(checker, note([*before, right]))["Illegal"] == {}
    history = note([*before, wrong])
    assert len(check(checker, history)["Illegal"]) == 1
    # Whoever was not told the last answer saw nothing that is wrong.
    assert check(checker, [*history[:-1], {**history[-1], "out": None}])["Illegal"] == {}


def test_what_got_no_answer_may_have_happened(checker: Path) -> None:
    taken = ("claim", "claimed", {"generation": 1, "token": 2, "holder": "z", "dedupes": True})
    history = note([*LEASED, taken, ("commit", "fenced", OURS)])
    history[-2]["out"] = None
    assert check(checker, history)["Illegal"] == {}


def note(events: list[Any]) -> list[dict[str, Any]]:
    """Return a history in which one call follows the answer to another."""
    history = list[dict[str, Any]]()
    for number, (op, kind, more) in enumerate(events):
        about = {"op": op, "tenant": "t", "key": "k", "number": 1, "steady": True, **more}
        named = kind in ("claimed", "doubtful", "committed", "halted")
        answer = {
            one: more[one] for one in ("generation", "token", "halt") if named and one in more
        }
        at = 10**9 * number
        told = {"return": at + 1, "out": {"kind": kind, **answer}}
        history.append({"call": at, "in": about, **told})
    return history
