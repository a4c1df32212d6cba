"""Computes the tables in `gpu/tensor/special/tables` with mpmath, and writes those files.

    python tools/special_tables.py [FAMILY ...]

Each polynomial is the Chebyshev interpolant of least degree that is within a bound of its function,
as powers of a variable in -1..1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from mpmath import mp, mpf

Function = Callable[[mpf], mpf]

NARROW, WIDE = mpf("4e-9"), mpf("2e-17")
DIGITS: Final = 60
MOST_FACTORS: Final = 60
CHECKED: Final = 200  # points at which the error is measured
FOLDER: Final = Path(__file__).parents[1] / "gpu/tensor/special/tables"
HEADER: Final = '''"""{title}: polynomials, from the constant factor up.

Written by `tools/special_tables.py`, which computes them with mpmath: Chebyshev interpolants.
The relative error of narrow ones is at most {narrow}, that of wide ones at most {wide}.
"""

from __future__ import annotations

from typing import Final

from gpu.tensor.coefficients import Table
from gpu.tensor.special.pieces import Piece
'''


class Entry(NamedTuple):
    """A function by pieces.

    Attributes:
        name: what the table is called.
        doc: what the function is.
        function: the function.
        ends: where pieces begin and end.
        roots: the zero in each piece that has one.
    """

    name: str
    doc: str
    function: Function
    ends: Sequence[str | float]
    roots: Sequence[mpf | None] = ()


def _erfcx(x: mpf) -> mpf:
    return mp.exp(x * x) * mp.erfc(x)


def _of_the_half_line(t: mpf) -> mpf:
    """(1 + 2x) * erfcx(x), where t = (x - 3) / (x + 3): M. Shepherd and J. Laframboise, 1981."""
    x = 3 * (1 + t) / (1 - t)
    if x > 1000:  # the first terms are exact to more digits than are kept
        series = sum((-1) ** k * mp.fac2(2 * k - 1) / (2 * x * x) ** k for k in range(1, 12)) + 1
        return (2 + 1 / x) / mp.sqrt(mp.pi) * series
    return (1 + 2 * x) * _erfcx(x)


def _inverse_center(square: mpf) -> mpf:
    x = mp.sqrt(square)
    return mp.erfinv(x) / x


def _quantile(s: mpf) -> mpf:
    """-ndtri(exp(-s**2)), by Newton's method on the logarithm."""
    z = mp.sqrt(2) * s - mpf("0.4")
    for _ in range(60):
        tail = mp.erfc(z / mp.sqrt(2)) / 2
        step = (mp.log(tail) + s * s) * tail * mp.sqrt(2 * mp.pi) * mp.exp(z * z / 2)
        z += step
        if abs(step) < mpf(10) ** (-DIGITS + 12):
            break
    return z


def _error() -> list[Entry]:
    return [
        Entry("ERFCX", "(1 + 2x) * erfcx(x) in (x - 3) / (x + 3).", _of_the_half_line, (-1, 1)),
        Entry("ERFINV_CENTER", "erfinv(x) / x in x**2.", _inverse_center, (0, "0.5625")),
        Entry("QUANTILE", "-ndtri(exp(-x**2)).", _quantile, ("1.4", 3, "6.5", "27.5")),
    ]


def _rest_of_atanh(square: mpf) -> mpf:
    s = mp.sqrt(square)
    return 2 * (mp.atanh(s) - s) / s**3


def _elementary() -> list[Entry]:
    end = (3 - 2 * mp.sqrt(2)) ** 2
    doc = "2 * (atanh(s) - s) / s**3 in s**2: of the logarithm of (1 + s) / (1 - s)."
    return [Entry("LOG", doc, _rest_of_atanh, (0, float(end)))]


def _modified(kind: Callable[[int, mpf], mpf], order: int, sign: int) -> Function:
    """exp(sign * x) * sqrt(x) times a modified Bessel function, in 1 / x."""

    def scaled(inverse: mpf) -> mpf:
        x = 1 / inverse
        return mp.exp(sign * x) * kind(order, x) * mp.sqrt(x)

    return scaled


