"""Names that others have for the keywords of methods here, and torch's further names of methods.

``x.sum(dim=1)`` means ``x.sum(axis=1)``. One table says which method takes which name; the methods
are wrapped once, when the class is made. A call without keywords costs one test more. Signatures
and type checkers know the names of this package only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

from gpu.core.errors import InvalidType

# (torch's name, the name here): the methods. A name with a star takes what else is positional.
_GROUPS: Final = {
    ("dim", "axis"): (
        "all any argmax argmin cummax cummin cumprod cumsum layernorm log_softmax logcumsumexp "
        "logsumexp max mean min prod softmax softmin std std_mean sum var var_mean"
    ),
    ("dims", "axis"): "flip",
    ("dims", "order"): "permute",
    ("other", "x"): (
        "add bitwise_and bitwise_or bitwise_xor div eq fmod ge gt le lshift lt matmul maximum "
        "minimum mod mul ne rshift sub"
    ),
    ("exponent", "x"): "pow",
    ("tensor", "w"): "dot",
    ("unbiased", "correction"): "std std_mean var var_mean",
    ("input", "x"): "where",
    ("other", "y"): "where",
    ("min", "min_"): "clamp clamp_min clip",
    ("max", "max_"): "clamp clamp_max clip",
    ("negative_slope", "neg_slope"): "leaky_relu",
    ("sorted", "sorted_"): "topk unique",
    ("split_size", "sizes"): "split",
    ("dimension", "dim"): "unfold",
    ("value", "src"): "scatter",
    ("pad", "padding"): "pad",
    ("target", "Y"): (
        "binary_crossentropy binary_crossentropy_logits cross_entropy nll_loss "
        "sparse_categorical_crossentropy"
    ),
    ("equation", "formula"): "einsum",
    ("end", "stop"): "arange linspace logspace",
    ("size", "shape"): "expand full view",
    ("size", "*shape"): (
        "empty glorot_uniform kaiming_normal kaiming_uniform normal ones rand randint randn "
        "scaled_uniform uniform zeros"
    ),
}


# The same for numpy's names.
_NUMPY_GROUPS: Final = {
    ("keepdims", "keepdim"): (
        "all amax amin any argmax argmin count_nonzero max mean median min nanmean nansum prod "
        "std sum var"
    ),
    ("ddof", "correction"): "std var",
    ("axis", "dim"): (
        "amax amin argsort chunk count_nonzero diff nanmean nansum repeat_interleave sort split "
        "squeeze take_along_dim trapezoid unique unsqueeze"
    ),
}
# Methods that torch has under two names: the other one, and that here.
ALIASES: Final = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctanh": "atanh", "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift", "concat": "cat", "concatenate": "cat",
    "conj_physical": "conj", "divide": "div", "fix": "trunc", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "multiply": "mul",
    "narrow_copy": "narrow", "negative": "neg", "not_equal": "ne", "positive": "__pos__",
    "remainder": "mod", "row_stack": "vstack", "split_with_sizes": "split", "subtract": "sub",
    "trapz": "trapezoid", "true_divide": "div",
}  # fmt: skip


def _by_method(groups: Mapping[tuple[str, str], str]) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for (theirs, ours), methods in groups.items():
        for method in methods.split():
            table.setdefault(method, {})[theirs] = ours
    return table


# For each method, torch's names of keywords and ours.
SYNONYMS: Final = _by_method(_GROUPS)
# For each method, numpy's names of keywords and ours.
NUMPY_SYNONYMS: Final = _by_method(_NUMPY_GROUPS)

C = TypeVar("C", bound=type[Any])


def accepts_torch_keywords(cls: C) -> C:
    """Makes methods, also those a class inherits, take torch's and numpy's names of keywords.

    And gives the class torch's further names of methods.
    """
    for name in SYNONYMS | NUMPY_SYNONYMS:
        names = SYNONYMS.get(name, {}) | NUMPY_SYNONYMS.get(name, {})
        found = next(base.__dict__[name] for base in cls.__mro__ if name in base.__dict__)
        if isinstance(found, classmethod | staticmethod):
            setattr(cls, name, type(found)(_renaming(found.__func__, names)))
        else:
            setattr(cls, name, _renaming(found, names))
    for alias, name in ALIASES.items():
        setattr(cls, alias, getattr(cls, name))
    return cls


def _renaming(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs and not names.keys().isdisjoint(kwargs):
            args, kwargs = _renamed(function.__name__, names, args, kwargs)
        return function(*args, **kwargs)

    return call


def _renamed(
    method: str, names: Mapping[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments under the names here. Raises InvalidType where one is given under both."""
    known = dict(kwargs)
    for theirs in names.keys() & kwargs.keys():
        ours, value = names[theirs], known.pop(theirs)
        if ours.startswith("*"):
            args = (*args, value)
        elif ours in kwargs:
            raise InvalidType(f"{method} got {theirs} and {ours}, which mean the same; pass one")
        else:
            known[ours] = value
    return args, known
