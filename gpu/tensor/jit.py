"""Functions that are captured once and replayed: `gpu.jit`.

The first call with arguments of a form traces the function: its tensor arguments are stood in for,
nothing is computed while it runs, and all it asked for is compiled as one graph. The second call
traces it again, and the two must be the same graph: a number that differs is a Python value that
was captured. From the third call on the graph is replayed and Python code of the function is not
run any more.

Tensors from outside that the function uses are its state: each replay reads what they stand for
then, and what the function wrote to them (parameters, optimiser state, running statistics, `grad`)
is written again. Random numbers are new in each replay. A function is captured anew for other
shapes, dtypes, devices or Python arguments (of a bound `Var` the name and bounds count, and a
replay takes the value), another setting of `Tensor.training`, `CHECK` or `NOOPT`, and another
value of a number it takes from its closure or from the globals of its module.

A tensor made inside that leaves in another way than the result has no value: using it is an error.
One jitted function runs at a time in a process: threads take turns.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

from gpu.compiler.ir import graph_build as G
from gpu.compiler.ir.dims import Symbol, any_symbols, find_symbols, is_symbolic, plain
from gpu.compiler.ir.graph import Node
from gpu.core.config import config
from gpu.core.interrupts import put_off
from gpu.core.log import get_logger
from gpu.runtime.buffer import Buffer
from gpu.runtime.execute import is_computed, parts_of, realize
from gpu.runtime.recent import Recent
from gpu.runtime.schedule import compile_settings
from gpu.tensor.capture import Capture, changed_number, map_tensors, tensors_in
from gpu.tensor.handle import Handle
from gpu.tensor.jitobject import JitObject
from gpu.tensor.randomness import generator_state, restore_generator
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import JitError, Trace, active, tracing

log = get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Captures of one function from which a value that keeps changing is an error, not a recompilation.
MAX_CAPTURES: Final = 32
# Captures of one function that are kept, twice that at most: each has the memory of a whole run.
KEPT_CAPTURES: Final = 64
# Traces of one form of arguments of which two in a row have to agree.
MAX_ATTEMPTS: Final = 5
_NUMBERS: Final = (bool, int, float)


class _Turn:
    """Held while a jitted function runs: captures stand in for tensors that others may share."""

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """For a forked child, in which whoever held the lock is not."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=_Turn.renew)


