"""Ranks with an empty cache: each kernel is compiled by one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mpi.launch import mpiexec, told_by_ranks


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.sampled(0))])
def test_each_kernel_is_compiled_once(
    ranks: int, tmp_path: Path, need: Callable[[str], None]
) -> None:
    need("mpi")
    folders = {"CACHE_DIR": str(tmp_path / "cache"), "OBJECT_CACHE_DIR": str(tmp_path / "objects")}
    done = mpiexec(ranks, "compiling.py", **folders)
    told = told_by_ranks(done.stdout)
    assert done.returncode == 0 and len(told) == ranks, done.stdout + done.stderr
    counts = Counter(source for each in told for source in each["compiled"])
    assert len(counts) >= 5 and set(counts.values()) == {1}, counts
