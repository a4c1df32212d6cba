"""Loop transformations of kernel IR.

A schedule is a list of these, applied in order with `apply`. Each is a small value that can be
printed and stored, names loops by their variables' names, and raises `IllegalOpt` where it would
change what the kernel computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import expr
from gpu.compiler.ir.kernel.tree import as_block, rewrite
from gpu.compiler.opt.primitives.block_scan import block_scan
from gpu.compiler.opt.primitives.cache_read import stage
from gpu.compiler.opt.primitives.cache_row import cache_row
from gpu.compiler.opt.primitives.compute_inline import inline
from gpu.compiler.opt.primitives.cooperative_fetch import distribute, stage_together
from gpu.compiler.opt.primitives.dots import NEITHER, dot, widen
from gpu.compiler.opt.primitives.guard import guard
from gpu.compiler.opt.primitives.loops import bind, fuse, reorder, split
from gpu.compiler.opt.primitives.matrix_tiling import MatrixTiling, matrix_tile
from gpu.compiler.opt.primitives.pack import pack
from gpu.compiler.opt.primitives.partial_scan import partial_scan
from gpu.compiler.opt.primitives.partial_sums import partial_sums
from gpu.compiler.opt.primitives.prefetch import prefetch
from gpu.compiler.opt.primitives.privatize import KEPT
from gpu.compiler.opt.primitives.residues import residues
from gpu.compiler.opt.primitives.rfactor import rfactor
from gpu.compiler.opt.primitives.shared_reuse import reuse_shared
from gpu.compiler.opt.primitives.shared_transpose import shared_transpose
from gpu.compiler.opt.primitives.sibling_fusion import fuse_siblings
from gpu.compiler.opt.primitives.tensorize_thread import tensorize
from gpu.compiler.opt.primitives.thread_distribution import distribute_threads
from gpu.compiler.opt.primitives.tiling import Tiling, tile
from gpu.compiler.opt.primitives.uniform_mask import uniform_mask
from gpu.core.errors import IllegalOpt


class Split(NamedTuple):
    """Loop `axis` of extent N becomes `{axis}o` of N // factor around `{axis}i` of factor.

    N may depend on values of the launch.

    `tail` says what happens to the N % factor iterations left over: `exact` allows none, `peel`
    runs them in a loop `{axis}t` of their own afterwards, and `shift` with them some of those
    before again, so that they are a power of two (where that changes nothing). `mask` runs a last
    round whose accesses to memory from outside are masked (for independent iterations only), `pad`
    likewise, where `factor` may be more than N, but that team memory gets room for what these
    iterations touch behind its end. `skip` runs one that does nothing in iterations beyond N, by a
    condition inside the loops directly nested in `axis`, and `zero` one that adds zeros (for a sum
    of products alone).
    """

    axis: str
    factor: int
    tail: str = "exact"


class Fuse(NamedTuple):
    """The directly nested loops `outer` and `inner` become one, named `outer`.

    What uses the two in another way than as one count of both has quotients and rests of it.
    """

    outer: str
    inner: str


class Reorder(NamedTuple):
    """The perfectly nested loops `axes`, given in their new order, outermost first."""

    axes: tuple[str, ...]


class Bind(NamedTuple):
    """Loop `axis` gets kind `kind`.

    Lanes of a vector write elements of their own, or all combine into one by a monoid.
    """

    axis: str
    kind: str


class Rfactor(NamedTuple):
    """Reduction loop `axis` keeps `factor` partial results, iteration k in the k % factor-th.

    `{axis}z` sets them, `{axis}o` and `{axis}i` replace the loop, `{axis}f` combines them, and
    `{axis}t` does what is left over. Partials are independent, so `{axis}i` may become lanes.

    With `lanes`, which divide the factor, so may `{axis}t`: it has the iterations of whole vectors,
    under a mask, and is done into partials too.
    """

    axis: str
    factor: int
    lanes: int = 0


class Stage(NamedTuple):
    """Inside loop `axis`, what the kernel computes from buffer `buf` alone is computed first.

    It goes into a team buffer indexed by `order`, the loops inside `axis` that it depends on,
    outermost dimension first. The copy loops are named `{loop}s`. Behind each row of it `apart`
    elements stay unused: rows that are a power of two apart share few sets of a cache.

    With `together` the threads of a block around `axis` copy it together, and use it together:
    `order` names the thread loops that it depends on as well, and how far rows are apart is chosen.
    """

    axis: str
    buf: str
    order: tuple[str, ...]
    together: bool = False
    apart: int = 0


class Prefetch(NamedTuple):
    """While loop `axis` uses what it staged from `buf`, what its next iteration stages comes near.

    Each iteration of the serial loop `loop`, inside `axis`, asks for its part of the cache lines
    that the copy of `buf`, still as `Stage` made it, reads in the next iteration of `axis`.
    """

    axis: str
    buf: str
    loop: str


class CacheRow(NamedTuple):
    """Inside loop `axis`, a row of parameter `buf` that loops walk along is read once, first.

    It goes into a team buffer `{buf}h`, in a loop of that name, and all reads take it from there.
    """

    axis: str
    buf: str


class UniformMask(NamedTuple):
    """Conditions of accesses are asked once for all iterations of loop `axis`.

    Each must hold for all of them or for none.
    """

    axis: str


class Guard(NamedTuple):
    """Loop `axis` is left out where conditions that all its writes have do not hold.

    They are those that are the same in all its iterations.
    """

    axis: str


class DistributeThreads(NamedTuple):
    """What loop `axis` holds is done by a block of `threads`, a power of two.

    `axis` is one of the independent outer loops, or "" for the whole kernel. Independent loops
    inside go to the threads in turn, reductions are done in parts that meet in team memory, those
    of `warp` threads that follow each other without it
    (`gpu/compiler/opt/primitives/block_reduce.py`), and what remains is done by each thread, or by
    the first one where it writes. With `first` the new thread loop, `{axis}th`, stands outside of
    those around `axis`, whose threads are then the neighbours. A thread holds `kept` elements of a
    row in registers at most, where it alone uses them.
    """

    axis: str
    threads: int
    first: bool = False
    kept: int = KEPT
    warp: int = 0


class BlockScan(NamedTuple):
    """The scan that loop `axis` holds is done by a block of `threads`, a power of two.

    `axis` is one of the independent outer loops, or "" for the whole kernel. The new thread loop,
    `{axis}th`, is inside of it; each thread has `side` elements that lie side by side in a round,
    and exchanges what they make with those of its `warp`.
    """

    axis: str
    threads: int
    side: int
    warp: int


class PartialScan(NamedTuple):
    """The scan that loop `axis` is combines `factor` elements at a time by themselves.

    `{axis}o` replaces the loop, its iterations are written out, and `{axis}t` does what is left
    over. What came before is combined with each result where it is stored: rounding may differ.
    """

    axis: str
    factor: int


class Distribute(NamedTuple):
    """The directly nested loops `axes`, lanes, written out or independent, go around each Update
    inside.

    Private memory they hold gets a dimension for each; it becomes team memory where one of them is
    neither lanes nor written out. What else stands in the loops inside is then there once, and not
    once for each iteration of `axes`.
    """

    axes: tuple[str, ...]


class Inline(NamedTuple):
    """Buffer `buf` goes away: what is read from it is computed where it is read."""

    buf: str


class FuseSiblings(NamedTuple):
    """Loops `first` and `second` of two nests that follow each other become one outer loop.

    Both have the same iterations, which must be independent once they are one. The other loops of
    the nests stay inside it, one nest after the other.
    """

    first: str
    second: str


class ReuseShared(NamedTuple):
    """Team buffers of one form that the threads of a block never need at once become one."""


class SharedTranspose(NamedTuple):
    """Inside loop `axis` the threads of a block copy what is read of parameter `buf`, as it lies.

    It is read along the loops `columns` and goes to a tile in team memory, from where each thread
    takes single elements in any order. Both `rows` and `columns` name thread loops as well,
    outermost first. With `side` above 1 their last loops have so many iterations, and are what a
    thread copies, or writes, in one access.
    """

    axis: str
    buf: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    side: int = 1


class Pack(NamedTuple):
    """Inside loop `axis` an operand of narrow elements is copied, as a thread loads tiles.

    The operand is what the kernel computes from buffer `buf` alone, of 16 bits before it is cast to
    float32, or of 8 before it is cast to int32.
    In team memory its elements follow each other as the loops `order` count them. Those of loop
    `words`, where one is named, are together in an integer of 4 bytes. The copy loops are named
    `{loop}s`, and with words `{loop}w`.
    """

    axis: str
    buf: str
    order: tuple[str, ...]
    words: str = ""


class Tensorize(NamedTuple):
    """The loops `axes`, the steps of a sum of products, become matrix instructions `name`.

    One thread executes them (`gpu/compiler/ir/matrix.py`). The last two loops count the words of an
    instruction and the steps of a word, the others stay. In them are loops over tiles of both
    operands, written out, then over rows and columns of a tile; sums are in team memory, and the
    second operand is in words (`Pack`).
    """

    axes: tuple[str, ...]
    name: str


class Dot(NamedTuple):
    """Steps of loop `axis` of a sum of products become words, multiplied by operation `name`.

    `{axis}o` counts words of neighbours, of 8 or 16 bits each, and replaces the loop
    (`gpu/compiler/ir/optable.py:DOTS`). Factor number `flipped` of the product, if any, has its
    highest bit flipped, so that the operation takes it. With `nest` the sum is not the whole kernel
    but in loop `nest`.
    """

    axis: str
    name: str
    flipped: int = NEITHER
    nest: str = ""


class Widen(NamedTuple):
    """A sum of products of integers of fewer bits than 32, the whole kernel, is formed in int32.

    What is read of it has its lowest bits.
    """


class PartialSums(NamedTuple):
    """What loop `axis` adds to floats becomes a partial sum of each `factor` iterations.

    `{axis}o` and `{axis}i` replace the loop, and `{axis}t` does what is left over; where `factor`
    is all its iterations, the loop stays. Partial sums begin at zero and are added to what the
    loop added to.
    """

    axis: str
    factor: int


class Tile(NamedTuple):
    """The kernel, one reduction inside independent loops, in tiles as `tiling` has them.

    With `nest` that is not the whole kernel but loop `nest`, inside other loops or beside them.
    What a tile is, what is copied, and in which order all of it is done: see
    `gpu/compiler/opt/primitives/tiling.py`.
    """

    tiling: Tiling
    nest: str = ""


class Residues(NamedTuple):
    """The kernel, a sum inside independent loops, becomes one for each remainder of loops `rows`.

    Masks ask that what an iteration of each of these is apart from a step of the sum is a multiple
    of a number: those of a remainder have the steps alone that are. The loops of nest n are named
    `{loop}_{n}`, as nests are counted with the last of `rows` first.
    """

    rows: tuple[str, ...]


class MatrixTile(NamedTuple):
    """The kernel, a sum of products inside independent loops, by matrix instructions of warps.

    What a block computes, and how operands get there: see
    `gpu/compiler/opt/primitives/matrix_tiling.py`.
    """

    tiling: MatrixTiling


Opt = (
    Split | Fuse | Reorder | Bind | Rfactor | Stage | DistributeThreads | Distribute | Inline
    | FuseSiblings | ReuseShared | Pack | Tensorize | MatrixTile | CacheRow | Prefetch
    | SharedTranspose | UniformMask | BlockScan | PartialScan | PartialSums | Tile
    | Residues | Dot | Widen | Guard
)  # fmt: skip


def _stage(
    body: K.Block, axis: str, buf: str, order: tuple[str, ...], together: bool, apart: int
) -> K.Stmt:
    if together:
        return stage_together(body, axis, buf, order)
    return stage(body, axis, buf, order, apart)


# What makes each of them: of a body, and the fields.
_PRIMITIVES: Final[dict[type[Opt], Callable[..., K.Stmt]]] = {
    Split: split, Fuse: fuse, Reorder: reorder, Bind: bind, Rfactor: rfactor, Stage: _stage,
    DistributeThreads: distribute_threads, Distribute: distribute, Inline: inline,
    FuseSiblings: fuse_siblings, ReuseShared: reuse_shared, Pack: pack, Tensorize: tensorize,
    MatrixTile: matrix_tile, CacheRow: cache_row, Prefetch: prefetch,
    SharedTranspose: shared_transpose, UniformMask: uniform_mask, BlockScan: block_scan,
    PartialScan: partial_scan, PartialSums: partial_sums, Tile: tile, Residues: residues,
    Dot: dot, Widen: widen, Guard: guard,
}  # fmt: skip


def apply(kernel: K.Kernel, opts: Iterable[Opt]) -> K.Kernel:
    """The kernel after `opts`, in order, without loops that never run.

    A split leaves such a loop where the bounds of a size allow a factor that no value reaches.
    Raises IllegalOpt, which names the transformation.
    """
    for opt in opts:
        try:
            body = _PRIMITIVES[type(opt)](kernel.body, *opt)
        except IllegalOpt as error:
            raise IllegalOpt(f"{opt}: {error.message}") from error
        kernel = kernel._replace(body=as_block(body))
    if not kernel.vals:
        return kernel
    return kernel._replace(body=as_block(rewrite(kernel.body, _without_idle)))


def _without_idle(stmt: K.Stmt) -> K.Stmt | None:
    idle = isinstance(stmt, K.Loop) and stmt.var.stop is expr(0)
    return K.Block(()) if idle else None