class Jit(JitObject, Generic[P, R]):
    """A function that is captured and replayed; see the module's text.

    Attributes:
        function: the function itself.
        captures: how many forms of arguments are captured. Of more than `KEPT_CAPTURES`, those not
            called in a while are forgotten, and captured anew when they come again.
    """

    function: Callable[P, R]

    def __init__(self, function: Callable[P, R]):
        functools.update_wrapper(self, function)
        self.function = function
        self._name = getattr(function, "__qualname__", repr(function))
        self._captures: Recent[Any, Capture] = Recent(KEPT_CAPTURES)

    @property
    def captures(self) -> int:
        """How many forms of arguments are captured."""
        return len(self._captures)

    def reset(self) -> None:
        """Forgets all captures."""
        self._captures.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, or replays it. Raises JitError where it cannot be replayed."""
        if active() is not None:
            return self.function(*args, **kwargs)
        with _Turn.lock:
            return self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> R:
        found: dict[int, Tensor] = {}
        symbols: dict[str, Symbol] = {}
        form = _form((args, kwargs), found, symbols)
        arguments = list(found.values())
        outside = self._outside(symbols)
        settings = (Tensor.training, config.CHECK, compile_settings())
        key = (form, _sharing(arguments), outside, *settings)
        _compute(arguments)
        capture = self._captures.get(key)
        if capture is None or capture.calls == 1:
            capture = self._capture(key, args, kwargs, arguments)
        elif config.GPU_VERIFY_JIT:
            return self._verified(capture, args, kwargs, arguments, symbols)
        if capture.has_effects:
            with put_off(at_once=False) as begin:
                values = capture.replay(arguments, symbols, before_changes=begin)
                begin()
                return self._apply(capture, values, arguments)
        return self._apply(capture, capture.replay(arguments, symbols), arguments)

    def _outside(self, symbols: dict[str, Symbol]) -> tuple[Any, ...]:
        """Numbers that the function reads from its closure and its module.

        The variables of those that are symbolic are added to `symbols`.
        """
        function = getattr(self.function, "__func__", self.function)
        code = getattr(function, "__code__", None)
        if code is None:
            return ()
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        named = [*zip(code.co_freevars, cells, strict=True)]
        named += [(name, function.__globals__.get(name)) for name in code.co_names]
        if any_symbols():
            for _, value in named:
                find_symbols(value, symbols)
        return tuple(
            [
                (name, type(value), repr(plain(value)))
                for name, value in named
                if isinstance(value, _NUMBERS) or is_symbolic(value)
            ]
        )

    def _capture(self, key: Any, args: Any, kwargs: Any, arguments: list[Tensor]) -> Capture:
        traced = self._trace(args, kwargs, arguments)
        first = self._captures.get(key)
        if first is None:
            if sum(c.shapes == traced.shapes for c in self._captures.values()) >= MAX_CAPTURES:
                raise JitError(
                    f"{self._name} was captured {MAX_CAPTURES} times for tensors of these shapes, "
                    f"each time for another value; the last is {key}: pass what changes as a Tensor"
                )
            self._captures.keep(key, traced)
            log.info("captured %s", self._name)
            return traced
        if first.form() == traced.form():
            first.calls = 2
            return first
        self._captures.forget(key)
        if (change := changed_number(first, traced)) is not None:
            raise JitError(
                f"{self._name} computed with {change[0]} in its first call and "
                f"with {change[1]} in its second; pass what changes as an argument or a Tensor"
            )
        # Something was made by the first call, a gradient perhaps: the next call has to agree.
        traced.attempts = first.attempts + 1
        if traced.attempts == MAX_ATTEMPTS:
            raise JitError(
                f"{self._name} did something else in each of {MAX_ATTEMPTS} calls "
                "with arguments of one form; it cannot be replayed"
            )
        self._captures.keep(key, traced)
        return traced

    def _trace(self, args: Any, kwargs: Any, arguments: list[Tensor]) -> Capture:
        trace = Trace()
        before = [(t._value, t._view, t._version, t.grad) for t in arguments]
        stand_ins = [_stand_in(tensor, self._name) for tensor in arguments]
        for tensor, node in zip(arguments, stand_ins, strict=True):
            tensor._value, tensor._view = node, None
            trace.born[id(tensor)] = tensor
        try:
            with tracing(trace):
                result = self.function(*args, **kwargs)
            for tensor, node in zip(arguments, stand_ins, strict=True):
                if tensor._value is not node:
                    trace.moved[tensor] = node
            bases = [
                view.base if view else t for t, (_, view, *_) in zip(arguments, before, strict=True)
            ]
            self._refuse_sharing(trace, arguments, bases)
            return Capture(trace, stand_ins, arguments, result)
        finally:
            for handle, old in trace.moved.items():
                handle._value = old
            for tensor, held in zip(arguments, before, strict=True):
                tensor._value, tensor._view, tensor._version, tensor.grad = held
            for handle, before_trace in trace.grads.items():
                handle.grad = before_trace

    def _refuse_sharing(
        self, trace: Trace, arguments: list[Tensor], bases: Sequence[Handle]
    ) -> None:
        """Raises JitError where a write would have to show in another tensor that goes in."""
        written = set(map(id, trace.moved))
        for tensor, base in zip(arguments, bases, strict=True):
            others = [t for t, b in zip(arguments, bases, strict=True) if b is base]
            shared = len(others) > 1 or base in trace.state or id(base) in written - {id(tensor)}
            if shared and not written.isdisjoint(map(id, (base, *others))):
                raise JitError(
                    f"{self._name} writes to memory that an argument, {tensor._described()}, "
                    "shares with another tensor it uses: pass one of them, and make the other "
                    "from it inside"
                )

    def _apply(self, capture: Capture, values: list[Node], arguments: list[Tensor]) -> R:
        """Makes the function's effects and its result of the values of a replay."""
        results: list[Tensor] = []
        for (target, *_), node in zip(capture.wanted, values, strict=True):
            if target.kind == "result":
                results.append(Tensor._wrap(node))
            elif target.kind == "move":
                target.tensor(arguments)._replace(node)
            else:
                self._give_gradient(target.tensor(arguments), node, capture)
        remaining = iter(results)
        rebuilt: R = map_tensors(capture.result, lambda _: next(remaining))
        return rebuilt

    def _give_gradient(self, handle: Handle, node: Node, capture: Capture) -> None:
        """A gradient that was added to stays the tensor it is; else it is a new one."""
        grad: Handle | None = handle.grad
        if grad is not None and any(source.handle is grad for source in capture.sources):
            grad._replace(node)
        else:
            handle.grad = Tensor._wrap(node)

    def _verified(
        self,
        capture: Capture,
        args: Any,
        kwargs: Any,
        arguments: list[Tensor],
        symbols: dict[str, Symbol],
    ) -> R:
        """Replays, runs the function itself from the same state, and compares the two."""
        handles = [t.tensor(arguments) for t, *_ in capture.wanted if t.kind != "result"]
        before = {handle: (handle._value, handle.grad) for handle in handles}
        state = generator_state()
        replayed = [_value_of(Tensor._wrap(n)) for n in capture.replay(arguments, symbols)]
        restore_generator(state)
        result = self.function(*args, **kwargs)
        tensors = list(tensors_in(result))
        if tensors:
            Tensor.realize(*tensors)
        eager = iter(tensors)
        for (target, *_), got in zip(capture.wanted, replayed, strict=True):
            tensor = next(eager) if target.kind == "result" else target.tensor(arguments)
            want = _value_of(tensor.grad if target.kind == "grad" else tensor)
            if not np.allclose(got, want, rtol=1e-4, atol=1e-5, equal_nan=True):
                worst = float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max())
                for each, (node, grad) in before.items():
                    each._value, each.grad = node, grad
                raise JitError(
                    f"the replay of {self._name} differs from the function itself "
                    f"by up to {worst:.3g} in a {target.kind}: something it uses changed unseen"
                )
        return result


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """`function`, captured on its first call and replayed from the third on."""
    return Jit(function)


