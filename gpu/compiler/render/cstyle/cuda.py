"""Linear IR printed as CUDA C, for NVIDIA GPUs.

The kernel is ``extern "C"`` and takes the address of each parameter, that of the workspace if it
needs one, then the values of the launch as longs: 8 bytes each. It expects the blocks and threads
that `gpu/compiler/render/launch/nv.py` plans, along x alone, and buffers that begin at multiples of
16 bytes and do not overlap. Products are never fused with sums but by `fma`; nvrtc is told so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.linear.ranges import int_factors, int_ranges
from gpu.compiler.render.cstyle.cuda_grid import counter_lines
from gpu.compiler.render.cstyle.cuda_matrix import MatrixPrinter, Place
from gpu.compiler.render.cstyle.cuda_text import INTRINSICS, TYPES, CudaOps
from gpu.compiler.render.cstyle.cuda_wide import VECTORS, Wide
from gpu.compiler.render.cstyle.flow import OpenLoop
from gpu.compiler.render.cstyle.gpu import KernelPrinter
from gpu.compiler.render.cstyle.memory import store
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import OPENCL, Emitter, Type, Value, integer
from gpu.compiler.render.launch.locals import ALIGN
from gpu.compiler.render.launch.nv import (
    launch_data,
    nv_grid,
    nv_places,
    nv_shared,
    warp_members,
)
from gpu.compiler.targets import Target, edges
from gpu.compiler.targets.nvidia import nv_target
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported

HEAD: Final = f"{TYPES}\n{VECTORS}\n{INTRINSICS}"
"""What every source begins with."""
_SPREAD: Final = ("grid", "thread")
_I32: Final = OPENCL.type("i32")
_I64: Final = OPENCL.type("i64")
_LOWEST: Final = int(dtypes.int32.min)
_HIGHEST: Final = int(dtypes.int32.max)
# What may be a vector: what moves it to or from memory.
_WIDE: Final = ("load", "store", "pack", "splat", "fragment", "mma")
_EXACT: Final = {"add": "+", "sub": "-", "mul": "*"}


class CUDARenderer:
    """Prints programs for one architecture.

    Attributes:
        target: the architecture; what it lacks is refused.
    """

    def __init__(self, arch: str):
        """`arch` as nvrtc calls it: `sm_90`. Raises Unsupported for one that is not known."""
        self.target = nv_target(arch).with_edges(edges.CUDA)

    def render(self, program: Program) -> str:
        """A source that defines the kernel `program.name`.

        Raises Unsupported for an operation the target does not have, for vectors, for too much
        shared memory and for grids that are too large, VerifyError for a program that is not well
        formed in a way that shows.
        """
        return _Kernel(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """As `gpu/compiler/render/launch/nv.py:launch_data` says."""
        return launch_data(program, self.target)


class _Kernel(KernelPrinter):
    """One program on its way to text.

    A 64-bit integer that is known to fit 32 bits is a variable of 32, which half the instructions
    compute; it is widened where another operand is wide.
    """

    def __init__(self, target: Target, program: Program):
        super().__init__(target, program, CudaOps(Emitter()))
        self.grid = nv_grid(program)
        self.places = nv_places(program, self.grid, target)
        self.ranges = {
            inst: found
            for inst, found in int_ranges(program).items()
            if found[0] >= _LOWEST and found[1] <= _HIGHEST
        }
        self.factors = int_factors(program)
        self.shared = nv_shared(program, self.places)
        self.matrices = MatrixPrinter(self.emitter)
        self.wide = Wide(self.emitter)
        self.members = warp_members(self.grid)
        self.counters: dict[Inst, Value] = {}

    def text(self) -> str:
        """The whole source."""
        self.counters, counting = counter_lines(self.grid, self.emitter, frozenset(self.ranges))
        self.print_body()
        bounds = f"__launch_bounds__({self.grid.block})"
        parameters = ", ".join(self._parameters())
        return "\n".join(
            [
                HEAD,
                f'extern "C" __global__ void {bounds} {self.program.name}({parameters}) {{',
                *self._own_workspace(),
                *self._asked_for(),
                *counting,
                *self.emitter.entry,
                *self.emitter.lines,
                "}",
                "",
            ]
        )

    def _refuse(self, inst: Inst) -> None:
        if inst.lanes != 1 and inst.op not in _WIDE and not _is_part(inst):
            raise Unsupported(
                f"{self.program.name}: {inst} is a vector, and CUDA C only loads and stores those;"
                " give the target no vector_bytes"
            )

    def _parameters(self) -> list[str]:
        pointers = [
            f"{'' if param.written else 'const '}{OPENCL.type_of(param.dtype)} *__restrict__ p{i}"
            for i, param in enumerate(self.program.params)
        ]
        if self.places.workspace:
            pointers.append("uchar *__restrict__ workspace")
        return [*pointers, *(f"long value{i}" for i in range(len(self.program.vals)))]

    def _own_workspace(self) -> list[str]:
        """Lines that find this thread's part of the workspace."""
        size = self.places.workspace
        if not size:
            return []
        thread = f"((ulong)blockIdx.x * {self.grid.block} + threadIdx.x)"
        return [f"  uchar *own = workspace + {thread} * {size};"]

    def _asked_for(self) -> list[str]:
        """A line that declares shared memory which a launch gives the size of."""
        array = f"extern __shared__ __attribute__((aligned({ALIGN}))) uchar block_memory[];"
        return [f"  {array}"] if self.shared.size else []

    def _local(self, inst: Inst) -> Value:
        element, name = OPENCL.type_of(inst.dtype), self.emitter.name("local")
        is_shared = inst in self.places.shared
        if inst in self.places.offsets:
            place = f"({element} *)(own + {self.places.offsets[inst]})"
            self.emitter.entry.append(f"  {element} *{name} = {place};")
        elif inst in self.shared.offsets:
            place = f"({element} *)(block_memory + {self.shared.offsets[inst]})"
            self.emitter.entry.append(f"  {element} *{name} = {place};")
        else:
            shared = "__shared__ " if is_shared else ""
            array = f"{element} {name}[{inst.attr[0]}] __attribute__((aligned({ALIGN})))"
            self.emitter.entry.append(f"  {shared}{array};")
        return Value(element, name)

    # Loops.

    def _loop(self, inst: Inst) -> Value:
        _, start, stop, step = inst.attr
        if inst.attr[0] in _SPREAD:
            return self._spread_loop(inst)
        last = self._stop(stop)
        if inst in self.ranges and self.ranges[inst][1] + step <= _HIGHEST:
            if isinstance(stop, int) and _LOWEST <= stop <= _HIGHEST:
                last = integer(_I32, stop)
        else:
            last = _wide(last)
        return self._open(inst, start, last, step)

    def _spread_loop(self, inst: Inst) -> Value:
        """The iteration of a loop that is this thread's; what is inside is skipped without one."""
        counter, checks = self.counters[inst], []
        grid = self.grid
        if inst in grid.inner[:1] and grid.lanes != grid.block * grid.lane_groups:
            checks.append(f"lane < {grid.lanes}")
        if isinstance(inst.attr[2], Limit):
            checks.append(f"{counter} < {self._stop(inst.attr[2])}")
        self.emitter.open(f"if ({' && '.join(checks)})" if checks else "")
        self.open_loops.append(OpenLoop(inst, ()))
        return counter

    # Values.

    def _args(self, inst: Inst) -> list[Value]:
        return [_wide(self.values[a]) if self._is_narrow(a) else self.values[a] for a in inst.args]

    def _is_narrow(self, inst: Inst) -> bool:
        return inst.dtype is dtypes.int64 and self.values[inst].type == _I32

    def _const(self, inst: Inst) -> Value:
        return integer(_I32, inst.attr[0]) if inst in self.ranges else super()._const(inst)

    def _val(self, inst: Inst) -> Value:
        value = super()._val(inst)
        return self.emitter.value(_I32, f"(int){value}") if inst in self.ranges else value

    def _alu(self, inst: Inst) -> Value:
        name = inst.attr[0]
        if clamp := _clamp(inst):
            return self.ops.alu(clamp, inst.dtype, self._args(inst)[1:])
        args = inst.args[1:] if name == "where" else inst.args
        compares = inst.dtype is dtypes.bool and args[0].dtype is dtypes.int64
        if not (all(map(self._is_narrow, args)) and (inst in self.ranges or compares)):
            return super()._alu(inst)
        values = [self.values[a] for a in inst.args]
        if name in _EXACT:
            return self.emitter.value(_I32, f"{values[0]} {_EXACT[name]} {values[1]}")
        return self.ops.alu(name, dtypes.int32, values)

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        x = self.values[source]
        if self._is_narrow(source):
            return self.ops.cast(x, dtypes.int32, inst.dtype)
        if inst in self.ranges and source.dtype.bits < 64:
            return self.ops.cast(x, source.dtype, dtypes.int32)
        return super()._cast(inst)

    def _access(
        self, kind: Type, pointer: Inst, index: Inst, mask: Inst | None = None
    ) -> OpenCLAccess:
        """As elsewhere, and nvrtc is told of alignment, so that it joins stores to neighbours.

        Not of a buffer that is only read: its loads would not go through the cache for such
        buffers any more (`ld.global.nc`; seen with nvrtc 12.9).
        """
        access = super()._access(kind, pointer, index, mask)
        size = kind.bits // 8
        align = min(self.factors.get(index, 1) * size, ALIGN)
        is_written = pointer.op == "param" and self.program.params[pointer.attr[0]].written
        if not is_written or align == size:
            return access
        place = f"__builtin_assume_aligned({access.start}, {align})"
        return replace(
            access,
            pointer=Value(access.pointer.type, f"(({kind} *){place})"),
            index=Value(_I32, "0"),
        )

    def _load(self, inst: Inst) -> Value:
        if inst.lanes == 1:
            return super()._load(inst)
        access = super()._access(OPENCL.type_of(inst.dtype, inst.lanes), *inst.args)
        return self.wide.load(access.type, access.start, access.mask)

    def _splat(self, inst: Inst) -> Value:
        """Of a mask, which all elements of an access have in common."""
        return self.values[inst.args[0]]

    def _pack(self, inst: Inst) -> Value:
        return self.wide.pack(self._args(inst))

    def _store(self, inst: Inst) -> None:
        pointer, index, stored, *mask = inst.args
        if stored.lanes > 1:
            where = super()._access(self.values[stored].type, pointer, index, *mask)
            in_vectors = pointer.op != "param"  # of an array, which starts at a vector
            self.wide.store(self.values[stored], where, in_vectors)
            return
        access = self._access(OPENCL.type_of(stored.dtype), pointer, index, *mask)
        store(self.emitter, access, self.values[stored])

    def _shuffle_xor(self, inst: Inst) -> Value:
        (x,), (distance, _) = self._args(inst), inst.attr
        members = f"0x{self.members.mask:x}u"
        if self.members.rest:
            rest = f"0x{self.members.rest:x}u"
            members = f"(threadIdx.x < {self.members.whole} ? {members} : {rest})"
        return self.emitter.value(x.type, f"__shfl_xor_sync({members}, {x}, {distance})")

    # Matrix instructions.

    def _copy(self, inst: Inst) -> None:
        target, to, source, at, *mask = inst.args
        condition = self.values[mask[0]] if mask else None
        nbytes = inst.attr[0] * target.dtype.itemsize
        places = Place(self.values[target], self.values[to], target.dtype.itemsize)
        self.matrices.copy(places, self.values[source], self.values[at], nbytes, condition)

    def _commit(self, inst: Inst) -> None:
        del inst
        self.matrices.commit()

    def _wait(self, inst: Inst) -> None:
        self.matrices.wait(inst.attr[0])

    def _fragment(self, inst: Inst) -> Value:
        pointer, index = inst.args
        place = Place(self.values[pointer], self.values[index], pointer.dtype.itemsize)
        return self.matrices.fragment(inst, place)

    def _shuffle(self, inst: Inst) -> Value:
        return self.matrices.part(inst)

    def _mma(self, inst: Inst) -> Value:
        return self.matrices.multiply(inst, [self.values[arg] for arg in inst.args])

    def _extract(self, inst: Inst) -> Value:
        (source,), (lane,) = inst.args, inst.attr
        if source.op == "mma":
            return self.matrices.total(inst)
        element = self.wide.element(self.values[source], lane)
        if inst.dtype is not dtypes.bool:
            return element
        return self.emitter.bool_of(f"{element} != 0", element.type)

    def _barrier(self, inst: Inst) -> None:
        del inst
        if self.grid.has_threads:
            self.emitter.line("__syncthreads();")


def _clamp(inst: Inst) -> str | None:
    """The extreme that chooses, as this does, between a constant and a float32 that may be NaN."""
    if inst.attr[0] != "where" or inst.dtype is not dtypes.float32:
        return None
    condition, bound, x = inst.args
    if condition.op != "alu" or condition.attr[0] != "lt" or bound.op != "const":
        return None
    if not abs(bound.attr[0]) > 0:  # which may change the sign of a zero, or is NaN
        return None
    return {(x, bound): "max", (bound, x): "min"}.get((condition.args[0], condition.args[1]))


def _is_part(inst: Inst) -> bool:
    """Whether this takes a part of a matrix out of those that were loaded."""
    return inst.op == "shuffle" and inst.args[0].op == "fragment"


def _wide(x: Value) -> Value:
    """A 64-bit integer in a variable of either width, in 64."""
    return x if x.type == _I64 else Value(_I64, f"((long){x})")
