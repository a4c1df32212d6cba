"""From a plan to kernel IR: one kernel at a time, mechanically.

Nothing is decided here. The kernel's outputs give the loops of its domain; from there, indices are
pushed from consumers to producers (`_push`), which finds every element each node is read at. A node
placed `At` some depth is computed over the region its readers need there, whose bounds come from
the index arithmetic. Then values are built from producers to consumers (`_evaluate`) and the
loops are put around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple

from gpu.compiler.fusion.blocks import kernel_domain
from gpu.compiler.fusion.inplace import Store
from gpu.compiler.fusion.plan import At, Plan
from gpu.compiler.fusion.region import needed_region, own_element
from gpu.compiler.fusion.values import COMPUTE
from gpu.compiler.fusion.views import (
    Access,
    Indices,
    domain_indices,
    domain_loops,
    inner_vars,
    picked,
    source_accesses,
)
from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.dims import is_many, upper
from gpu.compiler.ir.graph import LOOPING, Node, accumulate_as, symbols_of, toposort
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, at_least, at_most, expr
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.picks import pick_value
from gpu.compiler.ir.optable import MONOIDS
from gpu.core.dtype import ImageDType


class BuiltKernel(NamedTuple):
    """A kernel and the nodes its parameters stand for, in the order of the parameters."""

    kernel: K.Kernel
    params: tuple[Node, ...]


class _Home(NamedTuple):
    """The part of a placed node that is computed at once, a loop over each wide axis.

    Attributes:
        buf: what it is in.
        base: the first element of the part.
        axes: those along which there are several, as they lie in the buffer.
        loops: over these axes.
        own: the node's element that the loops stand at.
    """

    buf: K.Buf
    base: Indices
    axes: tuple[int, ...]
    loops: tuple[Var, ...]
    own: Access

    def local(self, indices: Indices) -> Indices:
        """Where in the buffer the node's element at `indices` lies."""
        return tuple(indices[axis] - self.base[axis] for axis in self.axes)


def build_kernel(name: str, number: int, plan: Plan) -> BuiltKernel:
    """The kernel `number` of `plan`, not yet optimised.

    Raises AssertionError where the plan reads a node inside a kernel that is computed nowhere.
    """
    return _Builder(name, number, plan).build()


