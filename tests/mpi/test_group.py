"""What a group does with tensors, on ranks that mpiexec starts: once for many checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from mpi.launch import PROGRAMS, mpiexec, told_by_ranks

CHECKS = re.findall(r"^def (check_\w+)", (PROGRAMS / "checks.py").read_text(), re.MULTILINE)
# What differs between two ranks and more: trees, rings, the order in which is added.
OF_FOUR = (
    *("check_group", "check_narrow_floats_are_rounded_once", "check_empty_and_views"),
    *("check_send", "check_order_of_use", "check_gradients_of_messages", "check_mismatch"),
)


@cache
def _told(ranks: int, names: tuple[str, ...]) -> list[dict[str, str]]:
    """What each rank says of each check."""
    done = mpiexec(ranks, "checks.py", "11", str(ranks), *names)
    told = [each["told"] for each in told_by_ranks(done.stdout)]
    assert done.returncode == 0 and len(told) == ranks, done.stdout + done.stderr
    return told


def _check(ranks: int, names: tuple[str, ...], name: str) -> None:
    wrong = {rank: told[name] for rank, told in enumerate(_told(ranks, names)) if told[name]}
    assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, need: Callable[[str], None]) -> None:
    need("mpi")
    _check(2, tuple(CHECKS), name)


@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks(name: str, need: Callable[[str], None]) -> None:
    need("mpi")
    _check(4, OF_FOUR, name)


@pytest.mark.slow
@pytest.mark.sampled(0)
@pytest.mark.parametrize("name", CHECKS)
def test_all_on_four_ranks(name: str, need: Callable[[str], None]) -> None:
    need("mpi")
    _check(4, tuple(CHECKS), name)


@pytest.mark.slow
def test_each_rank_has_a_simulated_gpu_of_its_own(need: Callable[[str], None]) -> None:
    need("mpi")
    need("llvmlite")
    done = mpiexec(2, "devices.py", SIM="gfx1100,gfx1100", DEV="AMD")
    told = told_by_ranks(done.stdout)
    assert [each["devices"] for each in told] == [["AMD"], ["AMD:1"]], done.stderr
    for each in told:
        assert each["device"] == each["devices"][0] and each["sums"] == [[0, 3, 6], [0, 6, 12]]
