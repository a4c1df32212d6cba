"""What the lane engine makes of a form."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu.core.errors import GpuError
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.dispatch import Dispatch
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.waves import aligned_bytes
from tools.hw_acceptance.amd.vectors.forms import (
    LANES,
    LDS,
    OUT,
    VGPRS,
    Form,
    Words,
    inputs,
    kernel,
)

_ALIGN: Final = 256


def evaluate(chip: str, form: Form) -> Words | str:
    """What a kernel of the form stores; why the engine has no such instruction, if it has not."""
    code = kernel(chip, form)
    placed = aligned_bytes(len(code), _ALIGN)
    placed[:] = np.frombuffer(code, np.uint8)
    given, out = inputs(form), np.zeros(OUT // 4, np.uint32)
    pointers = np.array([given.ctypes.data, out.ctypes.data], np.uint64)
    memory = MemoryMap()
    writable = layout.READ | layout.WRITE | layout.ATOMIC
    for array, flags in (
        *((placed, layout.READ), (given, layout.READ)),
        *((pointers, layout.READ), (out, writable)),
    ):
        memory.add(array.ctypes.data, array.nbytes, array.ctypes.data, flags)
    address = pointers.ctypes.data
    dispatch = Dispatch(
        pc=placed.ctypes.data,
        grid=(1, 1, 1),
        block=(LANES, 1, 1),
        user_sgprs=(address & 0xFFFF_FFFF, address >> 32),
        vgprs=VGPRS,
        lds_bytes=LDS,
    )
    try:
        Machine(memory, chip=chip).run(dispatch)
    except GpuError as error:
        return error.message
    return out
