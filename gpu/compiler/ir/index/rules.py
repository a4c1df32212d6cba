"""The algebra of index expressions: floor division, modulus, and their recombination inside sums.

Each function returns the canonical form of a value, exactly equal to it for all values of the
variables within their bounds, negative ones included (division floors). Every rule either shrinks
coefficients or replaces atoms by atoms that nest less, so rewriting ends. Division and modulus are
memoised: the rules for sums ask again and again for the counterpart of one atom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd
from typing import TypeAlias

from gpu.compiler.ir.index import expression as nodes

_MEMO_ENTRIES = 1 << 15


@lru_cache(maxsize=_MEMO_ENTRIES)
def floor_div(num: nodes.Expr, den: int) -> nodes.Expr:
    """`num // den`, floored, for a positive `den`."""
    if den == 1:
        return num
    whole, rest = _extract(num, den)
    quotient = rest.lo // den
    if quotient == rest.hi // den:
        return whole + quotient
    factored = _common_factor(rest, den)
    if factored is not None:
        factor, multiple, _ = factored
        return whole + floor_div(multiple, den // factor)
    return whole + _flattened_div(rest, den)


@lru_cache(maxsize=_MEMO_ENTRIES)
def modulo(num: nodes.Expr, den: int) -> nodes.Expr:
    """`num % den`, never negative, for a positive `den`."""
    if den == 1:
        return nodes.constant(0)
    _, rest = _extract(num, den)
    quotient = rest.lo // den
    if quotient == rest.hi // den:
        return rest - quotient * den
    unwrapped = _without_inner_moduli(rest, den)
    if unwrapped is not rest:
        return modulo(unwrapped, den)
    factored = _common_factor(rest, den)
    if factored is not None:
        factor, multiple, small = factored
        return modulo(multiple, den // factor) * factor + small
    return nodes.atom_expr(nodes.Mod, rest, den)


def recombine(const: int, items: Sequence[tuple[nodes.Atom, int]]) -> nodes.Expr | None:
    """`const + sum(items)` with a division joined to its modulus, or None where none can be.

    `items` are sorted and non-zero. The identity used throughout is `num == den * (num // den) +
    num % den`: where a multiple of two of its three members occurs in the sum, it becomes a
    multiple of the third.
    """
    terms = dict(items)
    for atom, coefficient in items:
        if isinstance(atom, nodes.Var):
            continue
        if isinstance(atom, nodes.Div):
            match = _match_div(terms, atom, coefficient)
        else:
            match = _match_mod(terms, atom, coefficient) or _match_chain(terms, atom, coefficient)
        if match is not None:
            partner, scale, replacement = match
            del terms[atom]
            for other, other_coefficient in partner.terms:
                terms[other] -= scale * other_coefficient
            return nodes.linear(const - scale * partner.const, terms) + replacement
    return None


def _extract(num: nodes.Expr, den: int) -> tuple[nodes.Expr, nodes.Expr]:
    """`(whole, rest)` with `num == den * whole + rest` and `rest` reduced.

    Reduced means 0 <= const < den and every coefficient smaller than den. Coefficients are cut
    towards zero, so that each keeps its sign and the bounds of the parts add up to those of the
    whole. A shorter sum may recombine into one with larger coefficients, hence the loop.
    """
    whole = nodes.constant(0)
    while True:
        quotients: dict[nodes.Atom, int] = {}
        remainders: dict[nodes.Atom, int] = {}
        for atom, coefficient in num.terms:
            quotient = coefficient // den if coefficient > 0 else -(-coefficient // den)
            if quotient:
                quotients[atom] = quotient
            remainders[atom] = coefficient - quotient * den
        if not quotients and 0 <= num.const < den:
            return whole, num
        whole = whole + nodes.linear(num.const // den, quotients)
        num = nodes.linear(num.const % den, remainders)


def _common_factor(num: nodes.Expr, den: int) -> tuple[int, nodes.Expr, nodes.Expr] | None:
    """`(g, x, y)` with `num == g*x + y`, `0 <= y < g` and g > 1 the largest such divisor of `den`.

    None where there is no such divisor. A term left in `y` has a coefficient smaller than g and a
    term in `x` one at least as large, so only prefixes of the terms by falling coefficient can
    be `x`.
    """
    ordered = sorted(num.terms, key=lambda item: -abs(item[1]))
    low, high = num.lo - num.const, num.hi - num.const
    factor = den
    for taken, (atom, coefficient) in enumerate(ordered, start=1):
        factor = gcd(factor, coefficient)
        if factor == 1:
            return None
        ends = (coefficient * atom.lo, coefficient * atom.hi)
        low, high = low - min(ends), high - max(ends)
        offset = (num.const + low) % factor - low
        if offset + high < factor:
            multiple = {atom: coefficient // factor for atom, coefficient in ordered[:taken]}
            small = nodes.linear(offset, dict(ordered[taken:]))
            return factor, nodes.linear((num.const - offset) // factor, multiple), small
    return None


def _flattened_div(num: nodes.Expr, den: int) -> nodes.Expr:
    """`num // den` for a reduced `num`, merged with a division or modulus directly below it."""
    for atom, coefficient in num.terms:
        if isinstance(atom, nodes.Div) and abs(coefficient) == 1:
            # (x//a + w) // b == (x + a*w) // (a*b), and -(x//a) == (a - 1 - x) // a.
            others = (num - nodes.linear(0, {atom: coefficient})) * atom.den
            inner = atom.num if coefficient == 1 else atom.den - 1 - atom.num
            return floor_div(others + inner, den * atom.den)
    if len(num.terms) == 1 and num.const == 0:
        atom, coefficient = num.terms[0]
        if isinstance(atom, nodes.Mod) and coefficient == 1 and atom.den % den == 0:
            return modulo(floor_div(atom.num, den), atom.den // den)
    return nodes.atom_expr(nodes.Div, num, den)


def _without_inner_moduli(num: nodes.Expr, den: int) -> nodes.Expr:
    """`num` modulo `den` with `c * (x % n)` replaced by `c * x` wherever `den` divides `c * n`."""
    redundant = [
        (atom, coefficient)
        for atom, coefficient in num.terms
        if isinstance(atom, nodes.Mod) and coefficient * atom.den % den == 0
    ]
    if not redundant:
        return num
    # The moduli go before the numerators come: x - x % n would turn into a division.
    result = nodes.linear(num.const, dict(item for item in num.terms if item not in redundant))
    for atom, coefficient in redundant:
        result = result + atom.num * coefficient
    return result


# (partner, scale, replacement): the atom at hand plus `scale * partner` equals `replacement`.
_Match: TypeAlias = "tuple[nodes.Expr, int, nodes.Expr]"


def _match_div(terms: Mapping[nodes.Atom, int], div: nodes.Div, coefficient: int) -> _Match | None:
    """What `coefficient * div` joins with in the sum: remainder, or numerator subtracted."""
    scale, left = divmod(coefficient, div.den)
    if left:
        return None
    remainder = modulo(div.num, div.den)
    if _contains(terms, remainder, scale):
        return remainder, scale, div.num * scale
    if _contains(terms, div.num, -scale):
        return div.num, -scale, remainder * -scale
    return None


def _match_mod(terms: Mapping[nodes.Atom, int], mod: nodes.Mod, coefficient: int) -> _Match | None:
    """What `coefficient * mod` joins with in the sum: the quotient, or the numerator subtracted."""
    quotient = floor_div(mod.num, mod.den)
    if _contains(terms, quotient, coefficient * mod.den):
        return quotient, coefficient * mod.den, mod.num * coefficient
    if _contains(terms, mod.num, -coefficient):
        return mod.num, -coefficient, quotient * (-coefficient * mod.den)
    return None


def _match_chain(
    terms: Mapping[nodes.Atom, int], low: nodes.Mod, coefficient: int
) -> _Match | None:
    """Join two digits of a mixed-radix number: x%k + k*((x//k + w) % m) == (x + k*w) % (k*m)."""
    quotient = floor_div(low.num, low.den)
    for high, high_coefficient in terms.items():
        if not isinstance(high, nodes.Mod) or high_coefficient != coefficient * low.den:
            continue
        if _contains(dict(high.num.terms), quotient, 1):
            others = high.num - quotient
            joined = modulo(low.num + others * low.den, low.den * high.den)
            return nodes.linear(0, {high: 1}), high_coefficient, joined * coefficient
    return None


def _contains(terms: Mapping[nodes.Atom, int], part: nodes.Expr, scale: int) -> bool:
    """Whether the sum has exactly `scale` times each term of `part`; its constant always fits.

    Never for a part that is only a constant: it would match in any sum, yet not where the atom
    stands alone, and one value would have two forms.
    """
    return bool(part.terms) and all(
        terms.get(atom) == scale * coefficient for atom, coefficient in part.terms
    )
