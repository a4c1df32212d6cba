"""A simulated machine for each test, and a process on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu.sim.amd.kfd.world import KfdWorld
from sim.raw_kfd import RawKfd


@pytest.fixture
def world() -> Iterator[KfdWorld]:
    world = KfdWorld(seed=7)
    yield world
    world.close()


@pytest.fixture
def user(world: KfdWorld) -> RawKfd:
    return RawKfd(world.process)
