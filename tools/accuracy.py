"""Measures functions of elements against mpmath and writes the table of `docs/accuracy.md`.

    python tools/accuracy.py [--devices CPU,CL] [--samples 400] [--seed 0] [NAME ...]

prints the table, or writes it into the page with --write. The largest error of each function is
given in units in the last place (ulp) of the result, at samples where the exact result is a normal
number of the dtype. Half of the samples are drawn evenly from the range beside the function, a
quarter are of all magnitudes, and a quarter are at small distances from places that are named in
the program: poles, zeros, and where one way of computing ends.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from mpmath import mp, mpf

from gpu import Device, Tensor, dtypes, special

Array = np.ndarray[Any, Any]
PAGE: Final = Path(__file__).parents[1] / "docs/accuracy.md"
DIGITS: Final = 60


class Row(NamedTuple):
    """A function.

    Attributes:
        exact: its value.
        ranges: the ends of what each argument is drawn from.
        places: of the last argument, to look at closely.
        swing: what the error is taken of where that is more than the value: how far the function
            swings there.
    """

    exact: Callable[..., mpf]
    ranges: Sequence[tuple[float, float]]
    places: Sequence[float] = (0,)
    swing: Callable[[mpf], mpf] | None = None


def _ndtr(x: mpf) -> mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _ndtri(y: mpf) -> mpf:
    """The argument at which ndtr is y, by Newton's method on its logarithm."""
    if y > 0.5:
        return -_ndtri(1 - y)
    level = mp.log(y)
    x = -mp.sqrt(max(-2 * (level + mp.log(2)), mpf(0)))
    for _ in range(80):
        value = _ndtr(x)
        step = (mp.log(value) - level) * value / mp.npdf(x)
        x -= step
        if abs(step) <= abs(x) * mpf(10) ** (20 - DIGITS):
            break
    return x


def _lower(a: mpf, x: mpf) -> mpf:
    return mp.gammainc(a, 0, x, regularized=True)


def _upper(a: mpf, x: mpf) -> mpf:
    return mp.gammainc(a, x, mp.inf, regularized=True)


def _wave(x: mpf) -> mpf:
    return mp.sqrt(2 / (mp.pi * abs(x))) if abs(x) > 6 else mpf(0)


def _airy_wave(x: mpf) -> mpf:
    return 1 / mp.sqrt(mp.pi) / mp.root(-x, 4) if x < -7 else mpf(0)


def _i(order: int, scaled: bool) -> Callable[[mpf], mpf]:
    return lambda x: mp.besseli(order, x) * (mp.exp(-abs(x)) if scaled else 1)


def _k(order: int, scaled: bool) -> Callable[[mpf], mpf]:
    return lambda x: mp.besselk(order, x) * (mp.exp(x) if scaled else 1)


def _one(x: mpf) -> mpf:
    return mpf(1)


