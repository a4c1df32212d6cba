"""What warps ask of memory in common tensor operations, the most wasteful first.

    python -m tools.coalescing nv
    python -m tools.coalescing amd transpose softmax

A line is a kernel: bytes that a block moves to and from parameters beside those that are wanted,
then each sort of access: bytes of a thread, sectors of a warp (behind `*` rounds of the banks), how
many there would be at least, and how often (`gpu/compiler/ir/linear/warps.py`). No device is
needed.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gpu import Tensor
from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.linear import Program
from gpu.compiler.ir.linear.warps import SECTOR, WarpAccess, warp_accesses
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.render.nir.nak import nak_target
from gpu.compiler.targets import Target
from gpu.compiler.targets.amd import amd_target
from gpu.compiler.targets.nvidia import nv_target
from gpu.core.dtype import DType, dtypes
from gpu.runtime.execute import is_computed
from gpu.runtime.pipeline import plan_graph

TARGETS: Final = {
    "nv": lambda: nv_target("sm_90"),
    "nak": lambda: nak_target("sm_90"),
    "amd": lambda: amd_target("gfx1100"),
}
SIDE: Final = 2048
_numbers = itertools.count()


def memory(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    """A tensor that stands for memory."""
    return Tensor._wrap(G.buffer(f"memory{next(_numbers)}", shape, dtype, "CPU"))


def square(dtype: DType = dtypes.float32) -> Tensor:
    """A matrix."""
    return memory(SIDE, SIDE, dtype=dtype)


def moved(view: Tensor) -> Tensor:
    """A copy of what a view shows."""
    return view.contiguous()


OPERATIONS: Final[dict[str, Callable[[], Tensor]]] = {
    "add": lambda: square() + square(),
    "transpose": lambda: moved(square().T),
    "transpose f16": lambda: moved(square(dtypes.float16).T),
    "transpose u8": lambda: moved(square(dtypes.uint8).T),
    "transpose odd": lambda: moved(memory(1999, 2001).T),
    "add transposed": lambda: square() + square().T,
    "heads": lambda: moved(memory(16, 512, 16, 64).permute(0, 2, 1, 3)),
    "channels last": lambda: moved(memory(32, 64, 56, 56).permute(0, 2, 3, 1)),
    "channels of images": lambda: moved(memory(32, 224, 224, 3).permute(0, 3, 1, 2)),
    "row sums": lambda: square().sum(1),
    "column sums": lambda: square().sum(0),
    "few columns": lambda: memory(1 << 16, 64).sum(0),
    "column variance": lambda: square().var(0),
    "sum": lambda: square().sum(),
    "softmax": lambda: square().softmax(1),
    "softmax of columns": lambda: square().softmax(0),
    "layernorm": lambda: square().layernorm(),
    "argmax": lambda: square().argmax(1),
    "cumsum": lambda: square().cumsum(1),
    "cumsum of columns": lambda: square().cumsum(0),
    "cat": lambda: memory(SIDE, 512).cat(memory(SIDE, 1024), dim=1),
    "pad": lambda: memory(2000, 2000).pad(((8, 8), (8, 8))),
    "interleave": lambda: Tensor.stack(memory(SIDE, 512), memory(SIDE, 512), dim=-1),
    "every second": lambda: moved(square()[:, ::2]),
    "flip": lambda: moved(square().flip(1)),
    "embedding": lambda: memory(50000, 1024)[memory(16, 128, dtype=dtypes.int32)],
    "pooling": lambda: memory(32, 64, 56, 56).max_pool2d((2, 2)),
    "matrix by vector": lambda: square() @ memory(SIDE),
    "vector by matrix": lambda: memory(SIDE) @ square(),
    "product": lambda: square() @ square(),
    "product bf16": lambda: square(dtypes.bfloat16) @ square(dtypes.bfloat16),
    "convolution": lambda: memory(8, 32, 56, 56).conv2d(memory(64, 32, 3, 3)),
}


class Row(NamedTuple):
    """A kernel's accesses, and bytes that they move and nobody wants."""

    wasted: int
    name: str
    text: str


def programs(root: Tensor, target: Target) -> Iterator[Program]:
    """The kernels of an operation."""
    plan = plan_graph([root._node], is_computed, lambda _: target).plan
    for number in range(len(plan.kernels)):
        kernel, _ = schedule(build_kernel(f"k{number}", number, plan).kernel, target)
        yield linearize(kernel, target)


def row(name: str, accesses: list[WarpAccess]) -> Row:
    """A line of the report."""
    wasted = sum(
        SECTOR * one.times * max(one.moved - one.least, 0)
        for one in accesses
        if one.space == "param"
    )
    sorts = Counter[tuple[str, int, int, int]]()
    for one in accesses:
        op = one.op + ("*" if one.space == "team" else "")
        sorts[op, one.lane_bytes, one.moved, one.least] += one.times
    parts = (f"{op} {n} B {moved}/{least} x{t}" for (op, n, moved, least), t in sorts.items())
    return Row(wasted, name, "; ".join(parts))


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(prog="python -m tools.coalescing", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("names", nargs="*", help="parts of the names of operations")
    given = parser.parse_args()
    target = TARGETS[given.target]()
    rows = [
        row(f"{name} {number}", warp_accesses(program, target.warp))
        for name, make in OPERATIONS.items()
        if not given.names or any(part in name for part in given.names)
        for number, program in enumerate(programs(make(), target))
    ]
    for one in sorted(rows, reverse=True):
        print(f"{one.wasted:9} {one.name:24} {one.text}")


if __name__ == "__main__":
    main()
