"""A graph of torch's in stages, by turns run in torch and by programs of ours.

Random operations run in torch, one after the other, with its generator; so does what has no row in
the table. All else is ours. Each operation is in the first stage in which what it needs is there,
so that there are as few stages as can be.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from gpu.torch.table import ROWS, overload
from gpu.torch.types import OURS

_DROPOUT: Final = overload("native_dropout")
ATTENTION: Final = overload("_scaled_dot_product_flash_attention_for_cpu")
# Torch's takes sums that ours does not make.
ATTENTION_BACKWARD: Final = overload("_scaled_dot_product_flash_attention_for_cpu_backward")


def dropout_mask(sizes: Sequence[int], p: float) -> torch.Tensor:
    """Which elements a dropout keeps: drawn as torch draws them."""
    return torch.empty(tuple(sizes), dtype=torch.bool).bernoulli_(1 - p)


def dropped(x: Any, mask: Any, p: float) -> tuple[Any, Any]:
    """The row of a dropout whose mask is drawn."""
    return mask.where(x * (1 / (1 - p) if p < 1 else 0.0), 0), mask


class Stage(NamedTuple):
    """Operations that run together.

    Attributes:
        is_torchs: whether torch runs them.
        nodes: the operations in order.
        takes: nodes of tensors from elsewhere that they need.
        gives: nodes of theirs that are needed elsewhere.
    """

    is_torchs: bool
    nodes: tuple[fx.Node, ...]
    takes: tuple[fx.Node, ...]
    gives: tuple[fx.Node, ...]


def is_size(node: fx.Node) -> bool:
    """Whether a node gives a number, which is computed where it is needed."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat,
                                             torch.SymBool))  # fmt: skip


def values_of(node: fx.Node) -> list[Any]:
    """What torch says of the result or results of a node."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, (tuple, list)) else [value]


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    if node.target is dropout_mask:
        return True
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    # Of these two there are some that drop nothing out.
    return node.target is not _DROPOUT and (node.target is not ATTENTION or bool(_dropout(node)))


def _dropout(node: fx.Node) -> Any:
    """The share of weights that attention drops out, behind queries, keys and values."""
    return (*node.args, node.kwargs.get("dropout_p", 0.0))[3]


def draw_masks(graph: fx.Graph) -> None:
    """Has masks of dropouts drawn by operations of their own, which need no value."""
    for node in graph.find_nodes(op="call_function", target=_DROPOUT):
        x, p, train = (*node.args, None)[:3]
        with graph.inserting_before(node):
            if train is False or not p:
                continue
            value = x.meta["val"]
            mask = graph.call_function(dropout_mask, (_sizes(graph, x), p))
            mask.meta["val"] = value.new_empty(value.shape, dtype=torch.bool)
            both = graph.call_function(dropped, (x, mask, p))
            both.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(both)
        graph.erase_node(node)


def _sizes(graph: fx.Graph, x: fx.Node) -> list[Any]:
    """The sizes of a tensor: numbers, or nodes that give them."""
    sizes: list[Any] = []
    for axis, size in enumerate(x.meta["val"].shape):
        if isinstance(size, int):
            sizes.append(size)
        else:
            node = graph.call_function(overload("sym_size.int"), (x, axis))
            node.meta["val"] = size
            sizes.append(node)
    return sizes


def why_torch(node: fx.Node, refused: dict[fx.Node, str]) -> str | None:
    """Why a node runs in torch, for a warning; "" for what has to, None for what is ours."""
    if is_random(node):
        return ""
    if node in refused:
        return refused[node]
    if node.target is dropped:
        return None
    if node.target not in ROWS:
        return "there is no row for it"
    inputs = [value for each in node.all_input_nodes for value in values_of(each)]
    for value in (*inputs, *values_of(node)):
        if isinstance(value, torch.Tensor) and value.dtype not in OURS:
            return f"there is no dtype for {value.dtype}"
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            return f"its layout is {value.layout}"
        if isinstance(value, torch.Tensor) and _depends_on_values(value):
            return "a shape depends on values"
    return None


def _depends_on_values(value: torch.Tensor) -> bool:
    """Whether a size is known only when the graph runs."""
    return any(isinstance(size, torch.SymInt) and has_unknown(size) for size in (*value.shape,))


def has_unknown(size: torch.SymInt) -> bool:
    """Whether a symbolic size is that of what torch finds by looking at values."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(size))


def stages_of(
    graph: fx.Graph, why: Callable[[fx.Node], str | None]
) -> tuple[list[Stage], dict[fx.Node, str]]:
    """The stages of a graph, and why torch runs those operations that it need not."""
    level: dict[fx.Node, int] = {}
    reasons: dict[fx.Node, str] = {}
    members: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        before = max((level.get(each, 0) for each in node.all_input_nodes), default=0)
        if is_size(node) and node.target is not overload("_local_scalar_dense"):
            level[node] = before
            continue
        if _takes_part(node):
            level[node] = level[node.args[0]]
        else:
            reason = why(node)
            if reason:
                reasons[node] = reason
            # Even stages are torch's.
            is_odd = reason is None
            level[node] = before if before % 2 == is_odd else before + 1
        members.setdefault(level[node], []).append(node)
    return [
        Stage(number % 2 == 0, tuple(nodes), tuple(_takes(nodes)), tuple(_gives(nodes)))
        for number, nodes in sorted(members.items())
    ], reasons


def _takes_part(node: fx.Node) -> bool:
    """Whether a node is one of several results of another."""
    return node.target is operator.getitem


def _needs(node: fx.Node) -> Iterable[fx.Node]:
    """The nodes of tensors that a node needs, also for sizes."""
    for each in node.all_input_nodes:
        if is_size(each) and each.op == "call_function":
            yield from _needs(each)
        else:
            yield each


def _takes(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    found = dict.fromkeys(need for node in nodes for need in _needs(node))
    return [node for node in found if node not in inside]


def _gives(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    return [node for node in nodes if _is_needed(node, inside)]


def _is_needed(node: fx.Node, inside: set[fx.Node]) -> bool:
    return any(
        _is_needed(user, inside) if is_size(user) else user not in inside for user in node.users
    )
