"""Several elements in one load or store, as CUDA C: structs as aligned as they are large.

nvrtc moves such a struct in one instruction. Its members have the type of the memory they lie in,
so that other accesses to it are seen to touch the same.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.cstyle.memory import Access
from gpu.compiler.render.cstyle.text import Emitter, Type, Value

VECTORS: Final = (
    "template <class T, int N> struct __attribute__((aligned(sizeof(T) * N))) vec { T e[N]; };"
)
"""The type of some elements."""

_WORD_BITS: Final = 32


class Wide:
    """Prints loads and stores of several elements.

    Attributes:
        emitter: takes the statements.
    """

    def __init__(self, emitter: Emitter):
        self.emitter = emitter

    def load(self, kind: Type, address: str, condition: Value | None) -> Value:
        """A variable with the elements at an address, zeros where the condition does not hold."""
        name, struct = self.emitter.name("wide"), _struct(kind)
        source = f"*(const {struct} *)({address})"
        if condition is None:
            self.emitter.line(f"const {struct} {name} = {source};")
        else:
            self.emitter.line(f"{struct} {name} = {{}};")
            self.emitter.line(f"if ({condition}) {name} = {source};")
        return Value(kind, name)

    def element(self, vector: Value, lane: int) -> Value:
        """One element of what was loaded; a narrow one out of its word, by a shift.

        nvrtc takes words apart by permutations of bytes, which do not merge with what follows.
        """
        kind = vector.type.scalar
        words, rest = divmod(vector.type.bits * vector.type.lanes, _WORD_BITS)
        if rest or kind.bits >= _WORD_BITS:
            return Value(kind, f"{vector}.e[{lane}]")
        word, bit = divmod(lane * kind.bits, _WORD_BITS)
        source = f"__builtin_bit_cast(vec<uint, {words}>, {vector}).e[{word}]"
        return Value(kind, f"({kind})({source} >> {bit})")

    def pack(self, elements: list[Value]) -> Value:
        """A variable with some elements, as `store` takes it."""
        kind = elements[0].type._replace(lanes=len(elements))
        name = self.emitter.name("wide")
        listed = ", ".join(map(str, elements))
        self.emitter.line(f"const {_struct(kind)} {name} = {{{{{listed}}}}};")
        return Value(kind, name)

    def store(self, vector: Value, where: Access, in_vectors: bool) -> None:
        """Writes elements that were packed.

        What lies in a row of vectors is counted in vectors: of a sum of elements nvrtc 13 does not
        see that it is a multiple, and stores one by one to shared memory.
        """
        guard = "" if where.mask is None else f"if ({where.mask}) "
        pointer = f"{_struct(vector.type)} *"
        place = f"*({pointer})({where.start})"
        if in_vectors:
            place = f"(({pointer}){where.pointer})[{where.index} / {vector.type.lanes}]"
        self.emitter.line(f"{guard}{place} = {vector};")


def _struct(kind: Type) -> str:
    return f"vec<{kind.scalar}, {kind.lanes}>"
