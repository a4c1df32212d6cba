"""Nodes of the index arithmetic: variables, floor divisions, moduli, and the sums over them.

An :class:`Expr` is `const + sum(coefficient * atom)`, an atom being a :class:`Var`, a :class:`Div`
or a :class:`Mod`. Expressions and atoms are hash-consed in weak tables: building an expression that
exists gives the object that exists, so `is` decides equality and a dictionary keyed by expressions
costs one identity hash.

The algebra makes equal values meet in one form, exactly equal for all values of the variables
within their bounds, negative ones included (division floors). Each of its rules either shrinks
coefficients or replaces atoms by atoms that nest less, so that rewriting ends. Division and modulus
are memoised: the rules for sums ask again and again for the counterpart of one atom.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from gpu.core.errors import InvalidType, InvalidValue
from gpu.core.unpicklable import Unpicklable
from gpu.core.weak import WeakTable

Atom: TypeAlias = "Var | Div | Mod"
Operand: TypeAlias = "int | Var | Expr"
Terms: TypeAlias = "tuple[tuple[Atom, int], ...]"
SortKey: TypeAlias = "tuple[object, ...]"
IntArray: TypeAlias = NDArray[np.int64]

VAR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_MEMO_ENTRIES = 1 << 15
_MOST_VALUES = 1 << 16  # combinations of values that a comparison tries
_serial = itertools.count()


class _Arithmetic(Unpicklable):
    """The operators that variables and expressions share; operands may be int, Var or Expr."""

    __slots__ = ()

    def __add__(self, other: Operand) -> Expr:
        return _add(expr(self), expr(other))

    def __radd__(self, other: Operand) -> Expr:
        return _add(expr(other), expr(self))

    def __sub__(self, other: Operand) -> Expr:
        return _add(expr(self), _scale(expr(other), -1))

    def __rsub__(self, other: Operand) -> Expr:
        return _add(expr(other), _scale(expr(self), -1))

    def __neg__(self) -> Expr:
        return _scale(expr(self), -1)

    def __mul__(self, factor: int) -> Expr:
        return _scale(expr(self), _checked_int(factor, "factor"))

    __rmul__ = __mul__

    def __floordiv__(self, den: int) -> Expr:
        return _floor_div(expr(self), _checked_divisor(den))

    def __mod__(self, den: int) -> Expr:
        return _modulo(expr(self), _checked_divisor(den))

    # Comparisons hold for all values of the variables or for none; else they raise.

    def __lt__(self, other: Operand) -> bool:
        return _never_negative(other - expr(self) - 1, self, "<", other)

    def __le__(self, other: Operand) -> bool:
        return _never_negative(other - expr(self), self, "<=", other)

    def __gt__(self, other: Operand) -> bool:
        return _never_negative(expr(self) - other - 1, self, ">", other)

    def __ge__(self, other: Operand) -> bool:
        return _never_negative(expr(self) - other, self, ">=", other)


class Var(_Arithmetic):
    """A loop axis or a symbolic dimension, with inclusive bounds; compared by identity.

    A variable whose bounds coincide is a constant to every expression built from it.
    Raises InvalidValue for `lo > hi` or a name that the text form could not read back.

    Attributes:
        stop: what a loop over the variable stays below, where that is known at launch only; then
            `hi` is the largest value it can have, and None says that the loop goes up to `hi`.
        bound: the value of a symbolic dimension (`gpu/compiler/ir/dims.py`); None for a loop.
    """

    __slots__ = ("__weakref__", "as_expr", "hi", "key", "lo", "name", "stop")

    bound: int | None = None

    def __init__(self, name: str, lo: int, hi: int, stop: Expr | None = None) -> None:
        if not VAR_NAME.fullmatch(name):
            raise InvalidValue(
                f"variable name {name!r}: expected a letter or '_', then those, 0-9, '.'"
            )
        if lo > hi:
            raise InvalidValue(
                f"variable {name}: bounds [{lo}, {hi}] are empty; both are inclusive, pass lo <= hi"
            )
        self.name = name
        self.lo = lo
        self.hi = hi
        self.stop = stop
        self.key: SortKey = (0, name, next(_serial))
        # Not in the weak table: the entry's key would keep its own value alive.
        self.as_expr = Expr(0, ((self, 1),)) if lo < hi else constant(lo)

    @property
    def extent(self) -> int:
        """How many values the variable takes, at most."""
        return self.hi - self.lo + 1

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Var({self.name!r}, {self.lo}, {self.hi})"


class Div(Unpicklable):
    """The atom `num // den`, floored, `den > 1`; made by `Expr // int` alone."""

    __slots__ = ("__weakref__", "den", "hi", "key", "lo", "num")

    def __init__(self, num: Expr, den: int) -> None:
        self.num, self.den = num, den
        self.lo: int = num.lo // den
        self.hi: int = num.hi // den
        self.key: SortKey = (1, den, num.sort_key)


class Mod(Unpicklable):
    """The atom `num % den`, never negative, `den > 1`; made by `Expr % int` alone."""

    __slots__ = ("__weakref__", "den", "hi", "key", "lo", "num")

    def __init__(self, num: Expr, den: int) -> None:
        self.num, self.den = num, den
        self.lo, self.hi = 0, den - 1
        self.key: SortKey = (2, den, num.sort_key)


class Expr(_Arithmetic):
    """An immutable integer `const + sum(coefficient * atom)`, equal exactly when identical.

    `lo` and `hi` are inclusive bounds over all values of the variables: exact where `is_affine`
    (every atom is a variable), otherwise sound. Built by :func:`expr` and operators alone.
    """

    __slots__ = ("__weakref__", "_vars", "const", "hi", "is_affine", "lo", "terms")

    def __init__(self, const: int, terms: Terms) -> None:
        low = high = const
        affine = True
        for atom, coefficient in terms:
            if coefficient > 0:
                low += coefficient * atom.lo
                high += coefficient * atom.hi
            else:
                low += coefficient * atom.hi
                high += coefficient * atom.lo
            if not isinstance(atom, Var):
                affine = False
        self.const = const
        self.terms = terms
        self.lo: int = low
        self.hi: int = high
        self.is_affine = affine
        self._vars: frozenset[Var] | None = None

    @property
    def is_const(self) -> bool:
        """True for a plain number."""
        return not self.terms

    @property
    def vars(self) -> frozenset[Var]:
        """Every variable the value depends on, those inside divisions included."""
        if self._vars is None:
            parts = [{a} if isinstance(a, Var) else a.num.vars for a, _ in self.terms]
            self._vars = frozenset[Var]().union(*parts)
        return self._vars

    @property
    def sort_key(self) -> SortKey:
        """Orders expressions the same in every run: by terms, rising ones first, then constant."""
        return (tuple([(atom.key, -coefficient) for atom, coefficient in self.terms]), self.const)

    def coeff(self, var: Var) -> int:
        """The coefficient of `var` outside of divisions and moduli; 0 where it has none."""
        for atom, coefficient in self.terms:
            if atom is var:
                return coefficient
        return 0

    def gcd(self) -> int:
        """The gcd of the constant and all coefficients, which divides every value; 0 for 0."""
        return math.gcd(self.const, *[coefficient for _, coefficient in self.terms])

    def subst(self, env: Mapping[Var, Operand]) -> Expr:
        """Replace variables, all at once, and simplify again.

        Simplifications already made have used the bounds of the variables, so a replacement must
        stay within the bounds of what it replaces wherever the result is used.
        """
        if self.vars.isdisjoint(env):
            return self
        const = self.const
        terms: dict[Atom, int] = {}
        for atom, coefficient in self.terms:
            value = _subst_atom(atom, env)
            const += coefficient * value.const
            for inner, inner_coefficient in value.terms:
                terms[inner] = terms.get(inner, 0) + coefficient * inner_coefficient
        return linear(const, terms)

    @overload
    def evaluate(self, env: Mapping[Var, int]) -> int: ...
    @overload
    def evaluate(self, env: Mapping[Var, int | IntArray]) -> int | IntArray: ...
    def evaluate(self, env: Mapping[Var, int] | Mapping[Var, int | IntArray]) -> int | IntArray:
        """The value for given variables; arrays broadcast, and are computed in int64.

        A result that depends on no array is an int. Raises InvalidValue for a variable that `env`
        lacks.
        """
        total: int | IntArray = self.const
        for atom, coefficient in self.terms:
            total = total + coefficient * evaluate_atom(atom, env)
        return total

    @property
    def value(self) -> int:
        """The number it stands for, where every variable in it is bound to one.

        Raises InvalidValue for one with other variables.
        """
        if any(var.bound is None for var in self.vars):
            raise InvalidValue(f"{self} has no value: not all of its variables are bound to one")
        return self.evaluate({var: var.bound for var in self.vars if var.bound is not None})

    def __str__(self) -> str:
        pieces = [_term_text(atom, coefficient) for atom, coefficient in self.terms]
        if self.const or not pieces:
            pieces.append(str(self.const))
        # A sum reads better when it does not open with a minus sign.
        lead = next((at for at, piece in enumerate(pieces) if piece[0] != "-"), 0)
        pieces.insert(0, pieces.pop(lead))
        signed = [f" - {piece[1:]}" if piece[0] == "-" else f" + {piece}" for piece in pieces[1:]]
        return pieces[0] + "".join(signed)

    __repr__ = __str__


_exprs: WeakTable[tuple[int, Terms], Expr] = WeakTable()
_atoms: WeakTable[tuple[type, Expr, int], Div | Mod] = WeakTable()


def expr(value: object) -> Expr:
    """The expression for an int, a Var or an Expr. Raises InvalidType for anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Var):
        return value.as_expr
    if isinstance(value, int):
        return constant(int(value))
    kind = type(value).__name__
    raise InvalidType(f"index operand {value!r} is a {kind}; expected int, Var or Expr")


