"""Which tiles of matrix instructions a sum of products gets.

A sum of products is one of matrices, batched or not, where each factor misses some independent loop
of the other: the loops that the one alone depends on are rows, those that the other one does are
columns. So windows of images are columns, as channels are rows. A table has the warps' tiles; cost
in cycles of a scheduler takes one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import Var
from gpu.compiler.ir.kernel.tree import loads_of
from gpu.compiler.ir.matrix import CDNA3, CDNA4, MATRICES, PTX, RDNA3, RDNA4, Layout, Matrix
from gpu.compiler.opt.analysis.product_nest import ProductNest, product_nest
from gpu.compiler.opt.opts import MatrixTile, Opt
from gpu.compiler.opt.primitives.matrix_fetch import APART_BYTES, STORE_BYTES
from gpu.compiler.opt.primitives.matrix_tiling import MatrixTiling
from gpu.compiler.opt.primitives.narrow_operand import narrow
from gpu.compiler.opt.primitives.operand_copy import rounded_up
from gpu.compiler.targets import Target
from gpu.core.errors import IllegalOpt


class Costs(NamedTuple):
    """What instructions of a warp cost, in cycles of a scheduler, and how far copies run ahead.

    Attributes:
        multiply: a matrix instruction.
        load: 16 lines of an operand for one of its steps, from team memory.
        ahead: most slots of copies.
    """

    multiply: float
    load: float
    ahead: int


# For PTX: by data sheets m16n8k16 takes 8 cycles of a scheduler of sm_80 and 4 of one of sm_90, of
# which mma.sync should reach some 6; 512 bytes of team memory at 128 a cycle for four schedulers
# take 16. For RDNA3: 16 steps of 16 x 16 take 32 cycles of a SIMD; 1 KiB at 128 bytes a cycle for
# two takes 16. On RDNA4 both take half, and of bytes a quarter; on CDNA four SIMDs share what
# memory gives (cycles: AMD's "Matrix Instruction Calculator", and of CDNA4 the peaks of its data
# sheet). None of this was measured.
COSTS: Final[dict[tuple[Layout, int], Costs]] = {
    (PTX, 2): Costs(6, 16, 4),
    (RDNA3, 2): Costs(32, 16, 2), (RDNA3, 1): Costs(32, 16, 2),
    (RDNA4, 2): Costs(16, 8, 2), (RDNA4, 1): Costs(8, 4, 2),
    (CDNA3, 2): Costs(16, 16, 2), (CDNA3, 1): Costs(16, 16, 2),
    (CDNA4, 2): Costs(16, 16, 2), (CDNA4, 1): Costs(16, 16, 2),
}  # fmt: skip
"""By how threads hold the matrices, and the bytes of an element of an operand."""
# Registers of a thread beside its sums and parts: addresses of both operands, and copies' places.
OTHER_REGISTERS: Final = 48
# Schedulers of a multiprocessor, or of a compute unit and what it shares memory with.
SCHEDULERS: Final = 4
# How much of a warp's own time counts beside what warps of a scheduler do one after another.
OWN: Final = 0.5
# Bytes that a multiprocessor gets from its caches in a cycle.
BANDWIDTH: Final = 32
# Blocks that should find room in the memory of a multiprocessor.
SHARING: Final = 3
# Cycles of a stage for its barrier and counters, of a block, and of the store of a result.
STAGE, BLOCK, STORE = 40, 400, 4
# Elements of a warp's tile along rows and columns, and warps of a block along batch, both of these.
SIDES: Final = (8, 16, 32, 64)
WARPS: Final = tuple(
    (batch, rows, columns)
    for batch, rows, columns in itertools.product((1, 2, 4, 8), repeat=3)
    if batch * rows * columns <= 8
)
DEPTHS: Final = (64, 32, 16)
# Steps of a whole sum that may be one stage, and how many done in vain cost what a stage does.
AT_ONCE, IN_VAIN = 96, 16
# Cycles of a scheduler for 16 bytes of each thread to team memory, 512 at 128 a cycle for four of
# them, and for a load of fewer bytes that are put beside others first.
RUN, ALONE = 16.0, 5.0
# Rows of blocks that follow each other before the next column does.
GROUPS: Final = (8, 4, 2)
# Elements that are multiplied for each one that has to be, beyond which the sum is left to others.
WASTE: Final = 16
# Steps of a tile of the sum for each one that there is, beyond which more loops of it count as one.
PADDING: Final = 1.25


def by_instructions(kernel: K.Kernel, target: Target) -> Iterator[Opt]:
    """The transformation for a sum of products. Raises IllegalOpt for anything else."""
    product = _product(product_nest(kernel.body), target)
    best = min(_choices(product, target), key=lambda choice: choice.cost, default=None)
    if best is None:
        raise IllegalOpt("no tile of matrix instructions fits")
    yield MatrixTile(best.tiling)


class _Product(NamedTuple):
    """Which loops are what in a product of matrices, and what becomes of its steps.

    Attributes:
        how: the instruction.
        batch, rows, columns, steps: loops; those of a kind count as one.
        others: steps of the sum around these.
        prices: cycles of a scheduler for 16 bytes of each thread, of both operands.
    """

    how: Matrix
    batch: tuple[Var, ...]
    rows: tuple[Var, ...]
    columns: tuple[Var, ...]
    steps: tuple[Var, ...]
    others: int
    prices: tuple[float, float]

    @property
    def waste(self) -> float:
        """Multiplications for each one that is wanted."""
        sides = ((self.rows, self.how.m), (self.columns, self.how.n), (self.steps, self.how.k))
        return math.prod(rounded_up(_extent(loops), side) / _extent(loops) for loops, side in sides)

    @property
    def costs(self) -> Costs:
        """Of the instruction."""
        assert self.how.layout is not None
        return COSTS[self.how.layout, self.how.operand.itemsize]

    def depths(self) -> list[int]:
        """Steps that may be copied at once, those first that leave little to do in vain."""
        extent = _extent(self.steps)
        depths = [d for d in DEPTHS if d % self.how.k == 0]
        if extent <= AT_ONCE:
            depths.append(rounded_up(extent, self.how.k))
        return sorted(depths, key=lambda d: -(-extent // d) * (d + IN_VAIN))

    def staged(self, lines: int, nbytes: int) -> tuple[int, int]:
        """A depth, and slots for so many lines: two at least, if any depth leaves room for them."""
        for depth in self.depths():
            stages = -(-_extent(self.steps) // depth) * self.others
            slot = lines * (depth * self.how.operand.itemsize + APART_BYTES)
            # A power of two is cheap to count by, but not worth the room of another block.
            most = 4 if nbytes // slot >= 4 * SHARING else 3
            slots = min(self.costs.ahead, stages, nbytes // slot, most)
            if slots >= min(2, stages):
                break
        return depth, slots


class _Choice(NamedTuple):
    """A tiling and its cost, in cycles."""

    cost: float
    tiling: MatrixTiling


def _product(found: ProductNest, target: Target) -> _Product:
    """Which factor is the first one, and all that follows. Raises IllegalOpt if there is none."""
    nest = found.nest
    held = [narrow(value) for value in found.factors]
    alone = [
        tuple(v for v in nest.independent if v in one.vars and v not in other.vars)
        for one, other in itertools.permutations(found.factors)
    ]
    batch = tuple(v for v in nest.independent if v not in (*alone[0], *alone[1]))
    if not all(alone):
        raise IllegalOpt("one factor depends on all that the other one does")
    places = [store.indices[-1] for store in nest.stores]
    beside = {v for place in places for v in place.vars if place.coeff(v) == 1}
    if found.mask.vars >= {*nest.reduction}:
        raise IllegalOpt("which products count depends on all loops of the sum")
    products = []
    for name, first in itertools.product(target.matrices, range(2)):
        how, rows, columns = MATRICES[name], alone[first], alone[1 - first]
        dtypes = (held[first].dtype, held[1 - first].dtype)
        if how.layout is None or how.operands != dtypes or how.sums is not nest.update.buf.dtype:
            continue
        steps = _steps([v for v in nest.reduction if v not in found.mask.vars], how.k)
        others = _extent(nest.reduction) // _extent(steps)
        prices = (_price(held[first], rows, steps), _price(held[1 - first], columns, steps))
        products.append(_Product(how, batch, rows, columns, steps, others, prices))
    if not products:
        names = sorted(value.dtype.name for value in held)
        raise IllegalOpt(f"no matrix instruction for {names}")
    # Stores go to neighbours along columns.
    best = min(products, key=lambda one: (one.waste, beside.isdisjoint(one.columns)))
    if best.waste > WASTE:
        raise IllegalOpt(f"of {best.waste:.0f} multiplications one would be of use")
    return best


def _steps(reduction: Sequence[Var], depth: int) -> tuple[Var, ...]:
    """The loops of a sum that count as one: as few as leave instructions little to do in vain."""
    taken: list[Var] = []
    for var in sorted(reduction, key=lambda var: -var.extent):
        extent = _extent(taken)
        if taken and rounded_up(extent, depth) <= PADDING * extent:
            break
        taken.append(var)
    return tuple(var for var in reduction if var in taken)


def _price(value: K.Value, lines: Sequence[Var], steps: Sequence[Var]) -> float:
    """About how many cycles 16 bytes of an operand of each thread take to team memory."""
    most = STORE_BYTES // value.dtype.itemsize
    run = most
    for load in loads_of(value):
        place, mask = load.attr[1][-1], load.attr[2]
        near = next((v for v in (steps[-1], lines[-1]) if place.coeff(v) == 1), None)
        if near is None or near in mask.vars:
            run = 1
        else:
            run = math.gcd(run, (place - near).gcd(), near.extent)
    return RUN + ALONE * most / run if run < most else RUN


def _choices(product: _Product, target: Target) -> Iterator[_Choice]:
    """Tiles that fit. None has a warp that all blocks leave without work."""
    how = product.how
    batch, rows, columns = map(_extent, (product.batch, product.rows, product.columns))
    for side_m, side_n in itertools.product(SIDES, SIDES):
        tiles = (side_m // how.m, side_n // how.n)
        if not all(tiles) or _registers(how, tiles) > 2 * (target.registers or OTHER_REGISTERS):
            continue
        for warps in WARPS:
            fits = math.prod(warps) * how.threads <= target.threads and warps[0] <= batch
            used = (warps[1] - 1) * side_m < rows and (warps[2] - 1) * side_n < columns
            if not fits or not used:
                continue
            size = (warps[0], warps[1] * side_m, warps[2] * side_n)
            lines = size[0] * (size[1] + size[2])
            depth, slots = product.staged(lines, target.shared_bytes)
            if slots:
                yield _choice(product, target, tiles, warps, depth, slots)


def _choice(
    product: _Product,
    target: Target,
    tiles: tuple[int, int],
    warps: tuple[int, int, int],
    depth: int,
    slots: int,
) -> _Choice:
    """A tiling, and its cycles: those of a warp, and of the others that share its scheduler."""
    how, costs = product.how, product.costs
    sides = (tiles[0] * how.m, tiles[1] * how.n)
    size = (warps[0], warps[1] * sides[0], warps[2] * sides[1])
    extents = map(_extent, (product.batch, product.rows, product.columns))
    blocks = [-(-extent // one) for extent, one in zip(extents, size, strict=True)]
    steps, lines = depth // how.k, sum(sides) / 16
    core = max(math.prod(tiles) * costs.multiply, lines * costs.load)
    issued = math.prod(tiles) + lines
    copied = depth * how.operand.itemsize / STORE_BYTES / (math.prod(warps) * how.threads)
    prices = (one * price for one, price in zip(size[1:], product.prices, strict=True))
    own = steps * (core + issued / 4) + size[0] * sum(prices) * copied
    nbytes = size[0] * (size[1] + size[2]) * depth * how.operand.itemsize
    stage = max(own, nbytes / BANDWIDTH * SCHEDULERS / math.prod(warps)) + STAGE
    stages = -(-_extent(product.steps) // depth) * product.others
    stored = math.prod(sides) / how.threads * STORE
    each = math.prod(blocks) * math.prod(warps) / (target.workers * SCHEDULERS)
    group = next((g for g in GROUPS if blocks[1] % g == 0 and blocks[1] > g), 1)
    loops = (product.batch, product.rows, product.columns, product.steps)
    batch, rows, columns, summed = (tuple(var.name for var in kind) for kind in loops)
    tiling = MatrixTiling(how.name, batch, rows, columns, summed, tiles, warps, depth, slots, group)
    return _Choice((OWN + each) * (stages * stage + stored + BLOCK), tiling)


def _registers(how: Matrix, tiles: tuple[int, int]) -> int:
    """Registers of a thread, about."""
    assert how.layout is not None
    held = how.layout.operand(how.k).size * how.operand.itemsize // 4
    parts = (tiles[0] * len(how.a) + tiles[1] * len(how.b)) * held
    return math.prod(tiles) * how.m * how.n // how.threads + parts + OTHER_REGISTERS


def _extent(loops: Sequence[Var]) -> int:
    return math.prod(var.extent for var in loops)
