"""Several elements in one load or store, in C++, where other values are scalars."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gpu.compiler.render.cstyle.opencl_memory import OpenCLAccess
from gpu.compiler.render.cstyle.text import Emitter, Value


class Wide(ABC):
    """Prints loads and stores of several elements, at addresses that are multiples of their size.

    Attributes:
        emitter: takes the statements.
    """

    def __init__(self, emitter: Emitter):
        self.emitter = emitter

    @abstractmethod
    def load(self, access: OpenCLAccess) -> Value:
        """What was loaded: zeros where the one condition does not hold."""

    @abstractmethod
    def element(self, vector: Value, lane: int) -> Value:
        """One element of what was loaded."""

    @abstractmethod
    def pack(self, elements: list[Value]) -> Value:
        """Some elements, as `store` takes them."""

    @abstractmethod
    def store(self, access: OpenCLAccess, vector: Value, in_array: bool) -> None:
        """Writes elements that were packed, to an array of the kernel or to a parameter."""
