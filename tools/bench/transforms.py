"""`gpu.func` beside jax: drawn functions mapped, differentiated forward, and twice.

    python -m tools.bench.transforms                       60 functions, answers and times
    python -m tools.bench.transforms --seed 7 --count 5 --largest 512 --examples 16384

A line is a transform of a drawn function: the largest difference from jax, over the largest value
if that is above 1, and the seconds of a call of either, jitted and awaited; calls take turns, and
the least of each counts. The first line is of a function that adds 1 to a number: what a call takes
that computes nothing. At the end are the largest difference and the geometric mean of our time over
jax's, of each transform and of all. It fails where answers differ by more than 1e-5.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

Rng = np.random.Generator
Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
CLOSE: Final = 1e-5
ROUNDS: Final = 7
REST: Final = 0.03  # seconds before each turn, in which the other side's threads go to sleep
LONG: Final = 50e-6  # seconds of a call that is more than being called
_LEAST: Final = 2e-3  # seconds of calls in a turn


class Library(NamedTuple):
    """A library's functions of arrays.

    Attributes:
        xp: functions by the names of the array API standard.
        array: makes an array of numpy's one of the library's, in the precision that is compared.
        cumsum: the running sum of a vector.
    """

    xp: Any
    array: Function
    cumsum: Function


class Drawn:
    """A smooth function of a vector, which gives a vector: the same in every library.

    Attributes:
        largest: how many elements vectors have at most that are not put together of others.
        size: elements of its argument.
        steps: what it computes, one after the other, of the vectors so far.
    """

    def __init__(self, rng: Rng, largest: int):
        self.largest = largest
        self.size = _size(rng, 2, largest)
        self.steps: list[Callable[[Library, list[Any]], Any]] = []
        sizes = [self.size]
        for _ in range(int(rng.integers(3, 9))):
            number = int(rng.integers(len(sizes)))
            step, size = _STEPS[int(rng.integers(len(_STEPS)))](rng, sizes, number, largest)
            self.steps.append(step)
            sizes.append(size)

    def of(self, library: Library) -> Function:
        """The function for arrays of a library."""

        def drawn(x: Any) -> Any:
            pool = [x]
            for step in self.steps:
                pool.append(step(library, pool))
            return pool[-1] + library.xp.sum(pool[len(pool) // 2])

        return drawn


def _size(rng: Rng, low: int, high: int) -> int:
    """A size of which each power of two is as likely."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _unary(rng: Rng, sizes: list[int], n: int, largest: int) -> tuple[Any, int]:
    kinds: list[Callable[[Any, Any], Any]] = [
        lambda xp, x: xp.sin(x),
        lambda xp, x: xp.tanh(x),
        lambda xp, x: xp.exp(-x * x),
        lambda xp, x: xp.sqrt(x * x + 1),
        lambda xp, x: xp.log(x * x + 2),
        lambda xp, x: 1 / (1 + xp.exp(-x)),
        lambda xp, x: xp.where(x > 0, x, xp.exp(x) - 1),
        lambda xp, x: x / (1 + xp.sum(x * x)),
        lambda xp, x: xp.exp(x - xp.max(x)) / xp.sum(xp.exp(x - xp.max(x))),
    ]
    kind = kinds[int(rng.integers(len(kinds)))]
    return (lambda library, pool: kind(library.xp, pool[n])), sizes[n]


def _binary(rng: Rng, sizes: list[int], n: int, largest: int) -> tuple[Any, int]:
    alike = [m for m, size in enumerate(sizes) if size == sizes[n]]
    other = int(rng.choice(alike))
    kinds: list[Callable[[Any, Any, Any], Any]] = [
        lambda xp, x, y: x + y,
        lambda xp, x, y: x * y,
        lambda xp, x, y: x - 0.5 * y,
        lambda xp, x, y: x / (1 + y * y),
        lambda xp, x, y: xp.maximum(x, y),
        lambda xp, x, y: xp.where(x < y, x * y, y),
    ]
    kind = kinds[int(rng.integers(len(kinds)))]
    return (lambda library, pool: kind(library.xp, pool[n], pool[other])), sizes[n]


def _product(rng: Rng, sizes: list[int], n: int, largest: int) -> tuple[Any, int]:
    rows = _size(rng, 1, largest)
    matrix = rng.standard_normal((rows, sizes[n])) / math.sqrt(sizes[n])
    return (lambda library, pool: library.array(matrix) @ pool[n]), rows


def _outer(rng: Rng, sizes: list[int], n: int, largest: int) -> tuple[Any, int]:
    other = int(rng.integers(len(sizes)))

    def step(library: Library, pool: list[Any]) -> Any:
        return library.xp.sum(library.xp.tanh(pool[n][:, None] * pool[other][None, :]), axis=1)

    return step, sizes[n]


