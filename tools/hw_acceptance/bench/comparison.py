"""Both sides of the benchmarks beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tools.hw_acceptance.bench import rows
from tools.hw_acceptance.model import Report


@dataclass(frozen=True)
class Compared:
    """A row: seconds of both sides, None where one was not measured, and the speed wanted."""

    name: str
    ours: float | None
    theirs: float | None
    wanted: float

    @property
    def speed(self) -> float | None:
        """How fast ours is, the vendor's being 1."""
        if self.ours is None or self.theirs is None:
            return None
        return self.theirs / self.ours

    @property
    def verdict(self) -> str:
        """In a word, whether it is as fast as wanted."""
        if self.speed is None:
            return "not compared"
        return "reached" if self.speed >= self.wanted else "missed"


def compare(report: Report) -> list[Compared]:
    """All rows of which a side was measured, in the order of measuring. None of a model's."""
    if report.simulated:
        return []
    ours, theirs = _gather(report, rows.OURS), _gather(report, rows.THEIRS)
    return [
        Compared(name, ours.get(name), theirs.get(name), rows.GOALS.get(name, 1.0))
        for name in {**ours, **theirs}
    ]


def comparison_lines(report: Report) -> Iterator[str]:
    """The rows for people; none where nothing was measured."""
    found = compare(report)
    if found:
        width = max(len(row.name) for row in found)
        yield f"  {'':{width}} {'ours':>12} {'vendor':>12} {'speed':>7} {'wanted':>7}"
    for row in found:
        speed = f"{row.speed:.2f}" if row.speed is not None else ""
        sides = f"{_shown(row.ours):>12} {_shown(row.theirs):>12}"
        yield f"  {row.name:{width}} {sides} {speed:>7} {row.wanted:>7.2f} {row.verdict}"


def _gather(report: Report, fact: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for result in report.results:
        found |= result.facts.get(fact, {})
    return found


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.2f} us"
