"""Linear IR printed as MSL, the Metal Shading Language, for Apple's GPUs.

The kernel of a program is called what `symbol` says. Its buffers are those of the parameters in
order, then the workspace if it needs one, then, where a launch has values, an array of them as
longs. It expects the threadgroups and threads that `gpu/compiler/render/launch/grid.py` plans
(there: workgroups and work-items), along x alone, buffers that begin at multiples of 16 bytes and
do not overlap, and a compiler that is told to keep to IEEE 754 ("fast math" off). Products are
never fused with sums but by `fma`: each is a statement of its own, and the pragma says so besides.

Facts are from the Metal Shading Language Specification, version 3.2: sections are named here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.render.cstyle.counters import ThreadId
from gpu.compiler.render.cstyle.grid import GridOps, GridPrinter
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import OPENCL, Emitter, Language, Type, Value
from gpu.compiler.render.cstyle.wide import Wide
from gpu.compiler.render.launch.grid import Grid, plan_grid
from gpu.compiler.render.launch.locals import ALIGN, Places, place_locals
from gpu.compiler.targets import Target
from gpu.compiler.targets.apple import PRIVATE_BYTES, SIMD_WIDTH, metal_target

HEAD: Final = "\n".join(
    [
        "#include <metal_stdlib>",
        "using namespace metal;",
        "#pragma METAL fp contract(off)",
    ]
)
"""What every source begins with."""
_THREAD: Final = ThreadId("block", "thread_of_block")
_DEVICE: Final = "device "
_SHARED: Final = "threadgroup "
_PRIVATE: Final = "thread "
_VECTOR: Final = 4


def symbol(name: str) -> str:
    """What the kernel of a program is called in its source: `name` may be a word of MSL."""
    return f"gpu_{name}"


class _Metal(Language):
    def real(self, kind: Type, value: float) -> str:
        """A float in decimals: C++14 has no hexadecimal ones."""
        if not math.isfinite(value):
            return self.special(kind, value)
        return self.literal.format(kind=kind, number=f"{value!r}f")

    def same_bits(self, kind: Type, expression: str) -> str:
        """The bits of an expression as a type of the same width (2.19)."""
        return f"as_type<{kind}>({expression})"


METAL: Final = _Metal(**{**vars(OPENCL), "words": {**OPENCL.words}})


class MetalRenderer:
    """Prints programs for one family of GPUs.

    Attributes:
        target: the family; what it lacks is refused.
    """

    def __init__(self, family: str):
        """`family` as in `apple7`. Raises Unsupported for one that is not known."""
        self.target = replace(metal_target(family), language="metal")

    def render(self, program: Program) -> str:
        """A source that defines the kernel `program.name`.

        Raises Unsupported for an operation or dtype the target does not have, for too much
        threadgroup memory and for grids that are too large, VerifyError for a program that is not
        well formed in a way that shows.
        """
        return _Kernel(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """What a launch needs to know.

        `groups` of the launch, threads of a `block`, bytes of `workspace` of all of them (0 where
        the kernel takes none), how many `values` a launch has, and a bit for each buffer that is
        `written`.
        """
        grid, places = _launch(program, self.target)
        return {
            "groups": grid.groups,
            "block": grid.block,
            "workspace": places.workspace * grid.groups * grid.block,
            "values": len(program.vals),
            "written": sum(param.written << i for i, param in enumerate(program.params)),
        }


def _launch(program: Program, target: Target) -> tuple[Grid, Places]:
    grid = plan_grid(program, SIMD_WIDTH)
    most = target.shared_bytes
    return grid, place_locals(program, grid, most_private=PRIVATE_BYTES, most_shared=most)


class MetalOps(GridOps):
    """Operations on scalars as MSL."""

    def __init__(self, emitter: Emitter):
        super().__init__(emitter, language=METAL)
        # Of two square roots this one is correctly rounded (8.1).
        self.functions = {**self.functions, "sqrt": "precise::sqrt"}

    def half(self, x: Value) -> Value:
        """By conversion, which rounds to nearest, ties to even (8.2)."""
        return self.same_bits("u16", Value(x.type.of("half"), f"(half){x}"))

    def from_half(self, x: Value) -> Value:
        """By conversion."""
        kind = x.type.of("f32")
        return self.emitter.value(kind, f"(float){METAL.same_bits(x.type.of('half'), x.text)}")


class MetalWide(Wide):
    """By vectors, of which the longest have four elements (2.2): others are several of those."""

    def load(self, access: OpenCLAccess) -> Value:
        """Variables of one name and the numbers of the vectors."""
        name = self.emitter.name("wide")
        for part, (kind, start) in enumerate(_parts(access)):
            source = f"*({access.space}const {kind} *)({start})"
            if access.mask is not None:
                source = f"{access.mask} ? {source} : {kind}(0)"
            self.emitter.line(f"const {kind} {name}_{part} = {source};")
        return Value(access.type, name)

    def element(self, vector: Value, lane: int) -> Value:
        """One element of its vector."""
        part, place = divmod(lane, _VECTOR)
        return Value(vector.type.scalar, f"{vector}_{part}[{place}]")

    def pack(self, elements: list[Value]) -> Value:
        """The elements themselves: a store makes vectors of them."""
        kind = elements[0].type._replace(lanes=len(elements))
        return Value(kind, ", ".join(map(str, elements)))

    def store(self, access: OpenCLAccess, vector: Value, in_array: bool) -> None:
        """Writes vectors one after the other."""
        del in_array
        guard = "" if access.mask is None else f"if ({access.mask}) "
        elements = vector.text.split(", ")
        for part, (kind, start) in enumerate(_parts(access)):
            listed = ", ".join(elements[part * _VECTOR : (part + 1) * _VECTOR])
            self.emitter.line(f"{guard}*({access.space}{kind} *)({start}) = {kind}({listed});")


def _parts(access: OpenCLAccess) -> list[tuple[Type, str]]:
    """The vectors of an access, with their addresses."""
    return [
        (
            access.type._replace(lanes=min(access.type.lanes - lane, _VECTOR)),
            f"{access.start} + {lane}",
        )
        for lane in range(0, access.type.lanes, _VECTOR)
    ]


class _Kernel(GridPrinter):
    """One program on its way to text."""

    def __init__(self, target: Target, program: Program):
        emitter = Emitter()
        grid, places = _launch(program, target)
        super().__init__(
            target, program, MetalOps(emitter), grid, places, _THREAD, MetalWide(emitter)
        )

    def text(self) -> str:
        """The whole source."""
        body = self.body()
        bounds = f"[[max_total_threads_per_threadgroup({self.grid.block})]]"
        parameters = ",\n    ".join(self._parameters())
        return "\n".join(
            [
                HEAD,
                f"{bounds} kernel void {symbol(self.program.name)}(\n    {parameters}) {{",
                *body,
                "}",
                "",
            ]
        )

    def _parameters(self) -> list[str]:
        buffers = [
            f"device {'' if param.written else 'const '}{METAL.type_of(param.dtype)} *p{i}"
            for i, param in enumerate(self.program.params)
        ]
        if self.places.workspace:
            buffers.append("device uchar *workspace")
        if self.program.vals:
            buffers.append("constant long *values")
        return [
            *(f"{buffer} [[buffer({i})]]" for i, buffer in enumerate(buffers)),
            f"uint {self.thread.block} [[threadgroup_position_in_grid]]",
            f"uint {self.thread.thread} [[thread_position_in_threadgroup]]",
        ]

    def _own_workspace(self) -> list[str]:
        own = f"  device uchar *own = workspace + {self._thread_offset()};"
        return [own] if self.places.workspace else []

    def _val(self, inst: Inst) -> Value:
        value = Value(self.counter, f"values[{inst.attr[0]}]")
        return self._narrowed(inst, value)

    def _local(self, inst: Inst) -> Value:
        element, name = METAL.type_of(inst.dtype), self.emitter.name("local")
        if inst in self.places.offsets:
            pointer = f"device {element} *"
            place = f"({pointer})(own + {self.places.offsets[inst]})"
            self.emitter.entry.append(f"  {pointer}{name} = {place};")
        else:
            shared = _SHARED if inst in self.places.shared else ""
            array = f"{element} {name}[{inst.attr[0]}] __attribute__((aligned({ALIGN})))"
            self.emitter.entry.append(f"  {shared}{array};")
        return Value(element, name)

    def _access(
        self, kind: Type, pointer: Inst, index: Inst, mask: Inst | None = None
    ) -> OpenCLAccess:
        """As elsewhere, with the address space, which pointers of MSL name (4)."""
        in_device = pointer.op == "param" or pointer in self.places.offsets
        near = _SHARED if pointer in self.places.shared else _PRIVATE
        access = super()._access(kind, pointer, index, mask)
        return replace(access, space=_DEVICE if in_device else near)

    def _shuffle_xor(self, inst: Inst) -> Value:
        """Among the threads of a SIMD-group, of which those that a block lacks give nothing."""
        (x,), (distance, _) = self._args(inst), inst.attr
        return self.emitter.value(x.type, f"simd_shuffle_xor({x}, (ushort){distance})")

    def _barrier(self, inst: Inst) -> None:
        del inst
        if self.grid.has_threads:
            self.emitter.line("threadgroup_barrier(mem_flags::mem_threadgroup);")
