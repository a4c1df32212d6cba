"""Words of constant bank 0 that code takes for granted, compared with what the hardware was told.

Code does not learn the sizes of its grid and block from the hardware: it loads them from words in
front of its parameters, which whoever launches it must have filled. NVIDIA does not document them;
these are the offsets from which code of ptxas 13.0 loads, by where its parameters begin. Words that
a kernel does not use are not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpu.core.errors import Unsupported
from gpu.sim.isa.ptx import wave
from gpu.sim.isa.ptx.program import Program
from gpu.sim.nv.chip.errors import graphics
from gpu.sim.nv.chip.launch import KernelMemory, Launch


@dataclass(frozen=True, slots=True)
class Words:
    """Offsets in bytes: three words each for block and grid, two for the window."""

    block: int
    grid: int
    local_window: int


_OLD: Final = Words(block=0x0, grid=0xC, local_window=0x20)
_NEW: Final = Words(block=0x360, grid=0x370, local_window=0x2F8)
WORDS: Final = {0x160: _OLD, 0x210: _OLD, 0x380: _NEW}
"""By the offset of the first parameter: sm_80 to sm_89, sm_90, from sm_100 on."""


def words_at(parameters: int) -> Words:
    """The words in front of parameters that begin at an offset. Raises Unsupported."""
    if parameters not in WORDS:
        known = ", ".join(map(hex, WORDS))
        raise Unsupported(f"parameters at {parameters:#x} of constant bank 0; known are {known}")
    return WORDS[parameters]


def check_words(words: Words, program: Program, launch: Launch, memory: KernelMemory) -> None:
    """What a kernel reads there must be what its launch has.

    Raises ChannelError where it is not, KernelFault where the bank ends before it, PageFault.
    """
    for register, offset, size in (
        ("%ntid", words.block, launch.block),
        ("%nctaid", words.grid, launch.grid),
    ):
        for axis, wanted in zip("xyz", size, strict=True):
            if f"{register}.{axis}" in program.specials:
                at = offset + 4 * "xyz".index(axis)
                _compare(f"{register}.{axis}", at, 4, wanted, memory)
    if wave.LOCAL_WINDOW in program.windows:
        at = words.local_window
        _compare("the window to local memory", at, 8, launch.local_window, memory)


def _compare(what: str, offset: int, size: int, wanted: int, memory: KernelMemory) -> None:
    found = int.from_bytes(memory.constant(0, offset, size), "little")
    if found != wanted:
        raise graphics(
            f"{what} is {found:#x} at {offset:#x} of constant bank 0, the launch has {wanted:#x}"
        )
