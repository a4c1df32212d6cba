"""Modules that hold others: one behind the other, in a list, or by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from gpu.core.errors import InvalidIndex, InvalidType
from gpu.tensor.arguments import integer
from gpu.tensor.nn.module import Module, Named

Layer = Callable[..., Any]


class Sequential(Named):
    """Layers, each called with what the one before it returns.

    Layers are whatever can be called: modules, methods as `Tensor.relu`, functions. They are given
    one by one, and are called "0", "1" and so on in state dicts; or as one dict, by name.

    >>> from gpu import Tensor, nn
    >>> model = nn.Sequential(nn.Linear(3, 4), Tensor.relu, nn.Linear(4, 2))
    >>> model(Tensor.ones(5, 3)).shape, list(model.state_dict())[::2]
    ((5, 2), ['0.weight', '2.weight'])
    """

    def __init__(self, *layers: Layer | Mapping[str, Layer]):
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            super().__init__(layers[0])
        else:
            super().__init__({str(number): layer for number, layer in enumerate(layers)})
        for name, layer in self.parts.items():
            _check_layer(name, layer)

    def forward(self, x: Any) -> Any:
        """What the last layer returns; x itself if there is none."""
        for layer in self.parts.values():
            x = layer(x)
        return x

    def append(self, layer: Layer) -> Self:
        """Adds a layer behind the last."""
        name = str(len(self.parts))
        _check_layer(name, layer)
        self.parts[name] = layer
        return self

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.parts.values())

    def __getitem__(self, index: int | slice) -> Any:
        """A layer, or a `Sequential` of some of them."""
        if isinstance(index, slice):
            return type(self)(dict(list(self.parts.items())[index]))
        return self.parts[self._name(index)]

    def __setitem__(self, index: int, layer: Layer) -> None:
        name = self._name(index)
        _check_layer(name, layer)
        self.parts[name] = layer

    def _name(self, index: int) -> str:
        """The name of a layer. Raises InvalidIndex where there is none."""
        number = integer(index, "the number of a layer")
        if not -len(self) <= number < len(self):
            raise InvalidIndex(f"there is no layer {number}: there are {len(self)}")
        return list(self.parts)[number]


class ModuleList(Module, list[Any]):
    """A list of layers, with the methods of a module; "0", "1" and so on in state dicts.

    >>> from gpu import nn
    >>> layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers), len(layers.parameters())
    (3, 6)
    """

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity, as every module

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        """See `nn.state.NamesParts`: also the attributes that a subclass may have."""
        yield from ((str(number), layer) for number, layer in enumerate(self))
        yield from vars(self).items()


class ModuleDict(Module, dict[str, Any]):
    """A dict of layers, with the methods of a module; its keys are names in state dicts."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity, as every module

    def named_parts(self) -> Iterator[tuple[str, Any]]:
        """See `nn.state.NamesParts`: also the attributes that a subclass may have."""
        yield from self.items()
        yield from vars(self).items()


def _check_layer(name: str, layer: object) -> None:
    if not callable(layer):
        raise InvalidType(
            f"layer {name} of a Sequential is a {type(layer).__name__}, which cannot be called"
        )
