"""`Module`: what layers have in common, and a base for models that are written as in torch.

It is optional: any object that can be called is a layer, and `nn.state` finds the tensors it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from gpu.core.dtype import DType, dtypes, to_dtype
from gpu.core.errors import DTypeError, Unsupported
from gpu.tensor.nn.state import (
    found_in,
    get_parameters,
    get_state_dict,
    load_state_dict,
    parts_of,
)
from gpu.tensor.tensor import Tensor


def _no_forward(self: object, *args: object, **kwargs: object) -> Any:
    raise Unsupported(f"{type(self).__name__} has no method forward, which a call of it needs")


class Module:
    """A function with tensors of its own: a subclass has `forward`, which calling it calls.

    Attributes:
        training: what `Tensor.training` is set to while `forward` runs; None, as it is before
            `train` or `eval`, to leave it.

    >>> from gpu import Tensor, nn
    >>> class Model(nn.Module):
    ...     def __init__(self):
    ...         self.hidden, self.scores = nn.Linear(4, 8), nn.Linear(8, 2)
    ...
    ...     def forward(self, x):
    ...         return self.scores(self.hidden(x).relu())
    >>> model = Model().eval()
    >>> model(Tensor.ones(3, 4)).shape, sorted(model.state_dict())[:2]
    ((3, 2), ['hidden.bias', 'hidden.weight'])
    """

    training: bool | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `forward` returns."""
        if self.training is None or self.training == Tensor.training:
            return self.forward(*args, **kwargs)
        with Tensor.train(self.training):
            return self.forward(*args, **kwargs)

    # A variable, since a subclass has the arguments and the result that it needs.
    forward: Callable[..., Any] = _no_forward

    def parameters(self) -> list[Tensor]:
        """The tensors that it holds, each once, as `nn.state.get_parameters` finds them.

        Also those that no gradient changes, as the statistics of a `BatchNorm`, which an optimiser
        computes along with the others.
        """
        return get_parameters(self)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The same with their names; a tensor that has several is there as often."""
        yield from get_state_dict(self).items()

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors that it holds, by name: `nn.state.get_state_dict`."""
        return get_state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        """Gives its tensors the values of a state dict: see `nn.state.load_state_dict`."""
        load_state_dict(self, state_dict, strict)

    def modules(self) -> Iterator[Module]:
        """This module and those in it, each once."""
        yield from (module for _, module in self.named_modules())

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """The same with their dotted names; its own is ""."""
        seen: set[int] = set()
        for name, module in found_in(self, Module):
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of it."""
        yield from (module for _, module in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The same with their names."""
        yield from ((name, part) for name, part in parts_of(self) if isinstance(part, Module))

    def apply(self, fn: Callable[[Module], object]) -> Self:
        """Calls `fn` with every module in it, itself last."""
        for module in reversed(list(self.modules())):
            fn(module)
        return self

    def train(self, mode: bool = True) -> Self:
        """Sets `training` of this module and of those in it."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Says of each of its float tensors whether gradients are formed for it."""
        for tensor in self.parameters():
            if tensor.dtype.is_float:
                tensor.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Forgets the gradients of its tensors."""
        for tensor in self.parameters():
            tensor.grad = None

    def to(self, where: str | DType | None = None, dtype: DType | str | None = None) -> Self:
        """Brings its tensors to a device, or those of floats to a dtype, or both.

        Raises DTypeError for a dtype that is not of floats.
        """
        if isinstance(where, DType):
            where, dtype = None, where
        wanted = None if dtype is None else to_dtype(dtype)
        if wanted is not None and not wanted.is_float:
            raise DTypeError(f"layers have tensors of floats, got {wanted.name}; take float32")
        for tensor in self.parameters():
            if wanted is not None and tensor.dtype.is_float:
                tensor._moved_to(tensor.detach().cast(wanted)._node)
                tensor.grad = None if tensor.grad is None else tensor.grad.cast(wanted)
            if where is not None:
                tensor.to_(where)
        return self

    def half(self) -> Self:
        """Its floats as float16."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Its floats as bfloat16."""
        return self.to(dtypes.bfloat16)

    def float(self) -> Self:
        """Its floats as float32."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Its floats as float64."""
        return self.to(dtypes.float64)


class Named(Module):
    """A module with parts in a dict: they are attributes, and their names are the keys.

    Other attributes, as a subclass may have, are parts too.
    """

    def __init__(self, parts: Mapping[str, Any]):
        self.parts = dict(parts)

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        """See `nn.state.NamesParts`."""
        yield from self.parts.items()
        yield from ((name, part) for name, part in vars(self).items() if name != "parts")

    def __getattr__(self, name: str) -> Any:
        parts = vars(self).get("parts", {})  # not there yet while it is copied
        if name not in parts:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return parts[name]

    def __setattr__(self, name: str, value: Any) -> None:
        parts = vars(self).get("parts", {})
        if name in parts:
            parts[name] = value
        else:
            super().__setattr__(name, value)
