"""From a plan to kernel IR: one kernel at a time, mechanically.

Nothing is decided here. The kernel's outputs give the loops of its domain; from there, indices are
pushed from consumers to producers (`_push`), which finds every element each node is read at. A node
placed `At` some depth is computed over the region its readers need there, whose bounds come from
the index arithmetic. Then values are built from producers to consumers (`_evaluate`) and the
loops are put around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.graph import MOVEMENT, Node, accumulate_as, toposort
from gpu.compiler.ir.index import ALWAYS, Mask, Var, expr
from gpu.compiler.ir.optable import MONOIDS
from gpu.compiler.schedule.plan import At, Plan
from gpu.compiler.schedule.region import needed_region
from gpu.compiler.schedule.views import (
    Access,
    Indices,
    domain_indices,
    domain_loops,
    flatten,
    reduce_loops,
    source_accesses,
    source_index,
)
from gpu.core.dtype import DType, dtypes


class BuiltKernel(NamedTuple):
    """A kernel and the nodes its parameters stand for, in the order of the parameters."""

    kernel: K.Kernel
    params: tuple[Node, ...]


class _Home(NamedTuple):
    """The part of a placed node that is computed at once:

    `base` plus a loop over each wide axis.
    """

    buf: K.Buf
    base: Indices
    wide: tuple[int, ...]
    loops: tuple[Var, ...]

    def local(self, indices: Indices) -> Indices:
        """Where in the buffer the node's element at `indices` lies."""
        return tuple(indices[axis] - self.base[axis] for axis in self.wide)

    def own(self) -> Indices:
        """The node's element that the loops stand at."""
        result = list(self.base)
        for axis, var in zip(self.wide, self.loops, strict=True):
            result[axis] = result[axis] + var
        return tuple(result)


def build_kernel(name: str, number: int, plan: Plan) -> BuiltKernel:
    """The kernel `number` of `plan`, not yet optimised.

    Raises AssertionError where the plan reads a node inside a kernel that is computed nowhere.
    """
    return _Builder(name, number, plan).build()


