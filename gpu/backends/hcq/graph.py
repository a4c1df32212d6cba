"""Many launches as one submission: a replay patches the addresses and values that have changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.backends.hcq.program import QueueProgram
from gpu.core.errors import InvalidValue
from gpu.hcq.buffer import HCQBuffer
from gpu.hcq.device import HCQDevice
from gpu.hcq.graph import HCQGraph
from gpu.hcq.symbol import Symbol

AT_ONCE: Final = 512
"""Launches of one submission at most: an indirect buffer of AMD's holds 2**20 words, and a launch
takes some dozens. The GPU runs one submission of a longer graph while the host patches the next."""

ONE_BY_ONE: Final = 2
"""Calls that launch one by one: laying launches out takes as long as launching them some 40 times,
and much is run once, or twice. From the third call on a jitted function runs no Python either."""

_Launches = Sequence[tuple[QueueProgram, tuple[int, ...], tuple[int, ...]]]


class QueueGraph:
    """Launches that are always run together, in order, on the first compute queue.

    There they never overlap, so whatever memory stands for the slots may do so, and one memory may
    stand for several of them.
    """

    def __init__(self, device: HCQDevice, launches: _Launches, slots: int):
        """`launches` are programs with the slots they run on, of which there are `slots`, and with
        which of the values they take. Raises InvalidValue for a slot that there is not.
        """
        if any(slot >= slots for _, used, _ in launches for slot in used):
            raise InvalidValue(f"a graph of {slots} slots has a launch on one beyond them")
        self._device = device
        self._launches = launches
        self._calls = 0
        self._submissions: list[_Submission] = []

    def __call__(self, memories: Sequence[HCQBuffer], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memories, one for each slot; returns before they have finished.

        Raises OutOfMemory, and what launching raises.
        """
        if self._calls < ONE_BY_ONE:
            self._calls += 1
            for program, used, taken in self._launches:
                program(*[memories[slot] for slot in used], vals=[vals[i] for i in taken])
            return
        # Threads that come here at once each make their own, of which one is kept.
        submissions = self._submissions or self._lay_out()
        self._submissions = submissions
        for submission in submissions:
            submission(memories, vals)

    def _lay_out(self) -> list[_Submission]:
        starts = range(0, len(self._launches), AT_ONCE)
        return [_Submission(self._device, self._launches[s : s + AT_ONCE]) for s in starts]


class _Submission:
    """Launches that a replay submits at once."""

    def __init__(self, device: HCQDevice, launches: _Launches):
        self._slots = list(dict.fromkeys(slot for _, used, _ in launches for slot in used))
        taken = sorted({val for *_, vals in launches for val in vals})
        self._symbols = {val: Symbol(f"value {val}") for val in taken}
        # Inputs of a graph are known by where they are, and only where they begin matters on one
        # queue: a byte stands for each slot, however large the memory is that replays give.
        bytes_ = device.allocator.alloc(len(self._slots))
        stand_ins = {slot: bytes_.view(at, 1) for at, slot in enumerate(self._slots)}
        items = [
            program.graph_item(
                [stand_ins[slot] for slot in used], [self._symbols[val] for val in vals]
            )
            for program, used, vals in launches
        ]
        self._graph = HCQGraph(device, items, list(stand_ins.values()))
        bytes_.free()

    def __call__(self, memories: Sequence[HCQBuffer], vals: Sequence[int]) -> None:
        values = {symbol: vals[val] for val, symbol in self._symbols.items()}
        self._graph(*[memories[slot] for slot in self._slots], values=values)