def constant(value: int) -> Expr:
    """The expression that is `value` everywhere."""
    return _interned(value, ())


def linear(const: int, terms: Mapping[Atom, int]) -> Expr:
    """The canonical `const + sum(coefficient * atom)`; zero coefficients are allowed."""
    items = [item for item in terms.items() if item[1]]
    if len(items) > 1:
        items.sort(key=_term_key)
        # Variables sort before divisions and moduli, so the last term tells whether there are any.
        if not isinstance(items[-1][0], Var):
            combined = _recombine(const, items)
            if combined is not None:
                return combined
    return _interned(const, tuple(items))


def _atom_expr(kind: type[Div] | type[Mod], num: Expr, den: int) -> Expr:
    """`num // den` or `num % den` as an atom, of a numerator that is simplified."""
    key = (kind, num, den)
    atom = _atoms.get(key) or _atoms.file(key, kind(num, den))
    return _interned(0, ((atom, 1),))


def _interned(const: int, terms: Terms) -> Expr:
    if const == 0 and len(terms) == 1:
        atom, coefficient = terms[0]
        if coefficient == 1 and isinstance(atom, Var):
            return atom.as_expr
    key = (const, terms)
    return _exprs.get(key) or _exprs.file(key, Expr(const, terms))


def _term_key(item: tuple[Atom, int]) -> SortKey:
    return item[0].key


