"""Functions as layers: a class that keeps the arguments behind the operands of a function."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature, signature
from typing import Any, ClassVar

from gpu.tensor.nn.module import Module
from gpu.tensor.tensor import Tensor


class Applied(Module):
    """A layer that calls a function of `functional` with the settings it was made with.

    ``class Name(Applied, function=f, operands=n)`` is f of n tensors: its settings are the further
    arguments of f, by their names, order and defaults, and attributes of the layer. Tensors among
    them are part of its state and get no gradient.
    """

    function: ClassVar[Callable[..., Any]]

    def __init_subclass__(
        cls, function: Callable[..., Any] | None = None, operands: int = 1, **further: Any
    ):
        super().__init_subclass__(**further)
        if function is not None:  # a subclass of a layer has its function
            cls.function = staticmethod(function)
            cls.__signature__ = Signature(list(signature(function).parameters.values())[operands:])

    __signature__: ClassVar[Signature]

    def __init__(self, *args: Any, **kwargs: Any):
        settings = self.__signature__.bind(*args, **kwargs)
        settings.apply_defaults()
        self.settings = list(settings.arguments)
        for name, value in settings.arguments.items():
            setattr(self, name, _state(value) if isinstance(value, Tensor) else value)

    def forward(self, *operands: Any) -> Any:
        """What the function makes of the operands."""
        own = vars(self)
        return self.function(*operands, **{name: own[name] for name in self.settings})


def _state(value: Tensor) -> Tensor:
    """The same elements as state of a layer, which no gradient changes."""
    kept = value.detach()
    kept.requires_grad = False
    return kept
