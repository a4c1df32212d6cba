"""How long the kernels of a compiled graph take, without what launching them costs the host.

Where a device replays many launches in one call, a sample is as many of a kernel as take
`SHORTEST`; elsewhere it is one launch, timed by the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from gpu.compiler.ir.graph import Node
from gpu.runtime.buffer import Buffer
from gpu.runtime.device import Compiled, Device
from gpu.runtime.execute import Prepared, prepare, storage, transfer
from gpu.runtime.recipe import Launch

SHORTEST: Final = 1e-3  # seconds that a sample of replayed launches takes
SAMPLES: Final = 5
_MOST_LAUNCHES: Final = 4096  # in a sample


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
            seconds = _best(step, Device[slots[step.slots[0]].device], memories, vals, samples)
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


def _best(
    step: Launch, device: Compiled, memories: Sequence[Any], vals: Sequence[int], samples: int
) -> float:
    if device.graph is None:
        taken = [vals[i] for i in step.vals]
        used = [memories[i] for i in step.slots]
        return min(step.program(*used, vals=taken, wait=True) or 0.0 for _ in range(1 + samples))
    count, seconds = 1, 0.0
    while True:
        replay = device.graph([(step.program, step.slots, step.vals)] * count, len(memories))
        run = partial(_seconds, device, partial(replay, memories, vals))
        run()  # a graph's first call may find out how to run it
        seconds = run()
        if seconds >= SHORTEST or count == _MOST_LAUNCHES:
            return min([seconds, *(run() for _ in range(samples - 1))]) / count
        count = min(_MOST_LAUNCHES, max(2 * count, int(1.2 * count * SHORTEST / seconds)))


def _seconds(device: Compiled, call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    device.synchronize()
    return time.perf_counter() - started
