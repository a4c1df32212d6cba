"""Many launches as one: a CUDA graph, of which a replay changes the nodes that have new arguments.

A node waits for those before it that write what it touches, and for those that read what it writes.
Slots touch each other where their memory shares a byte: ours does where it is one allocation, that
of other libraries may in any way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Final, cast

from gpu.backends.cpu.native import native_pointer
from gpu.backends.cuda.context import CudaContext
from gpu.backends.cuda.hotcode import OTHER_CONTEXT, REFUSED, hot_code
from gpu.backends.cuda.library import Words
from gpu.backends.cuda.memory import CudaMemory, Replays
from gpu.backends.cuda.program import CudaProgram
from gpu.core.errors import InvalidValue
from gpu.core.interrupts import put_off
from gpu.runtime.origins import users_place

ONE_BY_ONE: Final = 2
"""Calls that launch one by one: making a graph takes as long as many launches, and much is run once
or twice."""
_NODE: Final = struct.Struct("<Q7I4xQQQQ")
"""CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h: function, grid, block, shared bytes, arguments twice over
(by one list or the other), kernel, context."""

_Launches = Sequence[tuple[CudaProgram, tuple[int, ...], tuple[int, ...]]]
_Arguments = tuple[Sequence[CudaMemory], Sequence[int], Sequence[CudaMemory], Sequence[int]]
"""Of a replay: memory by slot, which slots have had other memory, what they have, values."""


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
        touched = {slot for _, used, _ in launches for slot in used}
        self._untouched = [slot for slot in reversed(range(slots)) if slot not in touched]
        place = {slot: i for i, slot in enumerate(sorted(touched))}
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
        given = memories if type(memories) is list else [*memories]
        if self._untouched:
            given = [*given]
            for slot in self._untouched:
                del given[slot]
        if self._calls < ONE_BY_ONE:
            self._calls += 1
            self._one_by_one(given, vals)
            return
        context = self._context
        with context.lock:
            made = self._made
            if context.retired or made is None or context.lost is not None:
                made = self._prepare(given, vals)
            if not made.update(given, vals):
                self._one_by_one(given, vals)
                return
            ticket = context.streams.next_ticket()
            context.launched.append((ticket, self, made.arguments(vals), users_place()))
            made.launch(ticket)

    def _prepare(self, given: Sequence[CudaMemory], vals: Sequence[int]) -> _Made:
        context = self._context
        context.enter()
        if context.retired:
            context.give_back_ended()
        if self._made is None:
            self._made = _Made(context, self._launches, given, vals)
        return self._made

    def _one_by_one(self, given: Sequence[CudaMemory], vals: Sequence[int]) -> None:
        for program, used, taken in self._launches:
            program(*[given[i] for i in used], vals=[vals[i] for i in taken])

    def describe(self, arguments: Sequence[object]) -> str:
        """A replay of it, for errors: its launches, each with its arguments."""
        held, slots, moving, vals = cast(_Arguments, arguments)
        memories = [*held]
        for slot, memory in zip(slots, moving, strict=True):
            memories[slot] = memory
        told = [
            program.describe([*(memories[i] for i in used), *(vals[i] for i in taken)])
            for program, used, taken in self._launches
        ]
        return f"a graph of {len(told)} launches ({', '.join(told)})"


class _Made:
    """A graph of libcuda's.

    Most memory is the same in each replay, as that of weights. So a slot stands still until it has
    other memory than when the graph was made, and is one that moves from then on: a replay looks at
    the memory of those, and sees by one comparison that the others stand still.
    """

    def __init__(
        self,
        context: CudaContext,
        launches: _Launches,
        memories: Sequence[CudaMemory],
        vals: Sequence[int],
    ):
        self._context, self._launches = context, launches
        self._shared = _shared(memories)
        self._is_apart = _are_apart(memories, self._shared)
        words, self._executable = Words(), 0
        with put_off():  # what libcuda gave is noted down at once
            context.check(context.library.cuGraphCreate(words.address, 0), "make a graph")
            self._graph = words[0]
        self._nodes: list[_Node] = []
        after = dependencies(launches, self._shared)
        for (program, used, taken), earlier in zip(launches, after, strict=True):
            node = _Node(program, [memories[i] for i in used], [vals[i] for i in taken])
            node.add(self._graph, [self._nodes[i].handle for i in earlier])
            self._nodes.append(node)
        with put_off():
            made = context.library.cuGraphInstantiateWithFlags(words.address, self._graph, 0)
            context.check(made, f"make a graph of {len(launches)} launches")
            self._executable = words[0]
        self._taken = sorted({i for _, _, taken in launches for i in taken})
        self._of_slots: list[_Uses] = [[] for _ in memories]
        of_vals: dict[int, _Uses] = {i: [] for i in self._taken}
        for number, (_, used, taken) in enumerate(launches):
            for at, i in enumerate(used):
                self._of_slots[i].append((number, at))
            for at, i in enumerate(taken):
                of_vals[i].append((number, self._nodes[number].first_value + at))
        self._of_vals = [*of_vals.values()]
        self._moving_memories: list[CudaMemory] = []
        self._replays = Replays()
        # What moves is at and has, as the nodes know it, and as the next launch is to have it.
        self._now: list[int | None] | None = None
        self._next: list[int | None] | None = None
        self._stand(memories, [], [vals[i] for i in self._taken])

    def __del__(self) -> None:
        context = self._context
        if replays := getattr(self, "_replays", None):
            replays.are_over = True
        if context.is_lost:
            return
        if getattr(self, "_executable", 0):
            context.retire(context.library.cuGraphExecDestroy, self._executable)
        if getattr(self, "_graph", 0):
            context.retire(context.library.cuGraphDestroy, self._graph)

    def forget(self) -> None:
        """It is gone with its context."""
        self._executable = self._graph = 0

    def close(self) -> None:
        """Gives it back; it is not running."""
        library, check = self._context.library, self._context.check
        check(library.cuGraphExecDestroy(self._executable), "give a graph back")
        check(library.cuGraphDestroy(self._graph), "give a graph back")
        self.forget()

    def launch(self, ticket: int) -> None:
        """Runs it on what `update` was given."""
        self._replays.ticket = ticket
        for memory in self._moving_memories:
            memory.ticket = ticket
        self._now = None  # until all are set
        self._setter.run()
        self._now = self._next

    def arguments(self, vals: Sequence[int]) -> _Arguments:
        """What the next launch runs on, for `CudaGraph.describe`: most stands still in all."""
        return self._held, self._moving, self._moving_memories, vals

    def update(self, memories: list[CudaMemory], vals: Sequence[int]) -> bool:
        """Says what the next launch runs on: it gives the nodes their new arguments.

        Returns False, having done nothing, where memory is shared otherwise than when the graph was
        made, so that its order might not do. Raises InvalidType, InvalidValue, DeviceLost.
        """
        held = self._held
        moving: list[CudaMemory] = []
        now: list[int | None] = []
        try:
            for slot in self._moving:
                memory = held[slot] = memories[slot]
                moving.append(memory)
                now.append(memory.address)
            if held != memories:
                self._move(memories)
                return self.update(memories, vals)
            self._moving_memories = moving
            if self._taken:
                now += [vals[i] for i in self._taken]
            if now == self._next:
                return True
            if not self._coincides(memories, moving):
                return False
            self._next = None  # until all are packed
            self._setter.pack(now)
        except (AttributeError, TypeError, struct.error):
            for program, used, taken in self._launches:
                program.refuse([memories[i] for i in used], [vals[i] for i in taken])
            raise
        self._next = now
        return True

    def _move(self, memories: Sequence[CudaMemory]) -> None:
        """Slots that stood still have other memory: they move from now on."""
        others = [i for i, held in enumerate(self._held) if held is not memories[i]]
        now, at = self._now, len(self._moving)
        if now is not None:
            now = [*now[:at], *(self._held[i].address or 0 for i in others), *now[at:]]
        self._stand(memories, [*self._moving, *others], now)

    def _stand(
        self, memories: Sequence[CudaMemory], moving: list[int], now: list[int | None] | None
    ) -> None:
        """All slots but those that move stand still: a replay leaves one ticket for all of them.

        `now` is what the nodes have of those that move, and of values.
        """
        moves, held = {*moving}, [*memories]
        standing = frozenset(memory for i, memory in enumerate(memories) if i not in moves)
        uses = [*(self._of_slots[i] for i in moving), *self._of_vals]
        replays = Replays(self._replays.ticket)
        for memory in standing:
            memory.is_used_by(replays)
        for program, *_ in self._launches:
            for memory in program.workspace:
                memory.is_used_by(replays)
        setter = _Setter(self._context, self._executable, self._nodes, uses, now)
        # No calls from here on: so a Ctrl-C finds all of it as it was, or as it is now.
        self._replays.are_over = True
        self._replays, self._standing, self._held = replays, standing, held
        self._moving, self._setter, self._now, self._next = moving, setter, now, now

    def _coincides(self, memories: Sequence[CudaMemory], moving: Sequence[CudaMemory]) -> bool:
        """Whether memory is shared among slots as it was when the graph was made."""
        if self._is_apart and not _borrows(moving):
            different = {*moving}
            return len(different) == len(moving) and self._standing.isdisjoint(different)
        if _shared(memories) != self._shared:
            return False
        self._is_apart = _are_apart(memories, self._shared)
        return True


_Uses = list[tuple[int, int]]
"""Where an address or a value is an argument: the number of a node, and which of its words."""


class _Node:
    """A launch in a graph.

    Attributes:
        handle: its CUgraphNode.
        name: of its kernel.
        first_value: which of its arguments is the first that is no memory.
    """

    def __init__(self, program: CudaProgram, memories: list[CudaMemory], vals: list[int]):
        if not program.function:
            program.load()
        arguments, self._parameters = program.arguments(), Words(_NODE.size // 8)
        self._program, self._arguments = program, arguments
        _NODE.pack_into(
            *(self._parameters.memory, 0, program.function, program.grid, 1, 1),
            *(program.block, 1, 1, program.shared, 0, arguments.extra, 0, 0),
        )
        program.pack(arguments, (*memories,), vals)
        self.name = program.name
        self.first_value = len(memories) + len(program.workspace)
        self.handle = 0

    def add(self, graph: int, after: Sequence[int]) -> None:
        """Puts it into a graph, behind other nodes."""
        context, words, earlier = self._program.context, Words(), Words.of(*after)
        added = context.library.cuGraphAddKernelNode_v2(
            *(words.address, graph, earlier.address if after else 0, len(after)),
            self._parameters.address,
        )
        context.check(added, f"put {self._program.name} into a graph")
        self.handle = words[0]

    @property
    def parameters(self) -> int:
        """The address of its CUDA_KERNEL_NODE_PARAMS, which names its arguments."""
        return self._parameters.address

    def place(self, argument: int) -> int:
        """The address of an argument."""
        return self._arguments.words.address + 8 * argument


class _Setter:
    """Gives nodes the arguments that are others than before; see `hotcode` for its memory."""

    def __init__(
        self,
        context: CudaContext,
        executable: int,
        nodes: Sequence[_Node],
        uses: Sequence[_Uses],
        now: Sequence[int | None] | None,
    ):
        """`uses` are those of each address and value, and `now` what the nodes have, if known."""
        self._context, count = context, len(uses)
        touched = sorted({number for each in uses for number, _ in each})
        self._nodes = [nodes[number] for number in touched]
        place = {number: i for i, number in enumerate(touched)}
        every = [(place[number], nodes[number].place(at)) for each in uses for number, at in each]
        self._layout = struct.Struct(f"<{count}q")
        self._new, self._old = Words(count + 1), Words(count + 1)
        if now is not None:
            for words in (self._new, self._old):
                self._layout.pack_into(words.memory, 0, *now)
        # Each begins with a word that stands for nothing, so that there is one.
        self._tables = (
            Words.of(0, *accumulate(map(len, uses), initial=0)),
            Words.of(0, *chain.from_iterable(every)),
            Words.of(0, *chain(*((node.handle, node.parameters) for node in self._nodes))),
            Words(len(touched) // 8 + 1),
        )
        firsts, pairs, rows, dirty = self._tables
        address = context.library.address
        self._block = Words.of(
            *(
                address("cuGraphExecKernelNodeSetParams_v2"),
                executable,
                count,
                firsts.address + 8,
                pairs.address + 8,
            ),
            *(self._new.address, self._old.address, now is not None),
            *(len(touched), rows.address + 8, dirty.address, 0),
            *(address("cuCtxGetCurrent"), context.handle, 0),
            *(address("cuGraphLaunch"), context.streams.launches),
        )
        self._run = partial(hot_code().replay, native_pointer(self._block.address))

    def pack(self, now: Sequence[int | None]) -> None:
        """Says what the nodes have to have. Raises struct.error for what is no argument."""
        self._layout.pack_into(self._new.memory, 0, *now)

    def run(self) -> None:
        """Gives the nodes their arguments and runs them. Raises the error of a code."""
        code = self._run()
        if code == OTHER_CONTEXT:
            self._context.enter()
            code = self._run()
        if code:
            refused = self._block[REFUSED]
            self._context.check(
                code,
                "launch a graph"
                if refused == len(self._nodes)
                else f"give {self._nodes[refused].name} new arguments in a graph",
            )


def _borrows(memories: Iterable[CudaMemory]) -> bool:
    """Whether any is of another library."""
    for memory in memories:  # noqa: SIM110 - any() takes several times as long
        if memory.is_borrowed:
            return True
    return False


def _shared(memories: Sequence[CudaMemory]) -> list[int]:
    """For each memory the place of the first that it shares bytes with, by way of others too."""
    if _borrows(memories):
        return _overlapping([(memory.address or 0, memory.nbytes) for memory in memories])
    first: dict[CudaMemory, int] = {}
    return [first.setdefault(memory, i) for i, memory in enumerate(memories)]


def _are_apart(memories: Sequence[CudaMemory], shared: list[int]) -> bool:
    """Whether each is an allocation of ours that no other is: then looking for others is quick."""
    return shared == [*range(len(memories))] and not _borrows(memories)


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
