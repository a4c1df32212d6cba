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
replay takes the value), another setting of `Tensor.training`, `CHECK`, `NOOPT` or of the default
dtype, inside and outside of `no_grad`,
and where anything else changed that it reads outside: attributes, items, globals, closures
(`gpu/tensor/watching.py`). It may not change such things itself, as a replay would not.

A tensor made inside that leaves in another way than the result has no value: using it is an error.
So is a gradient that would have to go through a replay.
One jitted function runs at a time in a process: threads take turns. docs/jit.md tells users more.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from gpu.compiler.ir.dims import Symbol
from gpu.compiler.ir.graph import Node
from gpu.core.config import config, for_settings
from gpu.core.dtype import dtypes
from gpu.core.interrupts import put_off
from gpu.core.log import get_logger
from gpu.runtime.recent import Recent
from gpu.runtime.recipe import compile_settings
from gpu.runtime.timeline import span
from gpu.tensor.callforms import (
    compute_arguments,
    form_of,
    map_tensors,
    parts_in,
    sharing_of,
    stand_in,
    tensors_in,
)
from gpu.tensor.capture import Capture
from gpu.tensor.guards import Guards, elements, shown
from gpu.tensor.handle import Handle, leaf_nodes
from gpu.tensor.jitobject import JitObject
from gpu.tensor.leafnodes import LEAF_NODES
from gpu.tensor.nograd import unrecorded
from gpu.tensor.randomness import generator_state, restore_generator
from gpu.tensor.tensor import Tensor
from gpu.tensor.tracing import JitError, Trace, active, tracing
from gpu.tensor.watching import Watch

log = get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Captures of one function from which a value that keeps changing is an error, not a recompilation.
MAX_CAPTURES: Final = 32
# Captures of one function that are kept, twice that at most: each has the memory of a whole run.
KEPT_CAPTURES: Final = 64
# Traces of one form of arguments of which two in a row have to agree.
MAX_ATTEMPTS: Final = 5


class _Settings(NamedTuple):
    """Those that a call asks for.

    Attributes:
        captured: what a capture holds for.
        is_traced: whether there are replays at all.
        is_verified: whether replays are compared.
    """

    captured: Any
    is_traced: bool
    is_verified: bool


