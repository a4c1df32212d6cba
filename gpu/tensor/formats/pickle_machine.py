"""Reads a pickle without executing anything.

A pickle is a program for a stack machine: `pickletools` of the standard library documents its
instructions and takes them apart, and this module runs them. What in the real machine imports and
calls whatever the file names is handed to the `World` that the caller provides, and that knows a
fixed list of names; instructions that would set attributes of objects, or that no checkpoint
needs, are refused. No instruction allocates more than the file is long; lists, dicts and sets are
made of what was pushed one by one.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Protocol

from gpu.core.errors import FormatError
from gpu.tensor.formats.hostbytes import BytesFile

_MAX_INT_BITS: Final = 4096  # a random generator's state is some thousand, in pieces
_MAX_KEY_LENGTH: Final = 16  # of a tuple that is a dict's key
_KEY_TYPES: Final = (str, int, float, bytes, type(None))  # bool is an int


class World(Protocol):
    """What a pickle may refer to outside itself. Each method raises FormatError to refuse."""

    def global_named(self, name: str) -> object:
        """What stands for the class or function of a dotted name."""

    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        """The result of a call to something that `global_named` gave."""

    def persistent(self, identity: object) -> object:
        """The object that the file holds outside the pickle under `identity`."""

    def set_state(self, target: object, state: object) -> None:
        """Takes the state that an object is told to restore."""


def load_pickle(file: BytesFile, world: World) -> object:
    """The object of the pickle that starts where `file` stands; it is left behind its end.

    Raises FormatError for a malformed pickle and for what `world` refuses.
    """
    return _Machine(world).run(file)


def check_key(key: object) -> object:
    """`key`, where it may be one of a dict: plain values are cheap to hash, however many.

    Raises FormatError otherwise.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) > _MAX_KEY_LENGTH or not all(isinstance(p, _KEY_TYPES) for p in parts):
        raise FormatError(
            f"a dict or set has a key of type {type(key).__name__}; text, numbers and short tuples"
            " of these are supported"
        )
    return key


def _instructions(file: BytesFile) -> Iterator[tuple[str, Any, int]]:
    """(name, argument, position) of each instruction up to the one that stops."""
    source = pickletools.genops(file)  # type: ignore[arg-type]  # read, readline, tell
    while True:
        try:
            opcode, argument, position = next(source)
        except StopIteration:
            return
        except ValueError as error:  # unknown, cut off, or an argument that cannot be read
            raise FormatError(f"the pickle is malformed: {error}") from error
        yield opcode.name, argument, position or 0


