"""What a jitted function is called with and gives: tensors in nested lists, tuples and dicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gpu.compiler.ir.dims import (
    Symbol,
    any_symbols,
    find_symbols,
    is_symbolic,
    plain,
    upper_shape,
)
from gpu.compiler.ir.graph import Node, Shape
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import is_computed, parts_of, realize
from gpu.tensor.leafnodes import LEAF_NODES
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import JitError


class _StandIn(Buffer):
    """What an argument is while its function is watched: a buffer that never has memory."""

    __slots__ = ("refusal",)
    refusal: InvalidValue

    @property
    def memory(self) -> Any:
        """Raises what the stand-in was made with: nothing that depends on it can be computed."""
        raise self.refusal


def stand_in(tensor: Tensor, function: str) -> Node:
    """What an argument is while `function` is captured, which is its name."""
    refusal = without_value(f"the jitted {function}")
    parts = [stand_in_like(part, refusal) for part in parts_of(tensor._value)]
    if isinstance(tensor.device, str):
        return parts[0]
    return G.multi(parts, tensor._spread_layout, tensor.shape, tensor.device)


def without_value(function: str) -> JitError:
    """What is raised where the value of a tensor of `function` is asked for, which has none."""
    return JitError(
        f"a tensor made inside {function} was kept in another way than by returning it, so it has"
        " no value: return it, in lists, tuples and dicts, or, from a jitted function, assign() it"
        " to a tensor that was made and realized outside"
    )


def stand_in_like(node: Node, refusal: InvalidValue, shape: Shape | None = None) -> Node:
    """What a value of the form of `node`, or of another shape, is while a function is watched.

    `refusal` is raised by whoever asks for its value.
    """
    shape = node.shape if shape is None else shape
    handle = _StandIn(node.device, math.prod(upper_shape(shape)), node.dtype)
    handle.refusal = refusal
    return G.buffer(handle, shape, node.dtype, node.device)


def compute_arguments(arguments: list[Tensor], function: str) -> None:
    """Every argument in memory of its own shape, so that a replay can read it."""
    for tensor in arguments:
        node = tensor._node
        if node.kind == "buffer" or is_computed(node):
            continue
        if tensor._view is None:
            tensor.realize()
        if not is_computed(tensor._node):
            # A view, or another shape of memory that is there.
            had_gradient = tensor._has_gradient()
            (tensor._value,) = realize([G.contiguous(node)])
            if had_gradient:
                LEAF_NODES.note_replayed(tensor._value, function)


def sharing_of(arguments: list[Tensor]) -> tuple[int, ...]:
    """For each argument the number of the first one that shows elements of the same tensor."""
    bases = [id(t if t._view is None else t._view.base) for t in arguments]
    first: dict[int, int] = {}
    return tuple([first.setdefault(base, number) for number, base in enumerate(bases)])


def parts_in(value: Any) -> Iterator[Any]:
    """What lists, tuples and dicts have in them, level by level, and how many of it."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        yield len(value)
        for each in value:
            yield from parts_in(each)
    else:
        yield value


def form_of(value: Any, found: dict[int, Tensor], symbols: dict[str, Symbol]) -> Any:
    """The form of arguments: their structure, with each tensor once in `found`, by its id.

    The variables of symbolic sizes and numbers are added to `symbols`.
    """
    if isinstance(value, Tensor):
        if id(value) in found:
            return ("same", list(found).index(id(value)))
        found[id(value)] = value
        grad = None if value._grad is None else form_of(value._grad, found, symbols)
        node = value._value
        shape, device = node.shape, node.device
        if any_symbols():
            find_symbols(shape, symbols)
            shape = plain(shape)
        layout = None if isinstance(device, str) else value._spread_layout
        return (shape, node.dtype, device, layout, value._requires_grad, grad)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *[form_of(v, found, symbols) for v in value])
    if isinstance(value, dict):
        return ("dict", *((k, form_of(v, found, symbols)) for k, v in value.items()))
    if is_symbolic(value):
        find_symbols(value, symbols)
        return ("symbolic", plain(value))
    try:
        hash(value)
    except TypeError as error:
        raise JitError(
            f"a jitted function cannot take {type(value).__name__} {value!r}: pass tensors, "
            "numbers, strings, and lists, tuples and dicts of them"
        ) from error
    if isinstance(value, float):  # equality takes -0.0 for 0.0, and tells a NaN from itself
        return (type(value), repr(value))
    return (type(value), value)


def tensors_in(value: Any) -> Iterable[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with each tensor in its lists, tuples and dicts changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        made = [map_tensors(v, change) for v in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {k: map_tensors(v, change) for k, v in value.items()}
    return value


def form_in_words(value: Any) -> str:
    """Nested tensors in words."""
    if isinstance(value, Tensor):
        return f"{value.dtype.code}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {form_in_words(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(form_in_words, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return repr(value)
