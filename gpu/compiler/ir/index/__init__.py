"""Index arithmetic: everything that computes an address or guards an access is built from these
names.

`Expr` is a canonical integer expression over bounded variables (`expression`), `Mask` a conjunction
of constraints on such expressions (`mask`); both have a text form (`text`).
"""

from __future__ import annotations

from gpu.compiler.ir.index.bounds import extremes
from gpu.compiler.ir.index.expression import Atom, Div, Expr, Mod, Operand, Var, expr
from gpu.compiler.ir.index.mask import (
    ALWAYS,
    NEVER,
    Mask,
    at_least,
    at_most,
    between,
    parse_mask,
)
from gpu.compiler.ir.index.query import (
    divides,
    iterations,
    loop_var,
    simplify_under,
    split_hint,
)
from gpu.compiler.ir.index.text import parse_expr

__all__ = [
    "ALWAYS",
    "NEVER",
    "Atom",
    "Div",
    "Expr",
    "Mask",
    "Mod",
    "Operand",
    "Var",
    "at_least",
    "at_most",
    "between",
    "divides",
    "expr",
    "extremes",
    "iterations",
    "loop_var",
    "parse_expr",
    "parse_mask",
    "simplify_under",
    "split_hint",
]
