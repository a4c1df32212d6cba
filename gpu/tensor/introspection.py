"""What kind of thing a Python object is to `gpu.jit`: looked at without running its code."""

from __future__ import annotations

import array
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, Final

import numpy as np

from gpu.compiler.ir.dims import is_symbolic
from gpu.tensor import codereads as reads
from gpu.tensor.guards import MISSING
from gpu.tensor.handle import Handle

_PLAIN: Final = (
    *(type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, Enum, range, slice),
    *(type(...), type(NotImplemented), CodeType),
)
# Each of these types has one of its own, and all of them look in the type and in the object alone.
_LOOKUPS: Final = tuple(
    kind.__getattribute__
    for kind in (
        *(object, type, ModuleType, tuple, list, dict, set, frozenset),
        *(str, bytes, int, float, complex),
    )
)
_SEQUENCES: Final = (list, tuple, deque)
CONTAINERS: Final = (*_SEQUENCES, set, frozenset, dict, MappingProxyType)
BUFFERS: Final = (np.ndarray, bytearray, memoryview, array.array)
C_METHODS: Final = (BuiltinMethodType, MethodWrapperType)
# Modules and classes that are not looked into: they do not change.
_FIXED: Final = frozenset({"gpu", "numpy", "builtins", *sys.stdlib_module_names} - {"__main__"})


def own_attributes(value: Any) -> Mapping[str, Any]:
    """The attributes that an object has itself; no code of the user's runs."""
    if isinstance(value, type):
        return type.__dict__["__dict__"].__get__(value)  # type: ignore[no-any-return]
    try:
        found: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def is_plain(value: object) -> bool:
    """Whether it has no parts that could change, or parts that are not ours to look into."""
    if value is MISSING or isinstance(value, (*_PLAIN, Handle)) or is_symbolic(value):
        return True
    if isinstance(value, (type, ModuleType, FunctionType, *CONTAINERS)):
        return False
    module = type(value).__module__
    looked_into = ("gpu.tensor.nn", "gpu.tensor.jit", "gpu.cli")
    return module.startswith("gpu.") and not module.startswith(looked_into)


def is_fixed(owner: type | ModuleType) -> bool:
    """Whether it is a class or module that is not looked into, as it does not change."""
    return is_fixed_name(owner.__module__ if isinstance(owner, type) else owner.__name__)


def is_fixed_name(name: str) -> bool:
    """Whether nothing in the module of that name is looked into."""
    return name.partition(".")[0] in _FIXED and not name.startswith(("gpu.tensor.nn", "gpu.cli"))


def is_iterator(value: object) -> bool:
    """Whether it is one of Python's own iterators, such as a zip; files are none of them."""
    kind = type(value)
    own = kind.__module__ in ("builtins", "itertools")
    return own and isinstance(value, Iterator)


def runs_python(described: Any) -> bool:
    """Whether what a class has for an attribute is a property, or the like of it."""
    get = getattr(type(described), "__get__", None)
    return isinstance(described, property) or isinstance(get, FunctionType)


def is_data(described: Any) -> bool:
    """Whether what a class has for an attribute comes before what the object itself has."""
    return hasattr(type(described), "__set__") or hasattr(type(described), "__delete__")


def computes_attributes(owner: Any) -> bool:
    """Whether Python code, such as ``__getattr__``, may be asked for attributes."""
    kind: Any = type(owner)
    if isinstance(owner, ModuleType):
        return "__getattr__" in vars(owner)
    return hasattr(kind, "__getattr__") or kind.__getattribute__ not in _LOOKUPS


def may_have(value: Any, step: tuple[str, Any]) -> bool:
    """Whether a step from an object without a name can be from this one."""
    kind, key = step
    if kind == reads.ITEM:
        return isinstance(value, dict) or (isinstance(value, (list, tuple)) and type(key) is int)
    if isinstance(value, (FunctionType, type, ModuleType)):
        return kind != reads.EVERY and key in vars(value)
    if kind in (reads.EVERY, reads.STORE, reads.MAYBE):
        return bool(own_attributes(value)) or hasattr(type(value), "__slots__")
    return key in own_attributes(value) or any(key in base.__dict__ for base in type(value).__mro__)
