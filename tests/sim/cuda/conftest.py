"""A libcuda for each test, under several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpu.sim.cuda.library import Library
from sim.cuda import vendors
from sim.cuda.raw_cuda import RawCuda

SEEDS = range(4)


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest, need: Callable[[str], None]) -> int:
    need("llvmlite")
    number: int = request.param
    return number


@pytest.fixture
def which(request: pytest.FixtureRequest) -> str | None:
    """The libcuda that is not the model, if one was asked for."""
    return vendors.chosen(request.config)


@pytest.fixture
def library(which: str | None, seed: int) -> Iterator[Library | vendors.FileLibrary]:
    """The simulated one; tests that need nothing of it but its functions run on any."""
    with vendors.opened(which, seed) as opened:
        yield opened


@pytest.fixture
def raw(library: Library) -> RawCuda:
    """Its functions, before anything was called; what is broken is the test's to look at."""
    return RawCuda(library.functions)


@pytest.fixture
def cuda(raw: RawCuda, library: Library) -> Iterator[RawCuda]:
    """The same with a current context; a test must break no rule."""
    raw.start()
    yield raw
    assert not library.violations
