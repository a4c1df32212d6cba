"""What computing a value would cost: kernels, bytes and launches, without running it."""

from __future__ import annotations

from typing import NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.core.errors import Unsupported
from gpu.runtime.execute import is_computed, is_spread, prepare, without_reshapes
from gpu.runtime.recipe import Repeat, Schedule


class Step(NamedTuple):
    """One kernel, one copy between devices, or all steps of a loop.

    Attributes:
        label: what it computes.
        operations: scalar operations.
        nbytes: bytes that it moves where it touches each element of its memory once.
        launches: how many kernels and copies it is.
    """

    label: str
    operations: int
    nbytes: int
    launches: int = 1


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
        """Kernels and copies of all steps."""
        return sum(step.launches for step in self.steps)

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
    base = without_reshapes(node)
    if is_computed(base) or not base.size:
        return Costs((), 0)
    return _costs(prepare([base]).schedule)


def _costs(schedule: Schedule) -> Costs:
    memory = sum(slot.size * slot.dtype.itemsize for slot in schedule.slots)
    steps = []
    parts = (*schedule.filling.steps, *schedule.changing.steps)
    for step, about in zip(parts, schedule.abouts, strict=True):
        if isinstance(step, Repeat):
            once, length = _costs(step.iteration.prepared.schedule), step.iteration.form.length
            sizes = (once.operations, once.nbytes, once.launches)
            steps.append(Step(about.label, *(length * size for size in sizes)))
        else:
            steps.append(Step(about.label, about.operations, about.nbytes))
    return Costs(tuple(steps), memory)
