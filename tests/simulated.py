"""The simulated machine that all tests of a process share, and machines apart from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

# What SIM says, per kind of device. A device is opened once in a process, on the machine that SIM
# names then: were that another in another test, what a name means would hang on their order.
SIMULATED = {
    "AMD": "gfx1100,gfx1100",
    # NV:2 and NV:3 are opened with other compilers by tests about those, NV:7 to NV:9 with none.
    "NV": "gh100,gh100,gh100,gh100,ga102,ad102,gb202,gh100,gh100,gh100",
    "CUDA": "gh100,gh100,gh100,gh100",
    # METAL:2 and more are of other families.
    "METAL": "apple7,apple7,apple9,mac2,paravirtual",
    "QCOM": "a630",
}


@contextmanager
def keeping_rules(device: str) -> Iterator[None]:
    """Fails where a simulated library sees what real ones leave undefined, such as races."""
    if device.startswith("CUDA"):
        from gpu.sim.cuda import drivers as libraries
    elif device.startswith("METAL"):
        from gpu.backends.metal.library import simulated_libraries as libraries
    else:
        yield
        return
    before = {id(library): len(library.violations) for library in libraries()}
    yield
    found = [v for each in libraries() for v in each.violations[before.get(id(each), 0) :]]
    assert not found, found


SEEDED = ("CUDA",)  # whose models can be told another seed while they run
SEEDS = 5  # that of SIM_SEED, and 1 to 4


def reseed(device: str, seed: int) -> None:
    """What all models of the device's kind leave to chance is drawn from this seed from now on."""
    from gpu.sim.cuda import drivers

    assert device.partition(":")[0] in SEEDED, device
    for library in drivers():
        library.reseed(seed)


@contextmanager
def own_machines() -> Iterator[None]:
    """What is opened in the block is on machines that no other test has; they end with it."""
    from gpu.backends.amd import device as amd
    from gpu.backends.nv import simulated as nv

    with _not_shared((amd, "_world"), (amd, "card_world"), (nv, "simulated")):
        yield


@contextmanager
def own_cards() -> Iterator[None]:
    """As `own_machines`, of those alone whose cards no kernel driver has."""
    from gpu.backends.amd import device as amd
    from gpu.backends.nv import simulated as nv

    with _not_shared((amd, "card_world"), (nv, "card_world")):
        yield


@contextmanager
def _not_shared(*makers: tuple[ModuleType, str]) -> Iterator[None]:
    from gpu.sim.machine import machines

    before = machines()
    with pytest.MonkeyPatch.context() as patch:
        for module, name in makers:
            patch.setattr(module, name, getattr(module, name).__wrapped__)
        try:
            yield
        finally:
            for machine in machines():
                if machine not in before:
                    machine.close()
