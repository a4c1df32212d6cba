"""WGSL for WebGPU: what a device is like, and the renderer for it.

`gpu/compiler/render/wgsl/module.py` prints a program, `gpu/compiler/render/wgsl/launch.py` says how
it is launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Program
from gpu.compiler.render.checks import refuse_exchange
from gpu.compiler.render.wgsl.launch import launch_data, shape_of, spills_of
from gpu.compiler.render.wgsl.module import Module
from gpu.compiler.render.wgsl.ops import NATIVE
from gpu.compiler.targets import NARROW_FLOATS, Native, Target
from gpu.compiler.targets.edges import WGSL
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

_WORD: Final = 4  # bytes: what the narrowest element takes in workgroup memory
MOST_THREADS: Final = 256  # of a block: what every WebGPU device allows
# WebGPU tells neither; these suit most GPUs.
WORKERS: Final = 64
REGISTERS: Final = 128
WARP: Final = 32
# A CPU that poses as a GPU: invocations are the lanes of its vectors. On lavapipe a load takes 57
# ns for 8 of them, of one place or of eight, from a buffer or from workgroup memory, and a fused
# multiply-add 1 ns, even where its registers are memory. So tiles are as large as its compiler
# takes in a few seconds, and what is loaded is kept.
VECTOR_BYTES: Final = 16
VECTORS: Final = 138
LANES: Final = 8
CPU_THREADS: Final = 64


class WGSLLimits(NamedTuple):
    """Limits of a device that matter to a kernel; the defaults are those every device has.

    Attributes:
        buffers: storage buffers of a kernel.
        groups: workgroups in one dimension.
        threads: invocations of a workgroup.
        shared_bytes: memory that they share.
        rounds: of all loops of an invocation together, after which its compiler stops; 0 for any.
        is_cpu: whether invocations are the lanes of a CPU's vectors, and memory costs a call each.
        quads: whether loads of four words from a texture are so much faster than from a buffer that
            what is only read is copied to one.
        subgroup: consecutive invocations along x that are always one subgroup, a power of two; 0
            where there are none, or nobody knows which they are.
    """

    buffers: int = 8
    groups: int = 65535
    threads: int = 256
    shared_bytes: int = 16384
    rounds: int = 0
    is_cpu: bool = False
    quads: bool = False
    subgroup: int = 0


def wgsl_target(limits: WGSLLimits, has_f16: bool, features: str = "") -> Target:
    """The target of a device with these limits."""
    half = frozenset({dtypes.float16}) if has_f16 else frozenset()
    native = Native(
        ops=NATIVE,
        storage_only=NARROW_FLOATS - half,
        compute_as_float32=half,
        compute_as_int32=frozenset({dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16}),
        paired=True,
        scalar=limits.is_cpu,
        quads=limits.quads,
        lacking=frozenset({dtypes.float64}),
        edges=WGSL,
    )
    if limits.is_cpu:
        return Target(
            name="wgsl",
            native=native,
            parallel="grid",
            features=features,
            workers=WORKERS,
            vector_bytes=VECTOR_BYTES,
            registers=VECTORS,
            threads=min(limits.threads, CPU_THREADS),
            shared_bytes=limits.shared_bytes,
            warp=LANES,
            shuffle=min(limits.subgroup, LANES),
            buffers=limits.buffers - 1,
        )
    return Target(
        name="wgsl",
        native=native,
        parallel="grid",
        features=features,
        workers=WORKERS,
        registers=REGISTERS,
        threads=min(limits.threads, MOST_THREADS),
        warp=WARP,
        shared_bytes=limits.shared_bytes,
        shuffle=min(limits.subgroup, WARP),
        max_blocks=((1 << 31) - 1) // MOST_THREADS,
        buffers=limits.buffers - 1,  # one is kept for spilled memory
    )


class WGSLRenderer:
    """Prints programs for one device.

    Attributes:
        target: the device.
        limits: what it allows.
    """

    def __init__(self, limits: WGSLLimits, has_f16: bool, features: str = ""):
        self.target = replace(wgsl_target(limits, has_f16, features), language="wgsl")
        self.limits, self.has_f16 = limits, has_f16

    def render(self, program: Program) -> str:
        """A module whose entry point is `program.name`.

        Raises Unsupported for what the device does not allow or WGSL does not have.
        """
        self._check(program)
        for inst in program.body:
            refuse_exchange(self.target, program, inst)
        return Module(program, self.limits.groups, self.limits.rounds, self.has_f16).text()

    def launch_data(self, program: Program) -> Mapping[str, int]:
        """See `gpu/compiler/render/wgsl/launch.py:launch_data`."""
        return launch_data(program, self.limits.groups, self.has_f16)

    def _check(self, program: Program) -> None:
        shape = shape_of(program, self.limits.groups)
        buffers = len(program.params) + bool(spills_of(program, shape, self.has_f16))
        if buffers > self.limits.buffers:
            raise Unsupported(
                f"{program.name} uses {buffers} buffers at once, this WebGPU device allows "
                f"{self.limits.buffers} (maxStorageBuffersPerShaderStage); compute some of its "
                "inputs first, with .contiguous() or .realize()"
            )
        team = (i for i in program.body if i.op == "local" and i.attr[1] == "team")
        shared = sum(i.attr[0] * _WORD for i in team)
        if shape.threads and shared > self.limits.shared_bytes:
            raise Unsupported(
                f"{program.name} shares {shared:,} bytes among the threads of a block,"
                f" this WebGPU device allows {self.limits.shared_bytes:,}"
            )
