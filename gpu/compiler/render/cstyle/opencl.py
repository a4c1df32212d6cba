"""Linear IR printed as OpenCL C 1.2.

The kernel is called `SYMBOL(name)`, for a macro that whoever compiles the text defines; `name` may
be a word of OpenCL C. Its arguments are the buffers in order, then scratch memory if it needs any,
then the values of the launch as longs. How it is launched is said in
`gpu/compiler/render/cstyle/opencl_grid.py`. A block of threads is a group of work items; in a
program without threads it is one work item, so that `team` memory is the item's own and `barrier`
prints nothing. Products are never fused with sums but by `fma`.

What a target can do beyond OpenCL 1.2 stands in its features: `fp64` and `fp16` for the extensions
of these names, `rounded` where float32 divisions and roots are correctly rounded, `clang` where the
compiler has that one's built-in functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gpu.compiler.ir.linear import Inst, Program, team_bytes
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.render.cstyle.flow import OpenLoop
from gpu.compiler.render.cstyle.gpu import KernelPrinter
from gpu.compiler.render.cstyle.memory import store, store_streaming
from gpu.compiler.render.cstyle.opencl_grid import spread_program
from gpu.compiler.render.cstyle.opencl_images import CHANNELS, SAMPLER, ImageAccess, image_data
from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess, declare_anywhere
from gpu.compiler.render.cstyle.opencl_ops import OpenCLOps
from gpu.compiler.render.cstyle.text import LANES, OPENCL, Emitter, Type, Value
from gpu.compiler.render.launch.cpu_abi import LOCAL_ALIGN
from gpu.compiler.targets import Target, edges
from gpu.core.errors import Unsupported


class OpenCLRenderer:
    """Prints programs for one device.

    Attributes:
        target: the device; what it lacks is refused.
    """

    def __init__(self, target: Target):
        self.target = replace(target, language="opencl").with_edges(edges.OPENCL)

    def render(self, program: Program) -> str:
        """A source that defines the kernel `program.name`.

        Raises Unsupported for an operation, dtype or length of vectors the target does not have,
        and VerifyError for a program that is not well formed in a way that shows.
        """
        return _Kernel(self.target, program).text()

    def launch_data(self, program: Program) -> Mapping[str, int]:
        """Work items and those of a group by dimension, bytes of scratch memory, images,
        and a bit for each parameter that is written.
        """
        spread = spread_program(program, self.target)
        sizes = {f"items{i}": size for i, size in enumerate(spread.items)}
        groups = {f"group{i}": size for i, size in enumerate(spread.group)}
        images = image_data(program)
        written = sum(param.written << i for i, param in enumerate(program.params))
        return {
            **sizes, **groups, **images,
            "parameters": len(program.params), "written": written, "scratch": spread.scratch,
        }  # fmt: skip


_ITEMS: Final = ("global_id", "global_size")


class _Kernel(KernelPrinter):
    """One program on its way to text."""

    def __init__(self, target: Target, program: Program):
        self.features = frozenset(target.features.split(","))
        self.clang = "clang" in self.features
        in_double = "rounded" not in self.features and "fp64" in self.features
        ops = OpenCLOps(Emitter(), self.clang, through_double=in_double)
        super().__init__(target, program, ops)
        self.spread = spread_program(program, target)
        self.residues = Residues()
        self.vectors: dict[Type, None] = {}  # those accessed at any address
        self._refuse_much_team_memory()

    def text(self) -> str:
        """The whole source."""
        self.print_body()
        name = f"SYMBOL({self.program.name})"
        if self.emitter.fenced:  # stores past the caches are not ordered otherwise
            self.emitter.line("__atomic_thread_fence(__ATOMIC_SEQ_CST);")
        extensions = [f for f in ("fp64", "fp16") if f in self.features]
        return "\n".join(
            [
                *(f"#pragma OPENCL EXTENSION cl_khr_{name} : enable" for name in extensions),
                "#pragma OPENCL FP_CONTRACT OFF",
                f"__attribute__((reqd_work_group_size({', '.join(map(str, self.spread.group))})))",
                f"__kernel void {name}({', '.join(self._parameters())}) {{",
                *([f"  {SAMPLER}"] if any(p.image for p in self.program.params) else []),
                *(f"  {declare_anywhere(kind)}" for kind in self.vectors),
                *self._places(),
                *self.emitter.entry,
                *self.emitter.lines,
                "}",
                "",
            ]
        )

    def _refuse_much_team_memory(self) -> None:
        wanted, most = team_bytes(self.program), self.target.shared_bytes
        if self.spread.thread and most and wanted > most:
            raise Unsupported(
                f"{self.program.name} shares {wanted:,} bytes among the threads of a block, and"
                f" {self.target.name} has {most:,} (CL_DEVICE_LOCAL_MEM_SIZE)"
            )

    def _refuse(self, inst: Inst) -> None:
        if inst.lanes not in LANES:
            raise Unsupported(
                f"{self.program.name}: OpenCL C has vectors of {', '.join(map(str, LANES[1:]))}"
                f" lanes, not of {inst.lanes}; give the target a vector_bytes that is a power of"
                " two"
            )

    def _parameters(self) -> list[str]:
        parameters = []
        for position, param in enumerate(self.program.params):
            if param.image:
                access = "__write_only" if param.written else "__read_only"
                parameters.append(f"{access} image2d_t p{position}")
                continue
            const = "" if param.written else "const "
            parameters.append(f"__global {const}{OPENCL.type_of(param.dtype)} *p{position}")
        if self.spread.places.scratch:
            parameters.append("__global uchar *all_scratch")
        return parameters + [f"long value{i}" for i in range(len(self.program.vals))]

    def _places(self) -> list[str]:
        """Lines that say which work item this is, and where its scratch memory lies."""
        if self.target.parallel == "worker":
            lines = [
                "  const long worker = (long)get_group_id(0);",
                "  const long workers = (long)get_num_groups(0);",
            ]
            item = "worker"
        else:
            lines = []
            item = (
                "((get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0)"
                " + get_global_id(0))"
            )
        if size := self.spread.places.scratch:
            lines.append(f"  __global uchar *scratch = all_scratch + {item} * {size};")
        return lines

    def _local(self, inst: Inst) -> Value:
        element, name = OPENCL.type_of(inst.dtype), self.emitter.name("local")
        shared = "__local " if self.spread.thread and inst.attr[1] == "team" else ""
        offset = self.spread.places.offsets.get(inst)
        if offset is None:
            attribute = f"__attribute__((aligned({LOCAL_ALIGN})))"
            self.emitter.entry.append(f"  {shared}{element} {name}[{inst.attr[0]}] {attribute};")
        else:
            pointer = f"__global {element} *"
            self.emitter.entry.append(f"  {pointer}{name} = ({pointer})(scratch + {offset});")
        return Value(element, name)

    def _loop(self, inst: Inst) -> Value:
        kind, start, stop, step = inst.attr
        if kind == "thread":
            return self._thread_loop(inst)
        first: object = start
        last = self._stop(stop)
        if kind == "worker" and not self._in_worker_loop():
            first, last = self._chunk(inst, "{number} * {trips} / workers")
        advance: object = step
        if (dimension := self.spread.dimension.get(inst)) is not None:
            place, size = ("group_id", "num_groups") if self.spread.thread else _ITEMS
            first = f"{start} + (long)get_{place}({dimension}) * {step}"
            advance = f"(long)get_{size}({dimension}) * {step}"
        return self._open(inst, first, last, advance)

    def _thread_loop(self, inst: Inst) -> Value:
        """The iteration of this thread."""
        counter = self.emitter.name("n")
        self.emitter.open("")
        self.emitter.line(f"const long {counter} = (long)get_local_id({self.spread.thread[inst]});")
        self.open_loops.append(OpenLoop(inst, ()))
        return Value(self.counter, counter)

    def _end(self, inst: Inst) -> None:
        super()._end(inst)
        if self.spread.thread.get(inst.attr[0]) == len(self.spread.thread) - 1:
            self._barrier(inst)  # the group's next block writes to the same team memory

    def _image(self, pointer: Inst) -> ImageAccess | None:
        """Accesses to a parameter that is an image."""
        image = self.program.params[pointer.attr[0]].image if pointer.op == "param" else None
        return ImageAccess(self.emitter, f"p{pointer.attr[0]}", image) if image else None

    def _load(self, inst: Inst) -> Value:
        pointer, index, *mask = inst.args
        image = self._image(pointer)
        if image is None:
            return super()._load(inst)
        condition = self.values[mask[0]] if mask else None
        residue = self.residues.of(index, CHANNELS)
        return image.load(inst.lanes, self.values[index], residue, condition)

    def _access(
        self, kind: Type, pointer: Inst, index: Inst, mask: Inst | None = None
    ) -> OpenCLAccess:
        access = super()._access(kind, pointer, index, mask)
        is_global = pointer.op == "param" or pointer in self.spread.places.offsets
        if not self.clang or access.by_lane or not is_global:
            return access
        self.vectors[kind] = None
        return replace(access, space="__global ")

    def _store(self, inst: Inst) -> None:
        pointer, index, stored, *mask = inst.args
        if image := self._image(pointer):
            image.store(self.values[index], self.values[stored])
            return
        value = self.values[stored]
        access = self._access(value.type, pointer, index, *mask)
        if inst.attr and inst.attr[0] and self.clang and access.is_whole:
            residue = self.residues.of(index, stored.lanes)
            store_streaming(self.emitter, access, value, residue)
        else:
            store(self.emitter, access, value)

    def _prefetch(self, inst: Inst) -> None:
        pointer, index = self._args(inst)
        # PoCL compiles OpenCL's own function to nothing.
        hint = "__builtin_prefetch({})" if self.clang else "prefetch({}, 1)"
        self.emitter.line(f"{hint.format(f'{pointer} + {index}')};")

    def _barrier(self, inst: Inst) -> None:
        if self.spread.thread:
            self.emitter.line("barrier(CLK_LOCAL_MEM_FENCE);")
