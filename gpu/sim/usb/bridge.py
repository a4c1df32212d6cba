"""A bridge as a thing on a port: plugged in or not, with a firmware, and troubles on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gpu.core.errors import ConfigError, DeviceLost
from gpu.core.usb import UsbId
from gpu.sim.amd.pci.card import AmdCard
from gpu.sim.amd.pci.cards import Quiet
from gpu.sim.machine import Machine
from gpu.sim.usb import openfw, stockfw
from gpu.sim.usb.chip import BridgeChip, Timing, Transfers
from gpu.sim.usb.firmware import SET_CONFIGURATION, STANDARD_OUT, Firmware, Setup
from gpu.sim.usb.link import DeadLink

Kind = Literal["open", "stock"]
_PRODUCTS: Final = (0x2464, *range(0x2460, 0x2470), *range(0x2360, 0x2370))
_IDENTITIES: Final[dict[Kind, tuple[tuple[int, int], ...]]] = {
    "open": ((0xADD1, 0x0001), (0x3801, 0x0001)),
    "stock": tuple((stockfw.VENDOR, product) for product in _PRODUCTS),
}


@dataclass(frozen=True, slots=True)
class Troubles:
    """What goes wrong on purpose, each at the USB request of a number; 0 is never.

    Requests are counted from 1, each control and bulk transfer and each `clear_halt`.

    Attributes:
        stall: it is stalled; a bulk endpoint stays so.
        short: it brings half as much as there is, if it reads.
        unplug: the device is gone.
        link_dies: the link to the card goes down before it.
    """

    stall: int = 0
    short: int = 0
    unplug: int = 0
    link_dies: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What bridges of a machine are like; `gpu.sim.usb.world.UsbWorld` tells of each."""

    kind: Kind
    identity: tuple[int, int]
    speed: int
    boots_powered: bool
    timing: Timing
    dead_link: DeadLink
    has_card: bool
    kernel_driver: str
    write16_lands: bool
    troubles: Troubles


class Bridge:
    """A bridge.

    Attributes:
        machine, clock: that it is in, and its time.
        card: behind it.
        id, speed: as USB has it; Mbit/s.
        troubles: what goes wrong.
        chip, firmware: since it was last switched on.
        transfers: how much was transferred since then.
        is_plugged: whether it is on the bus.
        session: counts how often it was plugged in.
        holder: which open device has its interface; None is none of a process.
        kernel_driver: the kernel's driver that has it now; empty where none has.
        alternate: the setting of its interface.
        halted: endpoints that are stalled.
    """

    def __init__(self, machine: Machine, settings: Settings, number: int, card: AmdCard):
        self.machine, self.clock = machine, machine.clock
        self.card = card
        self.speed, self.troubles = settings.speed, settings.troubles
        self._settings = settings
        self._number = number
        self.id = UsbId(*settings.identity, f"2-{number + 1}")
        self.session = self._count = 0
        self.power_cycle()

    def power_cycle(self) -> None:
        """The enclosure loses power and is plugged in again: nothing is as before."""
        settings = self._settings
        is_open = settings.kind == "open"
        self.chip = BridgeChip(
            self.machine,
            f"bridge {self._number}",
            (self.card, Quiet.sound()),
            self.speed,
            settings.timing,
            settings.dead_link,
            openfw.UP_STATE if is_open else stockfw.UP_STATE,
            settings.has_card,
        )
        self.card.on_mode1 = self.chip.fabric.functions[0].reset
        self.firmware: Firmware = (
            openfw.OpenFirmware(self.chip, settings.identity)
            if is_open
            else stockfw.StockFirmware(self.chip, settings.identity, settings.write16_lands)
        )
        self.chip.link.power(settings.boots_powered)
        self.session += 1
        self.is_plugged = self.card.plugged = True
        self.transfers = Transfers()
        self.holder: object = None
        self.kernel_driver = settings.kernel_driver
        self.alternate = 0
        self.halted: set[int] = set()

    def unplug(self) -> None:
        """It is gone from its port, and the card with it."""
        self.is_plugged = False
        self.chip.link.fail()

    def begin(self) -> None:
        """A request begins. Raises DeviceLost where it is the one that finds the device gone."""
        self._count += 1
        if self.is_now(self.troubles.unplug):
            self.unplug()
        if self.machine.faults.due("remove"):
            self.machine.unplug()
        if not self.is_plugged:
            raise DeviceLost(f"{self.id} was unplugged: plug it in and open it anew")
        if self.is_now(self.troubles.link_dies):
            self.chip.link.fail()
        self.chip.work()

    def is_now(self, number: int) -> bool:
        """Whether this request has that number."""
        return number == self._count

    def detach(self, holder: object) -> None:
        """The kernel's driver lets go, for a process."""
        self.kernel_driver = ""
        self.holder = holder

    def release(self, holder: object) -> None:
        """A process lets go: the kernel's driver has it again, in the first setting."""
        if self.holder is holder:
            self.holder, self.alternate = None, 0
            self.kernel_driver = self._settings.kernel_driver

    def reset(self) -> None:
        """The port is reset and the device configured again. Raises DeviceLost where it is stuck.

        What a firmware that waits for ever leaves unanswered ends in a disconnection.
        """
        self.holder, self.alternate = None, 0
        self.halted.clear()
        if self.chip.is_wedged:
            self.unplug()
            raise DeviceLost(f"{self.id} does not come back from a reset: switch it off and on")
        self.firmware.control_out(Setup(STANDARD_OUT, SET_CONFIGURATION, 1, 0, 0), b"")


def find_identity(kind: Kind, vendor: int | None, product: int | None) -> tuple[int, int]:
    """The first of a firmware's identities with these numbers; None is any.

    Raises ConfigError where there is none.
    """
    for identity in _IDENTITIES[kind]:
        if vendor in (None, identity[0]) and product in (None, identity[1]):
            return identity
    what = ":".join("any" if number is None else f"{number:04x}" for number in (vendor, product))
    known = "174c:236x, 174c:246x" if kind == "stock" else "add1:0001, 3801:0001"
    raise ConfigError(f"USB device {what} with {kind} firmware: there are {known}")
