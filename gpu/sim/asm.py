"""Machine code on the lane engine, as one call: for instruction tests of others, and for a look.

    import numpy as np
    from gpu.sim.asm import run_asm

    out = np.zeros(32, np.uint32)
    args = np.array([out.ctypes.data], np.uint64)
    run_asm(code, len(code), (1, 1, 1), (32, 1, 1), args.ctypes.data)

Addresses are those of this process: a kernel reads and writes the memory that they point to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu.core.bits import bits
from gpu.core.errors import InvalidValue
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE, MAX_VGPRS, Dispatch, ids_of
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes

Bytes = npt.NDArray[np.uint8]
_IDS: Final = 0x380
"""COMPUTE_PGM_RSRC2 with the ids of the workgroup in x, y and z, and no more."""
_EVERYTHING: Final = 1 << 47  # addresses of a process on x86-64


class Range(NamedTuple):
    """Memory of this process that a kernel may access."""

    address: int
    size: int
    writable: bool = True


def run_asm(
    code: int | bytes,
    size: int,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: int | bytes,
    *,
    rsrc2: int = _IDS,
    lds: int = 0,
    scratch: int = 0,
    vgprs: int = MAX_VGPRS,
    mode: int = DEFAULT_MODE,
    lanes: int = 32,
    chip: str = "gfx1100",
    ranges: Iterable[Range] | None = None,
    seed: int = 0,
) -> None:
    """Runs `size` bytes of machine code to their end.

    Args:
        code: the bytes, or where they are.
        grid, block: workgroups in x, y, z, and work-items of each.
        args: kernel arguments, or where they are: s[0:1] holds the address, then come as many
            zeros as `rsrc2` has user SGPRs beyond these two, then the ids that it enables.
        rsrc2: COMPUTE_PGM_RSRC2: user SGPRs 5:1, workgroup ids 9:7, work-item ids 12:11.
        lds, scratch: bytes of local memory of a workgroup, and of scratch memory of a work-item.
        vgprs: vector registers of a wave.
        lanes: of a wave, 32 or 64.
        mode: the MODE register, of which the default is what compilers ask for.
        ranges: what may be accessed beside code and arguments given as bytes; None for all memory
            of this process, in which a stray access is its end.
        seed: decides how waves interleave.

    Raises Unsupported for another chip, InvalidValue for sizes that no dispatcher takes, WaveFault,
    IllegalInstruction, and DeviceHang where no wave gets on.
    """
    if size < 1 or (isinstance(code, bytes) and size > len(code)):
        raise InvalidValue(f"{size} bytes of code; give their number, at least 1")
    text = _placed(code[:size] if isinstance(code, bytes) else ctypes.string_at(code, size))
    given = _placed(args) if isinstance(args, bytes) else None
    at = args if isinstance(args, int) else given.ctypes.data if given is not None else 0
    own = [text] if given is None else [text, given]
    users = (at & 0xFFFFFFFF, at >> 32, *[0] * max(bits(rsrc2, 5, 1) - 2, 0))
    Machine(_memory(own, ranges), seed=seed, chip=chip).run(
        Dispatch(
            *(text.ctypes.data, grid, block, users, *ids_of(rsrc2)),
            vgprs=vgprs,
            lds_bytes=lds,
            scratch_bytes=scratch,
            mode=mode,
            lanes=lanes,
        )
    )


def _memory(own: list[Bytes], ranges: Iterable[Range] | None) -> MemoryMap:
    """What a kernel may access."""
    memory = MemoryMap()
    if ranges is None:
        memory.add(0, _EVERYTHING, 0, layout.READ | layout.WRITE | layout.ATOMIC)
        return memory
    for array in own:
        memory.add(array.ctypes.data, len(array), array.ctypes.data, layout.READ)
    for address, count, writable in ranges:
        flags = layout.READ | (layout.WRITE | layout.ATOMIC) * writable
        memory.add(address, count, address, flags)
    return memory


def _placed(data: bytes) -> Bytes:
    """The bytes in memory, where code may begin."""
    placed = aligned_bytes(max(len(data), 1) + -len(data) % 4, 256)
    placed[: len(data)] = np.frombuffer(data, np.uint8)
    return placed
