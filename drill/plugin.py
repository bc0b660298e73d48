"""The drill for pytest: a fixture ``drill``. Its imports happen when the fixture is used.

::

    def test_nothing_is_lost_or_doubled(drill):
        report = drill("plans/refund.yaml", world=world, fresh=fresh, points=["after_call"])
        assert report.ok, report
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from surehand.drill.environment import Environment
    from surehand.drill.report import DrillReport


@dataclass(frozen=True)
class Drill:
    """Drills plans; what the fixture ``drill`` gives."""

    _environment: Environment

    def __call__(
        self,
        plan: str | Path,
        *,
        world: str | Callable[[Any], Any] | None = None,
        fresh: str | Callable[[Any], Any] | None = None,
        tools: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        points: Sequence[str] = (),
        steps: Sequence[str] = (),
        changes: Sequence[str] = (),
        limit: timedelta = timedelta(minutes=2),
    ) -> DrillReport:
        """Drill a plan and return the report: assert on its ``ok``.

        In an async test call it with ``await asyncio.to_thread(drill, ...)``.

        Args:
            plan: A YAML or JSON file.
            world: Returns what a run's effects have left, or ``module:function``.
            fresh: Returns the plan's input for one more run, or ``module:function``.
            tools: Modules with the tools; default ``SUREHAND_TOOL_MODULES``.
            variables: More of the workers' environment variables.
            points: Crash points, forced waits and operations; default all.
            steps: Steps of the plan; default all.
            changes: ``path=value``, as ``--set``.
            limit: How long one case may take.

        Raises:
            SurehandError: It cannot be drilled so; the message says why.
        """
        from surehand.cli.printer import Printer
        from surehand.drill.request import DrillRequest
        from surehand.drill.suite import Suite
        from surehand.process.settings import client_settings, read_environment

        own = {**read_environment(), **(variables or {})}
        if tools:
            own["SUREHAND_TOOL_MODULES"] = ",".join(tools)
        request = DrillRequest(
            str(plan),
            changes=changes,
            points=points,
            steps=steps,
            world=world,
            fresh=fresh,
            limit=limit,
        )
        say = Printer(json_output=False).say  # what tools and runs say is written out
        suite = Suite(request, self._environment, client_settings(own), own, say)
        return asyncio.run(suite.run())


@pytest.fixture(scope="session")
def drill() -> Iterator[Drill]:
    """Drill plans on the server that ``TEMPORAL_ADDRESS`` names, or on one of its own."""
    from surehand.drill.environment import prepare_drill
    from surehand.process.settings import read_environment

    with prepare_drill(read_environment(), database=None, say=print) as environment:
        yield Drill(environment)
