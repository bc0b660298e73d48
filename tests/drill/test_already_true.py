"""A drill of what was so before the call: the write is not skipped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.starter import Starter

pytestmark = pytest.mark.crash

PLAN = """\
name: flights
input: {booking: none}
steps:
  - {id: change, tool: flights.change, params: {booking: "${input.booking}", flight: LH2}}
"""
OURS = tuple(
    part
    for name in ("world", "fresh", "already")
    for part in (f"--{name}", f"tests.variants.flights_drill:{name}")
)


@pytest.mark.parametrize(
    ("tools", "code", "outcome"),
    [("flights", 0, "needs human"), ("flights_by_key", 3, "differs")],
)
def test_what_was_so_before_the_call_is_for_a_human_and_a_lookup_that_hides_it_is_found_out(
    settings: dict[str, str], tmp_path: Path, tools: str, code: int, outcome: str
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    own = {**settings, "SUREHAND_TOOL_MODULES": f"tests.variants.{tools}"}
    starter = Starter({**own, "TMPDIR": str(tmp_path)}, tmp_path)

    plan = str(tmp_path / "plan.yaml")
    ended = starter("drill", plan, *OURS, "--points", "already_true", "--json")

    assert ended.code == code, ended
    [cell] = ended.document()["cells"]
    assert (cell["outcome"], cell["point"]) == (outcome, "already_true")
    assert ("skipped in silence" in str(cell["differences"])) == (tools == "flights_by_key")
    assert ("before the call" in cell["question"]) == (tools == "flights")


def test_a_world_that_is_already_so_needs_somebody_who_makes_it_so(
    starter: Starter, tmp_path: Path
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    ended = starter("drill", str(tmp_path / "plan.yaml"), "--points", "already_true")

    assert ended.code == 2
    assert "--points already_true: name --already" in ended.err