class _Machine:
    """The stack, the memo and the instructions."""

    def __init__(self, world: World):
        self._world = world
        self._stack: list[Any] = []
        self._marks: list[int] = []  # heights of the stack where groups of values start
        self._memo: dict[int, Any] = {}

    def run(self, file: BytesFile) -> object:
        """Runs to the end and returns the one value that is left."""
        for name, argument, position in _instructions(file):
            try:
                self._step(name, argument)
            except FormatError as error:
                raise FormatError(
                    f"{error.message} (pickle instruction {name}, byte {position})"
                ) from None
        if len(self._stack) != 1:
            raise FormatError(f"the pickle ends with {len(self._stack) + 1} values instead of one")
        return self._stack[0]

    def _step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > _MAX_INT_BITS:
                raise FormatError(f"an integer of {argument.bit_length()} bits is not supported")
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _MAKERS:
            self._stack.append(_MAKERS[name]())
        elif name in _MEMO_WRITES:
            self._remember(argument)
        elif name in _MEMO_READS:
            self._recall(argument)
        elif name in _TUPLE_SIZES:
            self._stack.append(tuple(self._pop_several(_TUPLE_SIZES[name])))
        elif name in _HANDLERS:
            _HANDLERS[name](self, argument)
        elif name not in _IGNORED:
            raise FormatError("the instruction is refused: no checkpoint of tensors needs it")

    # The stack.

    def _pop(self) -> Any:
        floor = self._marks[-1] if self._marks else 0
        if len(self._stack) <= floor:
            raise FormatError("a value is taken from an empty stack")
        return self._stack.pop()

    def _pop_several(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _pop_group(self) -> list[Any]:
        """What was pushed since the last mark."""
        if not self._marks:
            raise FormatError("a group of values has no start")
        start = self._marks.pop()
        group = self._stack[start:]
        del self._stack[start:]
        return group

    def _top(self, kind: type[Any], action: str) -> Any:
        """The value on top, which has to be of a kind for what is to be done with it."""
        value = self._pop()
        if not isinstance(value, kind):
            raise FormatError(
                f"{action} a {type(value).__name__}, which has to be a {kind.__name__}"
            )
        self._stack.append(value)
        return value

    def _mark(self, argument: Any) -> None:
        self._marks.append(len(self._stack))

    def _drop(self, argument: Any) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    def _drop_group(self, argument: Any) -> None:
        self._pop_group()

    def _duplicate(self, argument: Any) -> None:
        value = self._pop()
        self._stack += [value, value]

    # The memo.

    def _remember(self, index: int | None) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[len(self._memo) if index is None else index] = value

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise FormatError(f"value {index} is used before it was stored")
        self._stack.append(self._memo[index])

    # Containers.

    def _make_tuple(self, argument: Any) -> None:
        self._stack.append(tuple(self._pop_group()))

    def _make_list(self, argument: Any) -> None:
        self._stack.append(self._pop_group())

    def _make_dict(self, argument: Any) -> None:
        self._stack.append(_set_items({}, self._pop_group()))

    def _make_frozenset(self, argument: Any) -> None:
        self._stack.append(frozenset(check_key(value) for value in self._pop_group()))

    def _append(self, argument: Any) -> None:
        value = self._pop()
        self._top(list, "a value is appended to").append(value)

    def _extend(self, argument: Any) -> None:
        values = self._pop_group()
        self._top(list, "values are appended to").extend(values)

    def _set_item(self, argument: Any) -> None:
        pair = self._pop_several(2)
        _set_items(self._top(dict, "an item is set in"), pair)

    def _set_many(self, argument: Any) -> None:
        items = self._pop_group()
        _set_items(self._top(dict, "items are set in"), items)

    def _add_many(self, argument: Any) -> None:
        values = self._pop_group()
        self._top(set, "values are added to").update(check_key(value) for value in values)

    # What lies outside.

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(self._world.global_named(f"{module}.{name}"))

    def _stack_global(self, argument: Any) -> None:
        module, name = self._pop_several(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise FormatError("a global is named by something that is not text")
        self._stack.append(self._world.global_named(f"{module}.{name}"))

    def _call(self, argument: Any) -> None:
        function, arguments = self._pop_several(2)
        if not isinstance(arguments, tuple):
            raise FormatError(
                f"a function is called with a {type(arguments).__name__} instead of a tuple"
            )
        self._stack.append(self._world.call(function, arguments))

    def _persistent(self, argument: Any) -> None:
        self._stack.append(self._world.persistent(self._pop()))

    def _build(self, argument: Any) -> None:
        target, state = self._pop_several(2)
        self._world.set_state(target, state)
        self._stack.append(target)

    HANDLERS: ClassVar[dict[str, Callable[[_Machine, Any], None]]] = {
        "MARK": _mark, "POP": _drop, "POP_MARK": _drop_group, "DUP": _duplicate,
        "TUPLE": _make_tuple, "LIST": _make_list, "DICT": _make_dict,
        "FROZENSET": _make_frozenset, "APPEND": _append, "APPENDS": _extend,
        "SETITEM": _set_item, "SETITEMS": _set_many, "ADDITEMS": _add_many,
        "GLOBAL": _global, "STACK_GLOBAL": _stack_global, "REDUCE": _call, "NEWOBJ": _call,
        "BINPERSID": _persistent, "BUILD": _build,
    }  # fmt: skip


def _set_items(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    """Sets keys and values that alternate."""
    if len(items) % 2:
        raise FormatError("a dict has a key without a value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[check_key(key)] = value
    return target


_HANDLERS: Final = _Machine.HANDLERS
_LITERALS: Final = frozenset({
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
})  # fmt: skip
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_MAKERS: Final[dict[str, Callable[[], object]]] = {
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
_MEMO_WRITES: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_MEMO_READS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TUPLE_SIZES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED: Final = frozenset({"PROTO", "FRAME", "STOP"})
