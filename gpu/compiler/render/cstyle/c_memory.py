"""Where loads and stores go in C, which has no masked access to vectors.

An excluded lane goes to 8 spare bytes of the stack, without a branch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu.compiler.render.cstyle.c_text import CEmitter
from gpu.compiler.render.cstyle.memory import Access
from gpu.compiler.render.cstyle.text import Value


@dataclass(frozen=True)
class CAccess(Access):
    """An access for clang.

    Attributes:
        emitter: declares what is needed.
    """

    emitter: CEmitter

    @property
    def by_lane(self) -> bool:
        """An odd number of lanes too.

        Clang accesses a vector whose size is no power of two as one of the next larger size.
        """
        return super().by_lane or bool(self.type.lanes & (self.type.lanes - 1))

    @property
    def all_included(self) -> str:
        """Whether the mask excludes no lane."""
        return f"__builtin_reduce_min({self.mask})"

    def loaded(self) -> str:
        """All elements at once, as an expression that can be assigned to."""
        return f"*({self.emitter.in_memory(self.type)} *)({self.start})"

    def stored(self, value: Value) -> str:
        """The statement that writes all elements at once."""
        return f"{self.loaded()} = {value};"

    def elements(self) -> list[str]:
        """Each lane's element as an expression, 0 where the mask excludes it."""
        return [self._element(lane, "zero") for lane in range(self.type.lanes)]

    def stored_lane(self, lane: int, value: Value) -> str:
        """The statement that writes one lane's element, unless the mask excludes it."""
        return f"{self._element(lane, 'sink')} = {value.lane(lane)};"

    def _element(self, lane: int, spare: str) -> str:
        at = self.index_of(lane)
        if self.mask is None:
            return f"{self.pointer}[{at}]"
        elsewhere = f"({self.type.scalar} *){self.emitter.spare(spare)}"
        return f"*({self.mask.lane(lane)} ? {self.pointer} + {at} : {elsewhere})"
