"""PM4 packets: which words each has, and what the bits of the words mean.

A packet is a header and words; a word is a `Register`, here one of ours or one of a chip's tables.
Builder (`encode/pm4.py`) and decoder (`decode/pm4.py`) both go by these tables.

Sources: soc15d.h (GFX9) and nvd.h (GFX10 and later) of the kernel, of which autogen/amd has the
numbers; gfx_v9_4_3.c, gfx_v11_0.c, gfx_v12_0.c of amdgpu for the words of a packet in order; and
for the selectors of COPY_DATA comments of nvd.h.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpu.autogen.amd import pm4_gfx9, pm4_gfx10
from gpu.core.register import register_from_table
from gpu.core.regs import Register
from gpu.drivers.am.encode import pm4_fields as fields
from gpu.drivers.am.target import Generation

TYPE: Final = 3  # of all packets here
SINGLE_NOP: Final = 0xFFFF_1000
"""A NOP without words: with the largest count a header is all there is of it."""
MAX_BODY: Final = 0x3FFF
"""Words behind one header."""


def plain(name: str) -> type[Register]:
    """A word that is one number."""
    return register_from_table(name, [("VALUE", 0, 32)])


class Packet(NamedTuple):
    """A kind of packet: its words behind the header; of the last one there may be any number.

    That is where ``repeats`` says so.
    """

    name: str
    opcode: int
    words: tuple[type[Register], ...]
    repeats: bool = False


_ADDRESS: Final = (plain("ADDRESS_LO"), plain("ADDRESS_HI"))
_SRC: Final = (plain("SRC_LO"), plain("SRC_HI"))
_DST: Final = (plain("DST_LO"), plain("DST_HI"))
_DIMENSIONS: Final = tuple(plain(f"GROUPS_{axis}") for axis in "XYZ")
_DATA: Final = plain("DATA")
_RELEASE: Final = (
    fields.ReleaseSelect,
    *_ADDRESS,
    plain("DATA_LO"),
    plain("DATA_HI"),
    plain("CONTEXT"),
)
_COHERENCE: Final = (
    *(
        fields.CoherenceControl,
        plain("SIZE_LO"),
        fields.SizeHigh,
        plain("BASE_LO"),
        plain("BASE_HI"),
    ),
    fields.WaitInterval,
)


def _opcode(name: str) -> int:
    number: int = getattr(pm4_gfx10, f"PACKET3_{name}")
    assert number == getattr(pm4_gfx9, f"PACKET3_{name}")
    return number


def _packet(name: str, *words: type[Register], repeats: bool = False) -> Packet:
    return Packet(name, _opcode(name), words, repeats)


NOP: Final = _packet("NOP", _DATA, repeats=True)
PRED_EXEC: Final = _packet("PRED_EXEC", fields.PredicateControl)
WRITE_DATA: Final = _packet("WRITE_DATA", fields.WriteControl, *_DST, _DATA, repeats=True)
WAIT_REG_MEM: Final = _packet(
    "WAIT_REG_MEM",
    fields.WaitControl,
    *_ADDRESS,
    plain("REFERENCE"),
    plain("MASK"),
    fields.WaitInterval,
)
INDIRECT_BUFFER: Final = _packet("INDIRECT_BUFFER", *_ADDRESS, fields.BufferControl)
COPY_DATA: Final = _packet("COPY_DATA", fields.CopyControl, *_SRC, *_DST)
EVENT_WRITE: Final = _packet("EVENT_WRITE", fields.EventControl)
RELEASE_MEM: Final = _packet("RELEASE_MEM", fields.ReleaseEvent, *_RELEASE)
RELEASE_MEM_GFX9: Final = _packet("RELEASE_MEM", fields.ReleaseEventGfx9, *_RELEASE)
ACQUIRE_MEM: Final = _packet("ACQUIRE_MEM", *_COHERENCE, fields.CacheControl)
ACQUIRE_MEM_GFX9: Final = _packet("ACQUIRE_MEM", *_COHERENCE)
# The words behind RegisterStart are registers of the chip.
SET_SH_REG: Final = _packet("SET_SH_REG", fields.RegisterStart, _DATA, repeats=True)
SET_UCONFIG_REG: Final = _packet("SET_UCONFIG_REG", fields.RegisterStart, _DATA, repeats=True)
SH_REGISTERS: Final = (
    pm4_gfx10.VALUES["SET_SH_REG"]["START"],
    pm4_gfx10.VALUES["SET_SH_REG"]["END"],
)
"""The numbers of the registers that SET_SH_REG reaches: from, up to."""

_COMMON: Final = (
    *(NOP, PRED_EXEC, WRITE_DATA, WAIT_REG_MEM, INDIRECT_BUFFER, COPY_DATA, EVENT_WRITE),
    *(SET_SH_REG, SET_UCONFIG_REG),
)
_OPCODES: Final[dict[int, str]] = {
    number: name.removeprefix("PACKET3_")
    for module in (pm4_gfx9, pm4_gfx10)
    for name, number in vars(module).items()
    if name.startswith("PACKET3_")
}


def opcode_name(opcode: int) -> str | None:
    """The name of any packet, also of one whose words are not here; None for an unknown one."""
    return _OPCODES.get(opcode)


# COMPUTE_DISPATCH_INITIATOR, by which a chip's other compute registers are found: in the space of
# SH registers it is at byte 0xB800 on all of them (kernel: gfxhub base 0 plus its offset there).
_INITIATOR: Final = "COMPUTE_DISPATCH_INITIATOR"
_INITIATOR_NUMBER: Final = 0xB800 // 4


class Packets:
    """The packets and compute registers of a generation."""

    def __init__(self, generation: Generation):
        table = generation.registers()
        base = _INITIATOR_NUMBER - table[_INITIATOR][1]
        self._numbers = {
            name: base + offset for name, (_, offset, _) in table.items() if name.startswith("COMP")
        }
        self.registers = {
            name: register_from_table(name, [(f, *bits) for f, bits in table[name][2].items()])
            for name in self._numbers
        }
        self.names: dict[int, str] = {}
        for name, number in self._numbers.items():
            self.names.setdefault(number, name)
        """The first name of each register, by its number in words."""
        self.initiator = self.registers[_INITIATOR]
        self.dispatch_direct = _packet("DISPATCH_DIRECT", *_DIMENSIONS, self.initiator)
        self.dispatch_indirect = _packet("DISPATCH_INDIRECT", *_ADDRESS, self.initiator)
        self.release_mem = RELEASE_MEM if generation.has_gcr else RELEASE_MEM_GFX9
        self.acquire_mem = ACQUIRE_MEM if generation.has_gcr else ACQUIRE_MEM_GFX9
        every = (*_COMMON, self.dispatch_direct, self.dispatch_indirect)
        self.by_opcode = {p.opcode: p for p in (*every, self.release_mem, self.acquire_mem)}

    def number(self, name: str) -> int:
        """The number of a compute register, in words."""
        return self._numbers[name]
