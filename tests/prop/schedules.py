"""Random schedules: lists of loop transformations drawn for a kernel, of every primitive.

Arguments are taken from the kernel as it is, mostly such as a transformation might accept, and now
and then any. What the tests of legality accept must keep what the kernel computes. Between what is
drawn come the next steps of a schedule that a policy chose, so that what takes many steps to
prepare, as matrix instructions do, is among what is transformed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.kernel.tree import allocated, loops, reads, walk, writes
from gpu.compiler.ir.kernel.verify import verify_kernel
from gpu.compiler.ir.matrix import MATRICES
from gpu.compiler.ir.optable import DOTS
from gpu.compiler.opt import opts as O
from gpu.compiler.opt.analysis.loop_nest import outer_nest, perfect_nest
from gpu.compiler.opt.analysis.product_nest import product_nest
from gpu.compiler.opt.analysis.reduction_nest import Nest, reduction_nest
from gpu.compiler.opt.primitives.block_scan import scan_in, scan_of
from gpu.compiler.opt.primitives.dots import NEITHER, factors_of, loops_of_words
from gpu.compiler.opt.primitives.matrix_tiling import MatrixTiling
from gpu.compiler.opt.primitives.residues import residues_of
from gpu.compiler.opt.primitives.tiling import Copy, Tiling
from gpu.core.errors import IllegalOpt, VerifyError

TAILS: Final = ("exact", "peel", "shift", "mask", "pad", "skip", "zero")
FACTORS: Final = (1, 2, 3, 4, 5, 8, 16, 32)
THREADS: Final = (2, 4, 8, 32)
# What the verifier says of kernels whose thread loops are no chain.
OF_BLOCKS: Final = (
    "memory inside thread loops must be",
    "memory outside thread loops must be",
    "beside thread loops there is team memory only",
    "loop stands inside other loops",
    "grid and thread loops form one chain",
    "a thread loop goes from 0",
    "a block has at most",
    "a barrier is in no loop of lanes",
    "a shuffle_xor is in no loop of lanes",
    "no power of two",
)
# Statements of a kernel from which on nothing more is done to it: interpreters take their time.
LARGE: Final = 300


class Drawn(NamedTuple):
    """What became of a random schedule.

    Attributes:
        kernel: after all that was accepted.
        opts: all that was accepted, in order, what came from a policy included.
        accepted: of what was drawn.
        refused: of what was drawn.
    """

    kernel: K.Kernel
    opts: list[O.Opt]
    accepted: list[O.Opt]
    refused: list[O.Opt]


def draw_schedule(
    rng: np.random.Generator,
    kernel: K.Kernel,
    length: int,
    chosen: Iterable[O.Opt] = (),
    kinds: Collection[str] = K.LOOP_KINDS,
) -> Drawn:
    """A schedule of up to `length` random transformations, and as many of those `chosen`.

    `kinds` are the kinds of loops that the machine has.
    """
    drawn, policy = Drawn(kernel, [], [], []), list(chosen)
    at_once, whole = rng.random() < 0.2, rng.random() < 0.4
    for step in range(length):
        while policy and (at_once or rng.random() < 0.4):
            drawn = _with(drawn, policy.pop(0), is_random=False)
        if sum(1 for _ in walk(drawn.kernel.body)) > LARGE:
            break
        opt = _draw(rng, drawn.kernel, kinds, OF_NESTS if whole and step < 3 else PRIMITIVES)
        if opt is not None:
            drawn = _with(drawn, opt, is_random=True)
    return drawn


def _with(drawn: Drawn, opt: O.Opt, is_random: bool) -> Drawn:
    """`drawn` with one more transformation, if that is legal.

    What a block of threads is, a chain of loops with memory in its places, is for the verifier to
    see: in between a policy may leave that form. All else is for the transformation.
    """
    try:
        kernel = O.apply(drawn.kernel, [opt])
        verify_kernel(kernel)
    except (IllegalOpt, VerifyError) as error:
        if isinstance(error, VerifyError) and not any(rule in str(error) for rule in OF_BLOCKS):
            raise AssertionError(f"{opt} broke a rule, after {drawn.opts}") from error
        return drawn._replace(refused=[*drawn.refused, opt]) if is_random else drawn
    accepted = [*drawn.accepted, opt] if is_random else drawn.accepted
    return drawn._replace(kernel=kernel, opts=[*drawn.opts, opt], accepted=accepted)


class Tally:
    """How many transformations of each primitive were drawn, accepted, and seen in schedules.

    `lowered` of all `schedules` are those that a machine could run.
    """

    def __init__(self) -> None:
        self.schedules = self.lowered = 0
        self.drawn: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()

    def add(self, drawn: Drawn) -> None:
        """One more schedule."""
        self.schedules += 1
        self.seen.update(type(opt).__name__ for opt in drawn.opts)
        self.accepted.update(type(opt).__name__ for opt in drawn.accepted)
        self.drawn.update(type(opt).__name__ for opt in (*drawn.accepted, *drawn.refused))

    @property
    def share(self) -> float:
        """The part of all that was drawn which was accepted."""
        return self.accepted.total() / max(self.drawn.total(), 1)


def _draw(
    rng: np.random.Generator, kernel: K.Kernel, kinds: Collection[str], of: Iterable[str]
) -> O.Opt | None:
    """A random transformation of a kernel; None where it has nothing for the primitive drawn."""
    names = list(of)
    weights = np.array([PRIMITIVES[name] for name in names], np.float64)
    name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
    drawer = _Drawer(rng, kernel, kinds)
    try:
        opt: O.Opt = getattr(drawer, name)()
    except _Nothing:
        return None
    return opt


# How often each is drawn.
PRIMITIVES: Final = {
    "split": 6, "fuse": 2, "reorder": 3, "bind": 6, "rfactor": 2, "stage": 2, "together": 1,
    "distribute_threads": 1, "distribute": 1, "inline": 1, "fuse_siblings": 1, "reuse_shared": 0.3,
    "pack": 0.5, "tensorize": 0.2, "matrix_tile": 0.5, "cache_row": 0.7, "prefetch": 0.5,
    "shared_transpose": 0.5, "uniform_mask": 1, "block_scan": 0.5, "partial_sums": 1.5, "tile": 2,
    "residues": 0.5, "guard": 1, "partial_scan": 0.7, "dot": 0.7, "widen": 0.3,
}  # fmt: skip
# Those that want a nest as it was built, mostly.
OF_NESTS: Final = (
    *("block_scan", "dot", "matrix_tile", "pack", "partial_scan", "prefetch", "residues"),
    *("shared_transpose", "tensorize", "tile", "widen"),
)


class _Nothing(Exception):
    """A kernel has nothing to choose an argument from."""


class _Drawer:
    """Draws the arguments of transformations of one kernel; a method for each primitive."""

    def __init__(self, rng: np.random.Generator, kernel: K.Kernel, kinds: Collection[str]):
        self.rng, self.body = rng, kernel.body
        self.kinds = [kind for kind in K.LOOP_KINDS if kind in kinds]
        self.loops = loops(kernel.body)
        self.bufs = dict.fromkeys(buf.name for buf, _, _ in reads(kernel.body))

    # Choices.

    def chance(self, share: float) -> bool:
        """True in `share` of all cases."""
        return bool(self.rng.random() < share)

    def pick(self, choices: Iterable[Any]) -> Any:
        """One of `choices`."""
        known = list(choices)
        if not known:
            raise _Nothing
        return known[int(self.rng.integers(len(known)))]

    def some(self, choices: Iterable[Any], least: int = 1) -> tuple[Any, ...]:
        """Some of `choices`, or all, in any order."""
        known = list(choices)
        if len(known) < least:
            raise _Nothing
        count = int(self.rng.integers(least, len(known) + 1))
        return tuple(known[int(n)] for n in self.rng.permutation(len(known))[:count])

    def loop(self, suits: Callable[[K.Loop], object] = lambda loop: True) -> K.Loop:
        """A loop; one that `suits`, mostly."""
        suiting = [loop for loop in self.loops.values() if suits(loop)]
        if suiting and not self.chance(0.05):
            return self.pick(suiting)  # type: ignore[no-any-return]
        return self.pick(self.loops.values())  # type: ignore[no-any-return]

    def factor(self, extent: int) -> int:
        """Of a loop: a divisor as often as not."""
        divisors = [n for n in FACTORS if extent % n == 0 and n <= extent]
        return int(self.pick(divisors if divisors and self.chance(0.5) else FACTORS))

    def read_in(self, loop: K.Loop) -> Any:
        """A load inside `loop`: buffer, indices and mask."""
        return self.pick(reads(loop))

    def moving(self, load: Any, inside: Collection[str]) -> tuple[str, ...]:
        """The loops of `inside` with which a load moves, in any order."""
        _, indices, mask = load
        used = {v.name for v in mask.vars.union(*(index.vars for index in indices))}
        names = [name for name in inside if name in used]
        return tuple(names[int(n)] for n in self.rng.permutation(len(names)))

    # Primitives.

    def split(self) -> O.Split:
        """Of any loop."""
        loop = self.loop(lambda loop: loop.var.extent > 1)
        factor = self.factor(loop.var.extent)
        return O.Split(loop.var.name, factor, self.pick(TAILS))

    def fuse(self) -> O.Fuse:
        """Of two loops, mostly the one inside the other."""
        nest = perfect_nest(self.loop(lambda loop: len(perfect_nest(loop)) > 1))
        return O.Fuse(nest[0].var.name, nest[min(1, len(nest) - 1)].var.name)

    def reorder(self) -> O.Reorder:
        """Of loops that are nested, down from any of them."""
        nest = perfect_nest(self.loop(lambda loop: len(perfect_nest(loop)) > 1))
        names = [loop.var.name for loop in nest[: int(self.rng.integers(2, len(nest) + 2))]]
        return O.Reorder(self.some(names, len(names)))

    def bind(self) -> O.Bind:
        """Any loop to any kind, outer loops mostly to those of a machine's parts."""
        loop = self.loop()
        outer = [each.var for each in outer_nest(self.body)]
        many = [kind for kind in self.kinds if kind in ("grid", "worker", "thread")]
        few = [kind for kind in self.kinds if kind not in many]
        kinds = many if loop.var in outer and many and self.chance(0.5) else few
        return O.Bind(loop.var.name, self.pick(kinds))

    def rfactor(self) -> O.Rfactor:
        """Of a loop that holds one statement, mostly."""
        loop = self.loop(self._reduces)
        if self.chance(0.3):
            return O.Rfactor(loop.var.name, 16, int(self.pick((4, 8, 16))))
        return O.Rfactor(loop.var.name, int(self.pick(f for f in FACTORS if f <= loop.var.extent)))

    def _reduces(self, loop: K.Loop) -> bool:
        """Whether all that a loop does is combine into an element."""
        inner = loop.body.body[0] if len(loop.body.body) == 1 else None
        return (
            isinstance(inner, K.Update)
            and inner.monoid is not None
            and loop.var.extent > 1
            and not any(loop.var in index.vars for index in inner.indices)
        )

    def stage(self) -> O.Stage:
        """Of something that is read inside a loop, by each worker."""
        loop = self.loop(lambda loop: loops(loop.body))
        load = self.read_in(loop)
        order = self.moving(load, loops(loop.body))
        if not order:
            raise _Nothing
        return O.Stage(loop.var.name, load[0].name, order, apart=int(self.pick((0, 0, 1, 16))))

    def together(self) -> O.Stage:
        """The same by all threads of a block."""
        threads = [loop for loop in self.loops.values() if loop.kind == "thread"]
        if not threads:
            raise _Nothing
        inside = loops(threads[-1])
        loop = self.loops[self.pick(inside)]
        load = self.read_in(loop)
        names = {*loops(loop.body), *(each.var.name for each in threads)}
        return O.Stage(loop.var.name, load[0].name, self.moving(load, sorted(names)), together=True)

    def distribute_threads(self) -> O.DistributeThreads:
        """Below one of the outer loops, or of the whole kernel, where there are threads."""
        if "thread" not in self.kinds:
            raise _Nothing
        axis = self.pick([*(each.var.name for each in outer_nest(self.body)), ""])
        return O.DistributeThreads(
            *(axis, self.pick(THREADS), self.chance(0.2)),
            *(int(self.pick((1, 8, 16))), int(self.pick((0, 0, 8, 32)))),
        )

    def distribute(self) -> O.Distribute:
        """Lanes and independent loops that hold more than one statement, mostly."""
        nest = perfect_nest(self.loop(lambda loop: loop.kind in ("vector", "unroll")))
        return O.Distribute(tuple(loop.var.name for loop in nest[: int(self.pick((1, 2, 3)))]))

    def inline(self) -> O.Inline:
        """Of a buffer inside the kernel."""
        return O.Inline(self.pick(buf.name for buf in allocated(self.body)))

    def fuse_siblings(self) -> O.FuseSiblings:
        """Of loops of equal extents that follow each other."""
        pairs = [
            (a.var.name, b.var.name)
            for stmt in walk(self.body)
            if isinstance(stmt, K.Block)
            for one, other in zip(stmt.body, stmt.body[1:], strict=False)
            if isinstance(one, K.Loop) and isinstance(other, K.Loop)
            for a in perfect_nest(one)
            for b in perfect_nest(other)
            if a.var.extent == b.var.extent or self.chance(0.1)
        ]
        return O.FuseSiblings(*self.pick(pairs))

    def reuse_shared(self) -> O.ReuseShared:
        """Of whatever threads share."""
        if not any(loop.kind == "thread" for loop in self.loops.values()):
            raise _Nothing
        return O.ReuseShared()

    def pack(self) -> O.Pack:
        """Of narrow operands, mostly."""
        narrow = {buf.name for buf, _, _ in reads(self.body) if buf.dtype.itemsize < 4}
        loop = self.loop(lambda loop: {b.name for b, _, _ in reads(loop)} & narrow)
        load = self.read_in(loop)
        order = self.moving(load, loops(loop.body))
        words = self.pick(order) if order and self.chance(0.3) else ""
        return O.Pack(loop.var.name, load[0].name, tuple(n for n in order if n != words), words)

    def tensorize(self) -> O.Tensorize:
        """Of the outer loops of a deep nest."""
        nest = perfect_nest(self.loop(lambda loop: len(perfect_nest(loop)) > 6))
        alone = [name for name, how in MATRICES.items() if how.threads == 1]
        return O.Tensorize(tuple(loop.var.name for loop in nest[:-4]) or ("",), self.pick(alone))

    def matrix_tile(self) -> O.MatrixTile:
        """Of a product of matrices."""
        try:
            nest = product_nest(self.body).nest
        except IllegalOpt:
            raise _Nothing from None
        kinds: tuple[list[str], list[str], list[str]] = ([], [], [])
        for var in nest.independent:
            moved = [var in operand.moves for operand in nest.operands]
            kinds[0 if all(moved) else 1 + moved.index(False) % 2].append(var.name)
        steps = self.some([var.name for var in nest.reduction])
        name = self.pick(name for name, how in MATRICES.items() if how.layout is not None)
        tiling = MatrixTiling(
            *(name, *(tuple(kind) for kind in self.pick((kinds, (kinds[0], *kinds[:0:-1]))))),
            *(steps, self.pick(((1, 1), (2, 1), (1, 2), (2, 4)))),
            *(self.pick(((1, 1, 1), (1, 2, 1), (2, 1, 1))), MATRICES[name].k * self.pick((1, 2))),
            *(self.pick((1, 1, 2)), self.pick((1, 2))),
        )
        return O.MatrixTile(tiling)

    def cache_row(self) -> O.CacheRow:
        """Of what several loops read."""
        loop = self.loop(lambda loop: len(loops(loop.body)) > 1)
        return O.CacheRow(loop.var.name, self.read_in(loop)[0].name)

    def prefetch(self) -> O.Prefetch:
        """Of what has been staged."""
        staged = {buf.name[:-1] for buf in allocated(self.body) if buf.name.endswith("s")}
        loop = self.loop(lambda loop: staged & {b.name[:-1] for b in allocated(loop)})
        inside = self.pick([*loops(loop.body), loop.var.name])
        return O.Prefetch(loop.var.name, self.pick(staged or self.bufs), inside)

    def shared_transpose(self) -> O.SharedTranspose:
        """Of what is read inside thread loops."""
        threads = [loop for loop in self.loops.values() if loop.kind == "thread"]
        if not threads:
            raise _Nothing
        loop = self.pick([threads[-1], *loops(threads[-1]).values()])
        load = self.read_in(loop)
        names = {*loops(loop.body), *(each.var.name for each in threads)}
        order = self.moving(load, sorted(names))
        cut = int(self.rng.integers(0, len(order) + 1))
        return O.SharedTranspose(
            *(loop.var.name, load[0].name, order[:cut], order[cut:], int(self.pick((1, 1, 2, 4))))
        )

    def uniform_mask(self) -> O.UniformMask:
        """Of a loop inside which something is masked, mostly."""

        def masked(loop: K.Loop) -> bool:
            masks = [mask for _, _, mask in (*reads(loop), *writes(loop))]
            return any(mask.constraints for mask in masks)

        return O.UniformMask(self.loop(masked).var.name)

    def guard(self) -> O.Guard:
        """Of a loop inside which something is written under a mask, mostly."""
        return O.Guard(
            self.loop(lambda loop: any(m.constraints for *_, m in writes(loop))).var.name
        )

    def block_scan(self) -> O.BlockScan:
        """Below the outer loops around a scan."""
        nest = outer_nest(self.body)
        if scan_in(nest[-1].body if nest else self.body) is None:
            raise _Nothing
        axis = nest[-1].var.name if nest else ""
        return O.BlockScan(
            *(axis, self.pick(THREADS), int(self.pick((1, 1, 2, 4))), int(self.pick((2, 8, 32))))
        )

    def partial_scan(self) -> O.PartialScan:
        """Of a loop that is a scan."""
        loop = self.pick(loop for loop in self.loops.values() if scan_of(loop))
        return O.PartialScan(loop.var.name, self.factor(loop.var.extent))

    def dot(self) -> O.Dot:
        """Of a sum of products, the whole kernel or a loop of it, mostly of narrow factors."""
        name, nest = self.nest()
        axes = loops_of_words(nest)
        usable = {each: flips for each in DOTS if axes and (flips := factors_of(nest, each))}
        operation = self.pick(usable or DOTS)
        flipped = self.pick(usable.get(operation, (NEITHER, 0, 1)))
        return O.Dot(self.pick(axes or nest.reduction).name, operation, flipped, name)

    def widen(self) -> O.Widen:
        """Of a sum of products of narrow integers."""
        nest = reduction_nest(self.body)
        if nest is None or not nest.update.value.dtype.is_int:
            raise _Nothing
        return O.Widen()

    def partial_sums(self) -> O.PartialSums:
        """Of a loop that reduces, mostly."""
        loop = self.loop(self._reduces)
        return O.PartialSums(loop.var.name, self.factor(loop.var.extent))

    def residues(self) -> O.Residues:
        """Of independent loops that masks ask of."""
        nest = reduction_nest(self.body)
        found = residues_of(nest) if nest else []
        return O.Residues(self.some([residue.row.name for residue in found], 1))

    def nest(self) -> tuple[str, Nest]:
        """A reduction: the whole kernel, or what loop of that name holds."""
        name = "" if self.chance(0.7) else self.pick(self.loops)
        found = reduction_nest(K.Block((self.loops[name],)) if name else self.body)
        if found is None:
            raise _Nothing
        return name, found

    def tile(self) -> O.Tile:
        """Of a reduction, the whole kernel or a loop of it."""
        name, nest = self.nest()
        lane = self.pick([*nest.independent, *nest.reduction])
        lanes = int(self.pick((2, 4, 8, 16)))
        counted = self.some(nest.independent, 0) if nest.independent else ()
        around: list[tuple[str, int]] = []
        for var in counted:
            size = lanes * int(self.pick((1, 2, 3))) if var is lane else self.factor(var.extent)
            around += [(var.name, size * 2)] if self.chance(0.1) else []
            around.append((var.name, min(size, max(var.extent, lanes))))
        copies = [
            Copy(number, int(self.rng.integers(0, len(around) + 1)))
            for number in range(len(nest.operands))
            if self.chance(0.4)
        ]
        workers = [kind for kind in self.kinds if kind in ("worker", "grid")]
        parallel = self.pick(workers) if workers and self.chance(0.3) else ""
        steps = int(self.pick((1, 1, 2, 3)))
        return O.Tile(Tiling(lane.name, lanes, tuple(around), tuple(copies), steps, parallel), name)


def describe(opts: Sequence[O.Opt]) -> str:
    """A schedule a line each, to be read in a failure."""
    return "".join(f"\n    {opt!r}," for opt in opts)