def _value_of(tensor: Handle | None) -> np.ndarray[Any, Any]:
    assert tensor is not None
    return Tensor._wrap(tensor._node).numpy().reshape(-1)


class _StandIn(Buffer):
    """What an argument is while its function is captured: a buffer that never has memory."""

    __slots__ = ("function",)
    function: str

    @property
    def memory(self) -> Any:
        """Raises JitError: what depends on it can only be computed by a replay."""
        raise JitError(
            f"a tensor made inside the jitted {self.function} was kept in another way than by "
            "returning it, so it has no value: return it, in lists, tuples and dicts, or assign() "
            "it to a tensor that was made and realized outside"
        )


def _stand_in(tensor: Tensor, function: str) -> Node:
    parts = []
    for part in parts_of(tensor._value):
        handle = _StandIn(part.device, part.size, part.dtype)
        handle.function = function
        parts.append(G.buffer(handle, part.shape, part.dtype, part.device))
    if isinstance(tensor.device, str):
        return parts[0]
    return G.multi(parts, tensor.shard_axis, tensor.shape)


def _compute(arguments: list[Tensor]) -> None:
    """Every argument in memory of its own shape, so that a replay can read it."""
    for tensor in arguments:
        node = tensor._node
        if is_computed(node):
            continue
        if tensor._view is None:
            tensor.realize()
        if not is_computed(tensor._node):
            # A view, or another shape of memory that is there.
            (tensor._value,) = realize([G.contiguous(node)])


def _sharing(arguments: list[Tensor]) -> tuple[int, ...]:
    """For each argument the number of the first one that shows elements of the same tensor."""
    bases = [id(t if t._view is None else t._view.base) for t in arguments]
    first: dict[int, int] = {}
    return tuple([first.setdefault(base, number) for number, base in enumerate(bases)])


def _form(value: Any, found: dict[int, Tensor], symbols: dict[str, Symbol]) -> Any:
    """The form of arguments: their structure, with each tensor once in `found`, by its id.

    The variables of symbolic sizes and numbers are added to `symbols`.
    """
    if isinstance(value, Tensor):
        if id(value) in found:
            return ("same", list(found).index(id(value)))
        found[id(value)] = value
        shape = value.shape
        if any_symbols():
            find_symbols(shape, symbols)
            shape = plain(shape)
        return (shape, value.dtype, value.device, value.shard_axis, value.requires_grad)
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *[_form(v, found, symbols) for v in value])
    if isinstance(value, dict):
        return ("dict", *((k, _form(v, found, symbols)) for k, v in value.items()))
    if is_symbolic(value):
        find_symbols(value, symbols)
        return ("symbolic", plain(value))
    try:
        hash(value)
    except TypeError as error:
        raise JitError(
            f"a jitted function cannot take {type(value).__name__} {value!r}: pass tensors, "
            "numbers, strings, and lists, tuples and dicts of them"
        ) from error
    if isinstance(value, float):  # equality takes -0.0 for 0.0, and tells a NaN from itself
        return (type(value), repr(value))
    return (type(value), value)
