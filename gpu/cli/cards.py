"""Cards without a kernel driver, as the command line names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from gpu.core.config import config
from gpu.core.devspec import DeviceSpec, parse_device_spec
from gpu.core.errors import Unsupported
from gpu.core.regs import RegMap
from gpu.drivers.am.pci import port as amd
from gpu.drivers.am.pci import steps as amd_steps
from gpu.drivers.am.pci import usb
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.boot import Done, Step, walk
from gpu.drivers.card import PciCard
from gpu.drivers.nv.pci import boot as nvidia

DEVICE_HELP: Final = "as in PCI+AMD or PCI+NV, or PCI+AMD:1 for the second card"
_WAYS: Final = (("PCI", "AMD"), ("USB", "AMD"), ("PCI", "NV"))
C = TypeVar("C", bound=PciCard)


class NamedBlock(NamedTuple):
    """A block of registers: what it is called before their names, and in words."""

    name: str
    title: str
    registers: RegMap


@dataclass(frozen=True, slots=True)
class Taken(Generic[C]):
    """A card that is this process's, and how it is brought up.

    Attributes:
        steps: of its boot.
        give_back: ends what the boot began, as far as it came.
        told: what is to be said of the card behind a step, by the step's name.
        known: the step behind which its registers have names.
        blocks: those.
    """

    card: C
    steps: Sequence[Step[C]]
    give_back: Callable[[C], None]
    told: Callable[[C], dict[str, str]]
    known: str
    blocks: Callable[[C], Sequence[NamedBlock]]

    def headings(self) -> list[tuple[str, str]]:
        """Name of each step, and what it does."""
        return [(step.name, step.about) for step in self.steps]

    def walk(self, until: str | None = None) -> Iterator[Done]:
        """As `gpu.drivers.boot.walk`."""
        return walk(self.card, self.steps, until)

    def named_blocks(self) -> Sequence[NamedBlock]:
        """Its registers, once it was walked to where they are `known`."""
        return self.blocks(self.card)

    def close(self) -> None:
        """Gives it back."""
        self.give_back(self.card)

    def tell(self, step: str) -> str:
        """What is to be said behind a step; empty where nothing is."""
        return self.told(self.card).get(step, "")


def _parse(device: str) -> DeviceSpec:
    spec = parse_device_spec(device)
    if (spec.interface, spec.device) not in _WAYS:
        raise Unsupported(
            f"{device}: this version brings up PCI+AMD, USB+AMD and PCI+NV, PCI+AMD:1 and on"
        )
    return spec


def steps_of(device: str) -> Sequence[Step[Chip]] | Sequence[Step[nvidia.BootCard]]:
    """The steps of a card's boot, without a card. Raises as `take`."""
    return amd_steps.STEPS if _parse(device).device == "AMD" else nvidia.STEPS


def take(device: str) -> Taken[Chip] | Taken[nvidia.BootCard]:
    """The card that a text names, nothing of it touched.

    Raises ConfigError for another text, Unsupported for what is not reached so, and what taking
    its function raises.
    """
    spec = _parse(device)
    return _take_amd(spec) if spec.device == "AMD" else _take_nvidia(spec.index)


def _take_amd(spec: DeviceSpec) -> Taken[Chip]:
    from gpu.backends.amd.device import card_world, usb_world

    def told(chip: Chip) -> dict[str, str]:
        if "discovery" not in chip.done:
            return {}
        size = f"{chip.vram.size >> 20} MiB"
        return {"discovery": f"{chip.registers.gc.ip}, {size}", "state": chip.state}

    over_usb = spec.interface == "USB"
    world, load = (usb_world if over_usb else card_world)(config.SIM)
    chip = (usb if over_usb else amd).take_card(world, spec.index, load)
    return Taken(chip, amd_steps.STEPS, amd.close_chip, told, "discovery", _blocks_of_amd)


def _blocks_of_amd(chip: Chip) -> list[NamedBlock]:
    return [NamedBlock(block.ip.name, str(block.ip), block) for block in chip.registers.blocks]


def _take_nvidia(index: int) -> Taken[nvidia.BootCard]:
    from gpu.backends.nv.simulated import card_world

    def told(card: nvidia.BootCard) -> dict[str, str]:
        size = f"{card.vram_size >> 20} MiB"
        return {"claim": card.chip_name, "state": card.state, "memory": size}

    world, load = card_world(config.SIM)[:2]
    card = nvidia.take_card(world, index, load)
    return Taken(card, nvidia.STEPS, nvidia.close_card, told, "claim", _blocks_of_nvidia)


def _blocks_of_nvidia(card: nvidia.BootCard) -> list[NamedBlock]:
    blocks = ((name.rstrip("."), block) for name, block in card.registers.blocks())
    return [NamedBlock(name, name or "the card's own", block) for name, block in blocks]
