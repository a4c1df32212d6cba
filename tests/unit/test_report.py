"""What the report of tests that run on every device says of each."""

from __future__ import annotations

from collections import Counter

from matrix import Matrix


def test_a_device_without_ids_is_not_said_to_be_lacking() -> None:
    skip = ("test_a.py::test[NV]", "no nvrtc")
    matrix = Matrix(
        ["CPU", "NV", "AMD"],
        {"CPU": "x86_64 +avx"},
        Counter(CPU=2, NV=1),
        {"CPU": [("test_a.py::test[CPU]", "slow")], "NV": [skip], "AMD": []},
    )
    assert matrix.lines("CPU") == [
        "CPU: 2 ids, 1 skipped, compiled for x86_64 +avx",
        "  test_a.py::test[CPU]: slow",
    ]
    assert matrix.lines("NV") == ["NV: 1 ids, 1 skipped: this machine lacks it"]
    assert matrix.lines("AMD") == ["AMD: no ids were selected"]
    assert matrix.share == 0.5, "of what could run here"
