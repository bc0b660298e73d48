"""Percentiles of what was measured, and the tables that BENCHMARKS.md shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from surehand.drill.report import nearest_rank

T = TypeVar("T")


class Figures(NamedTuple):
    """What many measurements of one thing come to, in seconds."""

    n: int
    p50: float
    p95: float
    shortest: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Figures:
        """Return the figures of at least one measurement; percentiles by nearest rank."""
        times = sorted(seconds)
        return cls(
            len(times), nearest_rank(times, 50), nearest_rank(times, 95), times[0], times[-1]
        )

    def document(self) -> dict[str, Any]:
        """Return them for JSON, rounded to milliseconds."""
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; the columns after the texts are numbers."""
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grouped(items: Iterable[T], name: Callable[[T], str]) -> dict[str, list[T]]:
    """Return items by name, in the order in which each name came first."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(name(item), []).append(item)
    return groups
