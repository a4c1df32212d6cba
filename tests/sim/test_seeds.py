"""SIM_SEED: what draws the order of work of simulated hardware."""

from __future__ import annotations

import random

import pytest

from gpu import Context
from gpu.backends.cuda import device
from gpu.core.errors import ConfigError
from gpu.sim.cuda import drivers
from gpu.sim.cuda.library import load
from gpu.sim.worlds import simulate


def _drawn(seed: int) -> list[float]:
    """What a libcuda for SIM leaves to chance, some of it."""
    with Context(SIM_SEED=seed):
        device._library.__wrapped__("gh100", "")
    return [drivers()[-1].driver.rng.random() for _ in range(5)]


def test_a_simulated_libcuda_has_the_seed() -> None:
    wanted = load("gh100", seed=7).driver.rng
    assert _drawn(7) == [wanted.random() for _ in range(5)] != _drawn(8)


def test_a_library_that_is_told_another_seed_goes_on_as_with_that() -> None:
    first, second = (load("gh100", seed=seed) for seed in (1, 2))
    second.driver.rng.random()
    for library in (first, second):
        library.reseed(3)
    assert first.driver.rng.getstate() == second.driver.rng.getstate()
    assert first.driver.rng.getstate() != random.Random(1).getstate()


@pytest.mark.parametrize(("chip", "kind"), [("gfx1100", "AMD"), ("gh100", "NV"), ("a630", "QCOM")])
def test_machines_have_the_seed(chip: str, kind: str) -> None:
    drawn = []
    for seed in (3, 3, 4):
        with Context(SIM_SEED=seed):
            machine = simulate(chip, kind).machine
        drawn.append(machine.rng.getstate())
        machine.close()
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_is_no_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="SIM_SEED"), Context(SIM_SEED=-1):
        pass
