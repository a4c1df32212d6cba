"""Writes that happen in the memory they change: which roots of a graph are such, and how.

A `write` or `scatter` gives the value after the write, as a whole. Where that value is asked for
and the memory before it belongs to nobody else, only the elements that are written need to be
touched. A root is recognised whatever views the writes went through: every node on the way is known
as a view, `place`, of the memory after some writes, and the root as the memory itself.

Whether the memory is somebody else's is not known here: the runtime gives a copy of it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gpu.compiler.fusion.views import Indices, source_index
from gpu.compiler.ir.dims import same_memory
from gpu.compiler.ir.graph import Node, in_memory, toposort
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import Stack
from gpu.compiler.ir.index import ALWAYS, Expr, Mask
from gpu.compiler.ir.index.rows import flatten

# Bytes of memory under which computing all of it anew costs no more than a launch.
MIN_BYTES: Final = 1 << 16
# The part of the elements that writes may touch, and how many writes one root may be made of.
MOST_WRITTEN: Final = 0.5
MAX_WRITES: Final = 8
# Bytes of memory from which finding out whether a leaf is needed any more is worth the time, and
# from which outputs are written past the caches (STREAMED_BYTES, gpu/compiler/lower/linearize.py),
# where writing to what was just read takes up to twice as long.
MIN_REUSED_BYTES: Final = 1 << 20
TOO_LARGE_TO_REUSE: Final = 1 << 25


class Store(NamedTuple):
    """One write to memory.

    Attributes:
        write: the `write` or `scatter` node that says where and what.
        place: the node that it writes to, as a view: movements of `base`.
        base: the node in `place` that stands for the memory.
        memory: the memory before the write: a leaf, or the node of the store before.
        leaf: whose memory it is.
    """

    write: Node
    place: Node
    base: Node
    memory: Node
    leaf: Node

    @property
    def domain(self) -> Node:
        """The node whose elements the store walks: the value, or the index of a scatter."""
        return self.write.src[1]

    def address(self, indices: Indices) -> tuple[Expr, Mask]:
        """Where in the memory the element at `indices` of `write` lies, and whether it is there."""
        mask = ALWAYS
        node = self.place
        while node is not self.base:
            if node.kind != "detach":
                indices, own = source_index(node, indices)
                mask = mask & own
            node = node.src[0]
        return flatten(indices, self.base.shape), mask

    @property
    def operands(self) -> tuple[Node, ...]:
        """What it reads: the value, or the index and updates."""
        return self.write.src[1:]


class _Version(NamedTuple):
    """A node as a view, `place`, of the memory of `leaf` after `writes`, each with its place.

    `base` stands for that memory in places. It is a buffer, since movements of it must not be
    merged with those that a leaf may be.
    """

    leaf: Node
    base: Node
    writes: tuple[tuple[Node, Node], ...]
    place: Node

    @property
    def is_whole(self) -> bool:
        """Whether it is the memory itself, perhaps under another shape."""
        place = self.place
        if place.kind == "reshape" and same_memory(place.src[0].shape, place.shape):
            place = place.src[0]
        return place is self.base


def find_stores(roots: Iterable[Node], is_leaf: Callable[[Node], bool]) -> dict[Node, Store]:
    """For each node that can be written in place, how, in the order of the writes.

    Of several roots that change the same memory one is chosen: that of the fewest writes.
    """
    order = toposort(roots, is_leaf)
    if not any(node.kind in ("write", "scatter") for node in order if not is_leaf(node)):
        return {}
    versions = _versions(order, is_leaf)
    chosen: dict[Node, Node] = {}
    for root in dict.fromkeys(roots):
        version = versions.get(root)
        if version is None or not version.writes or not version.is_whole:
            continue
        before = chosen.get(version.leaf)
        shorter = before is None or len(version.writes) < len(versions[before].writes)
        if shorter and _is_worthwhile(version):
            chosen[version.leaf] = root
    stores: dict[Node, Store] = {}
    for root in chosen.values():
        stores.update(_stores(versions, root))
    return stores


def _versions(order: Sequence[Node], is_leaf: Callable[[Node], bool]) -> dict[Node, _Version]:
    """What each node is a view of, where it is one."""
    versions: dict[Node, _Version] = {}
    for node in order:
        if is_leaf(node):
            base = node
            if node.kind != "buffer":
                base = G.buffer(node, node.shape, node.dtype, node.device)
            versions[node] = _Version(node, base, (), base)
        elif node.src and (source := versions.get(node.src[0])) is not None:
            made = _written(node, source, versions)
            if made is not None:
                versions[node] = made
    return versions


def _written(node: Node, source: _Version, versions: Mapping[Node, _Version]) -> _Version | None:
    """The version that `node` makes of that of its first source, if it moves or writes."""
    if node.kind in _MOVED:
        return source._replace(place=_MOVED[node.kind](source.place, node))
    if node.kind not in ("write", "scatter") or len(source.writes) == MAX_WRITES:
        return None
    if node.kind == "write":
        inner = versions.get(node.src[1])
        if inner is not None and _is_written_through(node, source, inner):
            return inner._replace(place=source.place)
    return source._replace(writes=(*source.writes, (node, source.place)))


def _is_written_through(node: Node, source: _Version, value: _Version) -> bool:
    """Whether the value is the region itself after writes: a view of a view was written to."""
    ranges = [
        (start, size, step)
        for (start, step), size in zip(node.attr, node.src[1].shape, strict=True)
    ]
    return (
        value.leaf is source.leaf
        and value.writes[: len(source.writes)] == source.writes
        and value.place is G.slice_(source.place, ranges)
    )


def _sliced(place: Node, node: Node) -> Node:
    ranges = [
        (start, size, step) for (start, step), size in zip(node.attr, node.shape, strict=True)
    ]
    return G.slice_(place, ranges)


# Movements that show each element at most once, applied to another node.
_MOVED: Final[dict[str, Callable[[Node, Node], Node]]] = {
    "reshape": lambda place, node: G.reshape(place, node.shape),
    "permute": lambda place, node: G.permute(place, node.attr[0]),
    "slice": _sliced,
    "detach": lambda place, node: place,
}


def _is_worthwhile(version: _Version) -> bool:
    if version.leaf.kind == "buffer" and isinstance(version.leaf.attr[0], Stack):
        return True
    written = sum(write.src[1].size for write, _ in version.writes)
    fits = version.leaf.nbytes >= MIN_BYTES
    return fits and written <= MOST_WRITTEN * version.leaf.size


def _stores(versions: Mapping[Node, _Version], root: Node) -> dict[Node, Store]:
    """The stores that make `root`, by the node that is the memory after each."""
    last = versions[root]
    after: dict[int, Node] = {}
    for node, version in versions.items():
        count = len(version.writes)
        if version.leaf is last.leaf and version.is_whole and version.writes == last.writes[:count]:
            after.setdefault(count, node)
    after[len(last.writes)] = root
    if len(after) != len(last.writes) + 1:
        return {}  # several writes went through one view of a view: no node stands between them
    return {
        after[number + 1]: Store(write, place, last.base, after[number], last.leaf)
        for number, (write, place) in enumerate(last.writes)
    }


def find_reuses(
    kernels: Sequence[Sequence[Node]],
    elementwise: Mapping[Node, Mapping[Node, bool]],
    reads: Mapping[Node, Mapping[Node, object]],
    is_leaf: Callable[[Node], bool],
) -> tuple[tuple[Node, Node], ...]:
    """`Plan.reuses`, for `kernels` in the order they run.

    `elementwise` has for outputs of kernels without loops of their own what they read, and whether
    just the element that they compute; `reads` for each node the outputs that read it.
    """
    order = {node: i for i, node in enumerate(node for made in kernels for node in made)}

    def is_last(output: Node, leaf: Node) -> bool:
        return all(order.get(node, len(order)) <= order[output] for node in reads[leaf])

    found = [
        (output, leaf)
        for output in order
        for leaf, is_same_element in elementwise.get(output, {}).items()
        if is_same_element
        and is_leaf(leaf)
        and MIN_REUSED_BYTES <= leaf.nbytes < TOO_LARGE_TO_REUSE
        and leaf.dtype == output.dtype
        and leaf.shape == output.shape
        and is_last(output, leaf)
    ]
    # What ranks put together, as the parts of new weights, where what these were computed of is.
    read: dict[Node, list[Node]] = {}
    for leaf, kernels_of in reads.items():
        if is_leaf(leaf) and leaf.nbytes >= MIN_REUSED_BYTES:
            for output in kernels_of:
                read.setdefault(output, []).append(leaf)
    found += [
        (output, leaf)
        for output in order
        if output.kind == "result"
        and output.src[0].kind == "host"
        and output.src[0].attr[0].across is not None  # which has one operand
        for source in output.src[0].src
        for leaf in read.get(in_memory(source, is_leaf), ())
        if (leaf.nbytes, leaf.dtype) == (output.nbytes, output.dtype) and is_last(output, leaf)
    ]
    return tuple(found)


def store_order(
    outputs: Sequence[Node],
    stores: Mapping[Node, Store],
    reads: Mapping[Node, Mapping[Node, object]],
) -> tuple[list[Node], Node | None]:
    """`outputs`, an order in which kernels can run, so that memory is read before it changes.

    `reads` has for each node the kernels, by their outputs, that read it. With the order comes a
    leaf whose memory would have to be read both before and after, or None.
    """
    before: dict[Node, set[Node]] = {output: set() for output in outputs}
    for node in before:
        for kernel in reads[node]:
            before[kernel].add(node)
    memory = [*stores, *dict.fromkeys(store.leaf for store in stores.values())]
    for node, store in stores.items():
        if any(node in reads[each] for each in memory):
            return list(outputs), store.leaf  # what is written is what it is written to
        before[node] |= {store.memory} & before.keys()
        before[node] |= {kernel for kernel in reads[store.memory] if kernel is not node}
    return _ordered(outputs, before, stores)


def _ordered(
    outputs: Sequence[Node], before: Mapping[Node, set[Node]], stores: Mapping[Node, Store]
) -> tuple[list[Node], Node | None]:
    """`outputs` behind what has to come before each, otherwise as they were."""
    done: dict[Node, None] = {}
    for output in outputs:
        path = [output]
        while path:
            node = path[-1]
            open_ = [o for o in before[node] if o not in done and o is not node]
            if not open_:
                done[path.pop()] = None
            elif open_[0] in path:
                around = path[path.index(open_[0]) :]
                return list(outputs), next(stores[n].leaf for n in around if n in stores)
            else:
                path.append(open_[0])
    return list(done), None
