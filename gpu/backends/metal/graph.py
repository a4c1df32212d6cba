"""Launches that are always run together: one command buffer with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, cast

from gpu.backends.metal.indirect import MOST_COMMANDS, IndirectCommands, Launch, has_indirect
from gpu.backends.metal.memory import MetalMemory
from gpu.backends.metal.program import MetalProgram
from gpu.core.errors import InvalidValue
from gpu.runtime.program import check_memory_of, check_values

FEWEST_INDIRECT: Final = 8
"""Launches from which on they are encoded once: executing them takes as many messages as the
encoding of two."""
_IN_TURN: Final = 2
"""Times that they are: while the GPU executes some, others are encoded anew."""


class MetalGraph:
    """Launches in one encoder, which run in order.

    Many are in an indirect command buffer, where the GPU executes such.
    """

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
        self._scratch_slot = slots
        is_many = FEWEST_INDIRECT <= len(launches) <= MOST_COMMANDS
        self._is_indirect = is_many and has_indirect(self._context)
        self._in_turn: list[IndirectCommands] = []

    def __call__(self, memories: Sequence[MetalMemory], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memories, one for each slot; returns at once, unless one is
        borrowed.

        Raises GpuFault, DeviceLost, OutOfMemory, InvalidType, InvalidValue.
        """
        touched = [memories[slot] for slot in self._touched]
        check_memory_of("a graph", touched, MetalMemory)
        values = check_values("a graph", vals)

        context = self._context
        with context.lock:
            places = dict(zip(self._touched, touched, strict=True))
            if self._workspace:
                places[self._scratch_slot] = self._scratch.at_least(self._workspace)
            arguments = memories, values
            if self._is_indirect:
                commands = self._next_in_turn().run(places, values, self, arguments, touched)
            else:
                encode = partial(self._encode, memories, values)
                commands = context.run(encode, self, arguments, touched)
        if any(memory.is_borrowed for memory in touched):
            context.wait_for(commands.ticket)

    def _encode(self, memories: Sequence[MetalMemory], values: Sequence[int], encoder: int) -> None:
        for program, used, taken in self._launches:
            bufs = [memories[slot] for slot in used]
            program.encode(encoder, bufs, [values[i] for i in taken])

    def _next_in_turn(self) -> IndirectCommands:
        """Those that were executed longest ago; the context's lock is held."""
        if len(self._in_turn) < _IN_TURN:
            scratch = (self._scratch_slot,)
            launches = [
                Launch(program, (*used, *scratch) if program.workspace else used, taken)
                for program, used, taken in self._launches
            ]
            self._in_turn.append(IndirectCommands(self._context, launches))
        else:
            self._in_turn.append(self._in_turn.pop(0))
        return self._in_turn[-1]

    def describe(self, arguments: Sequence[object]) -> str:
        """A replay of it, for errors: its launches, each with its arguments."""
        memories, vals = cast(tuple[Sequence[MetalMemory], Sequence[int]], arguments)
        told = [
            program.describe([*(memories[i] for i in used), *(vals[i] for i in taken)])
            for program, used, taken in self._launches
        ]
        return f"a graph of {len(told)} launches ({', '.join(told)})"
