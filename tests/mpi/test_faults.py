"""A rank that dies, hangs, ends or calls something else: the others get a typed error, in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpi.launch import mpiexec, told_by_ranks

# An MPI that goes on when a process dies; others are ended by it.
ULFM = ("--with-ft", "ulfm", "--mca", "coll", "^han,cuda")
SOON = 20.0  # seconds: of what is told, not waited for; a loaded machine takes its time


def _told(how: str, seconds: float, ranks: int = 2, options: tuple[str, ...] = ()) -> list[Any]:
    done = mpiexec(ranks, "faults.py", how, str(seconds), options=options)
    told = told_by_ranks(done.stdout)
    assert told, done.stdout + done.stderr
    return told


@pytest.mark.sampled(34)
@pytest.mark.parametrize(
    ("how", "text"),
    [
        pytest.param(
            *("raise", "ended with ValueError: the data has ended"), marks=pytest.mark.slow
        ),
        ("kill", "died"),
        pytest.param("end", "has ended its program", marks=pytest.mark.slow),
        pytest.param("unheard", "has ended its program", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_goes_is_named_to_the_others(
    how: str, text: str, need: Callable[[str], None]
) -> None:
    need("mpi")
    told = [each for each in _told(how, 60, 3, ULFM) if each["rank"] != 1]
    assert [each["rank"] for each in told] == [0, 2]
    for each in told:
        assert each["error"] == each["after"] == "PeerLost" and each["lost"] == 1
        assert each["host"] and text in each["text"] and each["seconds"] < SOON


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_a_fault_of_one_ranks_gpu_is_one_on_all(need: Callable[[str], None]) -> None:
    need("mpi")
    told = [each for each in _told("fault", 60, 3, ULFM) if each["rank"] != 1]
    assert [each["rank"] for each in told] == [0, 2]
    for each in told:
        assert each["error"] == each["after"] == "PeerFault" and each["lost"] == 1
        assert each["address"] == 0x7F0000001000 and "nobody's memory" in each["text"]


@pytest.mark.sampled(50)
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("hang", "has not come to it"),
        pytest.param("stop", "does not answer", marks=pytest.mark.slow),
    ],
)
def test_a_wait_is_bounded(how: str, text: str, need: Callable[[str], None]) -> None:
    need("mpi")
    first, *others = _told(how, 1, 2, ULFM)
    assert first["error"] == "PeerLost" and first["lost"] == 1 and text in first["text"]
    assert first["collective"] == "all_reduce" and first["step"] == 6
    assert "faults.py" in first["text"]
    assert 1 <= first["seconds"] < SOON
    assert [each["error"] for each in others] == ["PeerLost"] * (how == "hang")


@pytest.mark.sampled(50)
@pytest.mark.parametrize(
    ("how", "theirs", "timeout"),
    [
        ("other", "all_reduce(float32[2], op='sum')", 1),
        pytest.param("shape", "sends float32[2]", 60, marks=pytest.mark.slow),
    ],
)
def test_one_receives_what_the_other_does_not_send(
    how: str, theirs: str, timeout: float, need: Callable[[str], None]
) -> None:
    need("mpi")
    told = _told(how, timeout)
    assert [each["error"] for each in told] == ["CollectiveMismatch"] * 2
    for each in told:
        assert theirs in each["text"] and "recv(float32[" in each["text"]
        assert each["text"].count("faults.py") >= 2 and each["seconds"] < SOON


@pytest.mark.slow
@pytest.mark.sampled(0)
def test_what_fails_in_the_thread_of_mpi_is_told(need: Callable[[str], None]) -> None:
    need("mpi")
    first = _told("memory", 60)[0]
    assert (first["rank"], first["error"]) == (0, "DistributedError")
    assert "no memory is left" in first["text"] and first["seconds"] < SOON
