"""A machine with NVIDIA GPUs that several real processes use, by raw calls."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpu
from gpu.sim.nv.world import NvSimWorld
from gpu.sim.server import serve
from sim.nv.bench import Machine, add_one
from sim.nv.methods import release
from sim.nv.raw_nv import RawNv

_TREES = os.pathsep.join((str(Path(gpu.__file__).parents[1]), str(Path(__file__).parents[2])))


@pytest.fixture
def world() -> Iterator[NvSimWorld]:
    world = NvSimWorld(seed=1, executor=Machine(add_one))
    yield world
    assert world.debug.violations == []
    world.close()


@pytest.fixture
def path(world: NvSimWorld, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "machine")
    with serve(world, path):
        yield path


def start(path: str, rounds: int) -> subprocess.Popen[str]:
    """A process that works; it has begun when this returns."""
    command = [sys.executable, "-m", "sim.nv.served_user", path, str(rounds)]
    environment = {**os.environ, "PYTHONPATH": _TREES}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def the_rest(process: subprocess.Popen[str]) -> tuple[str, int]:
    """What it says until it ends, and how it ends.

    `communicate` would miss what was read already with the first line.
    """
    assert process.stdout is not None
    return process.stdout.read(), process.wait(60)


def wait_for(holds: Callable[[], bool], what: str) -> None:
    late = time.monotonic() + 20
    while not holds():
        if time.monotonic() > late:
            pytest.fail(what)
        time.sleep(0.01)


def wait_for_exit(world: NvSimWorld, clients: int) -> None:
    def gone() -> bool:
        with world.lock:
            return len(world.rm.clients) == clients

    wait_for(gone, "the machine still has the process's objects")


def open_files() -> int:
    gc.collect()  # what other tests left is closed now, and not while this one counts
    return len(os.listdir("/proc/self/fd"))


def test_processes_work_at_once(world: NvSimWorld, path: str) -> None:
    """Each has memory of its own, at addresses that the others use too; all use the one GPU."""
    user = RawNv(world.process)
    before = world.usage()
    others = [start(path, 12) for _ in range(2)]
    flag = user.buffer()
    user.ring.submit(*release(flag.va, 1))
    for other in others:
        assert the_rest(other) == ("done\n", 0)
    wait_for_exit(world, 1)
    assert flag.host.read(0, 4) == 1
    assert world.counts.kernels == 2 * 12
    assert world.debug.faults == []
    after = world.usage()
    assert (after.vram, after.channels) == (before.vram, before.channels)


def test_a_killed_process_leaves_nothing(world: NvSimWorld, path: str) -> None:
    """Its own pages go with it, unlike pinned ones: a copy out of them may fault."""
    RawNv(world.process)
    before, fds = world.usage(), open_files()
    other = start(path, 0)
    with world.lock:
        assert world.usage().channels == 2
    other.kill()
    other.communicate()
    wait_for_exit(world, 1)
    with world.lock:
        assert world.usage() == before
    wait_for(lambda: open_files() == fds, "the connection is still open")
