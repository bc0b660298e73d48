"""The support agent's plan, killed at every point of every step: one mail, one closed ticket."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from surehand.activities.worker.crash_points import READ_POINTS, CrashPoint
from surehand.process.dev_server import DevServer
from tests.cli.starter import ROOT, Starter
from tests.drill.test_drill import cells, outcomes
from tests.e2e.test_support import ANSWERED, CALLED, TURNS
from tests.support_process import SETTINGS, SupportProcess

WORLD: Final = "surehand.examples.support.drill"
#: Seconds for about 13 cases.
LIMIT_S: Final = 600


@pytest.mark.crash
@pytest.mark.full
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            str(point),
            # One of them takes minutes. Behind the call there is most to find out.
            marks=() if point is CrashPoint.AFTER_CALL else pytest.mark.exhaustive,
        )
        for point in CrashPoint
    ],
)
def test_killed_at_a_point_of_any_step_the_whole_plan_sends_one_mail_and_closes_one_ticket(
    temporal_server: DevServer, desk: SupportProcess, tmp_path: Path, point: str
) -> None:
    own = {f"SUREHAND_{name.upper()}": value for name, value in SETTINGS.items()}
    address = {"TEMPORAL_ADDRESS": temporal_server.address, "PYTHONPATH": str(ROOT)}
    starter = Starter({**own, **address, **desk.variables, "TMPDIR": str(tmp_path)}, tmp_path)
    there = desk.tickets()
    plan = str(ROOT / "examples" / "support.yaml")
    given = ("--world", f"{WORLD}:world", "--fresh", f"{WORLD}:fresh", "--points", point)
    ended = starter("drill", plan, *given, "--timeout", "3m", "--json", limit_s=LIMIT_S)

    assert ended.code == 0, ended
    steps = [place for place, points in CALLED.values() if point in points]
    steps += [f"turn-{number + 1}" for number in range(TURNS) if point in READ_POINTS]
    assert outcomes(ended) == {(one, point): "same world" for one in steps}
    assert {cell["effects"] for cell in cells(ended).values()} == {3}
    made = desk.tickets() - there
    assert len(made) == 2 + len(steps)  # and two without a kill
    for ticket_id in made:
        assert desk.effects(ticket_id) == ANSWERED
        assert desk.ticket(ticket_id)["status"] == "closed"