class _Builder:
    def __init__(self, name: str, number: int, plan: Plan):
        self.name, self.number = name, number
        self.placement = plan.placement
        self.roots = plan.kernels[number]
        self.domain = domain_loops(self.roots[0].shape, "i")
        self.order = toposort(self.roots, self._is_leaf)
        self.reads: dict[Node, dict[Access, None]] = {node: {} for node in self.order}
        self.regions: dict[Node, _Home] = {}
        self.reduce_loops: dict[Node, tuple[Var, ...]] = {}
        self.values: dict[tuple[Node, Access], K.Value] = {}
        self.params: dict[Node, K.Buf] = {}

    def _is_leaf(self, node: Node) -> bool:
        """Whether `node` is read from memory that exists before this kernel runs."""
        if node in self.roots:
            return False
        return node.kind == "buffer" or not isinstance(self.placement.get(node), (At, type(None)))

    def build(self) -> BuiltKernel:
        at_root = domain_indices(self.roots[0].shape, self.domain)
        for root in self.roots:
            self.params[root] = self._param(root, len(self.params))
            self.reads[root][at_root, ALWAYS] = None
        for node in reversed(self.order):
            self._push(node)
        for node in self.order:
            for access in self.reads[node]:
                self.values[node, access] = self._evaluate(node, access)
        body = self._nest(0, at_root)
        kernel = K.Kernel(self.name, tuple(self.params.values()), body)
        return BuiltKernel(kernel, tuple(self.params))

    def _param(self, node: Node, position: int) -> K.Buf:
        return K.Buf(f"p{position}", node.dtype, (node.size,), "global")

    # Consumers to producers: which elements of each node are read.

    def _push(self, node: Node) -> None:
        if self._is_leaf(node):
            return
        placed = self._inner_placement(node)
        if placed:
            self._open_region(node, placed)
            self._push_access(node, (self.regions[node].own(), ALWAYS))
        else:
            for access in self.reads[node]:
                self._push_access(node, access)

    def _inner_placement(self, node: Node) -> At | None:
        """Where in this kernel `node` has a buffer; an output that is a reduction needs one too."""
        placed = self.placement.get(node)
        if isinstance(placed, At):
            return placed
        if node.kind != "reduce":
            return None
        if placed is None:
            raise AssertionError(f"{node} must be placed, it cannot be computed inline")
        return At(self.number, len(self.domain), "private")

    def _push_access(self, node: Node, access: Access) -> None:
        for source, read in self._source_accesses(node, access):
            self.reads[source][read] = None

    def _source_accesses(self, node: Node, access: Access) -> Iterable[tuple[Node, Access]]:
        return source_accesses(node, access, self.reduce_loops.get(node, ()))

    def _open_region(self, node: Node, placed: At) -> None:
        outer = frozenset(self.domain[: placed.depth])
        region = needed_region((indices for indices, _ in self.reads[node]), node.shape, outer)
        label = f"t{len(self.regions)}"
        wide = tuple(axis for axis, extent in enumerate(region.extents) if extent > 1)
        loops = tuple(Var(f"{label}_{axis}", 0, region.extents[axis] - 1) for axis in wide)
        dtype = accumulate_as(node.dtype) if node.kind == "reduce" else node.dtype
        shape = tuple(loop.hi + 1 for loop in loops)
        buf = K.Buf(label, dtype, shape, placed.space)
        self.regions[node] = _Home(buf, region.base, wide, loops)
        if node.kind == "reduce":
            self.reduce_loops[node] = reduce_loops(node, f"{label}_r")

    # Producers to consumers: the value of each node at each element.

    def _evaluate(self, node: Node, access: Access) -> K.Value:
        indices, mask = access
        if self._is_leaf(node):
            if node not in self.params:
                self.params[node] = self._param(node, len(self.params))
            return K.load(self.params[node], (flatten(indices, node.shape),), mask)
        if node in self.regions:
            region = self.regions[node]
            return K.cast(K.load(region.buf, region.local(indices), mask), node.dtype)
        return self._compute(node, access)

    def _compute(self, node: Node, access: Access) -> K.Value:
        if node.kind == "const":
            return K.const(node.dtype, node.attr[0])
        if node.kind == "iota":
            return K.cast(K.index(access[0][0]), node.dtype)
        args = [self.values[source, read] for source, read in self._source_accesses(node, access)]
        return _COMPUTE[node.kind](node, access, args)

    # Loops around the values.

    def _nest(self, depth: int, at_root: Indices) -> K.Block:
        body: list[K.Stmt] = []
        for node, region in self._placed_at(depth):
            body += self._produce(node, region)
        if depth == len(self.domain):
            for root in self.roots:
                buf = self.params[root]
                value = self.values[root, (at_root, ALWAYS)]
                body.append(K.Update(buf, (flatten(at_root, root.shape),), None, value))
        else:
            body.append(K.Loop(self.domain[depth], "serial", self._nest(depth + 1, at_root)))
        return K.Block(tuple(body))

    def _placed_at(self, depth: int) -> list[tuple[Node, _Home]]:
        placed = ((node, self._inner_placement(node)) for node in self.regions)
        here = {node for node, at in placed if at and at.depth == depth}
        return [(node, self.regions[node]) for node in self.order if node in here]

    def _produce(self, node: Node, region: _Home) -> list[K.Stmt]:
        access = (region.own(), ALWAYS)
        where = tuple(expr(loop) for loop in region.loops)
        if node.kind != "reduce":
            update = K.Update(region.buf, where, None, self._compute(node, access))
            return [K.Alloc(region.buf), _loops(region.loops, update)]
        monoid = MONOIDS[node.attr[0]]
        dtype = region.buf.dtype
        start = K.const(dtype, monoid.identity(dtype))
        ((source, read),) = self._source_accesses(node, access)
        value = K.cast(self.values[source, read], dtype)
        combine = K.Update(region.buf, where, monoid.name, value)
        init = K.Update(region.buf, where, None, start)
        body = K.Block((init, _loops(self.reduce_loops[node], combine)))
        return [K.Alloc(region.buf), _loops(region.loops, body)]


def _loops(loops: Iterable[Var], body: K.Stmt) -> K.Stmt:
    for var in reversed(tuple(loops)):
        block = body if isinstance(body, K.Block) else K.Block((body,))
        body = K.Loop(var, "serial", block)
    return body


def mask_value(mask: Mask) -> K.Value:
    """A mask as a bool value."""
    zero = K.const(dtypes.int64, 0)
    result: K.Value | None = None
    for constraint in mask.constraints:
        holds = K.alu("le", zero, K.index(constraint))
        result = holds if result is None else K.alu("and", result, holds)
    return K.const(dtypes.bool, True) if result is None else result


def _padded(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    (value,) = args
    if value.kind == "load":
        return value  # its own mask already reads zeros outside
    _, mask = source_index(node, access[0])
    if mask is ALWAYS:
        return value
    return K.alu("where", mask_value(mask), value, K.const(node.dtype, _zero(node.dtype)))


def _zero(dtype: DType) -> bool | int | float:
    return False if dtype is dtypes.bool else 0.0 if dtype.is_float else 0


def _first(node: Node, access: Access, args: list[K.Value]) -> K.Value:
    return args[0]


_COMPUTE: dict[str, Callable[[Node, Access, list[K.Value]], K.Value]] = {
    "alu": lambda node, access, args: K.alu(node.attr[0], *args),
    "cast": lambda node, access, args: K.cast(args[0], node.dtype),
    "bitcast": lambda node, access, args: K.bitcast(args[0], node.dtype),
    "pad": _padded,
    **dict.fromkeys((*(MOVEMENT - {"pad"}), "contiguous", "detach"), _first),
}