def _k0_rest(square: mpf) -> mpf:
    x = mp.sqrt(square)
    return mp.besselk(0, x) + mp.log(x) * mp.besseli(0, x)


def _k1_rest(square: mpf) -> mpf:
    """Of K1 = 1 / x + log(x) * I1(x) - x * this."""
    x = mp.sqrt(square)
    return (1 / x + mp.log(x) * mp.besseli(1, x) - mp.besselk(1, x)) / x


def _modulus(order: int, part: int) -> Function:
    """P or Q * x of J = sqrt(2 / (pi x)) * (P cos(p) - Q sin(p)), p = x - (2 * order + 1) pi / 4.

    In 1 / x**2.
    """

    def of(square: mpf) -> mpf:
        x = 1 / mp.sqrt(square)
        phase = x - (2 * order + 1) * mp.pi / 4
        j, y = mp.besselj(order, x), mp.bessely(order, x)
        scale = mp.sqrt(mp.pi * x / 2)
        if part == 0:
            return scale * (j * mp.cos(phase) + y * mp.sin(phase))
        return scale * x * (y * mp.cos(phase) - j * mp.sin(phase))

    return of


def _y_rest(order: int, root: mpf) -> Function:
    """Of Y = 2 / pi * log(x / root) * J(x) + this / x**order."""

    def of(x: mpf) -> mpf:
        near = mp.bessely(order, x) - 2 / mp.pi * mp.log(x / root) * mp.besselj(order, x)
        return near * x**order

    return of


def _j(order: int) -> Function:
    return lambda x: mp.besselj(order, x) / x**order


def _y(order: int) -> Function:
    return lambda x: mp.bessely(order, x)


def _bessel() -> list[Entry]:
    return [*_modified_bessel(), *_bessel_near(), *_bessel_far()]


def _modified_bessel() -> list[Entry]:
    return [
        Entry(
            "I0_FAR",
            "exp(-x) * i0(x) * sqrt(x) in 1 / x.",
            _modified(mp.besseli, 0, -1),
            (0, "0.125"),
        ),
        Entry(
            "I1_FAR",
            "exp(-x) * i1(x) * sqrt(x) in 1 / x.",
            _modified(mp.besseli, 1, -1),
            (0, "0.125"),
        ),
        Entry("K0_NEAR", "k0(x) + log(x) * i0(x) in x**2.", _k0_rest, (0, 1)),
        Entry("K1_NEAR", "(1 / x + log(x) * i1(x) - k1(x)) / x in x**2.", _k1_rest, (0, 1)),
        Entry(
            "K0_FAR",
            "exp(x) * k0(x) * sqrt(x) in 1 / x.",
            _modified(mp.besselk, 0, 1),
            (0, "0.25", 1),
        ),
        Entry(
            "K1_FAR",
            "exp(x) * k1(x) * sqrt(x) in 1 / x.",
            _modified(mp.besselk, 1, 1),
            (0, "0.25", 1),
        ),
    ]


def _bessel_near() -> list[Entry]:
    """Of J and Y between their first zeros."""
    zero_j = [[mp.besseljzero(order, k) for k in (1, 2, 3)] for order in (0, 1)]
    zero_y = [[mp.besselyzero(order, k) for k in (1, 2, 3)] for order in (0, 1)]
    return [
        Entry("J0", "bessel_j0(x).", _j(0), (0, 4, 7, 10), zero_j[0]),
        Entry("J1", "bessel_j1(x) / x.", _j(1), (0, "2.5", "5.5", "8.5"), [None, *zero_j[1][:2]]),
        Entry(
            "Y0_NEAR",
            "bessel_y0(x) - 2 / pi * log(x / root) * j0(x).",
            _y_rest(0, zero_y[0][0]),
            (0, 3),
            zero_y[0][:1],
        ),
        Entry("Y0", "bessel_y0(x).", _y(0), (3, "5.5", "8.5"), zero_y[0][1:]),
        Entry(
            "Y1_NEAR",
            "x * (bessel_y1(x) - 2 / pi * log(x / root) * j1(x)).",
            _y_rest(1, zero_y[1][0]),
            (0, 4),
            zero_y[1][:1],
        ),
        Entry("Y1", "bessel_y1(x).", _y(1), (4, 7, 10), zero_y[1][1:]),
    ]


