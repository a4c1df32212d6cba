"""Guards: what a capture relies on outside of its tensors, checked before each replay.

A guard is a place (an attribute, an item, all of a container, the contents of an array) and what
it had when the function was captured. The guards of a capture are compiled into one Python
expression of comparisons by identity, some 20 ns each. Where it does not hold they are looked at
one by one: a number or a string that is another object of the same value has not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import is_
from types import CodeType
from typing import Any, Final, NamedTuple

import numpy as np

from gpu.compiler.ir.dims import Symbol, find_symbols, is_symbolic, plain
from gpu.core.errors import InvalidValue
from gpu.tensor.handle import Handle

# Bytes of an array outside that are compared before each replay.
MAX_CONTENTS: Final = 1 << 20
_TEXT: Final = 60  # characters of a value in an error
_SAME_IF_EQUAL: Final = (str, bytes, frozenset, range, slice, CodeType, np.dtype)
_UNREADABLE: Final = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)


class _Missing:
    """What a place has that is not there."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()


class _Kind(NamedTuple):
    """How the value of a place is read: as Python text over `o` and `k`, and as a function."""

    text: str
    read: Callable[[Any, Any], Any]


class Kinds:
    """The kinds of places."""

    ATTRIBUTE: Final = _Kind("{o}.{name}", getattr)
    ODD_ATTRIBUTE: Final = _Kind(
        "getattr({o}, {k}, MISSING)", lambda o, k: getattr(o, k, MISSING)
    )  # of no name, or not there
    METHOD: Final = _Kind("{o}.{name}.__func__", lambda o, k: getattr(o, k).__func__)
    OF_CLASS: Final = _Kind("{o}.__dict__[{k}]", lambda o, k: o.__dict__[k])
    ITEM: Final = _Kind("{o}[{k}]", lambda o, k: o[k])
    ODD_ITEM: Final = _Kind("{o}.get({k}, MISSING)", lambda o, k: o.get(k, MISSING))
    CELL: Final = _Kind("{o}.cell_contents", lambda o, _: o.cell_contents)
    VALUE: Final = _Kind("same({o}.{name}, {e})", getattr)
    DEVICE: Final = _Kind("{o}._value.device", lambda o, _: o._value.device)
    ELEMENTS: Final = _Kind("elements({o}, {e})", lambda o, _: tuple(o))
    CONTENTS: Final = _Kind("contents({o}) == {e}", lambda o, _: contents_of(o))


# Kinds whose text says by itself whether the value is as expected.
_COMPARE: Final = (Kinds.VALUE, Kinds.ELEMENTS, Kinds.CONTENTS)


class Guard:
    """A place outside and its value.

    Attributes:
        kind: how it is read.
        owner: the object or container it is in.
        key: name of the attribute, or key of the item.
        place: tells this place from others.
        path: the place as the user would write it.
        expected: the value.
    """

    __slots__ = ("expected", "key", "kind", "owner", "path", "place")

    def __init__(self, kind: _Kind, owner: Any, key: Any, path: str, expected: Any):
        self.kind, self.owner, self.key, self.path = kind, owner, key, path
        self.expected = expected
        self.place = (kind.text, id(owner), key)

    def read(self) -> Any:
        """What is there now, MISSING where nothing is."""
        try:
            return self.kind.read(self.owner, self.key)
        except _UNREADABLE:
            return MISSING

    def source(self, number: int) -> str:
        """Python text that is true if the value is the expected object."""
        o, k, e = f"o{number}", f"k{number}", f"e{number}"
        text = self.kind.text.format(o=o, k=k, e=e, name=self.key)
        return text if self.kind in _COMPARE else f"{text} is {e}"


class Guards:
    """All guards of a capture."""

    def __init__(self, guards: Iterable[Guard]):
        self._guards = list({guard.place: guard for guard in guards}.values())
        self._symbolic = [g for g in self._guards if is_symbolic(g.expected)]
        self._names: dict[str, Any] = {}
        self._check: Callable[[], bool] | None = None

    @property
    def places(self) -> set[tuple[str, int, Any]]:
        """The places that are guarded."""
        return {guard.place for guard in self._guards}

    def tensors(self) -> list[Handle]:
        """The tensors that places have."""
        return [tensor for guard in self._guards for tensor in _tensors(guard.expected)]

    def hold(self) -> bool:
        """Whether every place has the value it had."""
        if self._check is None:
            self._check = self._compiled()
        try:
            if self._check():
                return True
        except _UNREADABLE:
            pass
        return next(self.changed(), None) is None

    def changed(self) -> Iterator[tuple[str, Any, Any]]:
        """The places whose value is another one: (path, what it was, what it is)."""
        for number, guard in enumerate(self._guards):
            now = guard.read()
            if now is guard.expected:
                continue
            if same(now, guard.expected):
                guard.expected = self._names[f"e{number}"] = now
                continue
            yield guard.path, guard.expected, now

    def find_symbols(self, symbols: dict[str, Symbol]) -> None:
        """Adds the variables, with their values now, of places that have symbolic numbers."""
        for guard in self._symbolic:
            find_symbols(guard.read(), symbols)

    def _compiled(self) -> Callable[[], bool]:
        names = self._names
        names.update(MISSING=MISSING, same=same, elements=elements, contents=contents_of)
        for number, guard in enumerate(self._guards):
            names[f"o{number}"], names[f"k{number}"] = guard.owner, guard.key
            names[f"e{number}"] = guard.expected
        tests = [guard.source(number) for number, guard in enumerate(self._guards)]
        text = "lambda: " + (" and ".join(tests) or "True")
        check: Callable[[], bool] = eval(compile(text, "<frozen guards>", "eval"), names)
        return check


def _tensors(value: Any) -> list[Handle]:
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, Handle)]


def same(now: Any, before: Any) -> bool:
    """Whether two objects are the same value to a function that reads them."""
    if now is before:
        return True
    if is_symbolic(now) and is_symbolic(before):
        return bool(plain(now) == plain(before))
    if type(now) is not type(before):
        return False
    if isinstance(now, tuple):
        return len(now) == len(before) and all(map(same, now, before))
    if isinstance(now, (int, float, complex, np.generic)):
        return repr(now) == repr(before)  # equality takes -0.0 for 0.0, and tells a NaN from itself
    return isinstance(now, _SAME_IF_EQUAL) and bool(now == before)


def elements(container: Any, expected: tuple[Any, ...]) -> bool:
    """Whether a container, or a view of a dict, has these objects in this order."""
    return len(container) == len(expected) and all(map(is_, container, expected))


def contents_of(array: Any) -> tuple[Any, ...]:
    """What is in an array or another object that lends its memory.

    Raises InvalidValue for one that is too large to be compared before each replay.
    """
    view = array if isinstance(array, np.ndarray) else memoryview(array)
    if view.nbytes > MAX_CONTENTS:
        raise InvalidValue(f"{view.nbytes:,} bytes are too many to be compared in each replay")
    form = view.dtype.str if isinstance(view, np.ndarray) else view.format
    return view.shape, form, view.tobytes()


def shown(value: Any) -> str:
    """The value, for errors; not all of a long one."""
    text = value._described() if isinstance(value, Handle) else repr(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."
