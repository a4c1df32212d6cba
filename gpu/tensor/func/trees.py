"""Trees of tensors: what functions take and give, in nested tuples, lists and dicts.

Whatever is no tuple, list or dict is a leaf; None has no leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gpu.compiler.ir.graph import Node
from gpu.core.errors import InvalidType
from gpu.tensor.callforms import form_in_words
from gpu.tensor.tensor import Tensor

_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a tree, in order."""
    parts = _parts(tree)
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves_of(part)]


def with_leaves(tree: Any, leaves: Iterable[Any]) -> Any:
    """A tree of the same form with other leaves, given in order."""
    return _rebuilt(tree, iter(leaves))


def with_nodes(tree: Any, nodes: Iterable[Node]) -> Any:
    """A tree of the same form with tensors of `nodes`."""
    return with_leaves(tree, map(Tensor._wrap, nodes))


def aligned(tree: Any, like: Any, name: str, is_prefix: bool = False) -> list[Any]:
    """What `tree` has in the place of each leaf of `like`.

    A leaf in the place of a whole tree counts for all leaves of that if `is_prefix`. Raises
    InvalidType where the forms differ; `name` says what `tree` is.
    """
    parts = _parts(like)
    if parts is None:
        return [tree]
    if is_prefix and not isinstance(tree, (tuple, list, dict)):
        return [tree] * len(leaves_of(like))
    keys = like.keys() if isinstance(like, dict) else None
    own = tree.keys() if isinstance(tree, dict) else None
    others = _parts(tree)
    if keys != own or others is None or len(others) != len(parts):
        raise InvalidType(
            f"{name} is {form_in_words(tree)} where {form_in_words(like)} is expected"
        )
    if keys is not None:
        others = [tree[key] for key in keys]
    return [
        leaf
        for part, other in zip(parts, others, strict=True)
        for leaf in aligned(other, part, name, is_prefix)
    ]


def tensor_of(leaf: Any, name: str) -> Tensor:
    """A leaf that has to be a tensor, a number or an array of numpy's. Raises InvalidType."""
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, _NUMBERS):
        return Tensor(leaf)
    raise InvalidType(
        f"{name} has {type(leaf).__name__} {leaf!r}: expected tensors and numbers, in tuples, lists"
        " and dicts"
    )


def _parts(tree: Any) -> list[Any] | None:
    """What a tuple, list or dict has in it, nothing for None; None for a leaf."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if isinstance(tree, (tuple, list)) else None


def _rebuilt(tree: Any, leaves: Iterator[Any]) -> Any:
    parts = _parts(tree)
    if parts is None:
        return next(leaves)
    made = [_rebuilt(part, leaves) for part in parts]
    if tree is None:
        return None
    if isinstance(tree, dict):
        return dict(zip(tree, made, strict=True))
    return type(tree)(*made) if hasattr(tree, "_fields") else type(tree)(made)