def _bessel_far() -> list[Entry]:
    """Of J and Y beyond: their modulus and phase."""
    entries = []
    for order in (0, 1):
        entries += [
            Entry(
                f"P{order}",
                f"P of order {order} in 1 / x**2.",
                _modulus(order, 0),
                (0, mpf(1) / 64),
            ),
            Entry(
                f"Q{order}",
                f"Q * x of order {order} in 1 / x**2.",
                _modulus(order, 1),
                (0, mpf(1) / 64),
            ),
        ]
    return entries


def _airy_far(inverse: mpf) -> mpf:
    zeta = 1 / inverse
    x = (mpf(3) / 2 * zeta) ** (mpf(2) / 3)
    return mp.exp(zeta) * mp.airyai(x) * mp.root(x, 4)


def _airy_modulus(part: int) -> Function:
    """P or Q * z of Ai(-x) = (P cos(z - pi / 4) + Q sin(z - pi / 4)) / sqrt(pi) / x**(1/4)."""

    def of(square: mpf) -> mpf:
        zeta = 1 / mp.sqrt(square)
        x = (mpf(3) / 2 * zeta) ** (mpf(2) / 3)
        scale, phase = mp.sqrt(mp.pi) * mp.root(x, 4), zeta - mp.pi / 4
        a, b = scale * mp.airyai(-x), scale * mp.airybi(-x)
        if part == 0:
            return a * mp.cos(phase) - b * mp.sin(phase)
        return zeta * (a * mp.sin(phase) + b * mp.cos(phase))

    return of


def _airy() -> list[Entry]:
    zeros = [mp.airyaizero(k) for k in (4, 3, 2, 1)]
    end = mpf(1) / 144
    return [
        Entry(
            "NEAR",
            "airy_ai(x).",
            mp.airyai,
            ("-7.25", "-6.25", "-4.75", "-3.25", -1, 1, "2.25"),
            [*zeros, None, None],
        ),
        Entry(
            "FAR",
            "exp(z) * airy_ai(x) * x**(1/4) in 1 / z, z = 2 / 3 * x**1.5.",
            _airy_far,
            (0, "0.5"),
        ),
        Entry("P", "P of airy_ai(-x) in 1 / z**2.", _airy_modulus(0), (0, end)),
        Entry("Q", "Q * z of airy_ai(-x) in 1 / z**2.", _airy_modulus(1), (0, end)),
    ]


def _stirling_rest(square: mpf) -> mpf:
    x = 1 / mp.sqrt(square)
    return x * (mp.loggamma(x) - (x - 0.5) * (mp.log(x) - 1) + 0.5 - mp.log(2 * mp.pi) / 2)


def _digamma_rest(square: mpf) -> mpf:
    x = 1 / mp.sqrt(square)
    return x * x * (mp.log(x) - 1 / (2 * x) - mp.digamma(x))


def _rest_of_log1p(x: mpf) -> mpf:
    return (x - mp.log1p(x)) / (x * x) if x else mpf(1) / 2


def _scaled_gamma(inverse: mpf) -> mpf:
    """1 over the gamma function divided by Stirling's formula, in 1 / x."""
    x = 1 / inverse
    return mp.exp(mp.log(2 * mp.pi) / 2 - x - mp.loggamma(x) + (x - 0.5) * mp.log(x))


def _small_log_gamma(x: mpf) -> mpf:
    return mp.loggamma(1 + x) / x


