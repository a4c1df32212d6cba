"""Graphs: work with its order, made once and launched often ("CUDA Driver API", Graph Management).

Nodes that nothing orders run in any order and beside each other; an executable graph never runs
beside itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpu.sim.cuda.codes import INVALID_VALUE, CudaError
from gpu.sim.cuda.context import Context
from gpu.sim.cuda.work import Op, Run, Stream, Work
from gpu.sim.races import Access

# CUgraphNodeType.
KERNEL: Final = 0
MEMCPY: Final = 1
MEMSET: Final = 2
HOST: Final = 3
EMPTY: Final = 5


class Task(NamedTuple):
    """What a node does.

    Attributes:
        kind: its CUgraphNodeType.
        what: for messages.
        context: whose it is; None where it does nothing.
        operands: what an update must not change: contexts and kinds of memory.
        is_flat: whether an update is possible at all.
        make: gives what runs, for each launch anew, and what that touches.
    """

    kind: int
    what: str
    context: Context | None
    make: Callable[[], tuple[Run, list[Access]]]
    operands: tuple[object, ...] = ()
    is_flat: bool = True


@dataclass(eq=False)
class Node:
    """A node of a graph, and those that it waits for."""

    graph: Graph
    task: Task
    waits: list[Node]
    handle: int = 0


@dataclass(eq=False)
class Graph:
    """Nodes with their order, in the order in which they were added."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, task: Task, waits: list[Node]) -> Node:
        """A new node. Raises CudaError for nodes of other graphs, and for one named twice."""
        self._check(waits)
        node = Node(self, task, list(waits))
        self.nodes.append(node)
        return node

    def connect(self, before: Node, after: Node) -> None:
        """One more edge. Raises CudaError for one that is there, or closes a circle."""
        self._check([before])
        self._check([after])
        if before in after.waits or before is after or after in _ancestors(before):
            raise CudaError(INVALID_VALUE, "the edge is there, or closes a circle")
        after.waits.append(before)

    def sorted(self) -> list[Node]:
        """The nodes, each behind those that it waits for."""
        done: dict[Node, None] = {}
        for node in self.nodes:
            for each in [*_ancestors(node), node]:
                done.setdefault(each)
        return list(done)

    def _check(self, nodes: list[Node]) -> None:
        if len(set(nodes)) < len(nodes) or any(node.graph is not self for node in nodes):
            raise CudaError(INVALID_VALUE, "a node of another graph, or one twice")


def _ancestors(node: Node) -> list[Node]:
    """All that a node waits for, each behind what it waits for itself."""
    found: dict[Node, None] = {}
    stack = [(node, iter(node.waits))]
    while stack:
        top, waits = stack[-1]
        following = next((each for each in waits if each not in found), None)
        if following is None:
            stack.pop()
            if top is not node:
                found.setdefault(top)
        else:
            stack.append((following, iter(following.waits)))
    return list(found)


class ExecGraph:
    """A graph that can be launched: its nodes as they were, but for updates."""

    def __init__(self, graph: Graph, fallback: Context):
        """`fallback` is the context of nodes that have none."""
        self.handle = 0
        self._order = graph.sorted()
        self._tasks = {node: node.task for node in self._order}
        self._waits = {node: tuple(node.waits) for node in self._order}
        self._lanes = self._share(fallback)
        self._last: Op | None = None

    def _share(self, fallback: Context) -> dict[Node, Stream]:
        """A stream for each node; one that follows another node shares its."""
        lanes: dict[Node, Stream] = {}
        ends: dict[Stream, Node] = {}
        for node in self._order:
            context = self._tasks[node].context or fallback
            free = (lanes[each] for each in self._waits[node] if ends[lanes[each]] is each)
            lane = next((lane for lane in free if lane.space is context), None)
            lanes[node] = lane or Stream(context, "non-blocking", f"graph, branch {len(ends)}")
            ends[lanes[node]] = node
        return lanes

    def task(self, node: Node) -> Task:
        """What a node does as it stands. Raises CudaError for one of another graph."""
        found = self._tasks.get(node)
        if found is None:
            raise CudaError(INVALID_VALUE, "the node is none of the graph that this was made of")
        return found

    def update(self, node: Node, task: Task) -> None:
        """Lets launches from now on do another thing in a node.

        Raises CudaError where the kind, the context, the memory's kind would change, or either
        thing is of several dimensions.
        """
        old = self.task(node)
        if (old.kind, old.context, old.operands) != (task.kind, task.context, task.operands):
            raise CudaError(
                INVALID_VALUE, f"{old.what} cannot become {task.what}: kind or memory would change"
            )
        if not (old.is_flat and task.is_flat):
            raise CudaError(INVALID_VALUE, f"{old.what} has several dimensions, or the new one")
        self._tasks[node] = task

    def launch(self, work: Work, stream: Stream) -> None:
        """Queues all of it: behind what is in the stream, and before what comes."""
        before = [*stream.before(), *([self._last] if self._last else [])]
        ops: dict[Node, Op] = {}
        for node in self._order:
            task = self._tasks[node]
            run, touches = task.make()
            after = [ops[each] for each in self._waits[node]] or before
            ops[node] = work.submit(self._lanes[node], task.what, run, touches, after)
        self._last = work.submit(stream, "end of a graph", _ends, (), [*before, *ops.values()])

    def end(self) -> None:
        """It was destroyed: what was launched still runs."""
        for lane in set(self._lanes.values()):
            lane.end()


def _ends(_: Op) -> bool:
    return True
