"""Linear IR printed as LLVM IR text, for CPUs.

How a kernel is called is said in `gpu/compiler/render/cpu.py`.

The text is meant for code generation without LLVM's optimiser: it is in SSA form, loops are tested
at the bottom, and counters cannot wrap.
"""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.render import llvm_memory, llvm_ops
from gpu.compiler.render.cpu import (
    LOCAL_ALIGN,
    constant_value,
    launch_data,
    place_locals,
    refuse_what_is_lacking,
)
from gpu.compiler.render.llvm_loops import LoopPrinter
from gpu.compiler.render.llvm_text import (
    INT64,
    POINTER,
    Emitter,
    Value,
    constant,
    integer,
    memory_element,
)
from gpu.compiler.target import Target
from gpu.core.errors import VerifyError


class LLVMRenderer:
    """Prints programs for one machine.

    Attributes:
        target: the machine; what it lacks is refused.
    """

    def __init__(self, target: Target):
        self.target = target

    def render(self, program: Program) -> str:
        """The text of a module that defines the function `program.name`.

        Raises Unsupported for an operation the target does not have, and VerifyError for a program
        that is not well formed in a way that shows.
        """
        return _Function(self.target, program).text()

    def launch_data(self, program: Program) -> dict[str, int]:
        """Bytes of scratch memory for each worker, and whether all workers run the kernel."""
        return launch_data(program)


