"""Watching what a function does with tensors, instead of computing it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gpu.compiler.ir.graph import Node
from gpu.core.errors import InvalidValue
from gpu.runtime.execute import is_computed, realize

if TYPE_CHECKING:
    from gpu.tensor.checks import Allowed
    from gpu.tensor.handle import Handle


class JitError(InvalidValue):
    """A function cannot be captured and replayed; says which value, and what to do."""


class Trace:
    """What one run of a function does.

    Attributes:
        name: of the function, for errors.
        born: tensors made inside.
        state: tensors from outside that are used, with the memory they had when first used.
        moved: tensors from outside that are written to, with what they stood for before.
        random: leaves that hold the state of random numbers: (node, device, words taken).
        grads: tensors whose `grad` is set, with the gradient they had before.
        seen_grads: tensors whose `grad` is looked at before it is set, with what it was.
        checks: tensors of positions, and what each replay has to find in them; see `CHECK`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.born: dict[int, Handle] = {}
        self.state: dict[Handle, Node] = {}
        self.moved: dict[Handle, Node] = {}
        self.grads: dict[Handle, Handle | None] = {}
        self.seen_grads: dict[Handle, Handle | None] = {}
        self.random: list[tuple[Node, str, int]] = []
        self.checks: list[tuple[Handle, Allowed]] = []

    def of_checks(self) -> Trace:
        """The part of it that `checks` are computed from."""
        part = Trace(self.name)
        part.state, part.random = self.state, self.random
        return part

    def uses(self, handle: Handle) -> None:
        """A tensor's value is asked for; one from outside is computed now if it was not yet."""
        view = handle._view
        if view is not None:
            handle = view.base
        if id(handle) in self.born or handle in self.state or handle in self.moved:
            return
        if not is_computed(handle._value):
            (node,) = realize([handle._value])
            handle._become(node, set())
        self.state[handle] = handle._value

    def writes(self, handle: Handle) -> None:
        """A tensor is about to stand for another value."""
        if id(handle) not in self.born and handle not in self.moved:
            self.moved[handle] = handle._value

    def reads_gradient(self, handle: Handle) -> None:
        """The gradient of a tensor is asked for, or whether it has one."""
        if id(handle) not in self.born and handle not in self.grads:
            self.seen_grads[handle] = handle._grad

    def writes_gradient(self, handle: Handle) -> None:
        """A tensor is about to have another gradient, or none."""
        self.grads.setdefault(handle, handle._grad)

    def draws(self, state: Node, counter: str, words: int) -> bool:
        """Random numbers are drawn from `state`; False where they are to be those of this run."""
        self.random.append((state, counter, words))
        return True

    def checks_positions(self, given: Handle, allowed: Allowed) -> bool:
        """Positions are to be looked at; False where that can be done now."""
        self.checks.append((given._same(), allowed))
        return True

    def needs_value(self, what: str) -> None:
        """`what` needs a value now. Raises JitError."""
        raise JitError(
            f"{what} inside a jitted function, {self.name}: its result would be fixed at "
            "the value of the first call; return the tensor and read it outside"
        )

    def needs_count(self, what: str, instead: str) -> None:
        """The shape of what `what` gives needs a value now. Raises JitError."""
        raise JitError(
            f"{what} inside a jitted function, {self.name}: the shape of its result depends "
            f"on values; say how many elements there are with {instead}"
        )


class _Active(threading.local):
    """The trace that this thread is making, if it is making one."""

    trace: Trace | None = None


_here: Final = _Active()


def active() -> Trace | None:
    """The trace that this thread is making, if it is making one."""
    return _here.trace


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """What is done with tensors inside is noted in `trace`. Traces do not nest."""
    if _here.trace is not None:
        raise JitError("a jitted function was called while another one is being captured")
    _here.trace = trace
    try:
        yield
    finally:
        _here.trace = None


@contextmanager
def tracing_inside(trace: Trace | None) -> Iterator[None]:
    """As `tracing`, also while another trace is being made, which goes on afterwards.

    None is for what is the same in every call: it is computed as if nothing were watched.
    """
    around, _here.trace = _here.trace, trace
    try:
        yield
    finally:
        _here.trace = around


def refuse_counting(what: str, instead: str = "size=") -> None:
    """Raises an error if a function is watched for which a shape must not need a value now."""
    if _here.trace is not None:
        _here.trace.needs_count(what, instead)


def refuse(what: str) -> None:
    """Raises an error if a function is watched in which `what` must not need a value now."""
    if _here.trace is not None:
        _here.trace.needs_value(what)
