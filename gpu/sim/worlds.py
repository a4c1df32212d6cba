"""The table of simulated machines: which chips there are, and what makes a machine with them.

A new chip of a kind that is there adds its name in the room of its vendor; another kernel driver
before one, or none, is a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gpu.core.config import config
from gpu.core.errors import ConfigError
from gpu.sim.faults import Fault, Given
from gpu.sim.machine import Machine


class Simulated(NamedTuple):
    """A machine.

    Attributes:
        learn: tells it what code stands for that no simulator can read; None where it reads all,
            or runs none.
    """

    machine: Machine
    learn: Callable[..., None] | None


class Model(NamedTuple):
    """A row: machines of a device's chips behind an interface, both as `DEV` names them."""

    device: str
    interface: str
    find_chips: Callable[[], Iterable[str]]
    make: Callable[[Sequence[str], Given, int], Simulated]

    @property
    def chips(self) -> tuple[str, ...]:
        """The names of those chips; what knows them is imported for it."""
        return tuple(self.find_chips())


def _rdna_chips() -> Iterable[str]:
    from gpu.sim.isa.rdna.chip import CHIPS

    return CHIPS


def _nv_chips() -> Iterable[str]:
    from gpu.sim.nv.chip.chips import CHIPS

    return CHIPS


def _kfd(chips: Sequence[str], faults: Given, seed: int) -> Simulated:
    from gpu.sim.amd.chip.lanes import LaneExecutor
    from gpu.sim.amd.kfd.world import KfdWorld

    return Simulated(KfdWorld(chip=chips, seed=seed, faults=faults, executor=LaneExecutor()), None)


def _card_chips() -> Iterable[str]:
    from gpu.sim.amd.pci.boards import BOARDS
    from gpu.sim.isa.rdna.chip import CHIPS

    return [name for name in BOARDS if name in CHIPS]


def _am_pci(chips: Sequence[str], faults: Given, seed: int) -> Simulated:
    from gpu.sim.amd.chip.lanes import LaneExecutor
    from gpu.sim.amd.pci.world import AmPciWorld

    return Simulated(
        AmPciWorld(chip=chips, seed=seed, faults=faults, executor=LaneExecutor()), None
    )


def _am_usb(chips: Sequence[str], faults: Given, seed: int) -> Simulated:
    from gpu.sim.amd.chip.lanes import LaneExecutor
    from gpu.sim.usb.world import UsbWorld

    return Simulated(UsbWorld(chip=chips, seed=seed, faults=faults, executor=LaneExecutor()), None)


def _nvk(chips: Sequence[str], faults: Given, seed: int) -> Simulated:
    from gpu.sim.nv.chip.lanes import PtxExecutor
    from gpu.sim.nv.world import NvSimWorld

    executor = PtxExecutor()
    return Simulated(
        NvSimWorld(chip=chips, seed=seed, faults=faults, executor=executor), executor.learn
    )


def _nv_card_chips() -> Iterable[str]:
    from gpu.sim.nv.pci.boards import BOARDS

    return BOARDS


def _nv_pci(chips: Sequence[str], faults: Given, seed: int) -> Simulated:
    from gpu.sim.nv.chip.lanes import PtxExecutor
    from gpu.sim.nv.pci.world import NvPciWorld

    executor = PtxExecutor()
    return Simulated(
        NvPciWorld(chip=chips, seed=seed, faults=faults, executor=executor), executor.learn
    )


def _adreno_chips() -> Iterable[str]:
    from gpu.sim.kgsl.chips import CHIPS

    return CHIPS


def _kgsl(chips: Sequence[str], faults: Given, seed: int) -> Simulated:
    from gpu.sim.kgsl.chip.lanes import Ir3Executor
    from gpu.sim.kgsl.world import KgslWorld

    return Simulated(KgslWorld(chip=chips, seed=seed, faults=faults, executor=Ir3Executor()), None)


MODELS: Final = (
    Model("AMD", "KFD", _rdna_chips, _kfd),
    Model("AMD", "PCI", _card_chips, _am_pci),
    Model("AMD", "USB", _card_chips, _am_usb),
    Model("NV", "NVK", _nv_chips, _nvk),
    Model("NV", "PCI", _nv_card_chips, _nv_pci),
    Model("QCOM", "KGSL", _adreno_chips, _kgsl),
)


def find_model(device: str, interface: str | None = None) -> Model:
    """The row of a device and an interface, by default its first. Raises ConfigError."""
    for model in MODELS:
        if model.device == device and interface in (None, model.interface):
            return model
    known = ", ".join(f"{model.interface}+{model.device}" for model in MODELS)
    wanted = f"{interface}+{device}" if interface else device
    raise ConfigError(f"SIM has no model of {wanted}, but of {known}")


def parse_setting(setting: str) -> tuple[list[str], list[Fault]]:
    """The chips that `SIM` names, in any case, and its faults; all of them with commas between.

    Raises ConfigError for a fault that there is not (`gpu.sim.faults`), or no chip.
    """
    chips, faults = [], []
    for part in map(str.strip, setting.split(",")):
        key, is_fault, text = part.partition("=")
        if not is_fault:
            chips.append(part.lower())
        elif key.strip().lower() == "fault":
            faults.append(Fault.parse(text))
        else:
            raise ConfigError(
                f"SIM={setting}: {part!r} is not understood; give chips, and faults as in"
                " gfx1100,fault=hang@2"
            )
    if not chips:
        raise ConfigError(f"SIM={setting}: no chip is named; give one, as in gfx1100,fault=hang")
    return chips, faults


def simulate(setting: str, device: str, interface: str | None = None) -> Simulated:
    """A new machine with the chips that `SIM` names, and the faults that it shows.

    Raises ConfigError for a chip that the device has no model of, or one that runs no kernels, and
    for a fault that there is not.
    """
    model = find_model(device, interface)
    chips, faults = parse_setting(setting)
    for name in chips:
        if name not in model.chips:
            raise ConfigError(
                f"SIM={setting}: {device} has no model of {name!r} that runs kernels, but of "
                f"{', '.join(model.chips)}"
            )
    try:
        return model.make(chips, faults, config.SIM_SEED)
    except ConfigError as error:
        raise ConfigError(f"SIM={setting}: {error.message}") from error
