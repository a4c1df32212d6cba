"""`gpu.checkpoint`: activation checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gpu.core.errors import InvalidType
from gpu.tensor.func.trees import leaves_of, with_nodes
from gpu.tensor.recompute import recomputed
from gpu.tensor.tensor import Tensor


def checkpoint(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, whose intermediate values are computed again in backward instead of being kept.

    Its arguments and results are kept. A chain of n layers cut into pieces of about sqrt(n), each
    of which is checkpointed, needs memory for about 2 sqrt(n) activations instead of n, for one
    more forward pass (T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    Gradients, of parameters in closures too, and random numbers are those of `fun` itself, which
    is called once. Values that `fun` reads without having them as arguments, and that are neither
    parameters nor in memory yet, are computed again with it. `checkpoint` nests, and works inside
    and outside of `gpu.jit`.

    Args:
        fun: a function or layer that gives a tensor, or tensors in tuples, lists and dicts.

    Raises:
        InvalidType: `fun` is not callable, or (the function that is returned) a result is no
            tensor.

    >>> import gpu
    >>> x = gpu.Tensor([0.0, 1.0], requires_grad=True)
    >>> _ = gpu.checkpoint(lambda x: (x * x).exp() * x)(x).sum().backward()
    >>> x.grad.numpy().round(4).tolist()
    [1.0, 8.154800415039062]
    """
    if not callable(fun):
        raise InvalidType(
            f"checkpoint takes a function or layer, got {type(fun).__name__} {fun!r}: write"
            " gpu.checkpoint(f)(x)"
        )

    @wraps(fun, updated=())  # a layer's parameters stay its own
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        result = fun(*args, **kwargs)
        nodes = []
        for leaf in leaves_of(result):
            if not isinstance(leaf, Tensor):
                raise InvalidType(
                    f"a checkpointed function gives tensors in tuples, lists and dicts; this one"
                    f" gave {type(leaf).__name__} {leaf!r}"
                )
            nodes.append(leaf._node)
        given = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Tensor)]
        return with_nodes(result, recomputed(nodes, [tensor._node for tensor in given]))

    return checkpointed
