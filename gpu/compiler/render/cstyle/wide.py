"""Several elements in one load or store, in C++: structs as aligned as they are large.

Compilers move such a struct in one instruction. Its members have the type of the memory they lie
in, so that other accesses to it are seen to touch the same.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import Emitter, Type, Value

WIDE: Final = (
    "template <class T, int N> struct __attribute__((aligned(sizeof(T) * N))) wide { T e[N]; };"
)
"""The type of some elements."""


class Wide:
    """Prints loads and stores of several elements.

    Attributes:
        emitter: takes the statements.
    """

    def __init__(self, emitter: Emitter):
        self.emitter = emitter

    def load(self, access: OpenCLAccess) -> Value:
        """A variable with the elements, zeros where the one condition does not hold."""
        name, struct = self.emitter.name("wide"), struct_of(access.type)
        source = f"*({access.space}const {struct} *)({access.start})"
        if access.mask is None:
            self.emitter.line(f"const {struct} {name} = {source};")
        else:
            self.emitter.line(f"{struct} {name} = {{}};")
            self.emitter.line(f"if ({access.mask}) {name} = {source};")
        return Value(access.type, name)

    def element(self, vector: Value, lane: int) -> Value:
        """One element of what was loaded."""
        return Value(vector.type.scalar, f"{vector}.e[{lane}]")

    def pack(self, elements: list[Value]) -> Value:
        """A variable with some elements, as `store` takes it."""
        kind = elements[0].type._replace(lanes=len(elements))
        name = self.emitter.name("wide")
        listed = ", ".join(map(str, elements))
        self.emitter.line(f"const {struct_of(kind)} {name} = {{{{{listed}}}}};")
        return Value(kind, name)

    def store(self, access: OpenCLAccess, vector: Value, in_array: bool) -> None:
        """Writes elements that were packed, to an array of the kernel or to a parameter."""
        guard = "" if access.mask is None else f"if ({access.mask}) "
        self.emitter.line(f"{guard}{self.place(access, in_array)} = {vector};")

    def place(self, access: OpenCLAccess, in_array: bool) -> str:
        """Where elements are written, as an expression."""
        return f"*({access.space}{struct_of(access.type)} *)({access.start})"


def struct_of(kind: Type) -> str:
    """The type of as many elements as a vector type has lanes."""
    return f"wide<{kind.scalar}, {kind.lanes}>"
