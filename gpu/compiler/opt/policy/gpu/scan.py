"""Scans by blocks of threads: a few rows to a block, of which the threads have neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.access_width import neighbours
from gpu.compiler.opt.analysis.loop_nest import leaves, outer_nest, scattered
from gpu.compiler.opt.opts import Bind, BlockScan, Opt, Split
from gpu.compiler.opt.policy.gpu.thread_per_element import SIDE_BY_SIDE, block_of, cost
from gpu.compiler.opt.primitives.block_scan import Scan, scan_in
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Elements for each thread of a warp from which they are worth their exchanges.
ROUNDS: Final = 2


def along_rows(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformations for a scan along what lies together. Raises IllegalOpt for others."""
    nest = outer_nest(kernel.body)
    scan = scan_in(nest[-1].body if nest else kernel.body)
    if scan is None or not target.shuffle:
        raise IllegalOpt("no scan that threads could do together")
    _check_lies_along(kernel, scan)
    var = scan.loop.var
    if var.extent < ROUNDS * target.shuffle:
        raise IllegalOpt(f"a scan of {var.extent} elements is too short to be shared")
    walks = [(update, var) for update in (scan.combine, *scan.stores)]
    side = min(neighbours(walks, target), SIDE_BY_SIDE)
    threads = block_of(target)
    while threads > target.shuffle and threads * side // 2 >= var.extent:
        threads //= 2
    yield from (Bind(loop.var.name, "grid") for loop in nest)
    axis = nest[-1].var if nest else None
    rows = min(block_of(target) // threads, axis.extent) if axis else 1
    if axis is None or rows < 2:
        yield BlockScan(axis.name if axis else "", threads, side, target.shuffle)
        return
    name = axis.name
    if rows < axis.extent or axis.stop is not None:
        yield Split(name, rows, "mask")
        name = f"{name}i"
    yield Bind(name, "thread")
    yield BlockScan(name, threads, side, target.shuffle)


def _check_lies_along(kernel: K.Kernel, scan: Scan) -> None:
    """Raises IllegalOpt where another loop walks memory better than the scan does."""
    nest, found = outer_nest(kernel.body), list(leaves(kernel.body))
    own = sum(scattered(update, scan.loop.var) for update in (scan.combine, *scan.stores))
    if own > min((cost(found, loop.var) for loop in nest), default=math.inf):
        raise IllegalOpt("rows of the scan do not lie together")
