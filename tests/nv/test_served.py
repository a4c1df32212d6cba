"""A simulated machine that several real processes use through the driver, and kills of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpu
from gpu.drivers.nv.device import RmDevice
from gpu.hcq.conformance.kit import WORDS, download, numbers, upload
from gpu.sim.nv.world import NvSimWorld
from gpu.sim.server import serve
from gpu.transport.world import World
from nv.kernels import LAYOUTS, WRITTEN, PythonKernels, cubin
from nv.served_user import WORK

_TREES = os.pathsep.join(str(Path(file).parents[1]) for file in (gpu.__file__, __file__))
_LATEST = 0.4  # seconds after it began that a process is killed


@pytest.fixture
def world() -> Iterator[NvSimWorld]:
    world = NvSimWorld(seed=1, executor=PythonKernels(2))
    yield world
    assert world.debug.violations == []
    world.close()


def start(path: str, what: str) -> subprocess.Popen[str]:
    """A process that works; it has begun when this returns."""
    command = [sys.executable, "-m", "nv.served_user", path, what]
    environment = {**os.environ, "PYTHONPATH": _TREES}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def compute(world: NvSimWorld) -> None:
    """Opens the GPU and uses it."""
    with RmDevice.open(World(world.os, world.waiter)) as device:
        code = cubin(device.target.sm, "add")
        add = device.load(code, "add", LAYOUTS["add"], written=WRITTEN)
        a, out = upload(device, numbers(1)), upload(device, numbers(2))
        add(out, a, a, vals=(WORDS,))
        assert (download(device, out) == 2 * numbers(1)).all()


@pytest.mark.parametrize("what", WORK)
def test_a_process_that_is_killed_leaves_a_machine_that_works(
    world: NvSimWorld, tmp_path: Path, what: str
) -> None:
    moments = random.Random(what)
    with serve(world, path := str(tmp_path / "machine")):
        before = world.usage()
        for _ in range(3):
            process = start(path, what)
            time.sleep(moments.uniform(0, _LATEST))
            process.kill()
            process.communicate()
            compute(world)  # perhaps before the machine has noticed
            late = time.monotonic() + 20
            while world.usage() != before and time.monotonic() < late:
                time.sleep(0.01)
            assert world.usage() == before
