"""The table of simulated machines: which chips run kernels, and what makes a machine with them.

A new chip of a kind that is there adds its name in the room of its vendor; another kernel driver
before one, or none, is a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.core.errors import ConfigError
from gpu.sim.isa.rdna.chip import CHIPS as RDNA_CHIPS
from gpu.sim.machine import Machine
from gpu.sim.nv.chip.chips import CHIPS


class Simulated(NamedTuple):
    """A machine that runs kernels.

    Attributes:
        learn: tells it what code stands for that no simulator can read; None where it reads all.
    """

    machine: Machine
    learn: Callable[..., None] | None


class Model(NamedTuple):
    """A row: machines of a device's chips behind an interface, both as `DEV` names them."""

    device: str
    interface: str
    chips: tuple[str, ...]
    make: Callable[[list[str]], Simulated]


def _kfd(chips: list[str]) -> Simulated:
    from gpu.sim.amd.chip.lanes import LaneExecutor
    from gpu.sim.amd.kfd.world import KfdWorld

    return Simulated(KfdWorld(chip=chips, executor=LaneExecutor()), None)


def _nvk(chips: list[str]) -> Simulated:
    from gpu.sim.nv.chip.lanes import PtxExecutor
    from gpu.sim.nv.world import NvSimWorld

    executor = PtxExecutor()
    return Simulated(NvSimWorld(chip=chips, executor=executor), executor.learn)


MODELS: Final = (
    Model("AMD", "KFD", tuple(RDNA_CHIPS), _kfd),
    Model("NV", "NVK", tuple(CHIPS), _nvk),
)


def find_model(device: str, interface: str | None = None) -> Model:
    """The row of a device and an interface, by default its first. Raises ConfigError."""
    for model in MODELS:
        if model.device == device and interface in (None, model.interface):
            return model
    known = ", ".join(f"{model.interface}+{model.device}" for model in MODELS)
    wanted = f"{interface}+{device}" if interface else device
    raise ConfigError(f"SIM has no model of {wanted}, but of {known}")


def simulate(setting: str, device: str, interface: str | None = None) -> Simulated:
    """A new machine with the chips that `SIM` names, in any case, their names with commas.

    Raises ConfigError for a chip that the device has no model of, or one that runs no kernels.
    """
    model = find_model(device, interface)
    chips = [name.strip().lower() for name in setting.split(",")]
    for name in chips:
        if name not in model.chips:
            raise ConfigError(
                f"SIM={setting}: {device} has no model of {name!r} that runs kernels, but of "
                f"{', '.join(model.chips)}"
            )
    return model.make(chips)
