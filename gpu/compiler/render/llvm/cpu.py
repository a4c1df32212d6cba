"""Linear IR printed as LLVM IR text, for CPUs.

How a kernel is called is said in `gpu/compiler/render/launch/cpu_abi.py`, what is printed alike
for every machine in `gpu/compiler/render/llvm/function.py`.
"""

from __future__ import annotations

from gpu.compiler.ir.linear import Inst, Program
from gpu.compiler.ir.linear.residue import Residues
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.render.launch.cpu_abi import LOCAL_ALIGN, launch_data, place_locals
from gpu.compiler.render.llvm import amx, memory
from gpu.compiler.render.llvm.dots import dot
from gpu.compiler.render.llvm.function import FunctionPrinter
from gpu.compiler.render.llvm.text import INT64, POINTER, Value, memory_element
from gpu.compiler.targets import Target
from gpu.compiler.targets.cpu_dots import dots_of


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


class _Function(FunctionPrinter):
    """One program on its way to a function that a worker calls."""

    def __init__(self, target: Target, program: Program):
        super().__init__(target, program)
        self.places = place_locals(program)
        self.residues = Residues()
        features = target.features.replace("+", "").split(",")
        self.dots = dots_of(target.name, features)
        self.hides_masks = "avx512f" in features

    def text(self) -> str:
        """The whole module."""
        lines = self.body()
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
                *lines,
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

    def _alu(self, inst: Inst) -> Value:
        (name,) = inst.attr
        if name not in DOTS:
            return super()._alu(inst)
        return dot(self.emitter, [row for row in self.dots if row.op == name], self._args(inst))

    def _load(self, inst: Inst) -> Value:
        pointer, index, *mask = self._args(inst)
        return memory.load(
            self.emitter,
            memory.Access(inst.dtype, inst.lanes, pointer, index, mask[0] if mask else None),
        )

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *mask = self._args(inst)
        stored = inst.args[2]
        access = memory.Access(
            inst.args[0].dtype, stored.lanes, pointer, index, mask[0] if mask else None
        )
        streaming = bool(inst.attr and inst.attr[0])
        residue = self.residues.of(inst.args[1], stored.lanes) if streaming else None
        memory.store(self.emitter, access, value, streaming, residue, self.hides_masks)

    def _prefetch(self, inst: Inst) -> None:
        memory.prefetch(self.emitter, inst.args[0].dtype, *self._args(inst))

    def _barrier(self, inst: Inst) -> None:
        del inst  # a block is one worker

    def _load_tile(self, inst: Inst) -> Value:
        return amx.load(self.emitter, inst.args[0].dtype, inst.attr[0], *self._args(inst))

    def _store_tile(self, inst: Inst) -> None:
        amx.store(self.emitter, inst.args[0].dtype, inst.attr[0], *self._args(inst))

    def _mma(self, inst: Inst) -> Value:
        return amx.multiply(self.emitter, inst.attr[0], *self._args(inst))


def _attributes(target: Target) -> str:
    """Without the width attributes LLVM may halve 512-bit vectors."""
    bits = target.vector_bytes * 8
    return f'nounwind "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