def _gamma() -> list[Entry]:
    least = mp.findroot(mp.digamma, 1.46)
    rest = mpf(1) / 64
    return [
        Entry("LGAMMA", "lgamma(x).", mp.loggamma, ("0.5", "1.5", 3, 8), [mpf(1), mpf(2), mpf(2)]),
        Entry(
            "STIRLING",
            "x * (lgamma(x) - (x - 1/2) * (log(x) - 1) - (log(2 pi) - 1) / 2) in 1 / x**2.",
            _stirling_rest,
            (0, rest),
        ),
        Entry("DIGAMMA", "digamma(x).", mp.digamma, (1, 2, 4, 10), [least] * 3),
        Entry(
            "DIGAMMA_FAR",
            "x**2 * (log(x) - 1 / (2x) - digamma(x)) in 1 / x**2.",
            _digamma_rest,
            (0, "0.01"),
        ),
        Entry(
            "LOG1P_REST",
            "(x - log1p(x)) / x**2.",
            _rest_of_log1p,
            ("-0.75", "-0.375", 0, "0.5", "1.5"),
        ),
        Entry("RECIPROCAL", "1 / gamma(1 + x).", lambda x: 1 / mp.gamma(1 + x), (0, 1)),
        Entry(
            "SCALED",
            "sqrt(2 pi / x) * (x / e)**x / gamma(x) in 1 / x.",
            _scaled_gamma,
            (0, "0.25", 1),
        ),
        Entry("LGAMMA_ONE", "lgamma(1 + x) / x.", _small_log_gamma, (0, "1.125"), [mpf(1)]),
    ]


# Degrees in 1 / a up to which the incomplete gamma functions' expansion is kept, from a = 20 on.
_TEMME: Final = {"narrow": (6, mpf("1e-10")), "wide": (14, mpf("1e-19"))}


def _stirling_factors(count: int) -> list[mpf]:
    """Of Stirling's series of the gamma function, in 1 / x: the exponential of its logarithm's."""
    logarithm = [mpf(0)] * (count + 1)
    for j in range(1, count // 2 + 1):
        logarithm[2 * j - 1] = mp.bernoulli(2 * j) / (2 * j * (2 * j - 1))
    factors = [mpf(1)]
    for n in range(1, count):
        factors.append(sum(k * logarithm[k] * factors[n - k] for k in range(1, n + 1)) / n)
    return factors


def _temme() -> list[list[mpf]]:
    """Powers of eta of c_k(eta), 8.12.10 of the Digital Library of Mathematical Functions."""
    count, size = 14, 90
    mu = [mpf(0), mpf(1)]
    for n in range(2, size):
        known = sum(k * mu[k] * mu[n + 1 - k] for k in range(2, n))
        mu.append((mu[n - 1] - known) / (n + 1))
    reciprocal = [mpf(1)]  # of mu / eta
    for n in range(1, size - 1):
        reciprocal.append(-sum(mu[k + 1] * reciprocal[n - k] for k in range(1, n + 1)))
    series = [reciprocal[1:]]
    gammas = _stirling_factors(count)
    for k in range(1, count):
        before = series[-1]
        scaled = [gammas[k] * (-1) ** k * r for r in reciprocal]
        # The poles of both at 0 cancel.
        series.append([before[n + 2] * (n + 2) + scaled[n + 1] for n in range(len(before) - 2)])
    return series


FAMILIES: Final[dict[str, tuple[str, Callable[[], list[Entry]]]]] = {
    "elementary": ("Of logarithms", _elementary),
    "error": ("Of the error function and its inverse", _error),
    "bessel": ("Of Bessel functions", _bessel),
    "airy": ("Of Airy's function", _airy),
    "gamma": ("Of the gamma function and its logarithm", _gamma),
}


class Interpolant:
    """A function over an interval by Chebyshev polynomials, as many as matter."""

    def __init__(self, function: Function, low: mpf, high: mpf):
        def of_variable(t: mpf) -> mpf:
            return function(low + (high - low) * (1 + t) / 2)

        count = 48
        while True:
            self.factors = _chebyshev(of_variable, count)
            if sum(map(abs, self.factors[-3:])) < WIDE * max(map(abs, self.factors)) / 100:
                break
            if (count := count * 2) > 400:
                raise ValueError("the function is not smooth enough for a polynomial")
        points = [mp.cos(mp.pi * (k + mpf("0.5")) / CHECKED) for k in range(CHECKED)]
        self.values = [(t, of_variable(t)) for t in points]

    def powers(self, bound: mpf) -> list[float]:
        """Factors of powers, of the least number with which the relative error is in the bound."""
        low, high = 1, len(self.factors)
        while low < high:
            middle = (low + high) // 2
            kept = self.factors[:middle]
            worst = max(abs(_clenshaw(kept, t) / value - 1) for t, value in self.values)
            low, high = (low, middle) if worst <= bound else (middle + 1, high)
        if low > MOST_FACTORS:
            raise ValueError(f"{low} factors are needed")
        return _powers(self.factors[:low])


def _chebyshev(function: Function, count: int) -> list[mpf]:
    """Factors of Chebyshev polynomials, from values at the zeros of the first that is left out."""
    angles = [mp.pi * (k + mpf("0.5")) / count for k in range(count)]
    values = [function(mp.cos(angle)) for angle in angles]
    factors = [
        2 * sum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True)) / count
        for j in range(count)
    ]
    return [factors[0] / 2, *factors[1:]]


