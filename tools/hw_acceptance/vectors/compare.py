"""The step that runs every instruction form on the GPU and compares it with the simulator."""

from __future__ import annotations

from typing import Final

import numpy as np

from gpu.drivers.nv.code.cubin import Cubin
from gpu.drivers.nv.device import RmDevice
from gpu.drivers.nv.encode.launch import LoadedKernel
from gpu.hcq.args import ArgumentLayout
from gpu.hcq.program import HCQProgram
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.simulation import PtxSimulation
from tools.hw_acceptance.steplog import Unavailable
from tools.hw_acceptance.suites.target import FolderTarget
from tools.hw_acceptance.vectors import pack
from tools.hw_acceptance.vectors.pack import Group, Words

SIMULATED_EVERY: Final = 40
"""A model, which has nothing to prove here, takes one form of so many."""
_LAYOUT: Final = ArgumentLayout(2, [])
_MOST_TOLD: Final = 50
_EXPONENTS: Final = {16: 0x7C00, 32: 0x7F80_0000, 64: 0x7FF0_0000_0000_0000}


def instructions(context: Context) -> None:
    """All forms with the inputs of the folder.

    Results that are laid down must be those of the simulator. Where a NaN may be any, any is right;
    other differences of such forms, as of approximations, are told. Raises StepFailed, Unavailable
    on a GPU that is older than the instructions.
    """
    every = SIMULATED_EVERY if context.simulation is not None else 1
    target = FolderTarget(context, traced=False)
    wrong: list[str] = []
    other: list[str] = []
    refused: list[str] = []
    forms = 0
    with target.open() as device:
        sm = device.target.sm
        if sm < pack.OLDEST:
            raise Unavailable(f"the forms are of sm_{pack.OLDEST}, this GPU is an sm_{sm}")
        for group, code in pack.read(context.folder / pack.VECTORS, sm):
            cubin = Cubin(code)
            refused += group.refused
            for number in pack.some(group, every):
                forms += 1
                program = device.load(cubin, group.kernels[number], _LAYOUT, written=(1,))
                if isinstance(context.simulation, PtxSimulation):
                    assert isinstance(program.info, LoadedKernel), "it was loaded by this driver"
                    known = cubin, group.text, program.name, program.info.image
                    context.simulation.teach(*known)
                found = _run(device, program, group.sources[number])
                text = _difference(group, number, found)
                if text:
                    (wrong if group.exact else other).append(text)
    context.log.fact("forms", forms)
    context.log.fact("forms that NVIDIA's assembler refuses", refused)
    context.log.fact("results that may differ, and do", other[:_MOST_TOLD])
    told = f"{len(wrong)} differ: {'; '.join(wrong[:_MOST_TOLD])}"
    context.log.check(f"{forms} forms of instructions", not wrong, told if wrong else "")


def _run(device: RmDevice, program: HCQProgram, sources: Words) -> Words:
    """What a kernel gives, 128 lanes in each of two blocks, as the simulator ran it."""
    given, out = device.allocator.alloc(sources.nbytes), device.allocator.alloc(8 * pack.LANES)
    device.allocator.copy_in(given, sources.tobytes())
    device.allocator.copy_in(out, bytes(8 * pack.LANES))
    program(given, out, grid=(2, 1, 1), block=(pack.LANES, 1, 1))
    result = np.frombuffer(device.allocator.copy_out(out), np.uint64)
    given.free()
    out.free()
    return result


def _difference(group: Group, number: int, found: Words) -> str:
    """The first lane whose result is not the simulator's, in words; empty where there is none."""
    wanted, bits = group.results[number], group.bits[number]
    differs = found != wanted
    if not group.exact and bits in _EXPONENTS:
        differs &= ~(_is_nan(found, bits) & _is_nan(wanted, bits))
    if not differs.any():
        return ""
    lane = int(np.flatnonzero(differs)[0])
    sources = ", ".join(hex(value) for value in group.sources[number][:, lane].tolist())
    got, want = int(found[lane]), int(wanted[lane])
    return f"{group.forms[number]} of {sources}: {got:#x}, the simulator {want:#x}"


def _is_nan(values: Words, bits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    rest = np.uint64((1 << bits - 1) - 1)
    return (values & rest) > np.uint64(_EXPONENTS[bits])
