"""What computing a value would cost: kernels, bytes and launches, without running it."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import Unsupported
from gpu.runtime.execute import is_computed, is_spread, prepare


class Step(NamedTuple):
    """One kernel, or one copy between devices.

    Attributes:
        label: what it computes.
        operations: scalar operations.
        nbytes: bytes that it moves where it touches each element of its memory once.
    """

    label: str
    operations: int
    nbytes: int


class Costs(NamedTuple):
    """What a value costs that is not computed yet.

    Attributes:
        steps: what is launched, in order.
        memory: bytes that are allocated for the value and for what is between.
    """

    steps: tuple[Step, ...]
    memory: int

    @property
    def launches(self) -> int:
        """How many steps there are."""
        return len(self.steps)

    @property
    def operations(self) -> int:
        """Scalar operations of all steps."""
        return sum(step.operations for step in self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes that all steps move."""
        return sum(step.nbytes for step in self.steps)

    def __str__(self) -> str:
        lines = [
            f"{self.launches} launches, {self.operations:,} operations, {self.nbytes:,} bytes "
            f"moved, {self.memory:,} bytes of new memory"
        ]
        lines += [
            f"{number:3} {step.operations:>15,} operations {step.nbytes:>15,} bytes  {step.label}"
            for number, step in enumerate(self.steps, 1)
        ]
        return "\n".join(lines)


def costs_of(node: Node) -> Costs:
    """What computing a node costs now; compiles it. Raises Unsupported for one on many devices."""
    if is_spread([node]):
        raise Unsupported(
            "what a tensor on several devices costs is not known; ask for one part, .to(device)"
        )
    if is_computed(node) or node.kind == "const":
        return Costs((), 0)
    schedule = prepare([G.contiguous(node)]).schedule
    steps = tuple(Step(a.label, a.operations, a.nbytes) for a in schedule.abouts)
    return Costs(steps, sum(slot.size * slot.dtype.itemsize for slot in schedule.slots))
