"""Registers of a card: which there are, what they hold, and who is told of an access.

An address that no block of the card has in that segment is refused: a record says what was asked
for, reads bring ones and writes are lost. Those of the graphics core that exist for each queue or
address space (banked) are the ones that GRBM_GFX_CNTL selects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gpu.sim.amd.pci.boards import Block, Board
from gpu.sim.record import DebugChannel

ONES: Final = 0xFFFFFFFF
Fields = dict[str, tuple[int, int]]
Table = dict[str, tuple[int, int, Fields]]
Reader = Callable[[], int]
Writer = Callable[[int], None]


class Place(NamedTuple):
    """A register of a card."""

    block: str
    name: str
    fields: Fields


class Registers:
    """All registers of a card, by their address in dwords.

    Attributes:
        bank: tells which copy of a banked register is meant, by its name; None for one that has a
            single copy. Raises `Refused` for a selection in which it has none.
    """

    def __init__(self, board: Board, debug: DebugChannel):
        self._debug = debug
        self._board = board
        self._title = f"{board.chip.name} registers"
        self._places: dict[int, Place] = {}
        self._at: dict[str, int] = {}
        self._values: dict[object, int] = {}
        self._readers: dict[str, Reader] = {}
        self._writers: dict[str, Writer] = {}
        self._initial: dict[str, int] = {}
        self.bank: Callable[[str], object] = lambda name: None
        for block in board.blocks:
            self._add_block(block)

    def names(self) -> list[str]:
        """All that there are."""
        return list(self._at)

    def address(self, name: str) -> int:
        """Where a register is, in dwords. Raises KeyError."""
        return self._at[name]

    def fields(self, name: str) -> Fields:
        """The fields of a register, as (lowest bit, width)."""
        return self._places[self._at[name]].fields

    def add(self, name: str, address: int, block: str, fields: Fields | None = None) -> None:
        """A register that no table has."""
        self._places[address], self._at[name] = Place(block, name, fields or {}), address

    def repeat(self, name: str, new: str, distance: int) -> None:
        """Another one of a kind, as Linux finds them: by a distance in dwords."""
        first = self._places[self._at[name]]
        self.add(new, self._at[name] + distance, first.block, first.fields)

    def hook(self, name: str, read: Reader | None = None, write: Writer | None = None) -> None:
        """Who answers for a register; the value that is kept is `value`."""
        assert name in self._at, f"{self._board.chip.name} has no {name}"
        if read is not None:
            self._readers[name] = read
        if write is not None:
            self._writers[name] = write

    def begin(self, name: str, value: int) -> None:
        """What a register holds after a reset."""
        assert name in self._at, f"{self._board.chip.name} has no {name}"
        self._initial[name] = value

    def reset(self) -> None:
        """All hold what they do after power-on."""
        self._values.clear()

    def value(self, name: str, bank: object = None) -> int:
        """What a register holds; of a banked one the copy that is named."""
        key = (name, bank) if bank is not None else name
        return self._values.get(key, self._initial.get(name, 0))

    def set(self, name: str, value: int, bank: object = None) -> None:
        """Changes what a register holds, with nobody told."""
        self._values[(name, bank) if bank is not None else name] = value & ONES

    def field(self, name: str, field: str, bank: object = None) -> int:
        """A field of what a register holds."""
        low, width = self.fields(name)[field]
        return self.value(name, bank) >> low & (1 << width) - 1

    def pair(self, low: str, high: str, bank: object = None) -> int:
        """Two registers as one number."""
        return self.value(low, bank) | self.value(high, bank) << 32

    def read(self, address: int) -> int:
        """An access."""
        place = self._places.get(address)
        if place is None:
            self.refuse(f"a read of {self._unknown(address)}")
            return ONES
        try:
            reader = self._readers.get(place.name)
            return reader() if reader else self.value(place.name, self.bank(place.name))
        except Refused as refused:
            self.refuse(f"a read of {place.name}: {refused}")
            return ONES

    def write(self, address: int, value: int) -> None:
        """An access."""
        place = self._places.get(address)
        if place is None:
            self.refuse(f"a write of {value:#x} to {self._unknown(address)}")
            return
        try:
            writer = self._writers.get(place.name)
            if writer:
                writer(value)
            else:
                self.set(place.name, value, self.bank(place.name))
        except Refused as refused:
            self.refuse(f"a write of {value:#x} to {place.name}: {refused}")

    def refuse(self, what: str) -> None:
        """Records what may not be done."""
        self._debug.violation(f"{self._title}: {what}")

    def _add_block(self, block: Block) -> None:
        if not block.table:
            return
        prefixes = {"MP0": ("MP0_", "MPASP_"), "MP1": ("MP1_",)}.get(block.name, ("",))
        for name, (segment, offset, fields) in _table(block.table).items():
            if name.startswith(prefixes):
                self.add(name, block.bases[segment] + offset, block.name, fields)

    def _unknown(self, address: int) -> str:
        """An address in words: what it would be in another segment, where that is something."""
        said = f"register {address:#x} (byte {4 * address:#x}), which this chip does not have"
        for block in self._board.blocks:
            for segment, base in enumerate(block.bases):
                for other, right in enumerate(block.bases):
                    found = self._places.get(address - base + right)
                    if other != segment and found is not None and found.block == block.name:
                        return f"{said}; {found.name} is in segment {other}, not {segment}"
        return said


class Refused(Exception):
    """An access that the chip does not take, and why."""


def _table(name: str) -> Table:
    """A generated table; each is imported where a chip has it, as that takes milliseconds."""
    match name:
        case "gc_11_0_0":
            from gpu.autogen.amd.gc_11_0_0 import REGISTERS
        case "gc_11_0_3":
            from gpu.autogen.amd.gc_11_0_3 import REGISTERS
        case "gc_12_0_0":
            from gpu.autogen.amd.gc_12_0_0 import REGISTERS
        case "hdp_6_0_0":
            from gpu.autogen.amd.hdp_6_0_0 import REGISTERS
        case "hdp_7_0_0":
            from gpu.autogen.amd.hdp_7_0_0 import REGISTERS
        case "mmhub_3_0_0":
            from gpu.autogen.amd.mmhub_3_0_0 import REGISTERS
        case "mmhub_3_0_2":
            from gpu.autogen.amd.mmhub_3_0_2 import REGISTERS
        case "mmhub_4_1_0":
            from gpu.autogen.amd.mmhub_4_1_0 import REGISTERS
        case "mp_13_0_0":
            from gpu.autogen.amd.mp_13_0_0 import REGISTERS
        case "mp_14_0_2":
            from gpu.autogen.amd.mp_14_0_2 import REGISTERS
        case "nbif_6_3_1":
            from gpu.autogen.amd.nbif_6_3_1 import REGISTERS
        case "nbio_4_3_0":
            from gpu.autogen.amd.nbio_4_3_0 import REGISTERS
        case "osssys_6_0_0":
            from gpu.autogen.amd.osssys_6_0_0 import REGISTERS
        case "osssys_7_0_0":
            from gpu.autogen.amd.osssys_7_0_0 import REGISTERS
        case _:
            raise KeyError(name)
    return REGISTERS
