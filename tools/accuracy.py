"""Measures special functions against mpmath and prints the table of `docs/accuracy.md`.

    python tools/accuracy.py [--device CPU] [--samples 4000] [--seed 0] [NAME ...]

The largest error of each function is given in units in the last place of the result, at samples
where the exact result is a normal number of the dtype. Half of the samples are drawn evenly from
the range where the function varies, a quarter are of all magnitudes, and a quarter are at small
distances from the places named beside the range.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from mpmath import mp, mpf

from gpu import Tensor, special

Exact = Callable[[mpf], mpf]
Array = np.ndarray[Any, Any]


class Row(NamedTuple):
    """A function: its exact value, the range drawn from, and places to look at closely."""

    exact: Exact
    low: float
    high: float
    places: tuple[float, ...]


def _ndtr(x: mpf) -> mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _erfcx(x: mpf) -> mpf:
    return mp.exp(x * x) * mp.erfc(x)


def _inverse(function: Exact, slope: Exact, y: mpf, start: mpf) -> mpf:
    """The argument at which a function is `y`, by Newton's method."""
    x = start
    for _ in range(60):
        step = (function(x) - y) / slope(x)
        x -= step
        if abs(step) <= abs(x) * mpf(10) ** (-mp.dps + 15):
            return x
    raise ValueError(f"no argument found for {y}")


def _ndtri(y: mpf) -> mpf:
    if not 0 < y < 1:
        return mp.nan
    if y > 0.5:
        return -_ndtri(1 - y)
    if y == 0.5:
        return mpf(0)
    level = mp.log(y)

    def slope(x: mpf) -> mpf:
        return mp.npdf(x) / _ndtr(x)

    return _inverse(lambda x: mp.log(_ndtr(x)), slope, level, -mp.sqrt(-2 * (level + mp.log(2))))


def _erfinv(x: mpf) -> mpf:
    return mp.sign(x) * -_ndtri((1 - abs(x)) / 2) / mp.sqrt(2) if abs(x) < 1 else mp.nan


FUNCTIONS: Final[dict[str, Row]] = {
    "erfc": Row(mp.erfc, -6, 10, (0,)),
    "erfcx": Row(_erfcx, -9.3, 30, (0, 3)),
    "erfinv": Row(_erfinv, -1, 1, (0, 0.75, 1, -1)),
    "ndtr": Row(_ndtr, -13, 6, (0,)),
    "ndtri": Row(_ndtri, 0, 1, (0, 0.125, 0.5, 0.875, 1)),
    "log_ndtr": Row(lambda x: mp.log(_ndtr(x)), -40, 12, (0,)),
    "i0": Row(lambda x: mp.besseli(0, x), -90, 90, (0, 8)),
    "i0e": Row(lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), -90, 90, (0, 8)),
    "i1": Row(lambda x: mp.besseli(1, x), -90, 90, (0, 8)),
    "i1e": Row(lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), -90, 90, (0, 8)),
}


def samples(row: Row, dtype: str, count: int, rng: np.random.Generator) -> Array:
    """Arguments of a dtype, as the module's docstring says."""
    even = rng.uniform(row.low, row.high, count // 2)
    sign = rng.choice([-1.0, 1.0], count // 4)
    widest = np.log10(max(-row.low, row.high))
    all_sizes = sign * 10.0 ** rng.uniform(-30, widest, count // 4)
    near = rng.choice(row.places, count // 4) + sign * 10.0 ** rng.uniform(-9, -0.3, count // 4)
    drawn = np.concatenate([even, all_sizes, near])
    return drawn[(drawn >= row.low) & (drawn <= row.high)].astype(dtype)


def errors(name: str, x: Array, device: str) -> Array:
    """The errors in ulp where the exact result is a normal number, else 0."""
    found = getattr(special, name)(Tensor(x, device=device)).numpy()
    limits = np.finfo(x.dtype)
    digits, least, most = limits.nmant, mpf(float(limits.smallest_normal)), mpf(float(limits.max))
    result = np.zeros(x.shape)
    for place, (argument, value) in enumerate(zip(x.tolist(), found.tolist(), strict=True)):
        exact = FUNCTIONS[name].exact(mpf(argument))
        if least <= abs(exact) <= most:
            unit = mpf(2) ** (mp.floor(mp.log(abs(exact), 2)) - digits)
            distance = abs(mpf(value) - exact) / unit
            result[place] = np.inf if mp.isnan(distance) else float(distance)
    return result


def main(arguments: list[str]) -> None:
    """Prints a line for each function."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(FUNCTIONS), metavar="NAME")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    mp.dps = 50
    rng = np.random.default_rng(options.seed)
    print("| function | drawn from | float32, ulp | at | float64, ulp | at |")
    print("|---|---|---|---|---|---|")
    for name in options.names:
        row = FUNCTIONS[name]
        cells = [f"`{name}`", f"{row.low:g} to {row.high:g}"]
        for dtype in ("float32", "float64"):
            x = samples(row, dtype, options.samples, rng)
            found = errors(name, x, options.device)
            worst = int(found.argmax())
            cells += [f"{found[worst]:.1f}", f"{x[worst]:.6g}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
