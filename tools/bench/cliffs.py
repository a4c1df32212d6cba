"""Whether a size next to another one is much slower: times of kernels at sizes drawn from a seed.

    python -m tools.bench.cliffs
    python -m tools.bench.cliffs --families product conv --dtypes f32 bf16 --count 60 --worst 10
    python -m tools.bench.cliffs --seed 7 --json times.json

Sizes come in groups of four: one that is drawn, and three in which one of its extents is changed by
at most a tenth, to a multiple of 16 where there is one. A size's *cliff* is its time for a unit of
work over the best time for a unit among all measured sizes that differ from it so. A line is a
family of operations in one dtype: how many sizes have such neighbours, the median, the 95th
percentile and the worst cliff; below it are the worst sizes, each with the neighbour that it is
compared with. The time is that of the kernels alone, by replay; work in extents that a matrix
instruction of the target covers counts as rounded up to 16. `DEV` and `CPU_THREADS` choose the
device as ever; nothing is compared with other libraries (`gpu bench` does that).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from gpu import Device, Tensor, dtypes
from gpu.core.dtype import DType
from gpu.runtime.timing import time_kernels

Size = tuple[int, ...]
Round = Callable[[int], int]
Work = Callable[[Size], float]
NEAR: Final = 0.1  # by how much of itself one extent may differ
GROUP: Final = 4
AGAIN: Final = 3  # times that a suspect is measured besides
SUSPECT: Final = 1.3
TILE: Final = 16  # what extents are rounded up to where a matrix instruction takes them
DTYPES: Final = {"f32": dtypes.float32, "bf16": dtypes.bfloat16, "int8": dtypes.int8}
FLOATS: Final = ("f32", "bf16")
_ELEMENTS: Final = 1 << 18  # of rows together, about


class Family(NamedTuple):
    """Operations of one kind.

    Attributes:
        extents: the names of a size's extents.
        draw: a size.
        make: the operation on random values, not computed; its inputs are in memory.
        work: units of work of a size, given what rounds extents that matrix instructions cover.
        dtypes: those that the operation has.
    """

    extents: tuple[str, ...]
    draw: Callable[[np.random.Generator], Size]
    make: Callable[[Size, DType], Tensor]
    work: Callable[[Size, Round], int]
    dtypes: tuple[str, ...] = tuple(DTYPES)


def _side(rng: np.random.Generator) -> int:
    """An extent of a product: up to 130, or about 256, 512 or 1024."""
    if rng.random() < 0.6:
        return int(rng.integers(1, 131))
    middle = int(rng.choice([256, 512, 1024]))
    return int(rng.integers(middle - middle // 10, middle + middle // 10 + 1))


def _values(dtype: DType, *shape: int) -> Tensor:
    rng = np.random.default_rng(math.prod(shape))
    if dtype.kind == "int":
        return Tensor(rng.integers(-9, 10, shape), dtype=dtype).realize()
    return Tensor(rng.standard_normal(shape, np.float32)).cast(dtype).realize()


def _product(size: Size, dtype: DType) -> Tensor:
    m, n, k = size
    return _values(dtype, m, k) @ _values(dtype, k, n)


def _conv(size: Size, dtype: DType) -> Tensor:
    side, channels, filters = size
    x, w = _values(dtype, 4, channels, side, side), _values(dtype, filters, channels, 3, 3)
    return x.conv2d(w, padding=1)


def _rows(operation: Callable[[Tensor], Tensor]) -> Callable[[Size, DType], Tensor]:
    return lambda size, dtype: operation(_values(dtype, *size))


def _draw_rows(rng: np.random.Generator) -> Size:
    width = int(rng.integers(1, 5001))
    return max(1, int(_ELEMENTS / width * rng.uniform(0.5, 2))), width


def _attention(size: Size, dtype: DType) -> Tensor:
    (length,) = size
    queries, keys, values = (_values(dtype, 1, 4, length, 64) for _ in range(3))
    return queries.scaled_dot_product_attention(keys, values)


def _count(size: Size, up: Round) -> int:
    return math.prod(size)


def _row_family(operation: Callable[[Tensor], Tensor], *names: str) -> Family:
    make = _rows(operation)
    return Family(("rows", "width"), _draw_rows, make, _count, names or FLOATS)


FAMILIES: Final = {
    "product": Family(
        ("m", "n", "k"),
        lambda rng: (_side(rng), _side(rng), _side(rng)),
        _product,
        lambda s, up: math.prod(map(up, s)),
    ),
    "conv": Family(
        ("side", "channels", "filters"),
        lambda rng: (int(rng.integers(5, 41)), *map(int, rng.integers(1, 71, 2))),
        _conv,
        lambda s, up: s[0] ** 2 * up(s[1]) * up(s[2]),
    ),
    "softmax": _row_family(lambda x: x.softmax(1)),
    "sum": _row_family(lambda x: x.sum(1), *DTYPES),
    "layernorm": _row_family(lambda x: x.layernorm()),
    "transpose": _row_family(lambda x: x.T.contiguous(), *DTYPES),
    "attention": Family(
        ("length",),
        lambda rng: (int(rng.integers(1, 2049)),),
        _attention,
        lambda s, up: up(s[0]) ** 2,
        FLOATS,
    ),
}


class Cliff(NamedTuple):
    """A size beside the best of those next to it.

    Attributes:
        size, seconds: what is looked at, and how long it takes.
        beside: the size that it is compared with.
        ratio: its time for a unit of work over that of `beside`; below 1 where it is the best.
    """

    size: Size
    seconds: float
    beside: Size
    ratio: float


def draw(family: Family, count: int, rng: np.random.Generator) -> list[Size]:
    """About `count` different sizes, in groups."""
    found: dict[Size, None] = {}
    for _ in range(-(-count // GROUP)):
        size = family.draw(rng)
        found[size] = None
        found.update(dict.fromkeys(_beside(size, rng)))
    return list(found)


def _beside(size: Size, rng: np.random.Generator) -> Iterator[Size]:
    for _ in range(GROUP - 1):
        axis = int(rng.integers(len(size)))
        extent = size[axis]
        by = int(extent * NEAR)
        nearest = max(TILE, round(extent / TILE) * TILE)
        other = nearest
        if abs(nearest - extent) > by:
            other = int(rng.integers(extent - by, extent + by + 1))
        yield (*size[:axis], other, *size[axis + 1 :])


def are_near(one: Size, other: Size) -> bool:
    """Whether `other` has one extent that differs from `one`'s, by at most `NEAR` of it."""
    apart = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return len(apart) == 1 and abs(apart[0][0] - apart[0][1]) <= NEAR * apart[0][0]


