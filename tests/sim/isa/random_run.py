"""Random programs, compiled for the host and for a chip, that must agree bit for bit.

As a command it runs as many programs as asked, from a seed on:
``PYTHONPATH=tests:. python -m sim.isa.random_run 10000 0``, and behind them lanes and chip.

Of the seeds 0 to 9999 a few differ through mistakes of LLVM 22 that its assembly shows. 4394,
5196, 7346: of a <2 x i64> that was made by an insertelement at a computed place, both elements are
read as the first. 5447, 8081: lanes that come to the default of a switch by one of two ways lack a
value that it selects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np

from gpu.compiler.toolchain.amdgcn import AMDCompiler
from gpu.core import elf
from gpu.core.errors import GpuError
from gpu.sim.isa import layout
from gpu.sim.isa.memorymap import MemoryMap
from gpu.sim.isa.rdna.chip import chip_of
from gpu.sim.isa.rdna.decode import Decoder
from gpu.sim.isa.rdna.run import Machine
from gpu.sim.isa.scheduler import RESIDENT
from gpu.sim.isa.waves import Bytes, aligned_bytes
from sim.irprograms.host import GROUPS, Host, Words, difference, inputs
from sim.irprograms.memory import LANES
from sim.irprograms.modules import Dialect, kernel_module
from sim.irprograms.program import make_program
from sim.isa.codeobject import DESCRIPTOR, KernelDescriptor

PACK: Final = 16
"""Programs of a module."""
_ABSENT: Final = (
    *("dispatch-ptr", "queue-ptr", "dispatch-id", "implicitarg-ptr", "lds-kernel-id"),
    *("workitem-id-y", "workitem-id-z", "workgroup-id-y", "workgroup-id-z"),
)
AMDGPU: Final = Dialect(
    convention="amdgpu_kernel",
    attributes=" ".join(
        [f'"amdgpu-flat-work-group-size"="{LANES},{LANES}"', *(f'"amdgpu-no-{x}"' for x in _ABSENT)]
    ),
    lane="llvm.amdgcn.workitem.id.x",
    group="llvm.amdgcn.workgroup.id.x",
    barrier=(
        'fence syncscope("workgroup") release',
        "call void @llvm.amdgcn.s.barrier()",
        'fence syncscope("workgroup") acquire',
    ),
    declared=(
        "declare i32 @llvm.amdgcn.workitem.id.x()",
        "declare i32 @llvm.amdgcn.workgroup.id.x()",
        "declare void @llvm.amdgcn.s.barrier()",
    ),
    spaces={
        "INPUT": "ptr addrspace(4)",
        "GLOBAL": "ptr addrspace(1)",
        "SHARED": "ptr addrspace(3)",
        "PRIVATE": "ptr addrspace(5)",
    },
    alloca=", addrspace(5)",
    avoid=frozenset({
        # LLVM 22 folds another addition into the carry chain of these, and takes its carry.
        *("uadd.sat.i64", "usub.sat.i64", "uadd.sat.v2i64", "usub.sat.v2i64"),
        # LLVM makes a v_fma_mixlo with +0 of a rounded product, which loses the sign of a zero.
        "fptrunc.signed",
        # In the block where lanes of a divergent switch meet it reads a register that was given
        # the value of a scalar in one of the blocks before alone.
        "phi.uniform",
        # It packs -0.0 as the high half of a register like 0.0.
        "half.minus_zero",
        # Its quotient of 24 bits may be 1 too large where the reciprocal, for which the manual
        # promises 1 ulp, is the nearest float.
        "div.i24",
    }),
)  # fmt: skip


Form = tuple[str, str, bool]
"""An instruction's name and encoding, and whether it is a DPP one."""


@cache
def _compiler(chip: str) -> AMDCompiler:
    return AMDCompiler(chip)


@cache
def _decoder(chip: str) -> Decoder:
    return Decoder(chip)


def dialect(lanes: int) -> Dialect:
    """That of waves of 32 or 64 lanes; features of a function stand for those of the compiler."""
    wanted = f'"target-features"="+wavefrontsize{lanes},-promote-alloca,-real-true16"'
    return replace(AMDGPU, attributes=f"{AMDGPU.attributes} {wanted}")