def _moved(rng: Rng, sizes: list[int], n: int, largest: int) -> tuple[Any, int]:
    size, other = sizes[n], int(rng.integers(len(sizes)))
    index = rng.integers(0, size, _size(rng, 1, largest))
    kinds: list[tuple[Callable[[Library, list[Any]], Any], int]] = [
        (lambda library, pool: library.xp.roll(pool[n], 1), size),
        (lambda library, pool: library.xp.concat([pool[n], pool[other]]), size + sizes[other]),
        (lambda library, pool: pool[n][: (size + 1) // 2], (size + 1) // 2),
        (lambda library, pool: pool[n][library.array(index)], len(index)),
        (lambda library, pool: library.cumsum(pool[n]), size),
    ]
    return kinds[int(rng.integers(len(kinds)))]


_STEPS: Final = (_unary, _unary, _binary, _product, _outer, _moved)


def transforms(func: Any, drawn: Drawn, library: Library) -> dict[str, Function]:
    """What is compared, of arrays: a point and a direction of each example."""
    function = drawn.of(library)

    def number(x: Any) -> Any:
        value = function(x)
        return library.xp.sum(library.xp.log(value * value + 2))

    return {
        "vmap": lambda xs, ds: func.vmap(function)(xs),
        "jvp": lambda xs, ds: func.jvp(function, (xs[0],), (ds[0],)),
        "hessian": lambda xs, ds: func.hessian(number)(xs[0]),
    }


def inputs(rng: Rng, drawn: Drawn, examples: int) -> list[Array]:
    """Points and directions of so many examples at most."""
    count = _size(rng, 1, examples)
    return [rng.standard_normal((count, drawn.size)) for _ in range(2)]


def _single(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def difference(ours: Any, theirs: Any) -> float:
    """The largest one, over the largest value of theirs if that is above 1."""
    if isinstance(ours, tuple):
        return max(difference(*pair) for pair in zip(ours, theirs, strict=True))
    found, wanted = np.asarray(ours), np.asarray(theirs)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    return float(np.abs(found - wanted).max(initial=0)) / scale


def seconds(calls: list[Callable[[], object]]) -> list[float]:
    """The least time of each call; they take turns."""
    for call in calls:
        for _ in range(4):
            call()
    least = [math.inf] * len(calls)
    for _ in range(ROUNDS):
        for number, call in enumerate(calls):
            time.sleep(REST)
            call()
            end = time.perf_counter() + _LEAST
            while (start := time.perf_counter()) < end:
                call()
                least[number] = min(least[number], time.perf_counter() - start)
    return least


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


class Row(NamedTuple):
    """One transform of one drawn function."""

    number: int
    name: str
    difference: float
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Our time over theirs."""
        return self.ours / self.theirs

    def __str__(self) -> str:
        times = f"{self.ours * 1e6:9.1f} {self.theirs * 1e6:9.1f} us {self.ratio:6.2f}"
        return f"{self.number:3} {self.name:8} {self.difference:8.1e} {times}"


class Comparison:
    """Both sides: ours on the default device, and jax."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        import gpu
        from gpu import Device, Tensor

        self.jax, self.gpu, self.device = jax, gpu, Device[Device.DEFAULT]
        self.ours = Library(gpu.array_api, lambda x: Tensor(_single(x)), lambda x: x.cumsum(0))
        self.theirs = Library(jnp, lambda x: jnp.asarray(_single(x)), jnp.cumsum)

    def compared(self, our_call: Function, their_call: Function, given: list[Array]) -> list[float]:
        """The difference of what two functions give, jitted, and the seconds of a call of each."""
        ours = [self.ours.array(x).realize() for x in given]
        theirs = [self.theirs.array(x) for x in given]
        our_jit, their_jit = self.gpu.jit(our_call), self.jax.jit(their_call)
        off = difference(our_jit(*ours), their_jit(*theirs))

        def run_ours() -> None:
            our_jit(*ours)
            self.device.synchronize()

        return [off, *seconds([run_ours, lambda: self.jax.block_until_ready(their_jit(*theirs))])]

    def rows(self, number: int, drawn: Drawn, given: list[Array]) -> Iterator[Row]:
        """Each transform of one function."""
        theirs = transforms(self.jax, drawn, self.theirs)
        for name, function in transforms(self.gpu.func, drawn, self.ours).items():
            yield Row(number, name, *self.compared(function, theirs[name], given))


def summary(rows: list[Row], worst: int) -> Iterator[str]:
    """The lines behind those of the rows."""
    yield "worst:"
    yield from map(str, sorted(rows, key=lambda row: row.ratio, reverse=True)[:worst])
    for name in dict.fromkeys(row.name for row in rows):
        yield _mean_of(name, [row for row in rows if row.name == name])
    if longer := [row.ratio for row in rows if row.theirs >= LONG]:
        yield f"{len(longer)} that take jax 50 us or more: {_mean(longer):.2f} x time"
    yield _mean_of("all", rows)


def _mean_of(name: str, rows: list[Row]) -> str:
    largest, ratio = max(row.difference for row in rows), _mean([row.ratio for row in rows])
    return f"{name:8} {largest:8.1e} largest difference, {ratio:.2f} x time"


def main(arguments: list[str]) -> int:
    """Runs the comparison; returns 1 where answers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--largest", type=int, default=128, help="elements of a drawn vector")
    parser.add_argument("--examples", type=int, default=1024, help="of a batch")
    parser.add_argument("--worst", type=int, default=5)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    comparison = Comparison()
    _, ours, theirs = comparison.compared(lambda x: x + 1, lambda x: x + 1, [np.ones(())])
    print(f"    x + 1 of a number {ours * 1e6:9.1f} {theirs * 1e6:9.1f} us")
    rows = []
    for number in range(options.count):
        drawn = Drawn(rng, options.largest)
        for row in comparison.rows(number, drawn, inputs(rng, drawn, options.examples)):
            rows.append(row)
            print(row, flush=True)
    print("\n".join(summary(rows, options.worst)))
    return int(max(row.difference for row in rows) > CLOSE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
