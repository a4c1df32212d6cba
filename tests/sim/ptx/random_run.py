"""Random programs, compiled for the host and for PTX, that must agree bit for bit.

As a command it runs as many programs as asked, from a seed on:
``PYTHONPATH=tests:. python -m sim.ptx.random_run 1000 0``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from gpu.core.errors import GpuError
from gpu.sim.isa.ptx.bare import BareModule
from gpu.sim.isa.ptx.syntax import Instruction
from sim.irprograms.host import GROUPS, Host, Words, difference, inputs
from sim.irprograms.memory import LANES
from sim.irprograms.modules import Dialect, kernel_module
from sim.irprograms.program import make_program

PACK: Final = 8
"""Programs of a module."""
NVPTX: Final = Dialect(
    convention="ptx_kernel",
    attributes="",
    lane="llvm.nvvm.read.ptx.sreg.tid.x",
    group="llvm.nvvm.read.ptx.sreg.ctaid.x",
    barrier=("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",),
    declared=(
        "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
        "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)",
    ),
    spaces={
        "INPUT": "ptr addrspace(1)",
        "GLOBAL": "ptr addrspace(1)",
        "SHARED": "ptr addrspace(3)",
        "PRIVATE": "ptr",
    },
    alloca="",
    # LLVM 22 multiplies by powers of two that are halves themselves, and rounds denormals twice.
    avoid=frozenset({"ldexp.f16"}),
)

_SCOPES: Final = {"workgroup": "block", "agent": "device"}


@cache
def machine(chip: str) -> Any:
    """LLVM's code generator; products and sums must not become fused ones."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.set_option("", "-nvptx-fma-level=0")
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=chip, opt=2)


def ptx_of(text: str, chip: str = "sm_90") -> str:
    """PTX of LLVM IR."""
    import llvmlite.binding as llvm

    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
        module.triple = "nvptx64-nvidia-cuda"
        made: str = machine(chip).emit_assembly(module)
        return made


def forms_of(module: BareModule) -> Counter[str]:
    """How often each form of an instruction stands in a module."""
    return Counter(
        ".".join((item.name, *item.parts))
        for function in module.loaded.module.functions.values()
        for item in function.body or ()
        if isinstance(item, Instruction)
    )


def _run(module: BareModule, number: int, seed: int) -> tuple[Words, Words]:
    """What kernel `number` leaves in ``out`` and ``sums``; raises what the engine does."""
    given = inputs(seed)
    out, sums = given.out(), given.sums()
    arrays = (given.words, given.doubles, given.floats, out, sums)
    module.run(f"k{number}", (GROUPS, 1, 1), (LANES, 1, 1), *arrays, given.scalar, seed=seed)
    return out, sums


def differences(
    seeds: Sequence[int], forms: Counter[str] | None = None, chip: str = "sm_90"
) -> Iterator[str]:
    """Runs the programs of some seeds on both sides; a line for each that differs."""
    programs = [make_program(seed, NVPTX.avoid) for seed in seeds]
    host = Host(programs)
    text = kernel_module(programs, NVPTX)
    for amd, nvidia in _SCOPES.items():
        text = text.replace(f'syncscope("{amd}")', f'syncscope("{nvidia}")')
    module = BareModule(ptx_of(text, chip))
    if forms is not None:
        forms.update(forms_of(module))
    for number, seed in enumerate(seeds):
        try:
            found = difference(host.run(number, inputs(seed)), *_run(module, number, seed))
        except GpuError as error:
            found = f"{type(error).__name__}: {error}"
        if found:
            yield f"seed {seed}: {found}"


def main() -> None:
    """Prints which programs differ, and how many."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    forms: Counter[str] = Counter()
    failures = 0
    for start in range(first, first + count, PACK):
        for line in differences(range(start, min(start + PACK, first + count)), forms):
            failures += 1
            print(line, flush=True)
    print(f"{count} programs with {len(forms)} forms, {failures} differ")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
