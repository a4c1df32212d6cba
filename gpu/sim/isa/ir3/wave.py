"""Where the rows of a wave of ir3 lie, and the fields of its header that are its own.

Lanes that wait have a place in the row `pcs`, the others `NOBODY`. Active are the lanes of EXEC:
while instructions are predicated, those of `saved` whose p0.x holds, or does not.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

from gpu.sim.isa import layout
from gpu.sim.isa.layout import WaveLayout

CODE: Final = layout.OWN
"""Address of the first record (u64), from which places are counted in bytes."""
JOIN: Final = layout.OWN + 8
"""The function of a record at which lanes meet (u64)."""
BRANCHES: Final = layout.OWN + 16
"""How many places lanes may wait at."""
WHY: Final = layout.OWN + 20
"""What a wave that stopped with TRAP did."""
TOO_DEEP: Final = 1
NO_JOIN: Final = 2
assert WHY < layout.HEADER

_PREDICATES: Final = 4
_TEMPS: Final = 8


class Ir3Wave(WaveLayout):
    """Rows of waves of ir3: few masks, then the program's own rows (`constants`)."""

    @cached_property
    def exec(self) -> int:
        """The mask of active lanes."""
        return self.scalars

    @property
    def saved(self) -> int:
        """The lanes that are active when predication ends."""
        return self.scalars + self.words * self.row

    def predicate(self, number: int) -> int:
        """A component of p0, a mask."""
        return self.scalars + (2 + number) * self.words * self.row

    @cached_property
    def pcs(self) -> int:
        """Places of lanes that wait."""
        return self.predicate(_PREDICATES)

    @cached_property
    def temps(self) -> int:
        """Rows for what lies between the records of an instruction."""
        return self.pcs + self.row

    @cached_property
    def trash(self) -> int:
        """Two rows for results that go nowhere."""
        return self.temps + _TEMPS * self.row