ELEMENTARY: Final[dict[str, Row]] = {
    "acos": Row(mp.acos, [(-1, 1)], (-1, 0, 1)),
    "acosh": Row(mp.acosh, [(1, 1e6)], (1,)),
    "asin": Row(mp.asin, [(-1, 1)], (-1, 0, 1)),
    "asinh": Row(mp.asinh, [(-1e6, 1e6)]),
    "atan": Row(mp.atan, [(-30, 30)], (-1, 0, 1)),
    "atan2": Row(mp.atan2, [(-5, 5), (-5, 5)]),
    "atanh": Row(mp.atanh, [(-1, 1)], (-1, 0, 1)),
    "cos": Row(mp.cos, [(-1e4, 1e4)], (0, 1.570796), _one),
    "cosh": Row(mp.cosh, [(-89.4, 89.4)], (-89, 0, 89)),
    "exp": Row(mp.exp, [(-87, 88.7)], (0, 88)),
    "exp2": Row(lambda x: mp.power(2, x), [(-126, 128)], (0, 127)),
    "hypot": Row(mp.hypot, [(-5, 5), (-5, 5)]),
    "log": Row(mp.log, [(0, 30)], (0, 1)),
    "log10": Row(mp.log10, [(0, 30)], (0, 1)),
    "log2": Row(lambda x: mp.log(x, 2), [(0, 30)], (0, 1)),
    "logaddexp": Row(lambda x, y: mp.log(mp.exp(x) + mp.exp(y)), [(0, 50), (0, 50)]),
    "pow": Row(mp.power, [(0, 30), (-20, 20)], (0, 1)),
    "rsqrt": Row(lambda x: 1 / mp.sqrt(x), [(0, 1e6)]),
    "sin": Row(mp.sin, [(-1e4, 1e4)], (0, 3.141592)),
    "sinh": Row(mp.sinh, [(-89.4, 89.4)], (-89, 0, 89)),
    "sqrt": Row(mp.sqrt, [(0, 1e6)]),
    "tan": Row(mp.tan, [(-1.4, 1.4)]),
    "tanh": Row(mp.tanh, [(-10, 10)]),
}
SPECIAL: Final[dict[str, Row]] = {
    "airy_ai": Row(mp.airyai, [(-30, 20)], (0, 2.25), _airy_wave),
    "bessel_j0": Row(lambda x: mp.besselj(0, x), [(-60, 60)], (0, 8), _wave),
    "bessel_j1": Row(lambda x: mp.besselj(1, x), [(-60, 60)], (0, 8), _wave),
    "bessel_y0": Row(lambda x: mp.bessely(0, x), [(0, 60)], (0, 0.893577, 8), _wave),
    "bessel_y1": Row(lambda x: mp.bessely(1, x), [(0, 60)], (0, 2.197141, 8), _wave),
    "digamma": Row(mp.digamma, [(0, 30)], (0, 1, 1.461632, 10)),
    "entr": Row(lambda x: -x * mp.log(x), [(0, 4)], (0, 1)),
    "erf": Row(mp.erf, [(-5, 5)], (0, 1)),
    "erfc": Row(mp.erfc, [(-6, 10)]),
    "erfcx": Row(lambda x: mp.exp(x * x) * mp.erfc(x), [(-9.3, 30)], (0, 3)),
    "erfinv": Row(
        lambda x: mp.sign(x) * -_ndtri((1 - abs(x)) / 2) / mp.sqrt(2), [(-1, 1)], (0, 0.75, 1)
    ),
    "expm1": Row(mp.expm1, [(-10, 80)], (0, 0.5)),
    "gammainc": Row(_lower, [(0, 100), (0, 100)]),
    "gammaincc": Row(_upper, [(0, 100), (0, 100)]),
    "gammaln": Row(mp.loggamma, [(0, 60)], (0, 1, 2, 8)),
    "i0": Row(_i(0, False), [(-90, 90)], (0, 8)),
    "i0e": Row(_i(0, True), [(-90, 90)], (0, 8)),
    "i1": Row(_i(1, False), [(-90, 90)], (0, 8)),
    "i1e": Row(_i(1, True), [(-90, 90)], (0, 8)),
    "log1p": Row(mp.log1p, [(-1, 30)]),
    "log_ndtr": Row(lambda x: mp.log(_ndtr(x)), [(-40, 8)]),
    "logit": Row(lambda x: mp.log(x / (1 - x)), [(0, 1)], (0, 0.5, 1)),
    "modified_bessel_k0": Row(_k(0, False), [(0, 90)], (0, 1)),
    "modified_bessel_k1": Row(_k(1, False), [(0, 90)], (0, 1)),
    "ndtr": Row(_ndtr, [(-13, 6)]),
    "ndtri": Row(_ndtri, [(0, 1)], (0, 0.125, 0.5, 1)),
    "scaled_modified_bessel_k0": Row(_k(0, True), [(0, 90)], (0, 1)),
    "scaled_modified_bessel_k1": Row(_k(1, True), [(0, 90)], (0, 1)),
    "expit": Row(lambda x: 1 / (1 + mp.exp(-x)), [(-80, 20)]),
    "sinc": Row(mp.sincpi, [(-3, 3)], (-1, 0, 1, 2)),
    "spherical_bessel_j0": Row(lambda x: mp.sin(x) / x, [(-3, 3)]),
    "xlog1py": Row(lambda x, y: x * mp.log1p(y), [(-5, 5), (-1, 30)]),
    "xlogy": Row(lambda x, y: x * mp.log(y), [(-5, 5), (0, 30)], (0, 1)),
    "zeta": Row(mp.zeta, [(1, 30), (0, 30)], (0, 1)),
}
FUNCTIONS: Final = ELEMENTARY | SPECIAL


