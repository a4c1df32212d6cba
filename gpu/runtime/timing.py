"""How long the kernels of a compiled graph take, without what launching them costs the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Device
from gpu.runtime.execute import prepare, storage
from gpu.runtime.launch_time import best_seconds
from gpu.runtime.prepared import Prepared, transfer
from gpu.runtime.recipe import Launch

SAMPLES: Final = 5


class KernelTime(NamedTuple):
    """A launch of a compiled graph, by what it computes, and its seconds in the best sample."""

    name: str
    seconds: float


def time_kernels(roots: Sequence[Node], samples: int = SAMPLES) -> list[KernelTime]:
    """Runs what computes `roots`, none of which may be in memory, and times each of its launches.

    The values are thrown away, and memory that the graph changes in place is copied first. Each
    kernel reads what the steps before it computed. Copies between devices are left out. Raises what
    compiling, allocating and launching raise.
    """
    prepared = prepare(list(roots))
    slots = [*_leaves(prepared), *prepared.make_slots()]
    vals = prepared.numbers({})
    prepared.run(slots, vals)
    memories = [slot.memory for slot in slots]
    steps = (*prepared.schedule.filling.steps, *prepared.schedule.changing.steps)
    found = []
    for step, about in zip(steps, prepared.schedule.abouts, strict=True):
        if isinstance(step, Launch):
            seconds = best_seconds(
                step, Device[slots[step.slots[0]].device], memories, vals, samples
            )
            found.append(KernelTime(about.label, seconds))
    return found


def _leaves(prepared: Prepared) -> list[Buffer]:
    """The memory of the graph's leaves; of those that it changes, a copy."""
    found = [storage(leaf) for leaf in prepared.leaves]
    for slot in prepared.schedule.writes:
        copy = Buffer(found[slot].device, found[slot].size, found[slot].dtype)
        transfer(found[slot], copy)
        found[slot] = copy
    return found
