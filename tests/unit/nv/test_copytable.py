"""What copies within a device, by size, and where the table comes from."""

from __future__ import annotations

import pytest

from gpu.drivers.nv.channel import ce_table as copytable
from gpu.drivers.nv.channel.ce_table import Range, Way, ranges, way_of
from gpu.drivers.nv.rm.classes import generation

HOPPER = generation(0xCBC0)


def test_ranges_begin_where_the_other_way_becomes_faster() -> None:
    seconds = {256: (3, 1), 512: (3, 2), 1024: (2, 3), 2048: (2, 2), 4096: (3, 2)}
    measured: list[tuple[int, dict[Way, float]]] = [
        (size, {"engine": engine, "kernel": kernel}) for size, (engine, kernel) in seconds.items()
    ]
    assert ranges(measured) == (Range(256, "kernel"), Range(1024, "engine"), Range(4096, "kernel"))
    assert ranges(measured[2:4]) == () == ranges([])


def test_what_was_not_measured_is_an_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert way_of(HOPPER, 1 << 20) == "engine"
    rows = (Range(256, "kernel"), Range(1024, "engine"))
    monkeypatch.setitem(copytable.COPY_TABLE, HOPPER.compute, rows)
    assert [way_of(HOPPER, size) for size in (4, 255, 256, 1023, 1024, 1 << 40)] == (
        ["engine", "engine", "kernel", "kernel", "engine", "engine"]
    )
    assert way_of(generation(0xC7C0), 512) == "engine"
