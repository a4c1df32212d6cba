"""What can be reached from a jitted function, and guards of all that it may have read there.

Beginning with the function, its closure, the globals it names and its arguments, the attributes and
items that code says it reads (`gpu/tensor/codereads.py`) are looked up in the objects themselves:
each becomes a guard, and what it leads to is looked at in turn. Rather too much is guarded than too
little: where an attribute is of an object without a name, that of any object found counts.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Collection, Mapping
from functools import partial
from types import CodeType, FunctionType, GeneratorType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final, cast

from gpu.core.errors import InvalidValue
from gpu.tensor import codereads as reads
from gpu.tensor.codereads import Steps
from gpu.tensor.guards import MISSING, Guard, Kinds, contents_of
from gpu.tensor.introspection import (
    BUFFERS,
    C_METHODS,
    CONTAINERS,
    computes_attributes,
    is_data,
    is_fixed,
    is_iterator,
    is_plain,
    may_have,
    own_attributes,
    runs_python,
)
from gpu.tensor.tracing import JitError

# The value of an attribute or item that Python code computes: what that reads is seen as it runs.
UNSEEN: Final = object()


class _Found:
    """An object that can be reached from outside.

    Attributes:
        value: the object.
        path: how, as the user would write it.
        whole: whether all elements of it, a container, count.
        done: the steps from it that were gone.
    """

    __slots__ = ("done", "path", "value", "whole")

    def __init__(self, value: Any, path: str):
        self.value, self.path = value, path
        self.whole = False
        self.done: set[Steps] = set()


class Reachable:
    """The objects that a function could have read, and guards of what it could have read of them.

    Attributes:
        guards: by place.
        found: the objects, by id.
        free: steps from objects that have no name.
    """

    def __init__(
        self, name: str, code: Collection[CodeType], variables: Mapping[int, Mapping[Steps, None]]
    ):
        """
        Args:
            name: of the function, for errors.
            code: what ran of functions.
            variables: the steps from objects that were in variables, by their ids.
        """
        self.guards: dict[tuple[str, int, Any], Guard] = {}
        self.found: dict[int, _Found] = {}
        self.free: dict[Steps, None] = {}
        self._name, self._code, self._variables = name, code, variables
        self._given: set[int] = set()  # containers among the arguments

    def argument(self, value: Any, path: str) -> None:
        """Reaches objects in the containers of an argument, whose form each call compares."""
        if isinstance(value, (dict, list, tuple)):
            self._given.add(id(value))
            self.found[id(value)] = _Found(value, path)
        if isinstance(value, dict):
            for key, each in value.items():
                self.argument(each, f"{path}[{key!r}]")
        elif isinstance(value, (list, tuple)):
            for number, each in enumerate(value):
                self.argument(each, f"{path}[{number}]")
        else:
            self.reach(value, path)

    def global_name(self, module: dict[str, Any], name: str, steps: Steps) -> None:
        """Goes `steps` from a global of a module, or from a module that is imported."""
        if name.startswith(reads.IMPORTED):
            asked = name.removeprefix(reads.IMPORTED)
            inside = f"{module.get('__package__')}.{asked}"
            if (found := sys.modules.get(asked) or sys.modules.get(inside)) is not None:
                self._walk(found, asked, steps)
        elif name in module:
            self._guard(Kinds.ITEM, module, name, name, module[name])
            self._walk(module[name], name, steps)
        elif not hasattr(builtins, name):
            self._guard(Kinds.ODD_ITEM, module, name, name, MISSING)

    def close(self) -> None:
        """Goes all steps from all objects, until there is nothing new."""
        size = None
        while size != (size := (len(self.guards), len(self.found), len(self.free))):
            for identity, found in list(self.found.items()):
                if isinstance(found.value, FunctionType):
                    self._closure(found)
                own = self._variables.get(identity)
                for steps in [*(own or ()), *self.free]:
                    if steps in found.done:
                        continue
                    found.done.add(steps)
                    if (own and steps in own) or may_have(found.value, steps[0]):
                        self._walk(found.value, found.path, steps)

    def _closure(self, found: _Found) -> None:
        function = found.value
        if function.__code__ not in self._code or (("closure", None),) in found.done:
            return
        found.done.add((("closure", None),))
        for key in ("__defaults__", "__kwdefaults__"):
            value = getattr(function, key)
            self._guard(Kinds.ATTRIBUTE, function, key, f"{found.path}.{key}", value)
            self.reach(value, f"{found.path}.{key}")
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # empty: a name that is not assigned yet
                value = MISSING
            self._guard(Kinds.CELL, cell, "", name, value)
            if name != "__class__":
                self.reach(value, name)

    def _guard(self, kind: Any, owner: Any, key: Any, path: str, value: Any) -> None:
        if id(owner) in self._given:
            return
        guard = Guard(kind, owner, key, path, value)
        self.guards.setdefault(guard.place, guard)

    # Objects.

    def reach(self, value: Any, path: str, whole: bool = True) -> None:
        """Notes an object, and all that is in it if it is a container."""
        if is_plain(value):
            return
        found = self.found.get(id(value))
        if found is None:
            found = self.found[id(value)] = _Found(value, path)
            self._look_into(value, path)
        is_open = isinstance(value, CONTAINERS) and id(value) not in self._given
        if whole and is_open and not found.whole:
            found.whole = True
            self._contents(value, found.path)

    def _look_into(self, value: Any, path: str) -> None:
        if isinstance(value, BUFFERS):
            try:
                expected = contents_of(value)
            except InvalidValue as error:
                raise self._refused(path, value, error.message) from error
            self._guard(Kinds.CONTENTS, value, "", path, expected)
        elif isinstance(value, MethodType):
            owner = "self" if path == self._name else f"{path}.__self__"
            self.reach(value.__self__, owner, whole=False)
            self.reach(value.__func__, path)
        elif isinstance(value, partial):
            self.reach(value.func, path)
            self.reach(value.args, f"{path}.args")
            self.reach(value.keywords, f"{path}.keywords")
        elif isinstance(value, (staticmethod, classmethod)):
            self.reach(value.__func__, path)
        elif isinstance(value, GeneratorType) or is_iterator(value):
            raise self._refused(path, value, "what it gives next cannot be seen")
        elif hasattr(type(value), "__dlpack__"):
            raise self._refused(path, value, "what is written to it cannot be seen")
        elif not isinstance(value, type) and (inner := own_attributes(value).get("__wrapped__")):
            self.reach(inner, path)  # a function that is cached, or jitted

    def _refused(self, path: str, value: object, why: str) -> JitError:
        return JitError(
            f"{self._name} reads {path}, {_a(type(value).__name__)} from outside: {why}; make it "
            "a Tensor outside, or pass it as an argument"
        )

    def _contents(self, value: Any, path: str) -> None:
        """Guards the structure of a container, and reaches its elements."""
        if isinstance(value, (dict, MappingProxyType)):
            plain = not isinstance(type(value).values, FunctionType)
            keys: Any = value.keys() if plain else dict.keys(cast(Any, value))
            values: Any = value.values() if plain else dict.values(cast(Any, value))
            self._elements(value, keys, f"the keys of {path}", "keys")
            self._elements(value, values, path, "values")
            for key, each in list(zip(keys, values, strict=True)):
                self.reach(key, f"a key of {path}")
                self.reach(each, f"{path}[{key!r}]")
            return
        if not isinstance(value, (tuple, frozenset)):
            self._elements(value, value, path, "")
        for number, each in enumerate(tuple(value)):
            self.reach(each, f"{path}[{number}]")

    def _elements(self, container: Any, view: Any, path: str, part: str) -> None:
        guard = Guard(Kinds.ELEMENTS, view, part, path, tuple(view))
        guard.place = (guard.place[0], id(container), part)  # views are other objects each time
        self.guards.setdefault(guard.place, guard)

    # Steps.

    def _walk(self, value: Any, path: str, steps: Steps) -> None:
        """Goes `steps` from an object; where Python code gives the next one, the rest is free."""
        for number, (kind, key) in enumerate(steps):
            if is_plain(value):
                return
            self.reach(value, path, whole=False)
            if kind == reads.EVERY:
                self._every(value, path)
                return
            if kind == reads.ITEM:
                value, path = self._item(value, key, path)
            else:
                value, path = self._attribute(value, key, kind, path)
            if value is UNSEEN and (rest := steps[number + 1 :]):
                self.free[rest] = None
            if value is UNSEEN or value is MISSING:
                return
        self.reach(value, path)

    def _item(self, owner: Any, key: Any, path: str) -> tuple[Any, str]:
        kind, inside = cast(Any, type(owner)), f"{path}[{key!r}]"
        if isinstance(owner, dict) and kind.__getitem__ is dict.__getitem__:
            value = dict.get(owner, key, MISSING)
            exact = kind is dict and value is not MISSING
            self._guard(Kinds.ITEM if exact else Kinds.ODD_ITEM, owner, key, inside, value)
            return value, inside
        by_number = getattr(kind, "__getitem__", None) in (list.__getitem__, tuple.__getitem__)
        if by_number and isinstance(key, int) and -len(owner) <= key < len(owner):
            if isinstance(owner, list):
                self._guard(Kinds.ITEM, owner, key, inside, owner[key])
            return owner[key], inside
        self.reach(owner, path)
        return UNSEEN, inside

    def _every(self, owner: Any, path: str) -> None:
        """Reads all attributes of an object."""
        if isinstance(owner, (type, ModuleType)) and is_fixed(owner):
            return
        names = dict.fromkeys(own_attributes(owner))
        for base in () if isinstance(owner, ModuleType) else type(owner).__mro__:
            if not is_fixed(base):
                names.update(dict.fromkeys(vars(base)))
        for name in names:
            if not (name.startswith("__") and name.endswith("__")):
                self._walk(owner, path, ((reads.ATTR, name),))

    def _attribute(self, owner: Any, name: str, kind: str, path: str) -> tuple[Any, str]:
        """The value of an attribute: MISSING where there is none, UNSEEN where code computes it."""
        inside = f"{path}.{name}"
        has_own = hasattr(type(owner), "_fields") or hasattr(owner, "__dict__")
        if isinstance(owner, CONTAINERS) and not has_own:
            self.reach(owner, path)  # a method, which may use all of it
            return MISSING, inside
        if isinstance(owner, (type, ModuleType)) and is_fixed(owner):
            return MISSING, inside
        if kind == reads.SUPER:
            self._of_bases(owner, name, path)
        own = own_attributes(owner)
        bases = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
        base = next((b for b in bases if name in b.__dict__), None)
        described = base.__dict__[name] if base is not None else MISSING
        here = name in own and not isinstance(owner, type)
        if base is not None and runs_python(described) and not (here and not is_data(described)):
            self._guard(Kinds.OF_CLASS, base, name, f"{base.__qualname__}.{name}", described)
            self.reach(described, inside)
            return UNSEEN, inside
        if here and (isinstance(owner, ModuleType) or computes_attributes(owner)):
            self._guard(Kinds.ITEM, own, name, inside, own[name])
            return own[name], inside
        if base is None and not here and computes_attributes(owner):
            self._guard(Kinds.ODD_ITEM, own, name, inside, MISSING)
            return UNSEEN, inside
        return self._plain_attribute(owner, name, inside)

    def _plain_attribute(self, owner: Any, name: str, path: str) -> tuple[Any, str]:
        """The value of an attribute that no Python code computes."""
        value = getattr(owner, name, MISSING)
        if isinstance(value, MethodType):
            self._guard(Kinds.METHOD, owner, name, path, value.__func__)
            self.reach(value.__self__, path)
            return value.__func__, path
        if isinstance(value, C_METHODS):
            self.reach(owner, path)
            return MISSING, path
        if value is MISSING or not name.isidentifier():
            self._guard(Kinds.ODD_ATTRIBUTE, owner, name, path, value)
        elif getattr(owner, name) is value:
            self._guard(Kinds.ATTRIBUTE, owner, name, path, value)
        elif is_plain(value):  # made anew each time, as by an object in C
            self._guard(Kinds.VALUE, owner, name, path, value)
        return value, path

    def _of_bases(self, owner: Any, name: str, path: str) -> None:
        for base in type(owner).__mro__:
            if name in base.__dict__ and not is_fixed(base):
                value = base.__dict__[name]
                self._guard(Kinds.OF_CLASS, base, name, f"{base.__qualname__}.{name}", value)
                self.reach(value, f"{path}.{name}")


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
