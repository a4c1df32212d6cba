"""`gpu distributed check`: what ranks have, and who is slow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu.cli.main import main
from gpu.cli.ranks import Link, slow
from gpu.distributed import launcher
from mpi.launch import mpiexec


def test_ranks_and_their_links_are_told(need: Callable[[str], None]) -> None:
    need("mpi")
    done = mpiexec(3, "check.py")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for rank in range(3):
        assert any(line.startswith(f"rank {rank} on ") and "CPU" in line for line in lines), lines
    for pair in ("0 - 1", "0 - 2", "1 - 2"):
        assert sum(line.startswith(pair) for line in lines) == 1, lines
    for name in ("all_reduce", "all_gather", "broadcast"):
        assert sum(line.startswith(name) and "MPI" in line for line in lines) == 2, lines


def test_one_process_is_told_how_to_start_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (*launcher._SIZES, *launcher._RANKS):
        monkeypatch.delenv(name, raising=False)
    assert main(["distributed", "check"]) == 1
    assert "mpiexec -n 2 gpu distributed check" in capsys.readouterr().err


def test_who_is_slow_is_named() -> None:
    ranks = [{"host": f"node{rank}", "work": work} for rank, work in enumerate((1.0, 1.1, 2.0))]
    links = [Link((0, 1), 1e-6, 9e9), Link((0, 2), 1.2e-6, 8e9), Link((1, 2), 1e-6, 3e9)]
    first, second = slow(ranks, links)
    assert "rank 2 on node2 computes 1.8 times" in first
    assert "rank 1 on node1 and rank 2 on node2, 2.7 times" in second
    assert not slow(ranks[:2], links[:2])