def _clenshaw(factors: list[mpf], t: mpf) -> mpf:
    after = later = mpf(0)
    for factor in reversed(factors[1:]):
        after, later = factor + 2 * t * after - later, after
    return factors[0] + t * after - later


def _powers(factors: list[mpf]) -> list[float]:
    total = [mpf(0)] * len(factors)
    before, current = [mpf(1)], [mpf(0), mpf(1)]
    for factor in factors:
        for power, coefficient in enumerate(before):
            total[power] += factor * coefficient
        doubled = [mpf(0), *(2 * c for c in current)]
        padded = [*before, *([mpf(0)] * (len(doubled) - len(before)))]
        before, current = current, [a - b for a, b in zip(doubled, padded, strict=True)]
    return [float(c) for c in total]


def _without(function: Function, root: mpf | None) -> Function:
    """A function divided by the distance from its root."""
    if root is None:
        return function

    def of(x: mpf) -> mpf:
        return function(x) / (x - root) if abs(x - root) > mpf(10) ** -25 else mp.diff(function, x)

    return of


def _written(entry: Entry) -> str:
    lines = [f"{entry.name}: Final = ("]
    ends = [mpf(end) for end in entry.ends]
    roots = [*entry.roots] or [None] * (len(ends) - 1)
    for (low, high), root in zip(pairwise(ends), roots, strict=True):
        interpolant = Interpolant(_without(entry.function, root), low, high)
        lines += [f"    Piece(low={float(low)!r}, high={float(high)!r},"]
        if root is not None:
            near = float(np.float32(float(root)))
            lines[-1] += f" root=({near!r}, {float(root - near)!r}),"
        lines[-1] += " table=Table("
        for label, bound in (("narrow", NARROW), ("wide", WIDE)):
            lines += [f"        {label}=(", *_wrapped(interpolant.powers(bound)), "        ),"]
        lines += ["    )),"]
    return "\n".join([*lines, ")  # fmt: skip", f'"""{entry.doc}"""'])


def _written_temme() -> str:
    lines = ["TEMME: Final = ("]
    series = _temme()
    for k, factors in enumerate(series):
        lines.append("    Table(")
        for label, (most, bound) in _TEMME.items():
            kept = [n for n, factor in enumerate(factors) if abs(factor) > bound * mpf(20) ** k]
            count = max(kept, default=-1) + 1 if k < most else 0
            lines += [
                f"        {label}=(",
                *_wrapped([float(f) for f in factors[:count]]),
                "        ),",
            ]
        lines.append("    ),")
    doc = "c_k(eta) of Temme's expansion, 8.12.7 of the Digital Library of Mathematical Functions."
    return "\n".join([*lines, ")  # fmt: skip", f'"""{doc}"""'])


def _wrapped(numbers: Sequence[float]) -> list[str]:
    lines, line = [], "           "
    for number in numbers:
        if len(line) + len(repr(number)) + 2 > 100:
            lines.append(line)
            line = "           "
        line += f" {number!r},"
    return [*lines, line] if numbers else []


def main(families: list[str]) -> None:
    """Writes the modules of the families named, or of all."""
    mp.dps = DIGITS
    for name in families or FAMILIES:
        title, entries = FAMILIES[name]
        header = HEADER.format(title=title, narrow=float(NARROW), wide=float(WIDE))
        parts = [_written(entry) for entry in entries()]
        if name == "gamma":
            parts.append(_written_temme())
        body = "\n\n".join(parts)
        (FOLDER / f"{name}.py").write_text(f"{header}\n{body}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
