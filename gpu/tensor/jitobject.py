"""What a jitted function is to objects, copies and pickles: a function, and a method of each.

Part of `gpu.jit`; see `gpu/tensor/jit.py`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, Self

from gpu.tensor.tracing import JitError


class JitObject:
    """A function that may be a method. What it has captured is neither copied nor pickled.

    An object keeps what is its own of the class's jitted function among its attributes, as
    ``Class.method``; one that came there by copying attributes is another object's and is not used.

    Attributes:
        function: the function itself.
    """

    function: Callable[..., Any]
    _name: str  # qualified
    # Of an object's own: the object, and the class's jitted function that it is of.
    _instance: object = None
    _origin: Self | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self.__module__ = f"{owner.__qualname__}.{name}", owner.__module__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Methods are jitted for each object apart."""
        if instance is None:
            return self
        try:
            attributes = instance.__dict__
        except AttributeError as error:
            raise JitError(
                f"{self._name} keeps its captures in the object, whose class has __slots__ and no "
                "__dict__: leave __slots__ out, or jit a plain function"
            ) from error
        held = attributes.get(self._name)
        if held is None or held._instance is not instance or held._origin is not self:
            held = type(self)(self.function.__get__(instance, owner))  # type: ignore[call-arg]
            held._instance, held._origin, held._name = instance, self, self._name
            attributes[self._name] = held
        return held

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The method of the copied object; a function is its own copy."""
        if self._origin is not None:
            return method_of(copy.deepcopy(self._instance, memo), self._origin)
        function = copy.deepcopy(self.function, memo)
        return self if function is self.function else type(self)(function)  # type: ignore[call-arg]

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._origin is not None:
            return method_of, (self._instance, self._origin)
        if found_by_name(self.__module__, self._name) is self:
            return self._name  # pickled by name, as functions are
        return type(self), (self.function,)


def method_of(instance: object, jitted: JitObject) -> Any:
    """The jitted method of an object that is of a class's jitted function."""
    return jitted.__get__(instance, type(instance))


def found_by_name(module: str, name: str) -> object:
    """What a module has under a dotted name; None where it has nothing."""
    try:
        return reduce(getattr, name.split("."), sys.modules.get(module))
    except AttributeError:
        return None
