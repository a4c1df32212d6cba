"""A function called once to be differentiated: its graph at a point, in both directions.

The function is given nodes of its own for its arguments, which have their values, and gradients
end there. A forward derivative is the reverse one of the reverse one: what a cotangent is pulled
back to is linear in it, and the transpose of that is the Jacobian itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from gpu.compiler.ir.derivative import has_gradient
from gpu.compiler.ir.graph import Node
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.node import place
from gpu.core.errors import DeviceMismatch, DTypeError, InvalidIndex, InvalidType, ShapeError
from gpu.tensor import customgrad
from gpu.tensor.arguments import integer
from gpu.tensor.autodiff import pulled_back
from gpu.tensor.callforms import form_in_words, map_tensors, tensors_in
from gpu.tensor.func.traces import DerivativeTrace
from gpu.tensor.func.trees import aligned, leaves_of, tensor_of, with_nodes
from gpu.tensor.nograd import recorded
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import active, tracing_inside

Argnums: TypeAlias = int | Sequence[int]


class Forward(NamedTuple):
    """The derivative of a function at a point, as a function of a direction.

    Attributes:
        cotangents: a zero for each result, which is no other node's.
        grads: what they are pulled back to, for each argument.
    """

    cotangents: list[Node]
    grads: list[Node]

    def pushed(self, tangents: Sequence[Node | None]) -> list[Node]:
        """The derivative of each result in a direction, which is 0 where there is None."""
        return _pulled(self.grads, tangents, self.cotangents)


class Evaluation(NamedTuple):
    """What a function computed.

    Attributes:
        arguments: those that it is differentiated by; of one number in `argnums` that, else a
            tuple.
        result: what it gave.
        aux: what it gave beside that.
    """

    arguments: Any
    result: Any
    aux: Any

    def pulled_back(self, cotangents: Sequence[Node | None]) -> list[Node]:
        """The gradient by each argument, for those of the results: None is 0."""
        return _pulled(_nodes(self.result), cotangents, _nodes(self.arguments))

    def forward(self) -> Forward:
        """Its derivative, for directions."""
        zeros = [
            customgrad.own(G.const(0, node.shape, node.dtype, node.device))
            for node in _nodes(self.result)
        ]
        return Forward(zeros, self.pulled_back(zeros))


def evaluate(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Argnums,
    has_aux: bool,
    name: str,
) -> Evaluation:
    """Calls `fun` to differentiate it by some of its arguments.

    Raises what `gpu.func.grad` says of arguments; `name` is that of the transform.
    """
    numbers = _numbers(argnums, len(args), name)
    with tracing_inside(DerivativeTrace(name, active())), recorded():
        own = {number: _own(args[number], f"argument {number} of {name}") for number in numbers}
        result = fun(*(own.get(number, value) for number, value in enumerate(args)), **kwargs)
        aux = None
        if has_aux:
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise InvalidType(
                    f"{name}: with has_aux=True the function gives a pair, what is differentiated"
                    f" and what is not; it gave {form_in_words(result)}"
                )
            result, aux = result
        outputs = [tensor_of(leaf, f"what {name} gives")._node for leaf in leaves_of(result)]
        beside = [tensor._node for tensor in tensors_in(aux)]
    # Tensors of what is around: those above are of the trace.
    others = iter(beside)
    arguments = tuple(own[number] for number in numbers)
    return Evaluation(
        arguments if isinstance(argnums, Sequence) else arguments[0],
        with_nodes(result, outputs),
        map_tensors(aux, lambda _: Tensor._wrap(next(others))),
    )


def _numbers(argnums: Argnums, count: int, name: str) -> list[int]:
    """Which of so many positional arguments are meant."""
    named = argnums if isinstance(argnums, Sequence) else (argnums,)
    numbers = [integer(number, f"argnums of {name}") for number in named]
    for number in numbers:
        if not -count <= number < count:
            raise InvalidIndex(
                f"argnums of {name} has {number}, and it was called with {count} arguments by"
                " position"
            )
    return [number % count for number in numbers]


def directions(tree: Any, like: Any, name: str) -> list[Node | None]:
    """The nodes of tangents or cotangents of `like`; None where that is not of floats.

    Raises InvalidType, ShapeError, DTypeError and DeviceMismatch where they do not fit.
    """
    pairs = zip(aligned(tree, like, name), leaves_of(like), strict=True)
    return [_direction(given, tensor, name) for given, tensor in pairs]


def _direction(given: Any, like: Tensor, name: str) -> Node | None:
    if not has_gradient(like.dtype):
        return None
    own = tensor_of(given, name)
    if not isinstance(given, Tensor):
        own = Tensor(given, dtype=like.dtype, device=like.device)
    if own.shape != like.shape:
        raise ShapeError(
            f"{name} have one of shape {list(own.shape)} for a tensor of shape {list(like.shape)}:"
            " expected the same"
        )
    if own.dtype is not like.dtype:
        raise DTypeError(
            f"{name} have one of {own.dtype.name} for a tensor of {like.dtype.name}: cast it"
        )
    if own.device != like.device:
        raise DeviceMismatch(
            f"{name} have one on {place(own.device)} for a tensor on {place(like.device)}: move it"
        )
    return own._node


def _own(argument: Any, name: str) -> Any:
    """An argument to differentiate by, of nodes of its own."""
    nodes = []
    for leaf in leaves_of(argument):
        tensor = tensor_of(leaf, name)
        if not has_gradient(tensor.dtype):
            raise DTypeError(
                f"{name} is {tensor.dtype.name}, and derivatives are by floats and complex numbers:"
                " pass x.float(), or leave it out of argnums"
            )
        nodes.append(customgrad.argument(G.cast(tensor._node, tensor.dtype.element)))
    return with_nodes(argument, nodes)


def _nodes(tree: Any) -> list[Node]:
    return [tensor._value for tensor in leaves_of(tree)]


def _pulled(
    results: Sequence[Node], cotangents: Sequence[Node | None], targets: Sequence[Node]
) -> list[Node]:
    """Gradients, with zeros where there are none; a node may be several results."""
    seeds: dict[Node, Node] = {}
    for node, seed in zip(results, cotangents, strict=True):
        if seed is not None and has_gradient(node.dtype):
            seeds[node] = G.alu("add", seeds[node], seed) if node in seeds else seed
    return [
        G.const(0, target.shape, target.dtype, target.device) if grad is None else grad
        for target, grad in zip(targets, pulled_back(seeds, targets), strict=True)
    ]
