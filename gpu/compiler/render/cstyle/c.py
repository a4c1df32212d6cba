"""Linear IR printed as C for clang, for CPUs.

How a kernel is called is said in `gpu/compiler/render/launch/cpu_abi.py`. The text includes
nothing, calls nothing, and is one statement for each instruction, or a few. It relies on options:
wrapping integers, no aliasing by type, and products fused with sums within an expression only (see
`gpu/compiler/toolchain/clang.py`).
"""

from __future__ import annotations

from dataclasses import replace

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.render.cstyle import c_memory, c_ops
from gpu.compiler.render.cstyle.c_text import (
    I64,
    PRELUDE,
    Emitter,
    Type,
    Value,
    constant,
    element_of,
)
from gpu.compiler.render.cstyle.flow import FlowPrinter, OpenLoop
from gpu.compiler.render.launch.cpu_abi import LOCAL_ALIGN, launch_data, place_locals
from gpu.compiler.targets import Target
from gpu.compiler.targets.edges import C
from gpu.core.dtype import dtypes


class CRenderer:
    """Prints programs for one machine.

    Attributes:
        target: the machine, without its matrix instructions; what it lacks is refused.
    """

    def __init__(self, target: Target):
        # C here has vectors, and no tiles.
        self.target = replace(target, matrices=()).with_edges(C)

    def render(self, program: Program) -> str:
        """A source that defines the function `program.name`.

        Raises Unsupported for an operation the target does not have, and VerifyError for a program
        that is not well formed in a way that shows.
        """
        return _Function(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """Bytes of scratch memory for each worker, and whether all workers run the kernel."""
        return launch_data(program)


class _Function(FlowPrinter[Value]):
    """One program on its way to text."""

    emitter: Emitter

    def __init__(self, target: Target, program: Program):
        super().__init__(target, program, Emitter())
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
            element = element_of(param.dtype)
            lines.append(f"  {element} *p{position} = ({element} *)args[{position}];")
        if size := self.places.scratch:
            position = len(self.program.params)
            lines.append(f"  u8 *scratch = (u8 *)args[{position}] + worker * {size};")
        return lines

    def _const(self, inst: Inst) -> Value:
        value = constant(inst.dtype, inst.lanes, inst.attr[0])
        self.emitter.use(value.type)
        return value

    def _param(self, inst: Inst) -> Value:
        return Value(Type(element_of(inst.dtype)), f"p{inst.attr[0]}")

    def _val(self, inst: Inst) -> Value:
        word = len(self.program.params) + 1 + inst.attr[0]
        return self.emitter.value(I64, f"(i64)args[{word}]")

    def _local(self, inst: Inst) -> Value:
        element, name = element_of(inst.dtype), self.emitter.name("local")
        offset = self.places.offsets.get(inst)
        if offset is None:
            attribute = f"__attribute__((aligned({LOCAL_ALIGN})))"
            self.emitter.entry.append(f"  {element} {name}[{inst.attr[0]}] {attribute};")
        else:
            self.emitter.entry.append(f"  {element} *{name} = ({element} *)(scratch + {offset});")
        return Value(Type(element), name)

    def _loop(self, inst: Inst) -> Value:
        kind, start, stop, step = inst.attr
        carries = self._start_carries(inst)
        first = constant(dtypes.int64, 1, start)
        last = self._stop(stop)
        if kind == "worker" and not self._in_worker_loop():
            first, last = self._chunk(start, stop, step)
        counter = self.emitter.name("n")  # not i, as in i64
        head = f"i64 {counter} = {first}; {counter} < {last}; {counter} += {step}"
        self.emitter.open(f"for ({head})")
        self.open_loops.append(OpenLoop(inst, carries))
        return Value(I64, counter)

    def _constant_limit(self, stop: int) -> Value:
        return constant(dtypes.int64, 1, stop)

    def _chunk(self, start: int, stop: int | Limit, step: int) -> tuple[Value, Value]:
        """Where this worker's run of iterations starts and stops."""
        trips: object
        if isinstance(stop, Limit):
            length = self.emitter.value(I64, f"{self._stop(stop)} - {start}")
            trips = self.emitter.value(I64, f"{length} > 0 ? ({length} + {step - 1}) / {step} : 0")
        else:
            trips = max(0, -(-(stop - start) // step))
        first, last = (
            self.emitter.value(
                I64, f"(i64)((u64)({number} * {trips}) / workers) * {step} + {start}"
            )
            for number in ("worker", "(worker + 1)")
        )
        return first, last

    def _load(self, inst: Inst) -> Value:
        pointer, index, *mask = self._args(inst)
        kind = Type(element_of(inst.dtype), inst.lanes)
        access = c_memory.Access(kind, pointer, index, mask[0] if mask else None)
        return c_memory.load(self.emitter, access, inst.dtype is dtypes.bool)

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *mask = self._args(inst)
        access = c_memory.Access(value.type, pointer, index, mask[0] if mask else None)
        streaming = bool(inst.attr and inst.attr[0])
        residue = self.residues.of(inst.args[1], value.type.lanes) if streaming else None
        c_memory.store(self.emitter, access, value, streaming, residue)

    def _prefetch(self, inst: Inst) -> None:
        pointer, index = self._args(inst)
        self.emitter.line(f"__builtin_prefetch({pointer} + {index}, 0, 3);")

    def _alu(self, inst: Inst) -> Value:
        return c_ops.alu(self.emitter, inst.attr[0], inst.args[-1].dtype, self._args(inst))

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        return c_ops.cast(self.emitter, self.values[source], source.dtype, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        source = inst.args[0]
        return c_ops.bitcast(self.emitter, self.values[source], source.dtype, inst.dtype)

    def _splat(self, inst: Inst) -> Value:
        return self.emitter.cast(Type(element_of(inst.dtype), inst.lanes), self._args(inst)[0].text)

    def _ramp(self, inst: Inst) -> Value:
        return c_ops.ramp(self.emitter, self._args(inst)[0], inst.attr[0], inst.lanes)

    def _extract(self, inst: Inst) -> Value:
        vector = self._args(inst)[0]
        return self.emitter.value(Type(vector.type.element), vector.lane(inst.attr[0]))

    def _pack(self, inst: Inst) -> Value:
        lanes = [x.text for x in self._args(inst)]
        return self.emitter.vector(Type(element_of(inst.dtype), inst.lanes), lanes)

    def _fold(self, inst: Inst) -> Value:
        return c_ops.fold(self.emitter, inst.attr[0], inst.dtype, self._args(inst)[0])

    def _shuffle(self, inst: Inst) -> Value:
        a, b = self._args(inst)
        return c_ops.shuffle(self.emitter, a, b, inst.attr[0])

    def _barrier(self, inst: Inst) -> None:
        del inst  # a block is one worker