@for_settings
def _settings() -> _Settings:
    captured = (config.CHECK, compile_settings())
    return _Settings(captured, "nan" not in config.CHECK, bool(config.GPU_VERIFY_JIT))


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
        # What an object has stays its own: here it would be out of date, or in the way.
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self._name = getattr(function, "__qualname__", repr(function))
        self._captures: Recent[Any, list[Capture]] = Recent(KEPT_CAPTURES)

    @property
    def captures(self) -> int:
        """How many forms of arguments are captured."""
        return len(self._kept())

    def _kept(self) -> list[Capture]:
        return [capture for variants in self._captures.values() for capture in variants]

    def reset(self) -> None:
        """Forgets all captures."""
        self._captures.clear()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, or replays it. Raises JitError where it cannot be replayed.

        With ``CHECK=nan`` it is always called, since a replay knows no operations.
        """
        settings = _settings()
        if active() is not None or not settings.is_traced:
            return self.function(*args, **kwargs)
        with _Turn.lock:
            return self._call(args, kwargs, settings)

    def _call(self, args: Any, kwargs: Any, settings: _Settings) -> R:
        found: dict[int, Tensor] = {}
        symbols: dict[str, Symbol] = {}
        try:
            form = form_of(args, found, symbols)
            if kwargs:
                form = (form, form_of(kwargs, found, symbols))
        except JitError as error:
            error.add(f"in a call of {self._name}")
            raise
        arguments = list(found.values())
        recorded = unrecorded() is None
        how = (Tensor.training, dtypes.default_float, settings.captured, recorded)
        key = (form, sharing_of(arguments), how)
        compute_arguments(arguments, self._name)
        capture = self._find(key, arguments)
        if capture is None or capture.calls == 1:
            capture = self._capture(key, capture, args, kwargs, arguments)
            capture.guards.find_symbols(symbols)
        else:
            capture.guards.find_symbols(symbols)
            if settings.is_verified:
                return self._verified(capture, args, kwargs, arguments, symbols)
        ends = capture.ends(arguments) if recorded and leaf_nodes() else []
        if capture.has_effects:
            with put_off(at_once=False) as begin:
                values = capture.replay(arguments, symbols, before_changes=begin)
                begin()
                return self._apply(capture, values, arguments, ends)
        return self._apply(capture, capture.replay(arguments, symbols), arguments, ends)

    def _find(self, key: Any, arguments: list[Tensor]) -> Capture | None:
        """The capture of a form that holds; the next call looks at it first."""
        variants = self._captures.get(key)
        if variants is None:
            return None
        for number, capture in enumerate(variants):
            if capture.holds(arguments):
                if number:
                    variants.insert(0, variants.pop(number))
                return capture
        return None

    def _capture(
        self, key: Any, first: Capture | None, args: Any, kwargs: Any, arguments: list[Tensor]
    ) -> Capture:
        """What the function does: kept, or compared with what it did in its first call."""
        variants = self._captures.get(key) or []
        why = [_change(*c) for known in variants[:1] for c in known.guards.changed()]
        with span(f"capture {self._name}"):
            traced = self._trace(args, kwargs, arguments, first)
        if first is None:
            self._refuse_many(key, traced, why)
            self._captures.keep(key, [traced, *variants])
            log.info("captured %s", self._name)
            return traced
        variants.remove(first)
        self._refuse_effects(first)
        known = traced.guards.places <= first.guards.places
        if first.form() == traced.form() and known:
            traced.calls, traced.strangers = 2, {}
        elif known and (change := _changed_number(first, traced)) is not None:
            raise JitError(
                f"{self._name} computed with {change[0]} in its first call and "
                f"with {change[1]} in its second, of the same form: pass what changes as an "
                "argument or a Tensor"
            )
        else:
            # Something was made by the first call, a gradient perhaps: the next has to agree.
            traced.attempts = first.attempts + 1
            if traced.attempts == MAX_ATTEMPTS:
                raise JitError(
                    f"{self._name} did something else in each of {MAX_ATTEMPTS} calls "
                    "with arguments of one form, so it cannot be replayed: pass what differs, be "
                    "it random, of the clock or from a file, as an argument or a Tensor"
                )
        variants.insert(0, traced)
        return traced

    def _refuse_many(self, key: Any, traced: Capture, why: list[str]) -> None:
        """Raises JitError where a value that keeps changing would be captured ever again."""
        alike = [c for c in self._kept() if c.shapes == traced.shapes]
        if len(alike) >= MAX_CAPTURES:
            last = f"the last time of {', '.join(why)}" if why else f"the last is {shown(key[0])}"
            raise JitError(
                f"{self._name} was captured {MAX_CAPTURES} times for tensors of these shapes, each "
                f"time for another value; {last}: pass what changes as a Tensor, or keep it in one "
                "that is written to with assign()"
            )

    def _refuse_effects(self, first: Capture) -> None:
        """Raises JitError where the function changed what was as `first` says before it ran."""
        if changes := [_change(*change) for change in first.guards.changed()]:
            raise JitError(
                f"{self._name} changes {' and '.join(changes)} when it runs, and a replay runs no "
                "Python: return the value and keep it outside, or keep it in a Tensor that is "
                "written to with assign()"
            )

    def _trace(
        self, args: Any, kwargs: Any, arguments: list[Tensor], first: Capture | None
    ) -> Capture:
        trace, watch = Trace(self._name), Watch(self._name)
        before = [(t._value, t._view, t._version) for t in arguments]
        given = list(parts_in((args, kwargs)))
        stand_ins = [stand_in(tensor, self._name) for tensor in arguments]
        for tensor, node in zip(arguments, stand_ins, strict=True):
            tensor._value, tensor._view = node, None
            trace.born[id(tensor)] = tensor
        try:
            with tracing(trace), watch:
                result = self.function(*args, **kwargs)
            for tensor, node in zip(arguments, stand_ins, strict=True):
                if tensor._value is not node:
                    trace.moved[tensor] = node
            bases = [
                view.base if view else t for t, (_, view, _) in zip(arguments, before, strict=True)
            ]
            self._refuse_sharing(trace, arguments, bases)
            capture = Capture(trace, stand_ins, arguments, result)
        finally:
            for handle, old in trace.moved.items():
                handle._value = old
            for tensor, held in zip(arguments, before, strict=True):
                tensor._value, tensor._view, tensor._version = held
            for handle, before_trace in trace.grads.items():
                handle.grad = before_trace
        if not elements(list(parts_in((args, kwargs))), tuple(given)):
            raise JitError(
                f"{self._name} changes a list or dict that it was given, which a replay would not "
                "do again: make a new one and return it"
            )
        known = {} if first is None else first.strangers
        named = self._named(args, kwargs)
        guards = Guards(watch.guards(self.function, named, known, trace))
        capture.guard(guards, trace, arguments)
        capture.strangers = watch.strangers
        return capture

    def _named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name, or by number where the function has no name for them."""
        function = getattr(self.function, "__func__", self.function)
        code = getattr(function, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code else ()
        names = names[1:] if function is not self.function else names
        return {
            **dict(zip(names, args, strict=False)),
            **{f"argument {n}": value for n, value in enumerate(args) if n >= len(names)},
            **kwargs,
        }

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

    def _apply(
        self, capture: Capture, values: list[Node], arguments: list[Tensor], ends: list[set[Node]]
    ) -> R:
        """Makes the function's effects and its result of the values of a replay.

        `ends` is for each result empty, or what it was computed from if that has a gradient.
        """
        results: list[Tensor] = []
        for (target, *_), node in zip(capture.wanted, values, strict=True):
            if target.kind == "result":
                results.append(Tensor._wrap(node))
            elif target.kind == "move":
                target.tensor(arguments)._replace(node)
            else:
                _give_gradient(target.tensor(arguments), node)
        for tensor, origins in zip(results, ends, strict=False):
            if origins and tensor._value not in origins:  # which is given back as it is
                LEAF_NODES.note_replayed(tensor._value, self._name)
        for target, grad in capture.given_grads:
            given: Any = arguments[grad] if isinstance(grad, int) else grad
            target.tensor(arguments)._grad = given
        if isinstance(capture.result, Tensor):
            return cast("R", results[0])
        remaining = iter(results)
        rebuilt: R = map_tensors(capture.result, lambda _: next(remaining))
        return rebuilt

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
                    f"by up to {worst:.3g} in a {target.kind}: something it uses changed unseen "
                    "(docs/jit.md lists what is not seen); pass it as an argument or a Tensor"
                )
        return result


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """`function`, captured on its first call and replayed from the third on."""
    return Jit(function)


def _value_of(tensor: Handle | None) -> np.ndarray[Any, Any]:
    assert tensor is not None
    return Tensor._wrap(tensor._node).numpy().reshape(-1)


def _change(path: str, before: object, now: object) -> str:
    return f"{path} ({shown(before)}, now {shown(now)})"


def _changed_number(first: Capture, second: Capture) -> tuple[str, str] | None:
    """The first number that differs between two traces that are alike otherwise."""
    if first.prepared is None or second.prepared is None:
        return None
    (form, before), (other, now) = first.prepared.key, second.prepared.key
    if form != other:
        return None
    # What is no tuple, of where something starts, is a constant.
    pairs = zip(before, now, strict=True)
    changed = ((a, b) for a, b in pairs if a != b and not isinstance(a, tuple))
    return next(((str(a), str(b)) for a, b in changed), None)


def _give_gradient(handle: Handle, node: Node) -> None:
    """A gradient that was added to stays the tensor it is; others the replay has let go of."""
    grad: Handle | None = handle.grad
    if grad is not None:
        grad._replace(node)
    else:
        handle.grad = Tensor._wrap(node)
