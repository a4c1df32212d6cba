"""Launches that are always run together: one command buffer with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gpu.backends.metal.memory import MetalMemory
from gpu.backends.metal.program import MetalProgram
from gpu.core.errors import InvalidValue
from gpu.runtime.program import check_memory_of, check_values


class MetalGraph:
    """Launches in one encoder, which runs them in order where they touch the same memory."""

    def __init__(
        self,
        launches: Sequence[tuple[MetalProgram, tuple[int, ...], tuple[int, ...]]],
        slots: int,
    ):
        """`launches` are programs with the slots they run on, of which there are `slots`, and with
        which of the values they take. Raises InvalidValue for a slot that there is not.
        """
        if any(slot >= slots for _, used, _ in launches for slot in used):
            raise InvalidValue(f"a graph of {slots} slots has a launch on one beyond them")
        for program, used, taken in launches:
            program.check_counts(len(used), len(taken))
        self._launches = launches
        self._touched = sorted({slot for _, used, _ in launches for slot in used})
        first = launches[0][0]
        self._context, self._scratch = first.context, first.scratch
        self._workspace = max(program.workspace for program, _, _ in launches)

    def __call__(self, memories: Sequence[MetalMemory], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memories, one for each slot; returns at once, unless one is
        borrowed.

        Raises GpuFault, DeviceLost, OutOfMemory, InvalidType, InvalidValue.
        """
        touched = [memories[slot] for slot in self._touched]
        check_memory_of("a graph", touched, MetalMemory)
        values = check_values("a graph", vals)

        def encode(encoder: int) -> None:
            for program, used, taken in self._launches:
                bufs = [memories[slot] for slot in used]
                program.encode(encoder, bufs, [values[i] for i in taken])

        context = self._context
        with context.lock:
            if self._workspace:
                self._scratch.at_least(self._workspace)
            commands = context.run(encode, self, (memories, values), touched)
        if any(memory.is_borrowed for memory in touched):
            context.wait_for(commands.ticket)

    def describe(self, arguments: Sequence[object]) -> str:
        """A replay of it, for errors: its launches, each with its arguments."""
        memories, vals = cast(tuple[Sequence[MetalMemory], Sequence[int]], arguments)
        told = [
            program.describe([*(memories[i] for i in used), *(vals[i] for i in taken)])
            for program, used, taken in self._launches
        ]
        return f"a graph of {len(told)} launches ({', '.join(told)})"
