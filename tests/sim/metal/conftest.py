"""A Mac for each test, under several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu.sim.metal.library import MetalLibrary
from sim.metal.raw_metal import RawMetal, compile_msl

SEEDS = range(2)


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest, need: Callable[[str], None]) -> int:
    need("llvmlite")
    need("clang")
    number: int = request.param
    return number


@pytest.fixture
def library(seed: int) -> MetalLibrary:
    """The simulated one; tests that need nothing of it but its functions run on any."""
    return MetalLibrary("apple7", seed, compile=compile_msl)


@pytest.fixture
def raw(library: MetalLibrary) -> Iterator[RawMetal]:
    """Its functions, a device and a queue, in a pool; what is broken is the test's to look at."""
    metal = RawMetal(library.address)
    with metal.pool():
        metal.start()
        yield metal


@pytest.fixture
def metal(raw: RawMetal, library: MetalLibrary) -> Iterator[RawMetal]:
    """The same; a test must break no rule."""
    yield raw
    assert not library.violations


@pytest.fixture
def broken(library: MetalLibrary) -> Callable[[str], str]:
    """The one rule that was broken since the last time, of that name; gives what was told."""
    seen = 0

    def check(rule: str) -> str:
        nonlocal seen
        found = library.violations[seen:]
        assert len(found) == 1, found
        assert found[0].startswith(f"{rule}: "), found[0]
        seen = len(library.violations)
        return found[0]

    return check