def cliffs(seconds: Mapping[Size, float], work: Work) -> list[Cliff]:
    """Those of all sizes that have others next to them, the worst first."""
    cost = {size: each / work(size) for size, each in seconds.items()}
    found = []
    for size in seconds:
        near = [other for other in seconds if are_near(size, other)]
        if near:
            best = min(near, key=cost.__getitem__)
            found.append(Cliff(size, seconds[size], best, cost[size] / cost[best]))
    return sorted(found, key=lambda cliff: -cliff.ratio)


def _work(family: Family, up: Round, size: Size) -> int:
    return family.work(size, up)


def rounding(dtype: DType) -> Round:
    """What work counts of an extent: all that a matrix instruction covers, where there is one."""
    names = Device[Device.DEFAULT].renderer.target.matrices
    short = {"bfloat16": ".bf16", "int8": ".i8", "float32": ".tf32"}.get(dtype.name, dtype.name)
    if any(short in name for name in names):
        return lambda extent: -(-extent // TILE) * TILE
    return lambda extent: extent


def measure(family: Family, sizes: Sequence[Size], dtype: DType, work: Work) -> dict[Size, float]:
    """Seconds of the kernels of each size.

    What seems to be a cliff is measured again together with what is next to it, as the machine may
    have been busy with something else.
    """
    found = {size: _time(family, size, dtype) for size in sizes}
    for _ in range(AGAIN):
        for cliff in cliffs(found, work):
            if cliff.ratio > SUSPECT:
                for size in (cliff.size, cliff.beside):
                    found[size] = min(found[size], _time(family, size, dtype))
    return found


def _time(family: Family, size: Size, dtype: DType) -> float:
    return sum(kernel.seconds for kernel in time_kernels([family.make(size, dtype)._node]))


def quantile(values: Sequence[float], share: float) -> float:
    """The least of `values` that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def report(name: str, family: Family, found: Sequence[Cliff], worst: int) -> Iterator[str]:
    """The lines that are printed of a family in one dtype."""
    if not found:
        yield f"{name:<18}no size has another one next to it"
        return
    ratios = [cliff.ratio for cliff in found]
    middle, most = statistics.median(ratios), quantile(ratios, 0.95)
    yield f"{name:<18}{len(found):5}{middle:9.2f}{most:9.2f}{ratios[0]:9.2f}"
    for cliff in found[:worst]:
        size = " ".join(f"{n}={e}" for n, e in zip(family.extents, cliff.size, strict=True))
        beside = " ".join(
            f"{n}={b}"
            for n, a, b in zip(family.extents, cliff.size, cliff.beside, strict=True)
            if a != b
        )
        yield f"    {cliff.ratio:5.2f}  {size:<34}{cliff.seconds * 1e6:12.2f} us   beside {beside}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each family and dtype, and their worst sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--count", type=int, default=600, help="sizes for each line")
    parser.add_argument("--seed", type=int, default=0, help="what sizes are drawn from")
    parser.add_argument("--worst", type=int, default=3, help="sizes to print for each line")
    parser.add_argument("--json", type=Path, help="a file for all times")
    given = parser.parse_args(arguments)
    kept: dict[str, list[tuple[Size, float]]] = {}
    print(f"{'':<18}{'sizes':>5}{'median':>9}{'95 %':>9}{'worst':>9}")
    for name in given.families:
        family = FAMILIES[name]
        for label in (each for each in given.dtypes if each in family.dtypes):
            rng = np.random.default_rng([given.seed, *name.encode()])  # the same for each dtype
            dtype = DTYPES[label]
            work = partial(_work, family, rounding(dtype))
            times = measure(family, draw(family, given.count, rng), dtype, work)
            found = cliffs(times, work)
            print("\n".join(report(f"{name} {label}", family, found, given.worst)), flush=True)
            kept[f"{name} {label}"] = list(times.items())
    if given.json:
        given.json.write_text(json.dumps(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
