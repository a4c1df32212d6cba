"""Where loads and stores go in OpenCL C and CUDA C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpu.compiler.render.cstyle.memory import Access
from gpu.compiler.render.cstyle.text import Type, Value, integer


@dataclass(frozen=True)
class OpenCLAccess(Access):
    """An access of a kernel.

    Attributes:
        space: the address space as a pointer to it is declared, for a compiler that takes vectors
            from any address in it; where it is empty OpenCL's functions do that.
    """

    space: str = ""
    parameters: ClassVar[str] = "__global "

    @property
    def all_included(self) -> str:
        """Whether the mask excludes no lane."""
        assert self.mask is not None
        return f"all({self.mask} != {integer(self.mask.type, 0)})"

    def loaded(self) -> str:
        """All elements at once, as an expression."""
        if self.space:
            return f"*({self.space}const {anywhere(self.type)} *)({self.start})"
        return f"vload{self.type.lanes}(0, {self.start})"

    def stored(self, value: Value) -> str:
        """The statement that writes all elements at once."""
        if self.space:
            return f"*({self.space}{anywhere(self.type)} *)({self.start}) = {value};"
        return f"vstore{self.type.lanes}({value}, 0, {self.start});"

    def elements(self) -> list[str]:
        """Each lane's element as an expression, 0 where the mask excludes it."""
        elements = [f"{self.pointer}[{self.index_of(i)}]" for i in range(self.type.lanes)]
        if self.mask is None:
            return elements
        pairs = zip(self.mask.lanes(), elements, strict=True)
        return [f"({included} ? {element} : ({self.type.scalar})0)" for included, element in pairs]

    def stored_lane(self, lane: int, value: Value) -> str:
        """The statement that writes one lane's element, unless the mask excludes it."""
        included = "" if self.mask is None else f"if ({self.mask.lane(lane)}) "
        return f"{included}{self.pointer}[{self.index_of(lane)}] = {value.lane(lane)};"


def anywhere(kind: Type) -> str:
    """The name of a vector type whose address need only be a multiple of an element's size.

    clang accesses one as a vector; what it makes of `vload8` and `vstore8` of PoCL, which are
    accesses to halves of halves, is not always one again.
    """
    return f"{kind}_anywhere"


def declare_anywhere(kind: Type) -> str:
    """The line that declares `anywhere(kind)`."""
    return f"typedef {kind} {anywhere(kind)} __attribute__((aligned({kind.bits // 8})));"