class _Function:
    """One program on its way to text; instructions are printed by the method of their name."""

    def __init__(self, target: Target, program: Program):
        self.target, self.program = target, program
        self.emitter = Emitter()
        self.places = place_locals(program)
        self.values: dict[Inst, Value] = {}
        self.loops = LoopPrinter(self.emitter)
        self.ends_of_ifs: dict[Inst, str] = {}

    def text(self) -> str:
        """The whole module."""
        for inst in self.program.body:
            refuse_what_is_lacking(self.target, self.program, inst)
            value = getattr(self, f"_{inst.op}")(inst)
            if value is not None:
                self.values[inst] = value
        if self.loops.innermost is not None:
            raise VerifyError(f"{self.program.name}: {self.loops.innermost} has no end")
        if self.emitter.fenced:
            self.emitter.line("fence seq_cst")  # non-temporal stores are not ordered otherwise
        return "\n".join(
            [
                f"define void @{self.program.name}(ptr noalias readonly %args,"
                " i64 %worker, i64 %workers) #0 {",
                "entry:",
                *self._parameters(),
                *self.emitter.entry,
                "  br label %body",
                "body:",
                *self.emitter.lines,
                "  ret void",
                "}",
                *self.emitter.declarations,
                f"attributes #0 = {{ {_attributes(self.target)} }}",
                "!0 = !{i32 1}",
                "",
            ]
        )

    def _parameters(self) -> list[str]:
        """Lines that load the parameters' addresses and that of this worker's scratch memory."""
        names = [f"%p{i}" for i in range(len(self.program.params))]
        if self.places.scratch:
            names.append("%scratch.all")
        lines = []
        for position, name in enumerate(names):
            lines.append(f"  {name}.at = getelementptr inbounds ptr, ptr %args, i64 {position}")
            lines.append(f"  {name} = load ptr, ptr {name}.at, align 8")
        if self.places.scratch:
            lines.append(f"  %scratch.offset = mul i64 %worker, {self.places.scratch}")
            lines.append(
                "  %scratch = getelementptr inbounds i8, ptr %scratch.all, i64 %scratch.offset"
            )
        return lines

    def _args(self, inst: Inst) -> list[Value]:
        return [self.values[a] for a in inst.args]

    def _const(self, inst: Inst) -> Value:
        return constant(inst.dtype, inst.lanes, inst.attr[0])

    def _param(self, inst: Inst) -> Value:
        return Value(POINTER, f"%p{inst.attr[0]}")

    def _val(self, inst: Inst) -> Value:
        word = len(self.program.params) + 1 + inst.attr[0]
        place, value = self.emitter.fresh("%val.at"), self.emitter.fresh("%val")
        self.emitter.entry += [
            f"  {place} = getelementptr inbounds ptr, ptr %args, i64 {word}",
            f"  {value} = load i64, ptr {place}, align 8",
        ]
        return Value(INT64, value)

    def _local(self, inst: Inst) -> Value:
        name = self.emitter.fresh("%local")
        offset = self.places.offsets.get(inst)
        if offset is None:
            array = f"[{inst.attr[0]} x {memory_element(inst.dtype)}]"
            self.emitter.entry.append(f"  {name} = alloca {array}, align {LOCAL_ALIGN}")
        else:
            self.emitter.entry.append(
                f"  {name} = getelementptr inbounds i8, ptr %scratch, i64 {offset}"
            )
        return Value(POINTER, name)

    def _loop(self, inst: Inst) -> Value:
        stop = inst.attr[2]
        limit = self.values[stop.value] if isinstance(stop, Limit) else integer(INT64, stop)
        return self.loops.open(inst, tuple(self._args(inst)), limit)

    def _carry(self, inst: Inst) -> Value:
        return self.loops.carry(inst.args[0], inst.attr[0])

    def _end(self, inst: Inst) -> None:
        self.loops.close(inst, tuple(self._args(inst)))

    def _result(self, inst: Inst) -> Value:
        return self.loops.result(inst.args[0], inst.attr[0])

    def _if(self, inst: Inst) -> None:
        then = self.emitter.fresh("then")
        self.ends_of_ifs[inst] = f"{then}.after"
        self.emitter.branch_if(self.values[inst.args[0]], then, f"{then}.after")
        self.emitter.start_block(then)

    def _endif(self, inst: Inst) -> None:
        after = self.ends_of_ifs[inst.attr[0]]
        self.emitter.branch(after)
        self.emitter.start_block(after)

    def _load(self, inst: Inst) -> Value:
        pointer, index, *mask = self._args(inst)
        return llvm_memory.load(
            self.emitter,
            llvm_memory.Access(inst.dtype, inst.lanes, pointer, index, mask[0] if mask else None),
        )

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *mask = self._args(inst)
        stored = inst.args[2]
        access = llvm_memory.Access(
            inst.args[0].dtype, stored.lanes, pointer, index, mask[0] if mask else None
        )
        llvm_memory.store(self.emitter, access, value, streaming=bool(inst.attr and inst.attr[0]))

    def _alu(self, inst: Inst) -> Value:
        last = inst.args[-1]
        known = constant_value(last) if last.dtype.is_int else None
        return llvm_ops.alu(self.emitter, inst.attr[0], last.dtype, self._args(inst), known)

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        return llvm_ops.cast(self.emitter, self.values[source], source.dtype, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        source = inst.args[0]
        return llvm_ops.bitcast(self.emitter, self.values[source], source.dtype, inst.dtype)

    def _splat(self, inst: Inst) -> Value:
        known = constant_value(inst)
        if known is not None:
            return constant(inst.dtype, inst.lanes, known)
        return self.emitter.splat(self.values[inst.args[0]], inst.lanes)

    def _ramp(self, inst: Inst) -> Value:
        return llvm_ops.ramp(self.emitter, self.values[inst.args[0]], inst.attr[0], inst.lanes)

    def _extract(self, inst: Inst) -> Value:
        return self.emitter.extract(self.values[inst.args[0]], inst.attr[0])

    def _pack(self, inst: Inst) -> Value:
        return self.emitter.pack(self._args(inst))

    def _fold(self, inst: Inst) -> Value:
        return llvm_ops.fold(self.emitter, inst.attr[0], inst.dtype, self.values[inst.args[0]])

    def _shuffle(self, inst: Inst) -> Value:
        a, b = self._args(inst)
        return llvm_ops.shuffle(self.emitter, a, b, inst.attr[0])

    def _barrier(self, inst: Inst) -> None:
        del inst  # a block is one worker


def _attributes(target: Target) -> str:
    """Without the width attributes LLVM may halve 512-bit vectors."""
    bits = target.vector_bytes * 8
    return f'nounwind "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