def _scratch_buffer(memory: Bytes, lanes: int) -> int:
    """The descriptor of scratch memory that chips before RDNA3 are given, as a number."""
    stride = lanes.bit_length() - 4  # 8 << n lanes lie side by side
    words = (memory.ctypes.data | 1 << 63, memory.nbytes | (2 << 28 | 1 << 23 | stride << 21) << 32)
    return words[0] | words[1] << 64


class Kernels:
    """The kernels of a code object, to be run by `run_asm`."""

    def __init__(self, text: str, lanes: int, chip: str):
        self._lanes = lanes
        self._chip = chip
        self._image = _compiler(chip).compile(text)
        self._symbols = {s.name: s for s in elf.parse_shared(self._image).symbols}

    def run(self, number: int, seed: int) -> tuple[Words, Words]:
        """What kernel `number` leaves in ``out`` and ``sums``; raises what the engine does."""
        place = self._symbols[f"k{number}.kd"].value
        data = self._image[place : place + DESCRIPTOR.size]
        found = KernelDescriptor.parse(data, place)
        given = inputs(seed)
        out, sums = given.out(), given.sums()
        arrays = (given.words, given.doubles, given.floats, out, sums)
        args = np.array([*(a.ctypes.data for a in arrays), given.scalar & (1 << 64) - 1], np.uint64)
        size = self._symbols[f"k{number}"].size
        code = aligned_bytes(size, 256)
        code[:] = np.frombuffer(self._image[found.entry : found.entry + size], np.uint8)
        scratch = aligned_bytes(max(1, found.scratch_bytes) * RESIDENT * self._lanes, 256)
        pointers = {
            "kernarg_segment_ptr": args.ctypes.data,
            "private_segment_buffer": _scratch_buffer(scratch, self._lanes),
        }
        unified = chip_of(self._chip).has_accumulators
        sizes = (GROUPS, 1, 1), (LANES, 1, 1)
        plan = found.dispatch(*sizes, pointers, has_accumulators=unified)
        assert plan.lanes == self._lanes
        memory = MemoryMap()
        for array in (code, args, scratch, *arrays):
            may = layout.READ | layout.WRITE | layout.ATOMIC
            written = array is out or array is sums or array is scratch
            at = array.ctypes.data
            memory.add(at, array.nbytes, at, may if written else layout.READ)
        machine = Machine(memory, seed=seed, chip=self._chip)
        machine.run(replace(plan, pc=code.ctypes.data, scratch_waves=RESIDENT))
        return out, sums

    def forms(self, number: int) -> Iterator[Form]:
        """The instructions of kernel `number`."""
        symbol = self._symbols[f"k{number}"]
        code = self._image[symbol.value : symbol.value + symbol.size]
        at = 0
        while at < len(code):
            found = _decoder(self._chip).decode(code, at)
            for opcode in (found.opcode, found.dual):
                if opcode is not None:
                    yield opcode.name, opcode.format, found.dpp is not None
            at += found.size


def differences(
    seeds: Sequence[int],
    forms: set[Form] | None = None,
    lanes: int = 32,
    chip: str = "gfx1100",
) -> Iterator[str]:
    """Runs the programs of some seeds on both sides; a line for each that differs.

    The instructions of those that agree are added to `forms`. Waves have 32 or 64 lanes.
    """
    programs = [make_program(seed, AMDGPU.avoid) for seed in seeds]
    host = Host(programs)
    kernels = Kernels(kernel_module(programs, dialect(lanes)), lanes, chip)
    for number, seed in enumerate(seeds):
        try:
            found = difference(host.run(number, inputs(seed)), *kernels.run(number, seed))
        except GpuError as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            yield f"seed {seed}: {found}"
        elif forms is not None:
            forms.update(kernels.forms(number))


def main() -> None:
    """Prints which programs differ, and how many."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    lanes = int(sys.argv[3]) if len(sys.argv) > 3 else 32
    chip = sys.argv[4] if len(sys.argv) > 4 else "gfx1100"
    failures, forms = 0, set[Form]()
    for start in range(first, first + count, PACK):
        for line in differences(range(start, min(start + PACK, first + count)), forms, lanes, chip):
            failures += 1
            print(line, flush=True)
        print(f"{start + PACK - first} of {count}", file=sys.stderr, end="\r", flush=True)
    print(f"{count} programs with {len(forms)} forms of instructions, {failures} differ")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
