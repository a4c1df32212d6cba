"""Scans along what lies together: a few elements at a time, so that fewer have to wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.analysis.loop_nest import leaves, outer_nest, scattered
from gpu.compiler.opt.opts import Opt, PartialScan
from gpu.compiler.opt.primitives.block_scan import Scan, scan_in

# Elements at a time: an operation waits some 4 cycles for the one before, a core does two at once.
TOGETHER: Final = 8


def scan_along_rows(kernel: K.Kernel) -> Scan | None:
    """The scan inside the outer loops, if none of these walks memory better than it does."""
    nest, found = outer_nest(kernel.body), [leaf.update for leaf in leaves(kernel.body)]
    scan = scan_in(nest[-1].body if nest else kernel.body)
    if scan is None:
        return None
    own = sum(scattered(update, scan.loop.var) for update in (scan.combine, *scan.stores))
    others = (sum(scattered(update, loop.var) for update in found) for loop in nest)
    return scan if own <= min(others, default=math.inf) else None


def along_rows(kernel: K.Kernel) -> Iterator[Opt]:
    """The transformations for a scan along rows; none for another kernel, or a scan of columns."""
    scan = scan_along_rows(kernel)
    if scan is not None and scan.loop.var.extent >= 2 * TOGETHER:
        yield PartialScan(scan.loop.var.name, TOGETHER)
