"""A simulated machine for each test, and a process on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu.sim.kgsl.world import KgslWorld
from sim.kgsl.raw_kgsl import Doubles, RawKgsl

Make = Callable[..., KgslWorld]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes machines that are closed behind the test."""
    made: list[KgslWorld] = []

    def one(**options: Any) -> KgslWorld:
        made.append(KgslWorld(**{"seed": 7, **options}))
        return made[-1]

    yield one
    for world in made:
        world.close()


@pytest.fixture
def doubles() -> Doubles:
    return Doubles()


@pytest.fixture
def world(make: Make, doubles: Doubles) -> KgslWorld:
    return make(executor=doubles)


@pytest.fixture
def user(world: KgslWorld) -> RawKgsl:
    return RawKgsl(world.process)