def samples(row: Row, dtype: str, count: int, rng: np.random.Generator) -> list[Array]:
    """Arguments of a dtype, as the module's docstring says; only the last one is looked at so."""
    low, high = row.ranges[-1]
    even = rng.uniform(low, high, count // 2)
    sign = rng.choice([-1.0, 1.0], count // 4)
    all_sizes = sign * 10.0 ** rng.uniform(-30, np.log10(max(-low, high)), count // 4)
    near = rng.choice(row.places, count // 4) + sign * 10.0 ** rng.uniform(-9, -0.3, count // 4)
    last = np.concatenate([even, all_sizes, near])
    # Rounded first, so that an end is left out in the dtype too.
    last = last.astype(dtype)
    last = last[(last > low) & (last < high) & (last != 0)]
    first = [rng.uniform(*ends, len(last)).astype(dtype) for ends in row.ranges[:-1]]
    return [*first, last]


def exact_values(row: Row, arguments: list[Array]) -> list[tuple[mpf, mpf]]:
    """The values, and what an error of each is measured by."""
    values = []
    for given in zip(*(x.tolist() for x in arguments), strict=True):
        numbers = [mpf(x) for x in given]
        exact = row.exact(*numbers)
        values.append((exact, max(abs(exact), row.swing(numbers[-1]) if row.swing else mpf(0))))
    return values


def largest_error(found: Array, exact: list[tuple[mpf, mpf]]) -> float:
    """In ulp, where the exact result is a normal number."""
    limits = np.finfo(found.dtype)
    least, most = mpf(float(limits.smallest_normal)), mpf(float(limits.max))
    largest = mpf(0)
    for value, (wanted, size) in zip(found.tolist(), exact, strict=True):
        if least <= abs(wanted) and size <= most:
            unit = mpf(2) ** (mp.floor(mp.log(size, 2)) - limits.nmant)
            distance = abs(mpf(value) - wanted) / unit
            largest = max(largest, mpf("inf") if mp.isnan(distance) else distance)
    return float(largest)


def measured(names: Sequence[str], devices: Sequence[str], count: int, seed: int) -> str:
    """The table, with a column for each dtype of each device."""
    columns = [
        (kind, device)
        for kind in ("float32", "float64")
        for device in devices
        if getattr(dtypes, kind) not in Device[device].renderer.target.native.lacking
    ]
    header = " | ".join(f"{device} {kind}" for kind, device in columns)
    lines = [f"| function | drawn from | {header} |", "|---" * (2 + len(columns)) + "|"]
    for name in names:
        row = FUNCTIONS[name]
        cells = [f"`{name}`", ", ".join(f"{low:g} to {high:g}" for low, high in row.ranges)]
        known: dict[str, tuple[list[Array], list[tuple[mpf, mpf]]]] = {}
        for kind, device in columns:
            if kind not in known:
                arguments = samples(row, kind, count, np.random.default_rng(seed))
                known[kind] = arguments, exact_values(row, arguments)
            arguments, exact = known[kind]
            tensors = [Tensor(x, device=device) for x in arguments]
            found = getattr(Tensor if name in ELEMENTARY else special, name)(*tensors).numpy()
            cells.append(f"{largest_error(found, exact):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Prints the table, or writes it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(FUNCTIONS), metavar="NAME")
    parser.add_argument("--devices", default="CPU")
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    mp.dps = DIGITS
    table = measured(options.names, options.devices.split(","), options.samples, options.seed)
    if not options.write:
        print(table)
        return
    marks = ("<!-- accuracy: begin -->", "<!-- accuracy: end -->")
    pattern = re.compile(f"(?<={marks[0]}\n).*(?={marks[1]})", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"\n{table}\n\n", PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
