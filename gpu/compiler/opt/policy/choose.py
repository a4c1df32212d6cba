"""Which loop transformations a kernel gets.

`canonical` puts every kernel into the same shape first: loops are split where an index divides
them, until nothing divides any more, and merged where two of them walk memory as one. `choose`
then picks lanes and the loop that spreads over the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import split_hint
from gpu.compiler.ir.kernel.tree import expressions, loops, walk
from gpu.compiler.opt.analysis.dependence import is_independent, is_repeatable
from gpu.compiler.opt.analysis.loop_nest import is_shared, outer_nest
from gpu.compiler.opt.opts import Bind, Fuse, Opt, PartialSums, Residues, Split, Tile, apply
from gpu.compiler.opt.policy.cpu import column_reduce, register_tiling, tiling
from gpu.compiler.opt.policy.cpu.amx import by_thread
from gpu.compiler.opt.policy.cpu.nests import by_residue, in_nests
from gpu.compiler.opt.policy.cpu.scan import along_rows
from gpu.compiler.opt.policy.cpu.vectorize import vectorize
from gpu.compiler.opt.policy.gpu import choose
from gpu.compiler.opt.policy.gpu.scatter import jammed
from gpu.compiler.opt.policy.images import pixel_lanes, writes_image
from gpu.compiler.opt.primitives.loops import fusable
from gpu.compiler.opt.primitives.partial_sums import long_sums
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt
from gpu.core.log import get_logger

log = get_logger(__name__)


def schedule(kernel: K.Kernel, target: Target, optimize: bool = True) -> tuple[K.Kernel, list[Opt]]:
    """The kernel made ready for `target`, and the transformations that did it.

    With `optimize` false only what parallel devices cannot do without is done, and what keeps the
    rounding of long sums small.
    """
    return with_partial_sums(*_made_ready(kernel, target, optimize))


def with_partial_sums(kernel: K.Kernel, opts: Sequence[Opt]) -> tuple[K.Kernel, list[Opt]]:
    """A kernel that `opts` made, with partial sums where it adds much, and all that made it."""
    made = list(opts)
    while levels := long_sums(kernel.body):
        chosen = [PartialSums(*level) for level in levels]
        kernel = apply(kernel, chosen)
        made += chosen
    return kernel, made


def _made_ready(kernel: K.Kernel, target: Target, optimize: bool) -> tuple[K.Kernel, list[Opt]]:
    if writes_image(kernel):
        return _by_pixels(kernel, target)
    kernel, opts = canonical(kernel)
    if optimize and target.threads:
        kernel, merged = (kernel, []) if target.native.scalar else jammed(kernel)
        kernel, chosen = choose.spread(kernel, target)
        opts += merged + chosen
        if chosen:
            return kernel, opts
    # Nests that follow each other may touch the same memory, and workers do not wait in between.
    # (The rest that peeling leaves behind an only nest touches memory of its own.)
    one_nest = len(kernel.body.body) == 1
    if optimize:
        kernel, chosen = _with_lanes(kernel, target)
        opts += chosen
    has_shares = any(isinstance(opt, Residues) or _is_whole_tile(opt) for opt in opts)
    if one_nest and (target.parallel == "grid" or not has_shares):
        chosen = list(_spread(kernel, target))
        kernel = apply(kernel, chosen)
        opts += chosen
    return kernel, opts


def _with_lanes(kernel: K.Kernel, target: Target) -> tuple[K.Kernel, list[Opt]]:
    """The kernel with lanes, and what made them; without where its loops are not to be split.

    A mask may keep iterations apart that write under an index which is data, as users' kernels
    have it: parts of the loop no longer show that.
    """
    chosen = list(_lanes(kernel, target))
    try:
        return apply(kernel, chosen), chosen
    except IllegalOpt as error:
        log.debug("%s: no lanes: %s", kernel.name, error.message)
        return kernel, []


def _is_whole_tile(opt: Opt) -> bool:
    return isinstance(opt, Tile) and not opt.nest


def _by_pixels(kernel: K.Kernel, target: Target) -> tuple[K.Kernel, list[Opt]]:
    opts = list(pixel_lanes(kernel))
    kernel = apply(kernel, opts)
    chosen = list(_spread(kernel, target))
    return apply(kernel, chosen), opts + chosen


def canonical(kernel: K.Kernel) -> tuple[K.Kernel, list[Opt]]:
    """Splits loops where indices divide them, then merges what is one walk through memory."""
    opts: list[Opt] = []
    while (opt := _next_split(kernel) or _next_fuse(kernel)) is not None:
        kernel = apply(kernel, [opt])
        opts.append(opt)
    return kernel, opts


def _next_split(kernel: K.Kernel) -> Opt | None:
    counted = loops(kernel.body)
    for e in expressions(kernel.body):
        hint = None if e.is_affine else split_hint(e)
        if hint is not None and hint[0].name in counted:
            var, factor = hint
            return Split(var.name, factor)
    return None


def _next_fuse(kernel: K.Kernel) -> Opt | None:
    for stmt in walk(kernel.body):
        if isinstance(stmt, K.Loop) and (inner := fusable(stmt)) is not None:
            return Fuse(stmt.var.name, inner.var.name)
    return None


def _lanes(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    if not target.vector_bytes:
        return
    if target.matrices and (chosen := _whole_tiles(kernel, target)):
        yield from chosen
        return
    if target.parallel == "grid" and (tiles := list(register_tiling.tile(kernel, target))):
        yield from tiles
        return
    if target.parallel == "worker" and (chosen := by_residue(kernel, target)):
        yield from chosen
    elif tiled := tiling.cheapest(kernel, target):
        yield from tiled
    elif target.parallel == "worker" and (chosen := in_nests(kernel, target)):
        yield from chosen
    elif target.parallel == "worker" and (rows := list(along_rows(kernel))):
        yield from rows
    elif (columns := column_reduce.match(kernel, target)) is not None:
        yield from column_reduce.tile(columns)
    else:
        yield from vectorize(kernel, target)


def _whole_tiles(kernel: K.Kernel, target: Target) -> list[Opt]:
    """What makes a product of matrices of a kernel that is one; else the log says why not."""
    try:
        opts = list(by_thread(kernel, target, is_shared(kernel.body, target)))
        apply(kernel, opts)
    except IllegalOpt as error:
        log.debug("%s: no matrix instructions: %s", kernel.name, error.message)
        return []
    return opts


def _spread(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The outermost independent loops, so that every worker, or every block, has some."""
    if target.parallel == "grid":
        for loop in outer_nest(kernel.body):
            if loop.kind == "serial":  # not what a tile is made of
                yield Bind(loop.var.name, "grid")
        return
    if not is_shared(kernel.body, target):
        return
    shared = [s for s in kernel.body.body if isinstance(s, K.Loop) and s.kind == "serial"]
    # What else there is every worker does.
    rest = [s for s in kernel.body.body if s not in shared]
    if all(map(is_independent, shared)) and all(
        isinstance(s, K.Loop) and is_repeatable(s) for s in rest
    ):
        for loop in shared:
            yield Bind(loop.var.name, "worker")
