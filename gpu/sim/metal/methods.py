"""Methods of classes: a Python function, and the C signature that its selector has.

A signature is a letter for the result and one for each argument, as in `TYPES`; an argument may
also be a class, by name, of which it must be an object, with a ``?`` behind it where it may be nil.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar


class Size(ctypes.Structure):
    """MTLSize, which is passed by value."""

    _fields_ = (
        ("width", ctypes.c_uint64),
        ("height", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
    )

    @property
    def three(self) -> tuple[int, int, int]:
        """Along x, y and z."""
        return self.width, self.height, self.depth


class Range(ctypes.Structure):
    """NSRange, which is passed by value."""

    _fields_ = (("location", ctypes.c_uint64), ("length", ctypes.c_uint64))


TYPES: Final[dict[str, Any]] = {
    "v": None,
    "@": ctypes.c_size_t,  # an object that may be nil
    "^": ctypes.c_size_t,  # a pointer
    "B": ctypes.c_bool,
    "C": ctypes.c_uint8,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "d": ctypes.c_double,
    "Size": Size,
    "Range": Range,
}
OWNING: Final = ("alloc", "new", "copy", "mutableCopy")
"""What selectors begin with whose result the caller owns ("Advanced Memory Management")."""


class Misuse(Exception):
    """A program did what Metal or Objective-C does not allow.

    Attributes:
        rule: the name that docs/reference/metal-rules.md tells it by.
    """

    def __init__(self, rule: str, what: str):
        super().__init__(what)
        self.rule = rule


class Method(NamedTuple):
    """A method of a class.

    Attributes:
        selector: its name.
        result, arguments: what `TYPES` has, or names of classes.
        body: takes the object, or for a method of the class itself that class.
    """

    selector: str
    result: str
    arguments: tuple[str, ...]
    body: Callable[..., Any]

    @property
    def gives_ownership(self) -> bool:
        """Whether the caller must release what it gives."""
        for word in OWNING:
            if self.selector.startswith(word):
                rest = self.selector[len(word) :]
                return not (rest[:1].isalpha() and rest[:1].islower())
        return False


_Body = TypeVar("_Body", bound=Callable[..., Any])
_MARK: Final = "metal_method"


def method(selector: str, result: str = "v", *arguments: str) -> Callable[[_Body], _Body]:
    """Makes a function the method of a selector, which has an argument for each of its colons."""
    assert selector.count(":") == len(arguments), selector

    def mark(body: _Body) -> _Body:
        setattr(body, _MARK, (selector, result, arguments))
        return body

    return mark


def methods_of(python_class: type) -> dict[str, Method]:
    """All methods of a class by selector, those that it inherits among them."""
    found: dict[str, Method] = {}
    for each in reversed(python_class.__mro__):
        for body in vars(each).values():
            told = getattr(body, _MARK, None)
            if told is not None:
                selector, result, arguments = told
                found[selector] = Method(selector, result, arguments, body)
    return found
