"""Tensors on meshes over ranks that mpiexec starts: once for many checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from mpi.launch import PROGRAMS, mpiexec, told_by_ranks

CHECKS = re.findall(r"^def (check_\w+)", (PROGRAMS / "meshes.py").read_text(), re.MULTILINE)


@cache
def _told(ranks: int, whole: bool) -> list[dict[str, str]]:
    """What each rank says of each check."""
    done = mpiexec(ranks, "meshes.py", "11", str(int(whole)))
    told = [each["told"] for each in told_by_ranks(done.stdout)]
    assert done.returncode == 0 and len(told) == ranks, done.stdout + done.stderr
    return told


def _check(ranks: int, name: str, whole: bool = False) -> None:
    found = [told.get(name, "not run, after a failure") for told in _told(ranks, whole)]
    wrong = {rank: text for rank, text in enumerate(found) if text}
    assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, need: Callable[[str], None]) -> None:
    need("mpi")
    _check(2, name)


@pytest.mark.slow
@pytest.mark.sampled(0)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_all_cases(name: str, ranks: int, need: Callable[[str], None]) -> None:
    need("mpi")
    _check(ranks, name, whole=True)
