"""What goes wrong with messages, firmware and bus while a card opens: typed, bounded, and over."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Final

import pytest

from gpu.core.errors import GpuError
from gpu.core.firmware import Wanted
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.pci.gpu import open_card
from gpu.drivers.nv.port import QueueOptions, port_of
from gpu.sim.nv.pci import msgq
from gpu.sim.nv.pci.rm import Rm
from gpu.sim.nv.pci.world import NvPciWorld
from gpu.sim.nv.rm.status import RmError, Status
from nv.test_pci_boot import CHIPS, load_of, machine, world_of

LONGEST: Final = 150e9
"""Nanoseconds of the model's clock that an opening and all its undoing may take."""
Provoke = Callable[[NvPciWorld, pytest.MonkeyPatch], None]


def opened(sim: NvPciWorld, load: Callable[[Wanted], bytes]) -> RmDevice:
    return RmDevice(port_of(open_card(world_of(sim), 0, load=load), QueueOptions()))


class Counting:
    """Has something happen at one of the times that a method is called."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str):
        self.count = 0
        self.at = -1
        self.act: Callable[..., object] = lambda *args: None
        inner = getattr(owner, name)

        def counted(*args: object, **options: object) -> object:
            self.count += 1
            if self.count - 1 == self.at:
                changed = self.act(*args)
                if changed is not None:
                    return inner(*changed, **options)
            return inner(*args, **options)

        patch.setattr(owner, name, counted)


@cache
def counts() -> dict[str, int]:
    """How often each happens in an opening."""
    with pytest.MonkeyPatch.context() as patch, machine("gh100") as sim:
        seen = {
            "message": Counting(patch, msgq.Queues, "send"),
            "call": Counting(patch, Rm, "_carry_out"),
            "access": Counting(patch, type(sim.gpus[0]), "_answers"),
        }
        device = opened(sim, load_of(sim))
        found = {name: each.count for name, each in seen.items()}
        device.close()
    return found


def place_of(what: str, part: float) -> int:
    return int(part * counts()[what])


def damage(
    offset: int, value: int, part: float, sim: NvPciWorld, patch: pytest.MonkeyPatch
) -> None:
    """A word of a message is another one; its sum is right but where it is that."""
    seen = Counting(patch, msgq.Queues, "send")
    seen.at = place_of("message", part)

    def act(queues: msgq.Queues, *args: object) -> None:
        put = queues._put

        def once(at: int, data: bytes) -> None:
            if len(data) == msgq.PAGE:
                patch.setattr(queues, "_put", put)
                words = bytearray(data)
                before = struct.unpack_from("<I", words, offset)[0]
                struct.pack_into("<I", words, offset, before ^ value)
                if offset != _SUM:
                    old = struct.unpack_from("<I", words, _SUM)[0]
                    struct.pack_into("<I", words, _SUM, old ^ value)
                data = bytes(words)
            put(at, data)

        patch.setattr(queues, "_put", once)

    seen.act = act


def refuse(status: Status, part: float, sim: NvPciWorld, patch: pytest.MonkeyPatch) -> None:
    """A call of an object is refused, and all after it."""
    seen = Counting(patch, Rm, "_carry_out")
    first = place_of("call", part)

    def refused(*args: object) -> bytes:
        seen.at += 1
        raise RmError(status, "provoked")

    seen.at, seen.act = first, refused


def die(part: float, sim: NvPciWorld, patch: pytest.MonkeyPatch) -> None:
    """Firmware says nothing more."""
    seen = Counting(patch, msgq.Queues, "send")
    seen.at = place_of("message", part)
    seen.act = lambda *args: sim.gpus[0].rm.die("provoked")


def unplug(part: float, sim: NvPciWorld, patch: pytest.MonkeyPatch) -> None:
    """The card is gone from its bus."""
    seen = Counting(patch, type(sim.gpus[0]), "_answers")
    seen.at = place_of("access", part)
    seen.act = lambda *args: sim.gpus[0].unplug()


_SUM: Final = 32
FIELDS: Final = {
    "sum": (_SUM, 1),
    "sequence": (36, 4),
    "no element": (40, 1),
    "many elements": (40, 0x40),
    "signature": (msgq.HEADER + 4, 0x100),
    "length of gigabytes": (msgq.HEADER + 8, 0x4000_0000),
    "unknown function": (msgq.HEADER + 12, 0x8000),
}
"""Offsets of words in an element, and what is changed of them."""
PARTS: Final = (0.0, 0.12, 0.3, 0.5, 0.7, 0.9)
STATUSES: Final = (Status.INSUFFICIENT_RESOURCES, Status.NOT_SUPPORTED, Status.INVALID_STATE)
PROVOKED: Final[dict[str, Provoke]] = {
    **{
        f"{name} of a message at {part}": partial(damage, *change, part)
        for name, change in FIELDS.items()
        for part in PARTS
    },
    **{
        f"{status.name} from {part} on": partial(refuse, status, part)
        for status in STATUSES
        for part in (0.0, 0.2, 0.4)
    },
    **{f"silence from {part} on": partial(die, part) for part in PARTS},
    **{f"gone at {part}": partial(unplug, part) for part in PARTS},
}
FILES: Final = 6


def test_how_many_there_are() -> None:
    assert len(PROVOKED) >= 60


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PROVOKED)
def test_what_goes_wrong_ends_an_opening(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the card opens again, unless it is gone."""
    counts()
    with machine(CHIPS[len(name) % len(CHIPS)]) as sim:
        with monkeypatch.context() as patch:
            PROVOKED[name](sim, patch)
            before = sim.clock.now_ns
            with pytest.raises(GpuError) as error:
                opened(sim, load_of(sim))
            assert error.value.message
            assert sim.clock.now_ns - before < LONGEST
        if sim.gpus[0].plugged:
            opened(sim, load_of(sim)).close()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("chip", CHIPS)
def test_firmware_that_is_cut_off_or_changed_ends_a_boot(chip: str) -> None:
    """Before any of it is given to the card, or by what the card says of it."""
    rng = Random(chip)
    with machine(chip) as sim:
        names: list[str] = []

        def listed(wanted: Wanted) -> bytes:
            names.append(wanted.name)
            return sim.firmware[wanted.name]

        opened(sim, listed).close()
        for number in range(FILES):
            chosen = rng.choice(names)

            def damaged(wanted: Wanted, chosen: str = chosen, is_cut: int = number % 2) -> bytes:
                data = bytearray(sim.firmware[wanted.name])
                if wanted.name == chosen:
                    at = rng.randrange(len(data))
                    data[at] ^= 1 << rng.randrange(8)
                    del data[at if is_cut else len(data) :]
                return bytes(data)

            before = sim.clock.now_ns
            try:
                opened(sim, damaged).close()
            except GpuError as error:
                assert error.message
            assert sim.clock.now_ns - before < LONGEST
        opened(sim, load_of(sim)).close()
