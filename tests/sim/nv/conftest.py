"""A simulated machine for each test, and a process on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.sim.nv.world import NvSimWorld
from sim.nv.bench import Bench, bench
from sim.nv.raw_nv import RawNv

CHIPS = ("ga102", "ad102", "gh100", "gb202")


@pytest.fixture
def world() -> Iterator[NvSimWorld]:
    world = NvSimWorld(seed=7)
    yield world
    world.close()


@pytest.fixture
def user(world: NvSimWorld) -> RawNv:
    return RawNv(world.process)


@pytest.fixture
def opened(world: NvSimWorld) -> RawNv:
    """Device objects, and nothing of UVM."""
    return RawNv(world.process, upto="objects")


@pytest.fixture
def mapped(world: NvSimWorld) -> RawNv:
    """A registered VA space, and no channel."""
    return RawNv(world.process, upto="memory")


@pytest.fixture(params=CHIPS)
def each(request: pytest.FixtureRequest) -> Iterator[RawNv]:
    """A process with a channel, on every chip."""
    world = NvSimWorld(seed=11, chip=request.param)
    yield RawNv(world.process)
    world.close()


@pytest.fixture(params=CHIPS)
def each_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = bench(request.param)
    yield made
    made.user.world.close()


@pytest.fixture
def hopper() -> Iterator[Bench]:
    made = bench("gh100")
    yield made
    made.user.world.close()
