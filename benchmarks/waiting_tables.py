"""What many runs have cost that waited, and the tables that BENCHMARKS.md shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.figures import Figures, table

#: What a worker with a thousand parked runs may take, in MB, and how much of one core.
MEMORY_TARGET: Final = 300.0
CPU_TARGET: Final = 0.01


@dataclass(frozen=True)
class Waited:
    """What was measured with one ledger; memory in MB, times in seconds."""

    database: str
    runs: int
    ready_mb: float
    parked_mb: float
    done_mb: float
    cpu: float
    """Of one core, while all of them waited."""
    started_s: float
    """From the first start until all of them waited."""
    single: Figures
    """From a decision to its call, the others waiting."""
    together: Figures
    """The same, all decisions sent at once."""
    together_s: float
    """From the first decision to the last call."""

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        figures = {"single": self.single.document(), "together": self.together.document()}
        numbers = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        return {**numbers, **figures}

    def missed(self) -> list[str]:
        """Return a line for each target that was missed."""
        lines = []
        if self.parked_mb > MEMORY_TARGET:
            lines.append(f"{self.parked_mb:.0f} MB parked, not {MEMORY_TARGET:.0f} MB")
        if self.cpu > CPU_TARGET:
            lines.append(f"{self.cpu:.1%} of a core while nothing happens, not {CPU_TARGET:.0%}")
        return [f"{self.database}: {line}" for line in lines]


def tables(measured: Sequence[Waited]) -> str:
    """Return the tables of BENCHMARKS.md."""
    head = ["ledger", "runs", "ready", "parked", "after", "a run", "processor", "all started in"]
    costs = [
        [
            one.database,
            str(one.runs),
            *(f"{mb:.0f} MB" for mb in (one.ready_mb, one.parked_mb, one.done_mb)),
            f"{1000 * (one.parked_mb - one.ready_mb) / one.runs:.0f} kB",
            f"{one.cpu:.2%} of a core",
            f"{one.started_s:.0f} s",
        ]
        for one in measured
    ]
    times = [
        [one.database, what, str(took.n), *(f"{s:.2f} s" for s in (took.p50, took.p95)),
         f"{took.longest:.2f} s", rate]
        for one in measured
        for what, took, rate in (
            ("one by one", one.single, ""),
            ("all at once", one.together, f"{one.together.n / one.together_s:.0f}"),
        )
    ]  # fmt: skip
    named = ["ledger", "approved", "n", "p50", "p95", "max", "calls a second"]
    return f"{table(head, costs)}\n\n{table(named, times)}"
