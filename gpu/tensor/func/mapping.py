"""`vmap`: a function of one example, for many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, NamedTuple

from gpu.compiler.ir.dims import Dim, upper
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.core.errors import InvalidValue, ShapeError
from gpu.tensor.arguments import axis_of, choice, size_of
from gpu.tensor.callforms import stand_in_like
from gpu.tensor.checks import check_positions
from gpu.tensor.func.batching import Batch
from gpu.tensor.func.traces import ExampleTrace, name_of
from gpu.tensor.func.trees import aligned, leaves_of, tensor_of, with_leaves
from gpu.tensor.randomness import next_state
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import active, tracing_inside

_RANDOMNESS: Final = ("error", "different", "same")


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | None = None,
    randomness: str = "error",
) -> Callable[..., Any]:
    """`fun`, which is written for one example, as a function of many at once.

    `fun` is called once, with tensors that stand for one example; what it computes of them is then
    computed for all, without a loop.

    Args:
        fun: a function of tensors in tuples, lists and dicts, which gives such.
        in_axes: along which axis of each argument the examples lie; None for an argument, of any
            kind, that is the same in all. A tuple has one for each positional argument: a number,
            None, or a tree of them in the form of the argument or of what is at the top of it.
            Arguments by name have their examples along axis 0.
        out_axes: along which axis of each result they are to lie, in the same way; None for a
            result that is the same in all.
        axis_size: how many examples there are, where no argument tells.
        randomness: whether random numbers drawn by `fun` are "different" in each example or the
            "same" in all; "error" allows none.

    Raises (the function that is returned):
        InvalidType: what is mapped, or given back, is no tensor or number; `in_axes` or `out_axes`
            are not of the form of the arguments or results.
        InvalidIndex: a tensor has no such axis.
        ShapeError: arguments differ in how many examples they have.
        InvalidValue: no argument is mapped; `fun` reads a value, writes to a tensor from outside or
            draws random numbers; a result for which `out_axes` is None differs.
        Unsupported: `fun` does what has no rule.

    >>> from gpu import Tensor, func
    >>> func.vmap(lambda a, b: (a * b).sum(), in_axes=(0, None))(Tensor([[1, 2], [3, 4]]),
    ...     Tensor([5, 6])).tolist()
    [17, 39]
    """
    choice(randomness, "randomness", _RANDOMNESS)
    name = name_of("vmap", fun)

    @wraps(fun)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        trace = ExampleTrace(name, active(), randomness)
        with tracing_inside(trace):
            inputs = _inputs(args, kwargs, in_axes, trace)
            size = _size(inputs, axis_size, name)
            own, named = with_leaves((args, kwargs), [each.inside for each in inputs])
            result = fun(*own, **named)
            nodes = [tensor_of(leaf, f"what {name} gives")._node for leaf in leaves_of(result)]
        axes = aligned(out_axes, result, f"out_axes of {name}", is_prefix=True)
        batch = _computed(nodes, inputs, size, trace)
        placed = [_placed(node, axis, batch, name) for node, axis in zip(nodes, axes, strict=True)]
        return with_leaves(result, placed)

    return mapped


def _computed(nodes: list[Node], inputs: list[_Input], size: Dim, trace: ExampleTrace) -> Batch:
    """What `nodes` are for all examples, of which the positions are looked at."""
    differing = {each.stand_in: each.examples for each in inputs if each.stand_in is not None}
    for state, counter, words in trace.random:
        assert isinstance(state.device, str)
        differing[state] = next_state(state.device, upper(size) * words, counter)
    batch = Batch(size, differing)
    batch.compute([*nodes, *(positions._value for positions, _ in trace.checks)])
    for positions, allowed in trace.checks:
        check_positions(Tensor._wrap(batch.of(positions._value)), allowed)
    return batch


class _Input(NamedTuple):
    """A leaf of the arguments.

    Attributes:
        inside: what the function is given.
        where: which argument it is of.
        stand_in: what stands for an example; None for what is the same in all.
        examples: all of them, along the first axis.
    """

    inside: Any
    where: str
    stand_in: Node | None = None
    examples: Any = None


def _inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any, trace: ExampleTrace
) -> list[_Input]:
    call = (args, kwargs)
    axes = aligned((in_axes, 0), call, f"in_axes of {trace.name}", is_prefix=True)
    arguments = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
    places = [f"argument {key}" for key, value in arguments.items() for _ in leaves_of(value)]
    return [_input(*each, trace) for each in zip(leaves_of(call), axes, places, strict=True)]


def _input(leaf: Any, axis: Any, where: str, trace: ExampleTrace) -> _Input:
    if axis is None:
        return _Input(leaf, where)
    tensor = tensor_of(leaf, f"{where} of {trace.name}")
    node = G.cast(tensor._node, tensor.dtype.element)
    first = axis_of(axis, len(node.shape), f"in_axes of {trace.name}, for {where}:")
    examples = G.permute(node, (first, *(a for a in range(len(node.shape)) if a != first)))
    stand_in = stand_in_like(examples, trace.without_value(), examples.shape[1:])
    return _Input(Tensor._wrap(stand_in), where, stand_in, examples)


def _size(inputs: Sequence[_Input], axis_size: Dim | None, name: str) -> Dim:
    """How many examples there are."""
    sizes = {} if axis_size is None else {size_of(axis_size, "axis_size"): "axis_size"}
    for each in inputs:
        if each.stand_in is not None:
            sizes.setdefault(each.examples.shape[0], each.where)
    if not sizes:
        raise InvalidValue(
            f"{name} maps no argument: in_axes has None for all, or there is none; say how many"
            " examples there are by axis_size="
        )
    if len(sizes) > 1:
        told = ", ".join(f"{size} along that of {where}" for size, where in sizes.items())
        raise ShapeError(f"{name} needs as many examples in each mapped argument: {told}")
    return next(iter(sizes))


def _placed(node: Node, axis: Any, batch: Batch, name: str) -> Tensor:
    """A result with its examples along `axis`."""
    if axis is None:
        if batch.differs(node):
            raise InvalidValue(
                f"out_axes of {name} is None for a result that differs between examples: say"
                " along which axis they are to lie"
            )
        return Tensor._wrap(node)
    value = batch.of(node)
    rank = len(value.shape)
    place = axis_of(axis, rank, f"out_axes of {name}")
    order = [*range(1, rank)]
    order.insert(place, 0)
    return Tensor._wrap(G.permute(value, order))
