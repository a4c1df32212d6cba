"""The fusion policy: gives each node of a graph its placement.

A node becomes a `Root` when it is asked for, when it must have memory of its own, or when computing
it inline would repeat too much work. Then nodes are visited from readers to sources, with the
elements of each that every kernel reads. A reduction whose elements are each needed by one
iteration of a kernel's outer loops goes `At` those loops: innermost it is an accumulator with an
epilogue, further out a row statistic as in softmax and layernorm, unless the kernel has a product
of matrices, whose tiles have several rows at once. A costly node that a kernel
reads in several places goes into a row buffer. Everything else is inline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpu.compiler.fusion.blocks import LARGE, Block, Domain, block_for, is_spread, kernel_domain
from gpu.compiler.fusion.images import reductions_inline
from gpu.compiler.fusion.inplace import Store, find_reuses, store_order
from gpu.compiler.fusion.limit import most_inline, own_cost, to_store
from gpu.compiler.fusion.merge import merge_outputs
from gpu.compiler.fusion.plan import At, Plan, Root
from gpu.compiler.fusion.region import iterations_under, loops_of, needed_region, own_element
from gpu.compiler.fusion.split_reduce import uses_again
from gpu.compiler.fusion.views import (
    Access,
    domain_indices,
    domain_loops,
    inner_vars,
    source_accesses,
)
from gpu.compiler.ir.graph import (
    APART,
    LOOPING,
    MOVEMENT,
    NO_SOURCES,
    Node,
    in_memory,
    toposort,
    unmoved,
)
from gpu.compiler.ir.graph.barrier import waited_for
from gpu.compiler.ir.graph.images import is_written_image
from gpu.compiler.ir.index import ALWAYS, Var

# An inline expression is cut into kernels at this many operations: compile time is linear in it.
MAX_INLINE: Final = 160
# Operations a node may cost and still be computed again for each kernel or repetition that reads
# it.
CHEAP: Final = 6
# The same for a large one that is computed from positions alone.
BY_POSITION: Final = 16
# How often a kernel may make an element narrower, of a float, that memory could hold so.
NARROWED: Final = 32
# Kinds that have memory of their own by what they mean, or loops unlike any other's.
OWN_KERNEL: Final = LOOPING | APART | {"contiguous", "copy"}
# Those whose kernels have no blocks.
_NO_BLOCKS: Final = OWN_KERNEL - {"contiguous"}
# Places a kernel may read an inline node at: its expression is built once for each.
MAX_READS: Final = 4
# Outer iterations from which computing a reduction inside them leaves enough to run at once.
MIN_ROWS: Final = 16
# Elements of a reduction's source below which running at once does not matter.
SMALL: Final = 1 << 14
# Bytes a row buffer may take: it should stay in a core's own cache.
ROW_BYTES: Final = 1 << 18
# Nodes with a buffer inside one kernel.
MAX_PLACED: Final = 16


def plan_fusion(
    roots: Iterable[Node],
    is_leaf: Callable[[Node], bool],
    stores: Mapping[Node, Store] | None = None,
    most_of: Callable[[str], int] = lambda device: 0,
    has_blocks: Callable[[str], bool] = lambda device: False,
) -> Plan:
    """Places every node needed for `roots`; `is_leaf` says which are in memory already.

    `stores` are what may be written in place, as `find_stores` gives them. Those whose old memory
    is read by something that also needs the new one are left out of the plan. `most_of` gives the
    buffers that a kernel of a device may have, 0 for any number; kernels that would have more are
    cut where that helps. `has_blocks` says whether the kernels of a device may go through their
    output in blocks, by which large values need no memory of their own.
    """
    wanted = list(dict.fromkeys(roots))
    left = dict(stores or {})
    cut: set[Node] = set()
    blocks: dict[Node, Block | None] = {}
    while True:
        fusion = _Fusion(wanted, is_leaf, left, cut, blocks, has_blocks)
        plan, stuck = fusion.plan(most_of)
        if stuck is not None:
            left = {node: store for node, store in left.items() if store.leaf is not stuck}
        elif more := (to_store(plan, most_of) | fusion.circular) - cut:
            cut |= more
        elif tried := fusion.other_blocks():
            blocks |= tried
        else:
            return plan


class _Fusion:
    def __init__(
        self,
        roots: list[Node],
        is_leaf: Callable[[Node], bool],
        stores: Mapping[Node, Store],
        cut: Iterable[Node],
        blocks: Mapping[Node, Block | None],
        has_blocks: Callable[[str], bool],
    ):
        self.is_leaf = is_leaf
        self.stores = stores
        # Blocks of outputs; None where they turned out to be of no use.
        self.blocks = blocks
        self.has_blocks = has_blocks
        self.wanted_blocks: dict[Node, Block | None] = {}
        # What stores do; such a node is computed where something else needs it too.
        self.written = {store.write for store in stores.values()}
        self.order = toposort(roots, is_leaf)
        self.requested = frozenset(roots)
        self.outputs = {*roots, *stores, *self._read_before_writing(), *cut}
        self.cost: dict[Node, int] = {}
        self.most_inline = most_inline(self.order, MAX_INLINE, OWN_KERNEL)
        # What each kernel, named by its output, reads of each node.
        self.reads: dict[Node, dict[Node, dict[Access, None]]] = {n: {} for n in self.order}
        self.domain: dict[Node, Domain] = {}
        # Depth and space, for each kernel that a node is placed in.
        self.placed: dict[Node, dict[Node, At]] = {}
        # Kernels that store what they have in a buffer, since others read it.
        self.beside: dict[Node, Node] = {}
        # Those by which kernels would wait for each other.
        self.circular: set[Node] = set()
        self.in_kernel: dict[Node, int] = {}
        # Whether kernels have sums of products, and in which a large one, which gets tiles, is.
        self.products: dict[Node, bool] = {}
        self.tiled: set[Node] = set()
        # Loops of placed nodes: how many loops of the kernel's domain are around each.
        self.depth: dict[Var, int] = {}

    def plan(self, most_of: Callable[[str], int]) -> tuple[Plan, Node | None]:
        """The plan, or a leaf whose memory cannot be written to in any order of its kernels."""
        inner = [node for node in self.order if not self.is_leaf(node)]
        for node in inner:
            self._decide_output(node)
        for node in reversed(inner):
            self._place(node)
        outputs = [node for node in inner if node in self.outputs]
        stuck = None
        if self.stores:
            outputs, stuck = store_order(outputs, self.stores, self.reads)
        mergeable = self._mergeable(outputs)
        merged = merge_outputs(outputs, mergeable, self.cost, most_of)
        merged = self._with_results(merged)
        groups = self._with_beside(merged) if self.beside else merged
        kernels = [kept for group in groups if (kept := self._stored(group))]
        reuses = find_reuses(kernels, mergeable, self.reads, self.is_leaf)
        number = {node: i for i, group in enumerate(kernels) for node in group}
        placement: dict[Node, Root | Mapping[int, At]] = {n: Root(i) for n, i in number.items()}
        for node, inside in self.placed.items():
            at = {number[root]: at for root, at in inside.items()}
            placement[node] = Root(number[node], *at.values()) if node in self.beside else at
        blocks = {node: block for node, block in self.blocks.items() if block}
        return Plan(tuple(kernels), placement, self.is_leaf, self.stores, reuses, blocks), stuck

    def _with_results(self, kernels: Sequence[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
        """The kernels, with the results of each loop, or kernel of a user, behind it."""
        results: dict[Node, list[Node]] = {}
        for node, *_ in kernels:
            if node.kind == "result":
                results.setdefault(node.src[0], []).append(node)
        return [(*g, *results.get(g[0], ())) for g in kernels if g[0].kind != "result"]

    def _with_beside(self, kernels: Sequence[tuple[Node, ...]]) -> list[tuple[Node, ...]]:
        """The kernels with what they store besides, each behind those that it reads from."""
        added: dict[Node, list[Node]] = {}
        for node, root in self.beside.items():
            added.setdefault(root, []).append(node)
        groups = [(*g, *(n for root in g for n in added.get(root, ()))) for g in kernels]
        number = {node: i for i, group in enumerate(groups) for node in group}
        needs: list[set[int]] = [set() for _ in groups]
        for node, readers in self.reads.items():
            if node in number:
                for root in readers:
                    needs[number[root]].add(number[node])
        ordered: dict[int, None] = {}
        begun: set[int] = set()
        waiting = [(i, False) for i in reversed(range(len(groups)))]
        while waiting:
            group, done = waiting.pop()
            if done:
                ordered[group] = None
            elif group not in begun:
                begun.add(group)
                waiting.append((group, True))
                waiting += [(i, False) for i in sorted(needs[group] - begun, reverse=True)]
        place = {group: position for position, group in enumerate(ordered)}
        if any(place[i] > place[group] for group, wanted in enumerate(needs) for i in wanted):
            self.circular = {*self.beside}
        return [groups[i] for i in ordered]

    def _read_before_writing(self) -> set[Node]:
        """What is written somewhere and computed from memory that stores change.

        It gets memory of its own, so that no store reads what it writes.
        """
        memory = {s.leaf for s in self.stores.values()} | set(self.stores)
        if not memory:
            return set()
        depends: set[Node] = set(memory)
        for node in self.order:
            if not self.is_leaf(node) and any(source in depends for source in node.src):
                depends.add(node)
        written = {operand for s in self.stores.values() for operand in s.operands}
        return {node for node in written if node in depends and not self.is_leaf(node)}

    def _stored(self, group: tuple[Node, ...]) -> tuple[Node, ...]:
        """The outputs of a kernel without those that only it reads."""
        return tuple(
            node
            for node in group
            if node in self.requested
            or node in self.stores
            or node.kind in APART
            or not {*self.reads[node]} <= {node, *group}
        )

    def _mergeable(self, outputs: list[Node]) -> dict[Node, dict[Node, bool]]:
        """What the kernels without loops of their own read, and whether element by element."""
        looping = {root for inside in self.placed.values() for root in inside}
        looping.update(n for n in outputs if n.kind in {"reduce", *OWN_KERNEL} - {"contiguous"})
        looping.update(self.stores)
        result: dict[Node, dict[Node, bool]] = {n: {} for n in outputs if n not in looping}
        for node in self.order:
            if self._in_memory(node):
                for root, accesses in self.reads[node].items():
                    if root in result and root is not node:
                        own = self.domain[root].indices
                        result[root][node] = all(a == (own, ALWAYS) for a in accesses)
        return result

    # Which nodes must be outputs, from sources to readers.

    def _decide_output(self, node: Node) -> None:
        """Makes `node`, or what it reads, an output if it must be or would cost too much inline."""
        inline = [s for s in node.src if not self._in_memory(s) and s.kind != "reduce"]
        own = own_cost(node)
        most = self.most_inline.get(node, MAX_INLINE)
        total = own + sum(self.cost[s] for s in inline if not self._in_memory(s))
        if total > most:
            # What is used several times was counted as often, but is computed once.
            total = own + self._distinct_cost(inline, most)
        if total > most:
            self.outputs |= self._where_to_cut(inline)
            total = own + self._distinct_cost([s for s in inline if not self._in_memory(s)], most)
        if total > most:
            self.outputs.update(s for s in inline if s.kind not in NO_SOURCES)
            total = own
        self.cost[node] = total
        if node.kind in OWN_KERNEL and node not in self.written:
            self.outputs.add(node)
        if is_written_image(node):
            self.outputs |= {node, *reductions_inline(node, self._in_memory)}
        waited = waited_for(node, self._in_memory)
        self.outputs.update(each for each in waited if not self.is_leaf(each))
        if node.kind == "copy" or node.kind in APART:
            whole = node.kind == "copy"
            read = (s if whole else in_memory(s, self.is_leaf) for s in node.src)
            self.outputs.update(each for each in read if not self.is_leaf(each))

    def _distinct_cost(self, inline: list[Node], most: int) -> int:
        """What computing these nodes inline costs, each node counted once; stops at `most`."""
        total = 0
        seen: set[Node] = set(inline)
        waiting = list(inline)
        while waiting and total <= most:
            node = waiting.pop()
            total += own_cost(node)
            new = {s for s in node.src if s.kind != "reduce" and not self._in_memory(s)} - seen
            seen |= new
            waiting += new
        return total

    def _where_to_cut(self, nodes: list[Node]) -> set[Node]:
        """What to store so that computing `nodes` begins there.

        What moves elements, or spreads few of them over many as a product of two expanded tensors
        does, stays inline: that from which it is made takes less memory.
        """
        cut: set[Node] = set()
        seen: set[Node] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node in seen or self._in_memory(node) or node.kind in {"reduce", *NO_SOURCES}:
                continue
            seen.add(node)
            bases = [unmoved(source) for source in node.src]
            read = sum(base.size for base in bases if base.kind not in NO_SOURCES)
            if node.kind in MOVEMENT or node.size > read:
                waiting += bases
            else:
                cut.add(node)
        return cut

    def _in_memory(self, node: Node) -> bool:
        return node in self.outputs or node in self.beside or self.is_leaf(node)

    # Where the others are computed, from readers to sources.

    def _place(self, node: Node) -> None:
        if node not in self.outputs and not self._place_inside(node):
            self.outputs.add(node)
        if node in self.outputs:
            self._start_kernel(node)

    def _start_kernel(self, node: Node) -> None:
        if node in self.stores:
            self._start_store(node, self.stores[node])
            return
        domain = self.domain[node] = kernel_domain(node, "i", self.blocks.get(node))
        self.in_kernel[node] = 0
        if node.kind in APART:
            for each in (in_memory(source, self.is_leaf) for source in node.src):
                self.reads[each].setdefault(node, {})[domain.indices, domain.mask] = None
            return
        access = (domain.indices, domain.mask)
        if node.kind != "scatter":
            self._push(node, node, access, len(domain.loops))
            return
        # Two nests: the source is copied, then the updates are walked through.
        source, index, updates = node.src
        walk = domain_loops(index.shape, f"walk{len(self.depth)}_")
        self.depth.update(dict.fromkeys(walk, 0))
        place = (domain_indices(index.shape, walk), ALWAYS)
        for each, where in ((source, access), (index, place), (updates, place)):
            self.reads[each].setdefault(node, {})[where] = None

    def _start_store(self, node: Node, store: Store) -> None:
        """A kernel that walks what is written, and writes it where it belongs."""
        domain = self.domain[node] = kernel_domain(store.domain, "i", None, is_read=True)
        self.in_kernel[node] = 0
        for operand in store.operands:
            place = (domain.indices, ALWAYS)
            self.reads[operand].setdefault(node, {})[place] = None

    def _place_inside(self, node: Node) -> bool:
        """Places `node` inside the kernels that read it, or says that it cannot be."""
        if node in self.written and node.kind in OWN_KERNEL:
            return not self.reads[node]
        if self._place_beside(node) or self._place_in_blocks(node) or self._place_in_rows(node):
            return True
        self._want_blocks(node)
        return False

    def _place_in_rows(self, node: Node) -> bool:
        """Places `node` where a kernel needs each of its elements once, or inline, if it can be."""
        kernels = self.reads[node]
        if node.kind == "reduce":
            return len(kernels) == 1 and self._place_reduction(node, *kernels)
        if _narrows(node) and self._most_often(node) >= NARROWED * node.size:
            return False
        worth_keeping = self._is_worth_keeping(node)
        if worth_keeping and (len(kernels) > 1 or self._most_often(node) > node.size):
            return False
        for root, accesses in kernels.items():
            if worth_keeping and len(accesses) > 1:
                return self._place_row(node, root)
            if len(accesses) > MAX_READS and not self._shows_memory(node):
                return False
        for root, accesses in kernels.items():
            for access in accesses:
                self._push(node, root, access)
        return True

    def _shows_memory(self, node: Node) -> bool:
        """Whether reading `node` is reading memory at another place."""
        return node.kind in MOVEMENT and self._in_memory(unmoved(node))

    def _is_worth_keeping(self, node: Node) -> bool:
        """Whether computing `node` again costs more than reading it."""
        cost = self.cost[node]
        if node.kind in MOVEMENT or cost <= CHEAP:
            return False
        # Blocks of rows read it across, which takes longer than from end to end.
        is_large = node.nbytes >= LARGE or any(self.domain[root].depth for root in self.reads[node])
        return cost > BY_POSITION or not is_large or not self._is_by_position(node)

    def _is_by_position(self, node: Node) -> bool:
        """Whether `node` reads nothing from memory, as the mask of causal attention."""
        below = toposort([node], self.is_leaf)
        return not any(self.is_leaf(n) or not (n.src or n.kind in NO_SOURCES) for n in below)

    def _most_often(self, node: Node) -> int:
        """How many elements of `node` a kernel would compute, counted as often as it does.

        What does not depend on a loop is computed outside of it, so the loops that count are those
        around the innermost one that an index depends on.
        """
        most = 0
        for root, accesses in self.reads[node].items():
            domain, around = self.domain[root].loops, self.domain[root].depth
            for indices, mask in accesses:
                used = loops_of(indices)
                inner = [var for var in used if var in self.depth]
                outer = [domain.index(var) + 1 for var in used if var not in self.depth]
                depth = max([self.depth[var] for var in inner] + outer, default=0)
                kept = iterations_under(mask)
                loops = (*domain[:depth], *inner)
                count = math.prod(kept.get(v, v.extent) for v in loops)
                if around and depth > around:  # what the last block has too many is of no account
                    block = self.blocks[root]
                    assert block is not None
                    number, row = domain[around - 1 : around + 1]
                    count = count * int(root.shape[block.axis]) // (number.extent * row.extent)
                most = max(most, count)
        return most

    def _place_reduction(self, node: Node, root: Node) -> bool:
        accesses = self.reads[node][root]
        domain = self.domain[root].loops
        (access, *others) = accesses
        indices, mask = access
        used = loops_of(indices)
        depth = max((domain.index(var) + 1 for var in used if var in domain), default=0)
        rows = math.prod(var.extent for var in domain[:depth])
        # Each element at most once, by the iteration that needs it.
        aligned = used == frozenset(domain[:depth]) and rows <= node.size
        if others or mask is not ALWAYS or not aligned:
            return False
        if depth < len(domain) and self._has_product(root):
            return False
        is_tiled = node.src[0].size > SMALL and uses_again(node.src[0])
        if is_tiled and root in self.tiled:  # tiles are of one product: the others' are apart
            return False
        enough = depth == len(domain) or rows >= MIN_ROWS or node.src[0].size <= SMALL
        if not enough or not self._take(node, root, depth, "private"):
            return False
        if is_tiled:
            self.tiled.add(root)
        self._push(node, root, access, depth)
        return True

    def _has_product(self, root: Node) -> bool:
        """Whether a kernel has sums of products of its own, whose tiles have several rows."""
        if root not in self.products:
            inline = toposort(root.src, lambda n: n.kind == "reduce" or self._in_memory(n))
            self.products[root] = any(n.kind == "reduce" and uses_again(n.src[0]) for n in inline)
        return self.products[root]

    def _place_row(self, node: Node, root: Node) -> bool:
        domain = self.domain[root].loops
        reads = [indices for indices, _ in self.reads[node][root]]
        for depth in range(len(domain) - 1, -1, -1):
            region = needed_region(reads, node.shape, frozenset(domain[:depth]))
            rows = math.prod(var.extent for var in domain[:depth])
            # Read in each of these loops, in another place each time.
            apart = loops_of(region.base) >= frozenset(domain[:depth])
            once = region.size * rows == node.size
            if apart and once and region.size * node.dtype.itemsize <= ROW_BYTES:
                if rows < MIN_ROWS and node.size > SMALL:
                    return False
                if not self._take(node, root, depth, "team"):
                    return False
                row = domain_loops(region.extents, f"row{len(self.placed)}_")
                self.depth.update(dict.fromkeys(row, depth))
                self._push(node, root, own_element(region, row, node.shape))
                return True
        return False

    # Blocks.

    def other_blocks(self) -> dict[Node, Block | None]:
        """Blocks to plan again with: more that would save memory, else none where they did not."""
        if self.wanted_blocks:
            return self.wanted_blocks
        used = {
            root
            for node, inside in self.placed.items()
            for root, at in inside.items()
            if at.depth == self.domain[root].depth and self._is_spread(node)
        }
        idle = (root for root, domain in self.domain.items() if domain.depth and root not in used)
        return dict.fromkeys(idle)

    def _want_blocks(self, node: Node) -> None:
        """Notes blocks in which all kernels that read `node` could compute what they read of it."""
        found: dict[Node, Block | None] = {}
        for root, accesses in self.reads[node].items():
            known = root in self.blocks or root in self.stores or root.kind in _NO_BLOCKS
            if self.domain[root].depth:
                continue
            if known or not self.has_blocks(root.device):
                return
            block = block_for(node, accesses, root, self.domain[root], self._in_memory)
            if block is None:
                return
            found[root] = block
        self.wanted_blocks |= found

    def _is_spread(self, node: Node) -> bool:
        """Whether `node`, or what it reduces, has many more elements than it is made of."""
        made_of = sum(n.size for n in toposort(node.src, self._in_memory) if self._in_memory(n))
        large = unmoved(node.src[0]) if node.kind == "reduce" else node
        return is_spread(large, made_of)

    def _place_beside(self, node: Node) -> bool:
        """Places a reduction that several kernels read into one, which stores it for the others.

        That is one which has what is reduced near by, and needs nothing of what the others compute.
        """
        kernels = self.reads[node]
        blocked = [root for root in kernels if self.domain[root].depth]
        if node.kind != "reduce" or len(kernels) < 2 or not blocked or self.stores:
            return False
        if node.nbytes >= LARGE or not self._is_spread(node):
            return False
        for root in blocked:
            place = self._in_block(node, root)
            if place is None or place[0].space != "team" or self.in_kernel[root] == MAX_PLACED:
                continue
            if not kernels.keys().isdisjoint(toposort(root.src, self.is_leaf)):
                continue
            self._take(node, root, *place[0])
            self._push(node, root, place[1], place[0].depth)
            self.beside[node] = root
            return True
        return False

    def _place_in_blocks(self, node: Node) -> bool:
        """Places `node` in a block of each kernel that reads it, or says that it cannot be."""
        kernels = self.reads[node]
        if not kernels or not all(self.domain[root].depth for root in kernels):
            return False
        if len(kernels) > 1 and not self._is_spread(node):
            return False
        if node.kind != "reduce":
            if not (self._is_worth_keeping(node) or _narrows(node)):
                return False
            several = any(len(accesses) > 1 for accesses in kernels.values())
            if not several and self._most_often(node) <= node.size:
                for root, (access,) in kernels.items():
                    self._push(node, root, access)
                return True
        places = {root: self._in_block(node, root) for root in kernels}
        if any(
            place is None or self.in_kernel[root] == MAX_PLACED for root, place in places.items()
        ):
            return False
        for root, place in places.items():
            assert place is not None
            at, access = place
            self._take(node, root, *at)
            self._push(node, root, access, at.depth)
        return True

    def _in_block(self, node: Node, root: Node) -> tuple[At, Access] | None:
        """Where in the blocks of a kernel `node` is computed, and the element at a time."""
        domain, accesses = self.domain[root], [*self.reads[node][root]]
        (indices, mask), *others = accesses
        innermost = not others and loops_of(indices) == frozenset(domain.loops)
        if node.kind == "reduce" and innermost and mask is domain.mask:
            return At(len(domain.loops), "private"), (indices, mask)
        around = domain.loops[: domain.depth]
        region = needed_region((i for i, _ in accesses), node.shape, frozenset(around))
        rounds = math.prod(var.extent for var in around)
        block = self.blocks[root]
        assert block is not None
        # Each element once, but for what the last block has too many.
        most = node.size * (block.size * around[-1].extent) // int(root.shape[block.axis])
        if not loops_of(region.base) >= frozenset(around) or region.size * rounds > most:
            return None
        row = domain_loops(region.extents, f"row{len(self.placed)}_")
        self.depth.update(dict.fromkeys(row, domain.depth))
        return At(domain.depth, "team"), own_element(region, row, node.shape)

    def _take(self, node: Node, root: Node, depth: int, space: str) -> bool:
        if self.in_kernel[root] == MAX_PLACED:
            return False
        self.in_kernel[root] += 1
        self.placed.setdefault(node, {})[root] = At(depth, space)
        return True

    def _push(self, node: Node, root: Node, access: Access, depth: int = 0) -> None:
        """Notes what computing `node` at `access` in the kernel of `root` reads."""
        loops = inner_vars(node, f"in{len(self.depth)}_")
        self.depth.update(dict.fromkeys(loops, depth))
        for source, read in source_accesses(node, access, loops):
            self.reads[source].setdefault(root, {})[read] = None
        for source in waited_for(node, self._in_memory):
            self.reads[source].setdefault(root, {})


def _narrows(node: Node) -> bool:
    """Whether a node is a cast from a float to a narrower one."""
    source = node.src[0].dtype if node.kind == "cast" else node.dtype
    return source.is_float and node.dtype.is_float and node.dtype.bits < source.bits
