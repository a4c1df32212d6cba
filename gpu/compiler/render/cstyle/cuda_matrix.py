"""Matrix instructions and asynchronous copies as assembly in CUDA C.

Parts of matrices are registers of 32 bits with two elements each. Loads and copies keep their
order, as does what they are told to know nothing of: other accesses to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.matrix import HELD, MATRICES
from gpu.compiler.render import ptx_asm
from gpu.compiler.render.cstyle.text import OPENCL, Emitter, Value

_WORD: Final = OPENCL.type("u32")
_FLOAT: Final = OPENCL.type("f32")


class Place(NamedTuple):
    """An element of shared memory: element `at` of an array whose elements have `size` bytes."""

    array: Value
    at: Value
    size: int


class MatrixPrinter:
    """Prints these instructions; knows the registers of what has several."""

    def __init__(self, emitter: Emitter):
        self.emitter = emitter
        self._starts: dict[str, str] = {}
        self._registers: dict[Inst, list[Value]] = {}

    def _address(self, place: Place) -> str:
        """The address of an element within shared memory."""
        array = place.array.text
        if array not in self._starts:
            start = self._starts[array] = self.emitter.name("start")
            self.emitter.entry += [
                f"  uint {start};",
                '  asm("{ .reg .u64 at; cvta.to.shared.u64 at, %1; cvt.u32.u64 %0, at; }" : "=r"'
                f'({start}) : "l"({array}));',
            ]
        return f"{self._starts[array]} + (uint)({place.at}) * {place.size}u"

    def _assembly(self, text: str, inputs: Sequence[str], outputs: Sequence[str] = ()) -> str:
        """A statement that keeps its place among those that touch memory."""
        count = len(outputs) + len(inputs)
        line = text.format(*(f"%{number}" for number in range(count)))
        return f'asm volatile("{line}" : {", ".join(outputs)} : {", ".join(inputs)} : "memory");'

    def copy(self, to: Place, source: Value, at: Value, nbytes: int, mask: Value | None) -> None:
        """Starts a copy of some bytes from element `at` of an array, or of zeros."""
        place = f"{source} + {at}" if mask is None else f"{source} + ({mask} ? {at} : 0)"
        inputs = [f'"r"({self._address(to)})', f'"l"({place})']
        if mask is not None:
            inputs.append(f'"r"({mask} ? {nbytes} : 0)')
        self.emitter.line(self._assembly(ptx_asm.copy(nbytes, mask is not None), inputs))

    def commit(self) -> None:
        """What was started is a group."""
        self.emitter.line(self._assembly(ptx_asm.COMMIT, ()))

    def wait(self, pending: int) -> None:
        """Until all groups but so many have landed."""
        self.emitter.line(self._assembly(ptx_asm.wait(pending), ()))

    def fragment(self, inst: Inst, place: Place) -> Value:
        """Loads parts; the value is the first one's register."""
        count = inst.lanes // HELD
        parts = [Value(_WORD, self.emitter.name("part")) for _ in range(count)]
        self.emitter.line(f"uint {', '.join(part.text for part in parts)};")
        text = ptx_asm.load(count, bool(inst.attr[0]))
        outputs = [f'"=r"({part})' for part in parts]
        self.emitter.line(self._assembly(text, [f'"r"({self._address(place)})'], outputs))
        self._registers[inst] = parts
        return parts[0]

    def part(self, inst: Inst) -> Value:
        """The register of one part of those that were loaded."""
        lane: int = inst.attr[0][0]
        return self._registers[inst.args[0]][lane // HELD]

    def multiply(self, inst: Inst, args: Sequence[Value]) -> Value:
        """Sums and a product; the value is the first sum's register."""
        how = MATRICES[inst.attr[0]]
        of_a, of_b = len(how.a), len(how.b)
        totals = [Value(_FLOAT, self.emitter.name("sum")) for _ in range(inst.lanes)]
        self.emitter.line(f"float {', '.join(total.text for total in totals)};")
        shape = how.name.partition(".")[0]
        text = ptx_asm.multiply(shape, how.operand, inst.lanes, of_a, of_b)
        line = text.format(*(f"%{number}" for number in range(inst.lanes + len(args))))
        outputs = ", ".join(f'"=f"({total})' for total in totals)
        kinds = ["r"] * (of_a + of_b) + ["f"] * inst.lanes
        inputs = ", ".join(f'"{kind}"({arg})' for kind, arg in zip(kinds, args, strict=True))
        self.emitter.line(f'asm("{line}" : {outputs} : {inputs});')
        self._registers[inst] = totals
        return totals[0]

    def total(self, inst: Inst) -> Value:
        """The register of one sum."""
        lane: int = inst.attr[0]
        return self._registers[inst.args[0]][lane]
