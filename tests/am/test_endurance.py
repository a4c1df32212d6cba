"""A part of `am.endurance`; the whole of it takes most of a minute."""

from __future__ import annotations

from am.endurance import ALLOCATIONS, LAUNCHES, OPENINGS, Held, endure

_PART = 50
# Memory of Python's own comes and goes. One lost object in each launch would be 2,000 blocks.
_MOST_BLOCKS = 300
_MOST_KIB = 4096


def test_nothing_is_left() -> None:
    differing = []

    def check(what: str, before: Held, after: Held) -> None:
        grown = after.blocks - before.blocks > _MOST_BLOCKS or after.rss - before.rss > _MOST_KIB
        if grown or before.exact() != after.exact():
            differing.append(f"{what}: {before} became {after}")

    endure(LAUNCHES // _PART, ALLOCATIONS // _PART, OPENINGS // _PART, check)
    assert differing == []
