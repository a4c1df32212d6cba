"""Derivatives of functions: `grad`, `value_and_grad`, `vjp` and `jvp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from gpu.compiler.ir.graph import build as G
from gpu.core.errors import DTypeError, InvalidType, ShapeError
from gpu.tensor.callforms import form_in_words
from gpu.tensor.func.evaluation import Argnums, directions, evaluate
from gpu.tensor.func.traces import name_of
from gpu.tensor.func.trees import with_nodes
from gpu.tensor.tensor import Tensor


def grad(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of `fun`, which gives one real number, with respect to some arguments.

    Args:
        fun: a function of tensors in tuples, lists and dicts, which gives a 0-d tensor.
        argnums: with respect to which positional arguments. Of a number, the gradient has the form
            of that argument, of several it is a tuple.
        has_aux: `fun` gives a pair of which the second, in any form, is given back beside the
            gradient and not differentiated.

    Of a complex argument it is the derivative by its real part plus i times that by its imaginary
    part, as torch's.

    Raises (the function that is returned):
        InvalidIndex: there is no such argument.
        InvalidType: an argument, or the result, is no tensor or number.
        DTypeError: an argument is not of floats or complex numbers, or the result not of floats.
        ShapeError: the result is not 0-d.
        InvalidValue: `fun` writes to a tensor from outside.

    >>> from gpu import Tensor, func
    >>> func.grad(lambda x: x.sin())(Tensor(0.0)).item()
    1.0
    """
    name = name_of("grad", fun)

    @wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        _, aux, grads = _differentiated(fun, args, kwargs, argnums, has_aux, name)
        return (grads, aux) if has_aux else grads

    return gradient


def value_and_grad(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `grad`, but gives a pair: what `fun` gives, and the gradient.

    >>> from gpu import Tensor, func
    >>> value, slope = func.value_and_grad(lambda x: x * x)(Tensor(3.0))
    >>> value.item(), slope.item()
    (9.0, 6.0)
    """
    name = name_of("value_and_grad", fun)

    @wraps(fun)
    def both(*args: Any, **kwargs: Any) -> Any:
        value, aux, grads = _differentiated(fun, args, kwargs, argnums, has_aux, name)
        return ((value, aux) if has_aux else value), grads

    return both


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """What `fun` gives at `primals`, and the function of products with its transposed Jacobian.

    That takes what has the form of the result, and gives a tuple of what has that of each primal.

    Args:
        fun: a function of tensors in tuples, lists and dicts, which gives such.
        primals: its arguments.
        has_aux: `fun` gives a pair of which the second is given back as a third value.

    Raises as `grad`; the function too where what it is given is not of the form, the shapes and the
    dtypes of the result. For a result that is not of floats it takes anything, which counts for
    nothing.

    >>> from gpu import Tensor, func
    >>> value, pull = func.vjp(lambda x, y: x * y, Tensor(2.0), Tensor(3.0))
    >>> [each.item() for each in pull(Tensor(1.0))]
    [3.0, 2.0]
    """
    name = name_of("vjp", fun)
    point = evaluate(fun, primals, {}, range(len(primals)), has_aux, name)

    def pull(cotangents: Any) -> Any:
        seeds = directions(cotangents, point.result, f"the cotangents of {name}")
        return with_nodes(point.arguments, point.pulled_back(seeds))

    return (point.result, pull, point.aux) if has_aux else (point.result, pull)


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """What `fun` gives at `primals`, and its derivative there in the direction of `tangents`.

    Args:
        fun: a function of tensors in tuples, lists and dicts, which gives such.
        primals: its arguments, as a tuple or list.
        tangents: the direction, of the same form, shapes and dtypes.
        has_aux: `fun` gives a pair of which the second is given back as a third value.

    The derivative of what is not of floats is 0. Raises as `grad`, and InvalidType, ShapeError and
    DTypeError where the tangents do not fit the primals.

    >>> from gpu import Tensor, func
    >>> value, slope = func.jvp(lambda x: x * x, (Tensor(3.0),), (Tensor(1.0),))
    >>> value.item(), slope.item()
    (9.0, 6.0)
    """
    name = name_of("jvp", fun)
    for what, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise InvalidType(f"{what} of {name} are a tuple or list, got {given!r}")
    point = evaluate(fun, tuple(primals), {}, range(len(primals)), has_aux, name)
    moves = directions(tuple(tangents), point.arguments, f"the tangents of {name}")
    pushed = with_nodes(point.result, point.forward().pushed(moves))
    return (point.result, pushed, point.aux) if has_aux else (point.result, pushed)


def _differentiated(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Argnums,
    has_aux: bool,
    name: str,
) -> tuple[Any, Any, Any]:
    """What `fun` gives, what beside that, and the gradient."""
    point = evaluate(fun, args, kwargs, argnums, has_aux, name)
    value = point.result
    if not isinstance(value, Tensor):
        raise InvalidType(
            f"{name}: the function gives {form_in_words(value)}, and a gradient is that of one"
            " number: with has_aux=True it may give a pair, of which only the first is"
            " differentiated"
        )
    if not value.dtype.is_float:
        raise DTypeError(
            f"{name}: the function gives {value.dtype.name}, and a gradient is that of a real"
            " number: take .real, .imag or .abs(), or use vjp"
        )
    if value.shape:
        raise ShapeError(
            f"{name}: the function gives the shape {list(value.shape)}, and a gradient is that of"
            " one number: sum() it, or use jacrev or vjp"
        )
    seed = G.const(1.0, (), value.dtype, value.device)
    return value, point.aux, with_nodes(point.arguments, point.pulled_back([seed]))
