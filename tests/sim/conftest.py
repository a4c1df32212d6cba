"""A simulated machine for each test, and a process on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.sim.world import SimWorld
from sim.raw_kfd import RawKfd


@pytest.fixture
def world() -> Iterator[SimWorld]:
    world = SimWorld(seed=7)
    yield world
    world.close()


@pytest.fixture
def user(world: SimWorld) -> RawKfd:
    return RawKfd(world.process)
