"""The bridge's chip under either firmware: link, request engine, memory, time, and broken rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpu.core.errors import ConfigError
from gpu.sim.machine import Machine
from gpu.sim.pci.function import Card
from gpu.sim.usb.fabric import Fabric
from gpu.sim.usb.link import DeadLink, Link
from gpu.sim.usb.sram import (
    ADMIN_AT,
    COMPLETION_AT,
    PAGE,
    QUEUE_AT,
    SRAM_AT,
    SRAM_BYTES,
    SramEngine,
)
from gpu.sim.usb.tlp import TlpEngine
from gpu.sim.usb.xdata import Xdata

CONTROL_NS: Final = 100_000
"""A control transfer (U; a round trip of a host controller's schedule)."""
SRAM_RATE, TLP_WRITE_RATE, TLP_READ_RATE = 700_000_000, 3_600_000, 1_800_000
"""Bytes a second, as the firmware's author measured them (R: its README)."""


class Speed(NamedTuple):
    """What a link of USB carries: packets of bulk and of endpoint 0 in bytes, bytes a second.

    The last is an upper bound: 13 packets in a microframe of USB 2.0 (5.8.4), else what its
    coding leaves with some for headers (U).
    """

    bulk: int
    control: int
    rate: int


SPEEDS: Final = {
    480: Speed(512, 64, 53_248_000),
    5000: Speed(1024, 512, 450_000_000),
    10000: Speed(1024, 512, 1_100_000_000),
    20000: Speed(1024, 512, 2_200_000_000),
}


class Timing(NamedTuple):
    """How long the link trains, and how long the card then puts off config requests."""

    train_ns: int
    crs_ns: int


@dataclass(slots=True)
class Transfers:
    """How often and how much was transferred since the bridge was plugged in.

    Attributes:
        control, bulk: transfers, those that failed too.
        bytes_in, bytes_out: of bulk, as far as the device took or gave them.
    """

    control: int = 0
    bulk: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class BridgeChip:
    """The chip.

    Attributes:
        machine: that it is in.
        speed: of its USB link.
        fabric, link, tlp, sram, xdata: its parts.
        busy_until_ns: while its firmware does something else than to answer.
        is_wedged: whether its firmware waits for what never comes.
    """

    def __init__(
        self,
        machine: Machine,
        title: str,
        cards: Sequence[Card],
        speed: int,
        timing: Timing,
        dead_link: DeadLink,
        up_state: int,
        has_card: bool,
    ):
        """Raises ConfigError for a speed that USB does not have."""
        if speed not in SPEEDS:
            raise ConfigError(f"USB at {speed} Mbit/s: there are {', '.join(map(str, SPEEDS))}")
        self.machine = machine
        self.speed = SPEEDS[speed]
        self._title = title
        self.fabric = Fabric(machine, title, cards, self.violation, timing.crs_ns)
        self.link = Link(machine.clock, self.fabric, timing.train_ns, dead_link, up_state, has_card)
        self.tlp = TlpEngine(self.link, self.violation)
        self.sram = SramEngine(self.violation)
        for at, memory, size in (
            (SRAM_AT, self.sram.sram, SRAM_BYTES),
            (ADMIN_AT, self.sram.admin, PAGE),
            (QUEUE_AT, self.sram.queue, PAGE),
            (COMPLETION_AT, self.sram.completions, PAGE),
        ):
            self.fabric.map(at, memory, size)
        self.xdata = Xdata(self.sram, self.tlp, self.link, self.violation)
        self.busy_until_ns = 0
        self.is_wedged = False

    def violation(self, rule: str, what: str) -> None:
        """Records that a rule of docs/reference/usb-rules.md was broken."""
        self.machine.debug.violation(f"{self._title}: {rule}: {what}")

    def spend(self, size: int, rate: int) -> None:
        """Lets the time pass that so many bytes take, at the slower of an engine and USB."""
        slower = min(rate, self.speed.rate)
        self.machine.clock.advance(-(-size * 1_000_000_000 // slower))

    def work(self) -> None:
        """Lets the card do something, or not: as what goes on besides the firmware."""
        machine = self.machine
        if machine.rng.random() < 0.5:
            self.tlp.drain()
        if machine.rng.random() < 0.25:
            machine.work(machine.clock.now_ns)
