"""What machines and languages give at the edges where our operations are fixed.

`gpu/compiler/ir/evaluate.py` says what an operation means for every operand, and the interpreters
do it. What is printed for it means less, so that `gpu/compiler/lower/edges.py` puts selects around
an operation where its operands may be at an edge, and a printer has only the plain one to print.
Each language has a row:

| | shift | division | conversion | extreme |
|---|---|---|---|---|
| edge | count outside [0, bits) | by zero; least / -1 | NaN; what does not fit | NaN |
| ours | 0; the sign, of `shr` signed | 0; wraps, and rest 0 | 0; nearest that fits | NaN |
| `LLVM` | poison | undefined | poison | `llvm.maximum`: NaN |
| `C` | undefined | undefined | undefined | no operator |
| `OPENCL` | taken modulo bits | unspecified, may trap | open | number or NaN |
| `CUDA` | undefined | undefined | float32 to 32 bits: ours | float32: `max.NaN`, ours |
| `METAL`, `HIP` | undefined | undefined | undefined | no operator |
| `NIR` | taken modulo bits | undefined | undefined | number |
| `WGSL` | taken modulo bits | some compilers trap | open for NaN | open |

From the LLVM Language Reference Manual ("shl", "sdiv", "fptosi", "llvm.maximum"), C11 6.5.7, 6.5.5
and 6.3.1.4, OpenCL C 1.2 6.3.a, 6.3.j and 6.2.3.3, PTX ISA ("cvt", "max"), Mesa's `nir_opcodes.py`,
and WGSL 8.7 and 15.7; the Metal Shading Language Specification takes these operators from C++14,
and HIP is C++. Sums and products of signed integers wrap in LLVM, NIR, WGSL and in C by an option;
where they do not a printer spells them with unsigned ones. OpenCL's count is kept inside although
it may be outside: a mask for it is an instruction of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Edge(Enum):
    """What an operation gives at an edge.

    Attributes:
        OURS: what it means here.
        ANY: some value, as good as another that is selected in its place.
        NEVER: no value, a trap, or not even a meaning: it must not be reached with such operands.
    """

    OURS = "ours"
    ANY = "any"
    NEVER = "never"


class Edges(NamedTuple):
    """A row of the table.

    Attributes:
        shift: for counts outside [0, bits).
        division: of integers by zero, and of the least one by -1.
        conversion: of floats to integers that do not hold them.
        extreme: `max` and `min` of floats with a NaN; NEVER also where there is no such operation.
        exact: what is `OURS` nevertheless, as the IR writes it: `max f32`, `cast f32 i32`.
    """

    shift: Edge = Edge.NEVER
    division: Edge = Edge.NEVER
    conversion: Edge = Edge.NEVER
    extreme: Edge = Edge.NEVER
    exact: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The row as text that is the same in every process."""
        rules = (self.shift, self.division, self.conversion, self.extreme)
        return f"{[rule.value for rule in rules]}{sorted(self.exact)}"


OURS: Final = Edges(Edge.OURS, Edge.OURS, Edge.OURS, Edge.OURS)
LLVM: Final = Edges(Edge.ANY, Edge.NEVER, Edge.ANY, Edge.OURS)
C: Final = Edges()
OPENCL: Final = Edges()
CUDA: Final = C._replace(exact=frozenset({"max f32", "min f32", "cast f32 i32", "cast f32 u32"}))
METAL: Final = C
HIP: Final = C
NIR: Final = Edges(Edge.ANY, Edge.NEVER, Edge.ANY, Edge.NEVER)
WGSL: Final = Edges(Edge.ANY, Edge.NEVER, Edge.NEVER, Edge.ANY)
