"""Linear IR printed as C for clang, for CPUs.

How a kernel is called is said in `gpu/compiler/render/launch/cpu_abi.py`. The text includes
nothing, calls nothing, and is one statement for each instruction, or a few. It relies on options:
wrapping integers, no aliasing by type, and products fused with sums within an expression only (see
`gpu/compiler/toolchain/clang.py`).
"""

from __future__ import annotations

from dataclasses import replace

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.render.cstyle.c_memory import CAccess
from gpu.compiler.render.cstyle.c_text import I64, PRELUDE, C, CEmitter
from gpu.compiler.render.cstyle.memory import load, store, store_streaming
from gpu.compiler.render.cstyle.ops import COps
from gpu.compiler.render.cstyle.printer import Printer
from gpu.compiler.render.cstyle.text import Value
from gpu.compiler.render.launch.cpu_abi import LOCAL_ALIGN, launch_data, place_locals
from gpu.compiler.targets import Target, edges
from gpu.core.dtype import dtypes


class CRenderer:
    """Prints programs for one machine.

    Attributes:
        target: the machine, without its matrix instructions; what it lacks is refused.
    """

    def __init__(self, target: Target):
        # C here has vectors, and neither tiles nor products of neighbours.
        native = replace(target.native, ops=target.native.ops - DOTS.keys(), edges=edges.C)
        self.target = replace(target, matrices=(), language="c", native=native)

    def render(self, program: Program) -> str:
        """A source that defines the function `program.name`.

        Raises Unsupported for an operation the target does not have, and VerifyError for a program
        that is not well formed in a way that shows.
        """
        return _Function(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """Bytes of scratch memory for each worker, and whether all workers run the kernel."""
        return launch_data(program)


class _Function(Printer):
    """One program on its way to text."""

    emitter: CEmitter

    def __init__(self, target: Target, program: Program):
        super().__init__(target, program, COps(C, CEmitter()))
        self.places = place_locals(program)
        self.residues = Residues()

    def text(self) -> str:
        """The whole source."""
        self.print_body()
        if self.emitter.fenced:  # non-temporal stores are not ordered otherwise
            self.emitter.line("__atomic_thread_fence(__ATOMIC_SEQ_CST);")
        return "\n".join(
            [
                PRELUDE,
                *self.emitter.declarations,
                f"void SYMBOL({self.program.name})(void **args, i64 worker, i64 workers) {{",
                *self._parameters(),
                *self.emitter.entry,
                *self.emitter.lines,
                "}",
                "",
            ]
        )

    def _parameters(self) -> list[str]:
        """Lines that read the parameters' addresses and that of this worker's scratch memory."""
        lines = []
        for position, param in enumerate(self.program.params):
            element = self.language.type_of(param.dtype)
            lines.append(f"  {element} *p{position} = ({element} *)args[{position}];")
        if size := self.places.scratch:
            position = len(self.program.params)
            lines.append(f"  u8 *scratch = (u8 *)args[{position}] + worker * {size};")
        return lines

    def _val(self, inst: Inst) -> Value:
        word = len(self.program.params) + 1 + inst.attr[0]
        return self.emitter.value(I64, f"(i64)args[{word}]")

    def _local(self, inst: Inst) -> Value:
        element, name = self.language.type_of(inst.dtype), self.emitter.name("local")
        offset = self.places.offsets.get(inst)
        if offset is None:
            attribute = f"__attribute__((aligned({LOCAL_ALIGN})))"
            self.emitter.entry.append(f"  {element} {name}[{inst.attr[0]}] {attribute};")
        else:
            self.emitter.entry.append(f"  {element} *{name} = ({element} *)(scratch + {offset});")
        return Value(element, name)

    def _loop(self, inst: Inst) -> Value:
        kind, start, stop, step = inst.attr
        first: object = self._constant_limit(start)
        last = self._stop(stop)
        if kind == "worker" and not self._in_worker_loop():
            first, last = self._chunk(inst, "(i64)((u64)({number} * {trips}) / workers)")
        return self._open(inst, first, last, step)

    def _load(self, inst: Inst) -> Value:
        pointer, index, *mask = self._args(inst)
        kind = self.language.type_of(inst.dtype, inst.lanes)
        access = CAccess(kind, pointer, index, mask[0] if mask else None, self.emitter)
        return load(self.emitter, access, inst.dtype is dtypes.bool)

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *mask = self._args(inst)
        access = CAccess(value.type, pointer, index, mask[0] if mask else None, self.emitter)
        if inst.attr and inst.attr[0] and access.is_whole:
            residue = self.residues.of(inst.args[1], value.type.lanes)
            store_streaming(self.emitter, access, value, residue)
        else:
            store(self.emitter, access, value)

    def _prefetch(self, inst: Inst) -> None:
        pointer, index = self._args(inst)
        self.emitter.line(f"__builtin_prefetch({pointer} + {index}, 0, 3);")

    def _barrier(self, inst: Inst) -> None:
        del inst  # a block is one worker
