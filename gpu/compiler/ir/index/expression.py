"""Nodes of the index arithmetic: variables, floor divisions, moduli, and the sums over them.

An :class:`Expr` is `const + sum(coefficient * atom)`, an atom being a :class:`Var`, a :class:`Div`
or a :class:`Mod`. Expressions and atoms are hash-consed in weak tables: building an expression that
exists gives the object that exists, so `is` decides equality and a dictionary keyed by expressions
costs one identity hash. The algebra that makes equal values meet in one form is in `index_rules`;
this module and that one call each other.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from gpu.compiler.ir.index import bounds, rules, text
from gpu.core.errors import InvalidType, InvalidValue
from gpu.core.unpicklable import Unpicklable
from gpu.core.weak import WeakTable

Atom: TypeAlias = "Var | Div | Mod"
Operand: TypeAlias = "int | Var | Expr"
Terms: TypeAlias = "tuple[tuple[Atom, int], ...]"
SortKey: TypeAlias = "tuple[object, ...]"
IntArray: TypeAlias = NDArray[np.int64]

VAR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
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
        return rules.floor_div(expr(self), _checked_divisor(den))

    def __mod__(self, den: int) -> Expr:
        return rules.modulo(expr(self), _checked_divisor(den))

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
                f"variable name {name!r}: expected a letter or '_', then letters, digits, '_', '.'"
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
        self.num = num
        self.den = den
        self.lo: int = num.lo // den
        self.hi: int = num.hi // den
        self.key: SortKey = (1, den, num.sort_key)


class Mod(Unpicklable):
    """The atom `num % den`, never negative, `den > 1`; made by `Expr % int` alone."""

    __slots__ = ("__weakref__", "den", "hi", "key", "lo", "num")

    def __init__(self, num: Expr, den: int) -> None:
        self.num = num
        self.den = den
        self.lo = 0
        self.hi = den - 1
        self.key: SortKey = (2, den, num.sort_key)


class Expr(_Arithmetic):
    """An immutable integer `const + sum(coefficient * atom)`, equal exactly when identical.

    `lo` and `hi` are inclusive bounds over all values of the variables: exact where `is_affine`
    (every atom is a variable), otherwise sound. Use :func:`expr` and operators to build one, never
    the class itself.
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
            found: set[Var] = set()
            for atom, _ in self.terms:
                if isinstance(atom, Var):
                    found.add(atom)
                else:
                    found |= atom.num.vars
            self._vars = frozenset(found)
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

    def depends_on(self, var: Var) -> bool:
        """Whether `var` occurs anywhere in the expression."""
        return var in self.vars

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
        return text.format_expr(self)

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
    raise InvalidType(
        f"index operand {value!r} is a {type(value).__name__}; expected int, Var or Expr"
    )


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
            combined = rules.recombine(const, items)
            if combined is not None:
                return combined
    return _interned(const, tuple(items))


def atom_expr(kind: type[Div] | type[Mod], num: Expr, den: int) -> Expr:
    """`num // den` or `num % den` as an atom, for `index_rules`, which has simplified `num`."""
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
        symbols = [var for var in difference.vars if var.bound is not None]
        low, high = bounds.extremes(difference, symbols)
    if low >= 0:
        return True
    if high < 0:
        return False
    raise InvalidValue(
        f"whether {left} {relation} {right} depends on the values of the variables, and this has "
        "to hold for all of them or none: choose other bounds for the variables"
    )


def _checked_int(value: object, what: str) -> int:
    if not isinstance(value, int):
        raise InvalidType(
            f"index {what} {value!r} is a {type(value).__name__}; indices can only "
            "be multiplied and divided by an int"
        )
    return value


def _checked_divisor(den: object) -> int:
    value = _checked_int(den, "divisor")
    if value <= 0:
        raise InvalidValue(f"index divisor {value}: expected a positive int")
    return value