def _add(left: Expr, right: Expr) -> Expr:
    if not right.terms:
        return _interned(left.const + right.const, left.terms) if right.const else left
    if not left.terms:
        return _interned(left.const + right.const, right.terms) if left.const else right
    terms = dict(left.terms)
    for atom, coefficient in right.terms:
        terms[atom] = terms.get(atom, 0) + coefficient
    return linear(left.const + right.const, terms)


def _scale(value: Expr, factor: int) -> Expr:
    """`value * factor`; larger coefficients may be the ones that a division needs to recombine."""
    if factor == 0:
        return constant(0)
    if factor == 1:
        return value
    if not value.is_affine and len(value.terms) > 1:
        return linear(value.const * factor, {atom: c * factor for atom, c in value.terms})
    terms = tuple([(atom, coefficient * factor) for atom, coefficient in value.terms])
    return _interned(value.const * factor, terms)


@lru_cache(maxsize=_MEMO_ENTRIES)
def _floor_div(num: Expr, den: int) -> Expr:
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
        return whole + _floor_div(multiple, den // factor)
    return whole + _flattened_div(rest, den)


@lru_cache(maxsize=_MEMO_ENTRIES)
def _modulo(num: Expr, den: int) -> Expr:
    """`num % den`, never negative, for a positive `den`."""
    if den == 1:
        return constant(0)
    _, rest = _extract(num, den)
    quotient = rest.lo // den
    if quotient == rest.hi // den:
        return rest - quotient * den
    unwrapped = _without_inner_moduli(rest, den)
    if unwrapped is not rest:
        return _modulo(unwrapped, den)
    factored = _common_factor(rest, den)
    if factored is not None:
        factor, multiple, small = factored
        return _modulo(multiple, den // factor) * factor + small
    return _atom_expr(Mod, rest, den)


def _recombine(const: int, items: Sequence[tuple[Atom, int]]) -> Expr | None:
    """`const + sum(items)` with a division joined to its modulus, or None where none can be.

    `items` are sorted and non-zero. The identity used throughout is `num == den * (num // den) +
    num % den`: where a multiple of two of its three members occurs in the sum, it becomes a
    multiple of the third.
    """
    terms = dict(items)
    for atom, coefficient in items:
        if isinstance(atom, Var):
            continue
        if isinstance(atom, Div):
            match = _match_div(terms, atom, coefficient)
        else:
            match = _match_mod(terms, atom, coefficient) or _match_chain(terms, atom, coefficient)
        if match is not None:
            partner, scale, replacement = match
            del terms[atom]
            for other, other_coefficient in partner.terms:
                terms[other] -= scale * other_coefficient
            return linear(const - scale * partner.const, terms) + replacement
    return None


def _extract(num: Expr, den: int) -> tuple[Expr, Expr]:
    """`(whole, rest)` with `num == den * whole + rest` and `rest` reduced.

    Reduced means 0 <= const < den and every coefficient smaller than den. Coefficients are cut
    towards zero, so that each keeps its sign and the bounds of the parts add up to those of the
    whole. A shorter sum may recombine into one with larger coefficients, hence the loop.
    """
    whole = constant(0)
    while True:
        quotients: dict[Atom, int] = {}
        remainders: dict[Atom, int] = {}
        for atom, coefficient in num.terms:
            quotient = coefficient // den if coefficient > 0 else -(-coefficient // den)
            if quotient:
                quotients[atom] = quotient
            remainders[atom] = coefficient - quotient * den
        if not quotients and 0 <= num.const < den:
            return whole, num
        whole = whole + linear(num.const // den, quotients)
        num = linear(num.const % den, remainders)


def _common_factor(num: Expr, den: int) -> tuple[int, Expr, Expr] | None:
    """`(g, x, y)` with `num == g*x + y`, `0 <= y < g` and g > 1 the largest such divisor of `den`.

    None where there is no such divisor. A term left in `y` has a coefficient smaller than g and a
    term in `x` one at least as large, so only prefixes of the terms by falling coefficient can
    be `x`.
    """
    ordered = sorted(num.terms, key=lambda item: -abs(item[1]))
    low, high = num.lo - num.const, num.hi - num.const
    factor = den
    for taken, (atom, coefficient) in enumerate(ordered, start=1):
        factor = math.gcd(factor, coefficient)
        if factor == 1:
            return None
        ends = (coefficient * atom.lo, coefficient * atom.hi)
        low, high = low - min(ends), high - max(ends)
        offset = (num.const + low) % factor - low
        if offset + high < factor:
            multiple = {atom: coefficient // factor for atom, coefficient in ordered[:taken]}
            small = linear(offset, dict(ordered[taken:]))
            return factor, linear((num.const - offset) // factor, multiple), small
    return None


def _flattened_div(num: Expr, den: int) -> Expr:
    """`num // den` for a reduced `num`, merged with a division or modulus directly below it."""
    for atom, coefficient in num.terms:
        if isinstance(atom, Div) and abs(coefficient) == 1:
            # (x//a + w) // b == (x + a*w) // (a*b), and -(x//a) == (a - 1 - x) // a.
            others = (num - linear(0, {atom: coefficient})) * atom.den
            inner = atom.num if coefficient == 1 else atom.den - 1 - atom.num
            return _floor_div(others + inner, den * atom.den)
    if len(num.terms) == 1 and num.const == 0:
        atom, coefficient = num.terms[0]
        if isinstance(atom, Mod) and coefficient == 1 and atom.den % den == 0:
            return _modulo(_floor_div(atom.num, den), atom.den // den)
    return _atom_expr(Div, num, den)


def _without_inner_moduli(num: Expr, den: int) -> Expr:
    """`num` modulo `den` with `c * (x % n)` replaced by `c * x` wherever `den` divides `c * n`."""
    redundant = [
        (atom, coefficient)
        for atom, coefficient in num.terms
        if isinstance(atom, Mod) and coefficient * atom.den % den == 0
    ]
    if not redundant:
        return num
    # The moduli go before the numerators come: x - x % n would turn into a division.
    result = linear(num.const, dict(item for item in num.terms if item not in redundant))
    for atom, coefficient in redundant:
        result = result + atom.num * coefficient
    return result


# (partner, scale, replacement): the atom at hand plus `scale * partner` equals `replacement`.
_Match: TypeAlias = "tuple[Expr, int, Expr]"


def _match_div(terms: Mapping[Atom, int], div: Div, coefficient: int) -> _Match | None:
    """What `coefficient * div` joins with in the sum: remainder, or numerator subtracted."""
    scale, left = divmod(coefficient, div.den)
    if left:
        return None
    remainder = _modulo(div.num, div.den)
    if _contains(terms, remainder, scale):
        return remainder, scale, div.num * scale
    if _contains(terms, div.num, -scale):
        return div.num, -scale, remainder * -scale
    return None


def _match_mod(terms: Mapping[Atom, int], mod: Mod, coefficient: int) -> _Match | None:
    """What `coefficient * mod` joins with in the sum: the quotient, or the numerator subtracted."""
    quotient = _floor_div(mod.num, mod.den)
    if _contains(terms, quotient, coefficient * mod.den):
        return quotient, coefficient * mod.den, mod.num * coefficient
    if _contains(terms, mod.num, -coefficient):
        return mod.num, -coefficient, quotient * (-coefficient * mod.den)
    return None


def _match_chain(terms: Mapping[Atom, int], low: Mod, coefficient: int) -> _Match | None:
    """Join two digits of a mixed-radix number: x%k + k*((x//k + w) % m) == (x + k*w) % (k*m)."""
    quotient = _floor_div(low.num, low.den)
    for high, high_coefficient in terms.items():
        if not isinstance(high, Mod) or high_coefficient != coefficient * low.den:
            continue
        if _contains(dict(high.num.terms), quotient, 1):
            others = high.num - quotient
            joined = _modulo(low.num + others * low.den, low.den * high.den)
            return linear(0, {high: 1}), high_coefficient, joined * coefficient
    return None


def _contains(terms: Mapping[Atom, int], part: Expr, scale: int) -> bool:
    """Whether the sum has exactly `scale` times each term of `part`; its constant always fits.

    Never for a part that is only a constant: it would match in any sum, yet not where the atom
    stands alone, and one value would have two forms.
    """
    return bool(part.terms) and all(
        terms.get(atom) == scale * coefficient for atom, coefficient in part.terms
    )


def _term_text(atom: Atom, coefficient: int) -> str:
    text = atom.name if isinstance(atom, Var) else _quotient_text(atom)
    if coefficient == 1:
        return text
    factor = "-" if coefficient == -1 else f"{coefficient}*"
    return factor + (text if isinstance(atom, Var) else f"({text})")


def _quotient_text(atom: Div | Mod) -> str:
    num = str(atom.num)
    terms = atom.num.terms
    bare = atom.num.const == 0 and terms[0][1] == 1 and isinstance(terms[0][0], Var)
    operator = "//" if isinstance(atom, Div) else "%"
    return f"{num if bare and len(terms) == 1 else f'({num})'} {operator} {atom.den}"


def _subst_atom(atom: Atom, env: Mapping[Var, Operand]) -> Expr:
    if isinstance(atom, Var):
        return expr(env.get(atom, atom))
    num = atom.num.subst(env)
    return num // atom.den if isinstance(atom, Div) else num % atom.den


def evaluate_atom(
    atom: Atom, env: Mapping[Var, int] | Mapping[Var, int | IntArray]
) -> int | IntArray:
    """As `Expr.evaluate`, for an atom."""
    if isinstance(atom, Var):
        value = env.get(atom)
        if value is None:
            raise InvalidValue(f"no value for index variable {atom.name}: pass one in `env`")
        return value.astype(np.int64, copy=False) if isinstance(value, np.ndarray) else value
    num = atom.num.evaluate(env)
    return num // atom.den if isinstance(atom, Div) else num % atom.den


def _never_negative(difference: Expr, left: object, relation: str, right: object) -> bool:
    low, high = difference.lo, difference.hi
    if low < 0 <= high:
        low, high = _tried(difference)
    if low >= 0 or high < 0:
        return low >= 0
    raise InvalidValue(
        f"whether {left} {relation} {right} depends on the values of the variables, and this has "
        "to hold for all of them or none: choose other bounds for the variables"
    )


def _tried(value: Expr) -> tuple[int, int]:
    """Bounds by all values of the variables, where these are symbols and few enough."""
    known = list(value.vars)
    if any(v.bound is None for v in known) or math.prod(v.extent for v in known) > _MOST_VALUES:
        return value.lo, value.hi
    grid = np.indices([var.extent for var in known]).reshape(len(known), -1)
    found = value.evaluate({var: row + var.lo for var, row in zip(known, grid, strict=True)})
    return int(np.min(found)), int(np.max(found))


def _checked_int(value: object, what: str) -> int:
    if isinstance(value, int):
        return value
    kind = type(value).__name__
    raise InvalidType(f"index {what} {value!r} is a {kind}: multiplied and divided is by an int")


def _checked_divisor(den: object) -> int:
    if (value := _checked_int(den, "divisor")) <= 0:
        raise InvalidValue(f"index divisor {value}: expected a positive int")
    return value
