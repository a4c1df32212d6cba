"""Which of the user's functions run while a jitted one is traced, and what they could read.

They are noted as they return, with the objects in their variables; what they could read outside of
tensors is then guarded (`gpu/tensor/reachable.py`). Tensors are not looked into: their values are
the trace's. This package's own functions and the standard library's are not followed, but the
layers and optimisers of `nn` and `collections` are.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.core.callsite import is_users
from gpu.tensor.codereads import Steps, reads_of
from gpu.tensor.guards import MISSING, Guard, Kinds
from gpu.tensor.handle import Handle
from gpu.tensor.introspection import is_fixed_name, is_plain
from gpu.tensor.reachable import Reachable
from gpu.tensor.tracing import Trace

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FOLLOWED: Final = (os.path.join(_PACKAGE, "tensor", "nn", ""), os.path.join(_PACKAGE, "cli", ""))
_NUMPY: Final = os.path.dirname(np.__file__) + os.sep


class _Record(NamedTuple):
    """Any tuple with names: the functions of all have the same code."""


# What these read is what made the tuple's class: no function changes it.
_OF_RECORDS: Final = frozenset(
    getattr(_Record, name).__code__
    for name in ("_make", "_replace", "_asdict", "__repr__", "__getnewargs__")
)
_COLLECTIONS: Final = os.path.dirname(sys.modules["collections"].__file__ or "") + os.sep


@lru_cache(4096)
def _follows(file: str, module: str) -> bool:
    """Whether functions of a source file are followed."""
    if file.startswith((*_FOLLOWED, _COLLECTIONS)):
        return True
    if file.startswith("<"):  # made by a dataclass or typed in
        return not is_fixed_name(module) and not module.startswith("namedtuple_")
    return is_users(file) and not file.startswith(_NUMPY)


class Watch:
    """``with Watch(name):`` around one run of a function.

    Attributes:
        strangers: objects in variables that did not come from where the function could be seen to
            have them, by id: made inside, or given by code that is not followed.
    """

    def __init__(self, name: str):
        self._name = name
        self.strangers: dict[int, Any] = {}
        self._code: dict[CodeType, dict[int, dict[str, Any]]] = {}  # with its globals, by id
        self._methods: list[FunctionType] = []  # those with a closure
        # Objects in variables with a name, and the steps from them, by their ids.
        self._variables: dict[int, tuple[Any, str]] = {}
        self._steps: dict[int, dict[Steps, None]] = {}
        self._previous: Any = None

    # While the function runs.

    def __enter__(self) -> Watch:
        self._outer = sys._getframe(1).f_code
        collecting = [getattr(callback, "__code__", None) for callback in gc.callbacks]
        self._collecting = set(collecting)
        self._previous = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        if hasattr(self._previous, "enable"):  # cProfile's, in C, before Python 3.12
            self._previous.enable()
        else:
            sys.setprofile(self._previous)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if event == "return":
            code = frame.f_code
            followed = _follows(code.co_filename, frame.f_globals.get("__name__", ""))
            if followed and code not in _OF_RECORDS and not self._comes_between(frame):
                self._note(code, frame.f_globals, frame.f_locals)

    def _comes_between(self, frame: FrameType | None) -> bool:
        """Whether a frame is not the function's: a finalizer's, or a garbage collection's."""
        while frame is not None and frame.f_code is not self._outer:
            if frame.f_code.co_name == "__del__" or frame.f_code in self._collecting:
                return True
            frame = frame.f_back
        return False

    def _note(self, code: CodeType, module: dict[str, Any], values: Mapping[str, Any]) -> None:
        known = self._code.get(code)
        if known is None:
            known = self._code[code] = {}
            if reads_of(code).has_closure:
                self._methods += _methods_of(code, values)
        known[id(module)] = module
        for name, steps in reads_of(code).variables:
            value = values.get(name, MISSING)
            if not is_plain(value):
                self._variables.setdefault(id(value), (value, name))
                self._steps.setdefault(id(value), {})[steps] = None

    # Afterwards.

    def guards(
        self, function: Any, arguments: Mapping[str, Any], known: Mapping[int, Any], trace: Trace
    ) -> list[Guard]:
        """Guards of all that was read, with the values that are there now.

        Args:
            function: what was called.
            arguments: what it was called with, by name.
            known: the `strangers` of another call.
            trace: what was done with tensors.

        Raises JitError for what cannot be guarded.
        """
        reach = Reachable(self._name, self._code, self._steps)
        for code, modules in self._code.items():
            reads = reads_of(code)
            reach.free.update(dict.fromkeys(reads.free))
            for module in () if code.co_filename.startswith(_PACKAGE) else modules.values():
                for name, steps in reads.names:
                    reach.global_name(module, name, steps)
        reach.reach(function, self._name)
        reach.close()
        for name, value in arguments.items():
            reach.argument(value, name)
        reach.close()
        self._meet(reach, known)
        for method in (*self._methods, *self._functions_elsewhere(reach)):
            reach.reach(method, method.__qualname__)
        reach.close()
        return [*reach.guards.values(), *_of_tensors(trace, reach)]

    def _meet(self, reach: Reachable, known: Mapping[int, Any]) -> None:
        """Looks at objects in variables that were not found: most were made inside.

        Those that were there in another call too were not.
        """
        for identity, (value, name) in self._variables.items():
            if identity in reach.found:
                continue
            self.strangers[identity] = value
            if identity in known:
                reach.reach(value, name)
            for steps in self._steps[identity]:  # what is made inside may hold what is not
                reach.free.update({steps[n:]: None for n in range(1, len(steps))})

    def _functions_elsewhere(self, reach: Reachable) -> list[FunctionType]:
        """Functions with a closure that ran and were not found, as in a C object."""
        found = [f.value for f in reach.found.values() if isinstance(f.value, FunctionType)]
        known = {function.__code__ for function in (*found, *self._methods)}
        inner = set().union(*(reads_of(code).inner for code in self._code))
        missing = {c for c in self._code if reads_of(c).has_closure} - known - inner
        if not missing:
            return []
        users = gc.get_referrers(*missing)
        return [f for f in users if isinstance(f, FunctionType) and f.__code__ in missing]


def _of_tensors(trace: Trace, reach: Reachable) -> list[Guard]:
    """Guards of what is asked of tensors from outside besides their values."""
    paths = {id(guard.expected): guard.path for guard in reach.guards.values()}

    def guard(kind: Any, handle: Handle, name: str, value: object) -> Guard:
        path = paths.get(id(handle)) or handle._described()
        return Guard(kind, handle, name, f"the {name.lstrip('_')} of {path}", value)

    made = [guard(Kinds.ATTRIBUTE, h, "_grad", grad) for h, grad in trace.seen_grads.items()]
    for handle in trace.state:
        made.append(guard(Kinds.ATTRIBUTE, handle, "_requires_grad", handle._requires_grad))
        made.append(guard(Kinds.DEVICE, handle, "device", handle.device))
    return made


def _methods_of(code: CodeType, values: Mapping[str, Any]) -> list[FunctionType]:
    """The function of some code that runs, if it is a method of its first argument."""
    if not code.co_argcount:
        return []
    kind = type(values.get(code.co_varnames[0]))
    found = [base.__dict__.get(code.co_name) for base in kind.__mro__]
    return [f for f in found if isinstance(f, FunctionType) and f.__code__ is code]
