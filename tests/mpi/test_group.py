"""What a group does with tensors, on ranks that mpiexec starts: once for many checks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache

import pytest

from mpi.launch import PROGRAMS, mpiexec

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
    told = [json.loads(line)["told"] for line in done.stdout.splitlines() if line[:7] == '{"rank"']
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
@pytest.mark.parametrize("name", CHECKS)
def test_all_on_four_ranks(name: str, need: Callable[[str], None]) -> None:
    need("mpi")
    _check(4, tuple(CHECKS), name)
