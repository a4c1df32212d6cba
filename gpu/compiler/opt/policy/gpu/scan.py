"""Scans by blocks of threads: a few rows to a block, of which the threads have neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.access_width import neighbours
from gpu.compiler.opt.analysis.loop_nest import outer_nest
from gpu.compiler.opt.opts import Bind, BlockScan, Opt
from gpu.compiler.opt.policy.cpu.scan import scan_along_rows
from gpu.compiler.opt.policy.gpu.thread_per_element import SIDE_BY_SIDE, block_of, rows_of_block
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt

# Elements for each thread of a warp from which they are worth their exchanges.
ROUNDS: Final = 2


def along_rows(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformations for a scan along what lies together. Raises IllegalOpt for others."""
    nest = outer_nest(kernel.body)
    scan = scan_along_rows(kernel)
    if scan is None or not target.shuffle:
        raise IllegalOpt("no scan of rows that threads could do together")
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
    teams, name = rows_of_block(axis, block_of(target) // threads)
    yield from teams
    yield BlockScan(name, threads, side, target.shuffle)
