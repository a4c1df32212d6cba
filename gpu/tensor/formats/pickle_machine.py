"""Reads a pickle without executing anything.

A pickle is a program for a stack machine: `pickletools` of the standard library documents its
instructions, and this module runs them. What in the real machine imports and calls whatever the
file names is handed to the `World` that the caller provides, and that knows a fixed list of names;
instructions that would set attributes of objects, or that no checkpoint needs, are refused. No
instruction allocates more than the file is long; lists, dicts and sets are made of what was pushed
one by one. Limits of what is pushed, remembered and dropped are far above what picklers do: those
of Python write containers in pieces of 1000 values, and drop only parts of tuples in themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from gpu.core.errors import FormatError
from gpu.tensor.formats.hostbytes import BytesFile
from gpu.tensor.formats.pickle_code import instructions

_MAX_DEPTH: Final = 1 << 14  # groups of values
_MAX_TUPLES: Final = 1 << 21  # a checkpoint has about 4 for each tensor
_MAX_STACK: Final = 1 << 20  # values; tuples alone are not made in pieces
_MAX_MEMO: Final = 1 << 22  # values; a checkpoint has about 7 for each tensor
_MAX_DROPPED: Final = 1 << 16  # values that were pushed for nothing
_MAX_KEY_BITS: Final = 64  # of an integer: Python's hashes of larger ones collide as a file likes
_MAX_KEY_LENGTH: Final = 16  # of a tuple that is a dict's key
_MAX_TUPLE_KEYS: Final = 1 << 12  # in all; their hashes collide as a file likes
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


class Keys:
    """Checks keys of dicts and sets: plain values are cheap to hash and to compare, however many.

    All from one file, as what only a few may be is counted.
    """

    def __init__(self) -> None:
        self._tuples = 0

    def check(self, key: object) -> object:
        """`key`, where it may be one. Raises FormatError otherwise."""
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) > _MAX_KEY_LENGTH or not all(isinstance(p, _KEY_TYPES) for p in parts):
            raise FormatError(
                f"a dict or set has a key of type {type(key).__name__}; text, numbers and short"
                " tuples of these are supported"
            )
        if any(isinstance(p, int) and p.bit_length() > _MAX_KEY_BITS for p in parts):
            raise FormatError(f"a dict or set has an integer of over {_MAX_KEY_BITS} bits as a key")
        self._tuples += isinstance(key, tuple)
        if self._tuples > _MAX_TUPLE_KEYS:
            raise FormatError(f"dicts and sets have more than {_MAX_TUPLE_KEYS:,} tuples as keys")
        return key


class _Machine:
    """The stack, the memo and the instructions."""

    def __init__(self, world: World):
        self._world = world
        self._stack: list[Any] = []
        self._marks: list[int] = []  # heights of the stack where groups of values start
        self._memo: dict[int, Any] = {}
        self._dropped = 0
        self._tuples = 0
        self._keys = Keys()

    def run(self, file: BytesFile) -> object:
        """Runs to the end and returns the one value that is left."""
        stack, handlers = self._stack, _HANDLERS
        for name, argument, position in instructions(file):
            try:
                handler = handlers.get(name)
                if handler is None:
                    raise FormatError(
                        "the instruction is refused: no checkpoint of tensors needs it"
                    )
                handler(self, argument)
                if len(stack) > _MAX_STACK:
                    raise FormatError(f"more than {_MAX_STACK:,} values are on the stack")
            except FormatError as error:
                raise FormatError(
                    f"{error.message} (pickle instruction {name}, byte {position})"
                ) from None
        if len(self._stack) != 1:
            raise FormatError(f"the pickle ends with {len(self._stack) + 1} values instead of one")
        return self._stack[0]

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
        if len(self._marks) > _MAX_DEPTH:
            raise FormatError(f"groups of values are nested more than {_MAX_DEPTH:,} deep")

    def _drop(self, argument: Any) -> None:
        self._count_dropped(1)
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    def _drop_group(self, argument: Any) -> None:
        self._count_dropped(1 + len(self._pop_group()))

    def _count_dropped(self, count: int) -> None:
        self._dropped += count
        if self._dropped > _MAX_DROPPED:
            raise FormatError(f"more than {_MAX_DROPPED:,} values are pushed and dropped again")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _ignore(self, argument: Any) -> None:
        """Says nothing about values."""

    # The memo.

    def _remember(self, index: int | None) -> None:
        value = self._pop()
        self._stack.append(value)
        self._memo[len(self._memo) if index is None else index] = value
        if len(self._memo) > _MAX_MEMO:
            raise FormatError(f"more than {_MAX_MEMO:,} values are remembered")

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise FormatError(f"value {index} is used before it was stored")
        self._stack.append(self._memo[index])

    # Containers.

    def _make_tuple(self, argument: Any) -> None:
        self._push_tuple(self._pop_group())

    def _push_tuple(self, values: list[Any]) -> None:
        self._tuples += 1
        if self._tuples > _MAX_TUPLES:
            raise FormatError(f"there are more than {_MAX_TUPLES:,} tuples")
        self._stack.append(tuple(values))

    def _make_list(self, argument: Any) -> None:
        self._stack.append(self._pop_group())

    def _make_dict(self, argument: Any) -> None:
        self._stack.append(self._set_items({}, self._pop_group()))

    def _make_frozenset(self, argument: Any) -> None:
        self._stack.append(frozenset(self._keys.check(value) for value in self._pop_group()))

    def _append(self, argument: Any) -> None:
        value = self._pop()
        self._top(list, "a value is appended to").append(value)

    def _extend(self, argument: Any) -> None:
        values = self._pop_group()
        self._top(list, "values are appended to").extend(values)

    def _set_item(self, argument: Any) -> None:
        pair = self._pop_several(2)
        self._set_items(self._top(dict, "an item is set in"), pair)

    def _set_many(self, argument: Any) -> None:
        items = self._pop_group()
        self._set_items(self._top(dict, "items are set in"), items)

    def _add_many(self, argument: Any) -> None:
        values = self._pop_group()
        self._top(set, "values are added to").update(self._keys.check(value) for value in values)

    def _set_items(self, target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
        """Sets keys and values that alternate."""
        if len(items) % 2:
            raise FormatError("a dict has a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self._keys.check(key)] = value
        return target

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


Handler = Callable[[_Machine, Any], None]


def _constant(value: object) -> Handler:
    return lambda machine, argument: machine._push(value)


def _fresh(make: Callable[[], object]) -> Handler:
    return lambda machine, argument: machine._push(make())


def _tuple_of(count: int) -> Handler:
    return lambda machine, argument: machine._push_tuple(machine._pop_several(count))


_HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _Machine._ignore),
    **dict.fromkeys(
        (
            *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT"),
            *("BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE"),
            *("SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
            "BYTEARRAY8",
        ),
        _Machine._push,
    ),
    "NONE": _constant(None), "NEWTRUE": _constant(True), "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()), "EMPTY_LIST": _fresh(list), "EMPTY_DICT": _fresh(dict),
    "EMPTY_SET": _fresh(set),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine._remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine._recall),
    "TUPLE1": _tuple_of(1), "TUPLE2": _tuple_of(2), "TUPLE3": _tuple_of(3),
    "MARK": _Machine._mark, "POP": _Machine._drop, "POP_MARK": _Machine._drop_group,
    "TUPLE": _Machine._make_tuple, "LIST": _Machine._make_list, "DICT": _Machine._make_dict,
    "FROZENSET": _Machine._make_frozenset, "APPEND": _Machine._append,
    "APPENDS": _Machine._extend, "SETITEM": _Machine._set_item, "SETITEMS": _Machine._set_many,
    "ADDITEMS": _Machine._add_many, "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global, "REDUCE": _Machine._call, "NEWOBJ": _Machine._call,
    "BINPERSID": _Machine._persistent, "BUILD": _Machine._build,
}  # fmt: skip
"""What is done for each instruction. DUP is not among them: no pickler writes it."""
