"""Many launches as one: a CUDA graph, of which a replay changes the nodes that have new arguments.

A node waits for those before it that write what it touches, and for those that read what it writes.
Slots touch each other where their memory shares a byte: ours does where it is one allocation, that
of other libraries may in any way.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter, is_not
from typing import Final

from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.library import Words
from gpu.backends.cuda.memory import CudaMemory
from gpu.backends.cuda.program import CudaProgram
from gpu.core.errors import InvalidValue
from gpu.runtime.origins import users_place

ONE_BY_ONE: Final = 2
"""Calls that launch one by one: making a graph takes as long as many launches, and much is run once
or twice."""
_NODE: Final = struct.Struct("<Q7I4xQQQQ")
"""CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h: function, grid, block, shared bytes, arguments twice over
(by one list or the other), kernel, context."""

_Launches = Sequence[tuple[CudaProgram, tuple[int, ...], tuple[int, ...]]]


class CudaGraph:
    """Launches that are always run together, as if in order."""

    def __init__(self, launches: _Launches, slots: int):
        """`launches` are programs with the slots they run on, of which there are `slots`, and with
        which of the values they take. Raises InvalidValue for a slot that there is not.
        """
        if any(slot >= slots for _, used, _ in launches for slot in used):
            raise InvalidValue(f"a graph of {slots} slots has a launch on one beyond them")
        self._context = launches[0][0].context
        # Other slots may be of other devices: launches know those of this one by their place here.
        self._used = list(dict.fromkeys(slot for _, used, _ in launches for slot in used))
        place = {slot: i for i, slot in enumerate(self._used)}
        self._launches = [
            (program, tuple(place[slot] for slot in used), taken)
            for program, used, taken in launches
        ]
        self._calls = 0
        self._made: _Made | None = None
        self._context.note(self)

    def lose(self) -> None:
        """The context was made anew: so is the graph, by its next call."""
        if self._made is not None:
            self._made.forget()
        self._made = None

    def close(self) -> None:
        """Gives the graph back."""
        if self._made is not None:
            self._made.close()
        self._made = None

    def __call__(self, memories: Sequence[CudaMemory], vals: Sequence[int] = ()) -> None:
        """Runs all launches on the memories, one for each slot; returns at once.

        Raises GpuFault, DeviceLost, InvalidType, InvalidValue and the error of a code.
        """
        given = [memories[slot] for slot in self._used]
        if self._calls < ONE_BY_ONE:
            self._calls += 1
            self._one_by_one(given, vals)
            return
        context = self._context
        with context.lock:
            context.enter()
            if context.retired:
                context.give_back_ended()
            if self._made is None:
                self._made = _Made(context, self._launches, given, vals)
            elif not self._made.update(given, vals):
                self._one_by_one(given, vals)
                return
            streams = context.streams
            ticket = streams.next_ticket()
            for memory in (*given, *self._made.workspaces):
                memory.ticket = ticket
            context.launched.append((ticket, self, (*given, *vals), users_place()))
            code = context.library.cuGraphLaunch(self._made.executable, streams.launches)
            context.check(code, "launch a graph")

    def _one_by_one(self, given: Sequence[CudaMemory], vals: Sequence[int]) -> None:
        for program, used, taken in self._launches:
            program(*[given[i] for i in used], vals=[vals[i] for i in taken])

    def describe(self, arguments: Sequence[object]) -> str:
        """A replay of it, for errors: its launches, each with its arguments."""
        vals = arguments[len(self._used) :]
        told = [
            program.describe([*(arguments[i] for i in used), *(vals[i] for i in taken)])
            for program, used, taken in self._launches
        ]
        return f"a graph of {len(told)} launches ({', '.join(told)})"


class _Made:
    """A graph of libcuda's.

    Attributes:
        executable: its CUgraphExec.
        workspaces: of its programs.
    """

    def __init__(
        self,
        context: CudaContext,
        launches: _Launches,
        memories: Sequence[CudaMemory],
        vals: Sequence[int],
    ):
        self._context = context
        self._shared = _shared(memories)
        self._is_apart = _are_apart(memories, self._shared)
        self._memories: Sequence[CudaMemory] | None = memories
        self._vals = list(vals)
        self._touching: list[list[int]] = [[] for _ in memories]
        self._taking: dict[int, list[int]] = {}
        for number, (_, used, taken) in enumerate(launches):
            for i in dict.fromkeys(used):
                self._touching[i].append(number)
            for val in taken:
                self._taking.setdefault(val, []).append(number)
        words = Words()
        context.check(context.library.cuGraphCreate(words.address, 0), "make a graph")
        self._graph = words[0]
        self.executable = 0
        self._nodes: list[_Node] = []
        after = dependencies(launches, self._shared)
        for (program, used, taken), earlier in zip(launches, after, strict=True):
            node = _Node(program, used, taken)
            node.pack(memories, vals)
            node.add(self._graph, [self._nodes[i].handle for i in earlier])
            self._nodes.append(node)
        self.workspaces = [memory for program, *_ in launches for memory in program.workspace]
        made = context.library.cuGraphInstantiateWithFlags(words.address, self._graph, 0)
        context.check(made, f"make a graph of {len(launches)} launches")
        self.executable = words[0]

    def __del__(self) -> None:
        context = self._context
        if context.is_lost:
            return
        if getattr(self, "executable", 0):
            context.retire(context.library.cuGraphExecDestroy, self.executable)
        if getattr(self, "_graph", 0):
            context.retire(context.library.cuGraphDestroy, self._graph)

    def forget(self) -> None:
        """It is gone with its context."""
        self.executable = self._graph = 0

    def close(self) -> None:
        """Gives it back; it is not running."""
        library, check = self._context.library, self._context.check
        check(library.cuGraphExecDestroy(self.executable), "give a graph back")
        check(library.cuGraphDestroy(self._graph), "give a graph back")
        self.forget()

    def update(self, memories: Sequence[CudaMemory], vals: Sequence[int]) -> bool:
        """Gives the nodes whose memory or values are others than before their new arguments.

        Returns False, having done nothing, where memory is shared otherwise than when the graph was
        made, so that its order might not do.
        """
        others = self._others(memories)
        changed = self._changed(memories, others, vals)
        if not changed:
            return True
        if not self._coincides(memories, others):
            return False
        self._memories = None  # until all are set
        for number in changed:
            self._nodes[number].pack(memories, vals)
            self._nodes[number].set(self.executable)
        self._memories, self._vals = memories, list(vals)
        return True

    def _others(self, memories: Sequence[CudaMemory]) -> list[int]:
        """The slots of other memory than before; all where an error came between."""
        before = self._memories
        if before is None:
            return [*range(len(memories))]
        if memories == before:
            return []
        return [*compress(range(len(memories)), map(is_not, memories, before))]

    def _changed(
        self, memories: Sequence[CudaMemory], others: Sequence[int], vals: Sequence[int]
    ) -> set[int]:
        """The nodes that have other arguments than before."""
        before = self._memories
        if before is None:
            return set(range(len(self._nodes)))
        changed: set[int] = set()
        for slot in others:
            if memories[slot].address != before[slot].address:
                changed.update(self._touching[slot])
        for val, nodes in self._taking.items():
            if vals[val] != self._vals[val]:
                changed.update(nodes)
        return changed

    def _coincides(self, memories: Sequence[CudaMemory], others: Sequence[int]) -> bool:
        """Whether memory is shared among slots as it was when the graph was made."""
        if self._is_apart and not any(memories[slot].is_borrowed for slot in others):
            return len(set(memories)) == len(memories)
        if _shared(memories) != self._shared:
            return False
        self._is_apart = _are_apart(memories, self._shared)
        return True


class _Node:
    """A launch in a graph.

    Attributes:
        handle: its CUgraphNode.
    """

    def __init__(self, program: CudaProgram, used: tuple[int, ...], taken: tuple[int, ...]):
        self._program, self._used, self._taken = program, used, taken
        if not program.function:
            program.load()
        self._arguments = program.arguments()
        self._parameters = Words(_NODE.size // 8)
        _NODE.pack_into(
            *(self._parameters.memory, 0, program.function, program.grid, 1, 1),
            *(program.block, 1, 1, program.shared, 0, self._arguments.extra, 0, 0),
        )
        self.handle = 0

    def pack(self, memories: Sequence[CudaMemory], vals: Sequence[int]) -> None:
        """Writes its arguments to where `add` and `set` have them read."""
        bufs = tuple([memories[i] for i in self._used])
        self._program.pack(self._arguments, bufs, [vals[i] for i in self._taken])

    def add(self, graph: int, after: Sequence[int]) -> None:
        """Puts it into a graph, behind other nodes."""
        context, words, earlier = self._program.context, Words(), Words.of(*after)
        added = context.library.cuGraphAddKernelNode_v2(
            *(words.address, graph, earlier.address if after else 0, len(after)),
            self._parameters.address,
        )
        context.check(added, f"put {self._program.name} into a graph")
        self.handle = words[0]

    def set(self, executable: int) -> None:
        """Gives it the arguments that were packed, in launches of the graph from now on."""
        context = self._program.context
        changed = context.library.cuGraphExecKernelNodeSetParams_v2(
            executable, self.handle, self._parameters.address
        )
        if changed:
            context.check(changed, f"give {self._program.name} new arguments in a graph")


_is_borrowed: Final = attrgetter("is_borrowed")


def _shared(memories: Sequence[CudaMemory]) -> list[int]:
    """For each memory the place of the first that it shares bytes with, by way of others too."""
    if any(map(_is_borrowed, memories)):
        return _overlapping([(memory.address or 0, memory.nbytes) for memory in memories])
    first: dict[CudaMemory, int] = {}
    return [first.setdefault(memory, i) for i, memory in enumerate(memories)]


def _are_apart(memories: Sequence[CudaMemory], shared: list[int]) -> bool:
    """Whether each is an allocation of ours that no other is: then looking for others is quick."""
    return shared == [*range(len(memories))] and not any(map(_is_borrowed, memories))


def _overlapping(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """For each range of addresses, a start and a size, the place of the first that it overlaps.

    By way of others too: of the first in all of a row of ranges, each of which overlaps another.
    """
    groups, end = list(range(len(ranges))), 0
    group: list[int] = []
    for i in sorted(groups, key=lambda i: ranges[i]):
        start, size = ranges[i]
        group = [*group, i] if start < end else [i]
        end = max(end, start + size)
        for each in group:
            groups[each] = min(group)
    return groups


def dependencies(launches: _Launches, shared: Sequence[int]) -> list[list[int]]:
    """For each launch the earlier ones it must come after; `shared` is as `_shared` gives it."""
    writer: dict[object, int] = {}
    readers: dict[object, list[int]] = {}
    found: list[list[int]] = []
    for number, (program, used, _) in enumerate(launches):
        touched: list[object] = [shared[i] for i in used]
        touched += program.workspace
        written = {memory for i, memory in enumerate(touched) if program.written >> i & 1}
        after: set[int] = set()
        for memory in touched:
            if memory in writer:
                after.add(writer[memory])
        for memory in written:
            after.update(readers.pop(memory, ()))
            writer[memory] = number
        for memory in {*touched} - written:
            readers.setdefault(memory, []).append(number)
        found.append(sorted(after))
    return found