class _Builder:
    def __init__(self, name: str, number: int, plan: Plan):
        self.name, self.number = name, number
        self.plan = plan
        outputs = plan.kernels[number]
        self.roots = tuple(node for node in outputs if plan.inside(node, number) is None)
        self.beside = tuple(node for node in outputs if node not in self.roots)
        # A root that is written in place is made of what is written alone.
        self.store = plan.stores.get(self.roots[0])
        sources = self.store.operands if self.store else self.roots
        self.order = toposort(sources, self._is_leaf)
        self.symbols = symbols_of((*self.order, *self._written()), self._is_leaf)
        output = self.store.domain if self.store else self.roots[0]
        block = None if self.store else plan.blocks.get(output)
        domain = kernel_domain(output, self._prefix("i"), block, is_read=self.store is not None)
        self.domain, indices, mask, depth = domain
        self.at_root: Access = (indices, mask)
        self.around = frozenset(self.domain[:depth])
        self.reads: dict[Node, dict[Access, None]] = {node: {} for node in self.order}
        self.regions: dict[Node, _Home] = {}
        # Loops of reductions, and what gathers and scatters pick, for each element read.
        self.inner: dict[tuple[Node, Access], tuple[Var, ...]] = {}
        self.lets: dict[Var, K.Value] = {}
        self.values: dict[tuple[Node, Access], K.Value] = {}
        self.params: dict[Node, K.Buf] = {}
        self.accumulators: dict[Node, K.Buf] = {}
        # What holds of rows that a block has. What is computed for others is of no account.
        self.inside: set[Expr] = {*self.at_root[1].constraints}

    def _written(self) -> list[Node]:
        """The nodes that say where a root that is written in place is written."""
        if self.store is None:
            return []
        nodes = [self.store.write, self.roots[0]]
        place = self.store.place
        while place is not self.store.base:
            nodes.append(place)
            place = place.src[0]
        return nodes

    def _is_leaf(self, node: Node) -> bool:
        """Whether `node` is read from memory that exists before this kernel runs."""
        return node not in self.roots and node not in self.beside and self.plan.is_read(node)

    def build(self) -> BuiltKernel:
        for root in (*self.roots, *self.beside):
            self.params[root] = self._param(root, len(self.params))
        for source in self.store.operands if self.store else self.roots:
            self.reads[source][self.at_root] = None
        for node in reversed(self.order):
            self._push(node)
        for node in self.order:
            for access in self.reads[node]:
                if node.kind not in LOOPING or self._is_leaf(node):
                    self.values[node, access] = self._evaluate(node, access)
        body = self._nest(0)
        if self.roots[0].kind == "scatter" and not self.store:
            body = K.Block((*body.body, self._scatter(self.roots[0])))
        params, vals = tuple(self.params.values()), self.symbols
        kernel = K.Kernel(self.name, params, body, vals)
        return BuiltKernel(kernel, tuple(self.params))

    def _prefix(self, start: str) -> str:
        """What names of loops start with, so that none is that of a symbolic size."""
        while any(symbol.name.startswith(start) for symbol in self.symbols):
            start += "_"
        return start

    def _param(self, node: Node, position: int) -> K.Buf:
        image = node.dtype if isinstance(node.dtype, ImageDType) else None
        return K.Buf(f"p{position}", node.dtype.element, (node.size,), "global", image)

    # Consumers to producers: which elements of each node are read.

    def _push(self, node: Node) -> None:
        if self._is_leaf(node):
            return
        placed = self._inner_placement(node)
        if placed:
            self._open_region(node, placed)
            self._push_access(node, self.regions[node].own)
        else:
            for access in self.reads[node]:
                self._push_access(node, access)

    def _inner_placement(self, node: Node) -> At | None:
        """Where in this kernel `node` has a buffer; an output that is a reduction needs one too."""
        placed = self.plan.inside(node, self.number)
        if placed or node.kind != "reduce":
            return placed
        if node not in self.roots:
            raise AssertionError(f"{node} must be placed, it cannot be computed inline")
        return At(len(self.domain), "private")

    def _push_access(self, node: Node, access: Access) -> None:
        if node.kind == "scatter":
            source, index, updates = node.src
            loops = domain_loops(index.shape, self._prefix("u"))
            self.inner[node, access] = loops
            place = (domain_indices(index.shape, loops), ALWAYS)
            for each, where in ((source, access), (index, place), (updates, place)):
                self.reads[each][where] = None
            return
        start = f"{self._prefix(node.kind[0])}{len(self.inner)}_"
        self.inner[node, access] = inner_vars(node, start)
        for source, read in self._source_accesses(node, access):
            self.reads[source][read] = None

    def _source_accesses(self, node: Node, access: Access) -> Iterable[tuple[Node, Access]]:
        return source_accesses(node, access, self.inner[node, access])

    def _open_region(self, node: Node, placed: At) -> None:
        outer = frozenset(self.domain[: placed.depth])
        region = needed_region((indices for indices, _ in self.reads[node]), node.shape, outer)
        label = f"{self._prefix('t')}{len(self.regions)}"
        loops = domain_loops(region.extents, f"{label}_")
        own = own_element(region, loops, node.shape)
        self.inside.update(own[1].constraints)
        # The rows of a block lie together: they are lanes, whatever is done along them.
        rows = self.around if placed.space == "team" else frozenset[Var]()
        wide = [axis for axis, extent in enumerate(region.extents) if is_many(extent)]
        order = sorted(wide, key=lambda axis: not rows.isdisjoint(region.base[axis].vars))
        loops = tuple(loops[wide.index(axis)] for axis in order)
        dtype = accumulate_as(node.dtype) if node.kind == "reduce" else node.dtype
        shape = tuple(loop.hi + 1 for loop in loops)
        buf = K.Buf(label, dtype, shape, placed.space)
        self.regions[node] = _Home(buf, region.base, tuple(order), loops, own)

    # Producers to consumers: the value of each node at each element.

    def _evaluate(self, node: Node, access: Access) -> K.Value:
        indices, mask = access
        if self._is_leaf(node):
            if node not in self.params:
                self.params[node] = self._param(node, len(self.params))
            where = flatten(indices, node.shape)
            return K.load(self.params[node], (where,), self._without_rows(mask, where.vars))
        if node in self.regions:
            region = self.regions[node]
            own = self._without_rows(mask, frozenset())
            return K.cast(K.load(region.buf, region.local(indices), own), node.dtype)
        return self._compute(node, access)

    def _without_rows(self, mask: Mask, used: frozenset[Var]) -> Mask:
        """A mask without asking whether a block has a row, but for one that an index depends on."""
        left = ALWAYS
        for constraint in mask.constraints:
            if constraint not in self.inside or not used.isdisjoint(constraint.vars - self.around):
                left = left & at_least(constraint, 0)
        return left

    def _compute(self, node: Node, access: Access) -> K.Value:
        if node.kind == "const":
            return K.const(node.dtype, node.attr[0])
        if node.kind == "iota":
            return K.cast(K.index(access[0][0]), node.dtype)
        if node.kind == "index":
            return K.cast(K.index(expr(node.attr[0])), node.dtype)
        args = [self.values[source, read] for source, read in self._source_accesses(node, access)]
        if node.kind == "gather":
            (pick,) = self.inner[node, access]
            self.lets[pick] = pick_value(args[1], pick.hi)
        return COMPUTE[node.kind](node, access, args)

    # Loops around the values.

    def _nest(self, depth: int) -> K.Block:
        body: list[K.Stmt] = []
        for node, region in self._placed_at(depth):
            body += self._produce(node, region)
        if depth == len(self.domain):
            body += [store for root in self.roots for store in self._stores(root)]
        elif depth == len(self.domain) - 1 and self.roots[0].kind in ("scan", "cumcount"):
            walk = self._scan if self.roots[0].kind == "scan" else self._cumcount
            body += walk(self.roots[0], self._nest(depth + 1))
        else:
            body.append(K.Loop(self.domain[depth], "serial", self._nest(depth + 1)))
        return K.Block(tuple(body))

    def _store_in_place(self, root: Node, store: Store) -> K.Update:
        """One element of what is written goes to where it belongs."""
        write = store.write
        if write.kind == "scatter":
            pick = Var(self._prefix("pick"), 0, upper(write.shape[write.attr[0]]))
            return self._scattered(write, self.at_root, pick, self.params[root], store.address)
        walk = zip(write.attr, self.at_root[0], strict=True)
        address, mask = store.address(tuple(index * step + start for (start, step), index in walk))
        value = self.values[store.operands[0], self.at_root]
        return self._update(self.params[root], (address,), None, value, mask)

    def _stores(self, root: Node) -> list[K.Update]:
        if root.kind != "interleave":
            return [self._store(root)]
        (indices, mask), (_, axes) = self.at_root, root.attr
        places = product(*(range(root.shape[axis]) for axis in axes))
        reads = self._source_accesses(root, self.at_root)
        stores = []
        for (source, read), place in zip(reads, places, strict=True):
            where = list(indices)
            for axis, number in zip(axes, place, strict=True):
                where[axis] = expr(number)
            at = (flatten(where, root.shape),)
            value = self.values[source, read]
            stores.append(self._update(self.params[root], at, None, value, mask))
        return stores

    def _store(self, root: Node) -> K.Update:
        if self.store:
            return self._store_in_place(root, self.store)
        if root.kind == "reorder":
            return self._reordered(root)
        where = flatten(self.at_root[0], root.shape)
        if root.kind == "scan":
            value = K.cast(K.load(self._running(root), ()), root.dtype)
        elif root.kind == "cumcount":
            pick, inside = self._bin(root)
            value = K.load(self._running(root), (expr(pick),), inside)
        elif root.kind == "scatter":
            value = self.values[root.src[0], self.at_root]
        else:
            value = self.values[root, self.at_root]
        return self._update(self.params[root], (where,), None, value, self.at_root[1])

    def _update(
        self,
        buf: K.Buf,
        where: Indices,
        monoid: str | None,
        value: K.Value,
        mask: Mask = ALWAYS,
        picks: frozenset[Var] = frozenset(),
    ) -> K.Update:
        """An Update with the lets that its value, or `picks`, need."""
        ordered: dict[Var, None] = {}
        waiting = [(v, False) for v in sorted({*value.vars, *picks}, key=str) if v in self.lets]
        while waiting:
            var, expanded = waiting.pop()
            if expanded:
                ordered[var] = None
            elif var not in ordered:
                waiting.append((var, True))
                inner = sorted(self.lets[var].vars, key=str)
                waiting += [(v, False) for v in inner if v in self.lets and v not in ordered]
        lets = tuple(K.Let(var, self.lets[var]) for var in ordered)
        return K.Update(buf, where, monoid, value, mask, lets)

    def _running(self, root: Node) -> K.Buf:
        if root not in self.accumulators:
            dtype = accumulate_as(root.dtype)
            shape = (root.attr[0],) if root.kind == "cumcount" else ()
            self.accumulators[root] = K.Buf("running", dtype, shape, "private")
        return self.accumulators[root]

    def _scan(self, root: Node, inner: K.Block) -> list[K.Stmt]:
        """The loop of a scan: the value is combined into an accumulator, which is stored."""
        monoid = MONOIDS[root.attr[0]]
        running = self._running(root)
        start = K.const(running.dtype, monoid.identity(running.dtype))
        value = K.cast(self.values[root.src[0], self.at_root], running.dtype)
        *placed, store = inner.body
        combine = self._update(running, (), monoid.name, value)
        return [
            K.Alloc(running),
            self._update(running, (), None, start),
            K.Loop(self.domain[-1], "serial", K.Block((*placed, combine, store))),
        ]

    def _bin(self, root: Node) -> tuple[Var, Mask]:
        """The counter of a cumcount that an index names, and where there is one."""
        bins = root.attr[0]
        pick = Var(self._prefix("bin"), 0, bins)
        self.lets[pick] = pick_value(self.values[root.src[0], self.at_root], bins)
        return pick, at_most(expr(pick), bins - 1)

    def _cumcount(self, root: Node, inner: K.Block) -> list[K.Stmt]:
        """The loop of a cumcount: what a counter says is stored before it moves on."""
        counters = self._running(root)
        each = Var(self._prefix("count"), 0, root.attr[0] - 1)
        zero, one = K.const(root.dtype, 0), K.const(root.dtype, 1)
        pick, inside = self._bin(root)
        count = self._update(counters, (expr(pick),), "add", one, inside, frozenset({pick}))
        return [
            K.Alloc(counters),
            _loops((each,), self._update(counters, (expr(each),), None, zero)),
            K.Loop(self.domain[-1], "serial", K.Block((*inner.body, count))),
        ]

    def _reordered(self, root: Node) -> K.Update:
        """One element goes where the index says, and no other goes there."""
        x, index = root.src
        size = upper(root.shape[root.attr[0]])
        pick = Var(self._prefix("pick"), 0, size)
        self.lets[pick] = pick_value(self.values[index, self.at_root], size)
        where, mask = picked(root, self.at_root, pick)
        target, place = self.params[root], (flatten(where, root.shape),)
        value = self.values[x, self.at_root]
        stored = self._update(target, place, None, value, mask, frozenset({pick}))
        return stored._replace(distinct=True)

    def _scatter(self, root: Node) -> K.Stmt:
        """The second nest of a scatter: each update goes where the index says, in order."""
        loops = self.inner[root, self.at_root]
        place = (domain_indices(root.src[1].shape, loops), ALWAYS)
        pick = Var(self._prefix("pick"), 0, upper(root.shape[root.attr[0]]))

        def address(indices: Indices) -> tuple[Expr, Mask]:
            return flatten(indices, root.shape), ALWAYS

        return _loops(loops, self._scattered(root, place, pick, self.params[root], address))

    def _scattered(
        self,
        node: Node,
        place: Access,
        pick: Var,
        target: K.Buf,
        address: Callable[[Indices], tuple[Expr, Mask]],
    ) -> K.Update:
        """The update at `place` of a scatter, combined into the element of `target` it names."""
        _, index, updates = node.src
        self.lets[pick] = pick_value(self.values[index, place], pick.hi)
        where, mask = picked(node, place, pick)
        flat, own_mask = address(where)
        combine = None if node.attr[1] == "set" else node.attr[1]
        value = self.values[updates, place]
        return self._update(target, (flat,), combine, value, mask & own_mask, frozenset({pick}))

    def _placed_at(self, depth: int) -> list[tuple[Node, _Home]]:
        placed = ((node, self._inner_placement(node)) for node in self.regions)
        here = {node for node, at in placed if at and at.depth == depth}
        return [(node, self.regions[node]) for node in self.order if node in here]

    def _produce(self, node: Node, region: _Home) -> list[K.Stmt]:
        access = region.own
        where = tuple(expr(loop) for loop in region.loops)
        if node.kind != "reduce":
            update = self._update(region.buf, where, None, self._compute(node, access))
            return [K.Alloc(region.buf), _loops(region.loops, update)]
        monoid = MONOIDS[node.attr[0]]
        dtype = region.buf.dtype
        start = K.const(dtype, monoid.identity(dtype))
        ((source, read),) = self._source_accesses(node, access)
        value = K.cast(self.values[source, read], dtype)
        total, at = region.buf, where
        if region.loops:
            total, at = K.Buf(f"{region.buf.name}s", dtype, (), "private"), ()
        combine = self._update(total, at, monoid.name, value)
        init = self._update(total, at, None, start)
        body = [init, _loops(self.inner[node, access], combine)]
        if region.loops:
            store = self._update(region.buf, where, None, K.load(total, ()))
            body = [K.Alloc(total), *body, store]
        if node in self.beside:
            indices, mask = access
            place = (flatten(indices, node.shape),)
            result = K.cast(K.load(total, ()), node.dtype)
            body.append(self._update(self.params[node], place, None, result, mask))
        return [K.Alloc(region.buf), _loops(region.loops, K.Block(tuple(body)))]


def _loops(loops: Iterable[Var], body: K.Stmt) -> K.Stmt:
    for var in reversed(tuple(loops)):
        block = body if isinstance(body, K.Block) else K.Block((body,))
        body = K.Loop(var, "serial", block)
    return body
