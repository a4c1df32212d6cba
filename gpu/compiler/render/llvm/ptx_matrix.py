"""Matrix instructions and asynchronous copies as inline assembly in LLVM IR.

Parts of matrices are registers of 32 bits with two elements each.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.matrix import HELD, MATRICES
from gpu.compiler.render import ptx_asm
from gpu.compiler.render.llvm.narrow_integers import INT32
from gpu.compiler.render.llvm.text import INT64, Emitter, Type, Value, integer

_FLOAT = Type("float")


def _assembly(text: str, count: int) -> str:
    return text.format(*(f"${number}" for number in range(count)))


class MatrixPrinter:
    """Prints these instructions; knows the registers of what has several."""

    def __init__(self, emitter: Emitter):
        self.emitter = emitter
        self._registers: dict[Inst, list[Value]] = {}

    def address(self, array: Value, index: Value, size: int) -> Value:
        """The address in shared memory of an element, of `size` bytes, of an array."""
        emitter = self.emitter
        start = emitter.value(INT32, f"ptrtoint {array} to i32")
        place = index if index.type == INT32 else emitter.convert("trunc", index, "i32")
        return emitter.binary("add", start, emitter.binary("mul", place, integer(INT32, size)))

    def _effect(self, text: str, args: Sequence[Value], constraints: str) -> None:
        line = _assembly(text, len(args))
        given = ", ".join(map(str, args))
        kept = f"{constraints},~{{memory}}" if constraints else "~{memory}"
        self.emitter.line(f'call void asm sideeffect "{line}", "{kept}"({given})')

    def _values(
        self, inst: Inst, kind: Type, count: int, call: str, args: Sequence[Value]
    ) -> Value:
        """The results of a call of assembly, `count` of a type; the value is the first one."""
        given = ", ".join(map(str, args))
        result = Type(f"{{ {', '.join([str(kind)] * count)} }}") if count > 1 else kind
        together = self.emitter.value(result, f"call {result} asm {call}({given})")
        values = [together]
        if count > 1:
            places = range(count)
            values = [self.emitter.value(kind, f"extractvalue {together}, {i}") for i in places]
        self._registers[inst] = values
        return values[0]

    def copy(self, to: Value, source: Value, nbytes: int, mask: Value | None) -> None:
        """Starts a copy of some bytes to an address in shared memory, or of zeros."""
        emitter = self.emitter
        args = [to, emitter.value(INT64, f"ptrtoint {source} to i64")]
        if mask is not None:
            args.append(emitter.select(mask, integer(INT32, nbytes), integer(INT32, 0)))
        constraints = "r,l" if mask is None else "r,l,r"
        self._effect(ptx_asm.copy(nbytes, mask is not None), args, constraints)

    def commit(self) -> None:
        """What was started is a group."""
        self._effect(ptx_asm.COMMIT, (), "")

    def wait(self, pending: int) -> None:
        """Until all groups but so many have landed."""
        self._effect(ptx_asm.wait(pending), (), "")

    def fragment(self, inst: Inst, address: Value) -> Value:
        """Loads parts; the value is the first one's register."""
        count = inst.lanes // HELD
        text = _assembly(ptx_asm.load(count, bool(inst.attr[0])), count + 1)
        call = f'sideeffect "{text}", "{"=r," * count}r,~{{memory}}"'
        return self._values(inst, INT32, count, call, [address])

    def part(self, inst: Inst) -> Value:
        """The register of one part of those that were loaded."""
        lane: int = inst.attr[0][0]
        return self._registers[inst.args[0]][lane // HELD]

    def multiply(self, inst: Inst, args: Sequence[Value]) -> Value:
        """Sums and a product; the value is the first sum's register."""
        how = MATRICES[inst.attr[0]]
        of_a, of_b, sums = len(how.a), len(how.b), inst.lanes
        shape = how.name.partition(".")[0]
        text = ptx_asm.multiply(shape, how.operand, sums, of_a, of_b)
        kinds = ",".join([*["=f"] * sums, *["r"] * (of_a + of_b), *["f"] * sums])
        call = f'"{_assembly(text, sums + len(args))}", "{kinds}"'
        return self._values(inst, _FLOAT, sums, call, args)

    def total(self, inst: Inst) -> Value | None:
        """The register of one sum; None where it is not one of a product of matrices."""
        registers = self._registers.get(inst.args[0])
        return registers[inst.attr[0]] if registers else None
