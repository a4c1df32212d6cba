"""Watching functions that are transformed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.compiler.ir.graph import Node
from gpu.core.errors import InvalidType, InvalidValue
from gpu.tensor.puretrace import PureTrace
from gpu.tensor.tracing import Trace

if TYPE_CHECKING:
    from gpu.tensor.checks import Allowed
    from gpu.tensor.handle import Handle


def name_of(transform: str, fun: object) -> str:
    """What a transformed function is called in errors. Raises InvalidType for what is none."""
    if not callable(fun):
        raise InvalidType(f"{transform} transforms a function, got {type(fun).__name__} {fun!r}")
    return f"{transform} of {getattr(fun, '__qualname__', repr(fun))}"


class TransformTrace(PureTrace):
    """What a transformed function does, which what is around it is told of."""

    def refused(self, what: str) -> InvalidValue:
        """See `PureTrace`."""
        return InvalidValue(
            f"{self.name}: the function {what}, and what is transformed changes nothing outside:"
            " return the value, with has_aux=True beside what is differentiated"
        )

    def draws(self, state: Node, device: str, words: int) -> bool:
        """See `Trace`."""
        return self.around is not None and self.around.draws(state, device, words)

    def needs_value(self, what: str) -> None:
        """See `Trace`; what has no value raises an error itself."""
        if self.around is not None:
            self.around.needs_value(what)

    def needs_count(self, what: str, instead: str) -> None:
        """See `Trace`; what has no value raises an error itself."""
        if self.around is not None:
            self.around.needs_count(what, instead)


class DerivativeTrace(TransformTrace):
    """What a function does that is differentiated: its tensors have values, as outside of it."""

    def checks_positions(self, given: Handle, allowed: Allowed) -> bool:
        """See `Trace`."""
        return self.around is not None and self.around.checks_positions(given, allowed)


class ExampleTrace(TransformTrace):
    """What a function does with one example, which stands for many."""

    def __init__(self, name: str, around: Trace | None, randomness: str):
        super().__init__(name, around)
        self.randomness = randomness

    def draws(self, state: Node, device: str, words: int) -> bool:
        """See `Trace`. Raises InvalidValue where nobody said what is to be drawn."""
        if self.randomness == "error":
            raise InvalidValue(
                f"{self.name} draws random numbers: say vmap(..., randomness='different') for"
                " numbers of its own in each example, or 'same'"
            )
        if self.randomness == "same":
            return super().draws(state, device, words)
        self.random.append((state, device, words))
        return True

    def without_value(self) -> InvalidValue:
        """What is raised where the value of a tensor is asked for that differs between examples."""
        return InvalidValue(
            f"{self.name}: the value of a tensor was asked for that stands for those of all"
            " examples: choose by x.where(), say how many elements there are with size=, or return"
            " the tensor and read it outside"
        )
