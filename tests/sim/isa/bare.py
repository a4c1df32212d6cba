"""Runs bare machine code, without a code object or a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.dispatch import DEFAULT_MODE, Dispatch
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes


def run_asm(
    code: bytes,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: bytes | Sequence[npt.NDArray[np.generic]],
    *,
    lds: int = 0,
    scratch: int = 0,
    vgprs: int = 256,
    mode: int = DEFAULT_MODE,
    dispatch: Callable[[Dispatch], Dispatch] = lambda usual: usual,
    seed: int = 0,
    chip: str = "gfx1100",
) -> None:
    """Runs bare machine code: s[0:1] holds the address of `args`, ids of workgroups follow.

    `args` are kernel argument bytes, or arrays whose addresses become the arguments; an array may
    be written. `dispatch` may change what the waves start with. Addresses are the host's own.
    Raises what `Machine.run` does.
    """
    arrays = [] if isinstance(args, bytes) else list(args)
    packed = (
        args
        if isinstance(args, bytes)
        else b"".join(array.ctypes.data.to_bytes(8, "little") for array in arrays)
    )
    text = np.frombuffer(code + bytes(-len(code) % 4), np.uint8)
    kernel = np.frombuffer(packed or bytes(8), np.uint8)
    placed = aligned_bytes(len(text), 256)
    placed[:] = text
    memory = MemoryMap()
    memory.add(placed.ctypes.data, len(placed), placed.ctypes.data, layout.READ)
    memory.add(kernel.ctypes.data, len(kernel), kernel.ctypes.data, layout.READ)
    for array in arrays:
        flags = layout.READ | (layout.WRITE | layout.ATOMIC) * array.flags.writeable
        memory.add(array.ctypes.data, array.nbytes, array.ctypes.data, flags)
    address = kernel.ctypes.data
    usual = Dispatch(
        pc=placed.ctypes.data,
        grid=grid,
        block=block,
        user_sgprs=(address & 0xFFFFFFFF, address >> 32),
        vgprs=vgprs,
        lds_bytes=lds,
        scratch_bytes=scratch,
        mode=mode,
    )
    Machine(memory, seed=seed, chip=chip).run(dispatch(usual))
