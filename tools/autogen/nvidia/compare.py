"""What of ours a package has, has otherwise, or does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu.drivers.nv.encode.methods.method import Method

from . import tables
from .package import Facts

SAME, DIFFERENT, NOT_THERE = "same", "DIFFERENT", "not there"
_HOST = 0
_CHANNELS = (0xC56F, 0xC86F)  # whose headers have the host's methods
_NUMBERS, _COMMAND = "numbers", "_CTRL_CMD_"

Bits = tuple[int, int]


@dataclass(frozen=True)
class Finding:
    """One number of ours: where it is, what it is called, and what came of looking for it."""

    where: str
    name: str
    verdict: str
    why: str = ""


def compare(branch: int, facts: Facts) -> Iterator[Finding]:
    """Every number of ours against a package of one branch."""
    structs = list(tables.structs(branch))
    yield from _numbers({one.name: one.size for one in structs}, facts)
    for one in structs:
        yield from _struct(one, facts)
    yield from _methods(facts)


def _finding(where: str, name: str, ours: object, theirs: object) -> Finding:
    if theirs is None:
        return Finding(where, name, NOT_THERE)
    if ours == theirs:
        return Finding(where, name, SAME)
    return Finding(where, name, DIFFERENT, f"{_text(ours)}, in the package {_text(theirs)}")


def _text(value: object) -> str:
    return f"{value:#x}" if isinstance(value, int) else str(value)


def _numbers(sizes: Mapping[str, int], facts: Facts) -> Iterator[Finding]:
    known = facts.classes | facts.numbers
    for name, number in tables.numbers().items():
        if _COMMAND in name and number in facts.controls:
            yield from _command(name, number, sizes, facts)
        else:
            yield _finding(_NUMBERS, name, number, known.get(name))


def _command(name: str, number: int, sizes: Mapping[str, int], facts: Facts) -> Iterator[Finding]:
    """A control command: its argument's size, and the function that answers it.

    The function has the letters of the command's name; where RM only passes a command on to the
    GPU's own processor there is none.
    """
    function, size = facts.controls[number]
    letters = iter(function.lower())
    ours = name.partition(_COMMAND)[2].replace("_", "").lower()
    if function and not all(letter in letters for letter in ours):
        yield Finding(_NUMBERS, name, DIFFERENT, f"{number:#x} is answered by {function}")
    else:
        yield Finding(_NUMBERS, name, SAME)
    argument = f"{name.replace(_COMMAND, '_CTRL_')}_PARAMS"
    if argument in sizes:
        yield _finding(_NUMBERS, f"{name} (bytes of its argument)", sizes[argument], size)


def _struct(one: tables.Struct, facts: Facts) -> Iterator[Finding]:
    theirs = facts.structs.get(one.name)
    if theirs is None:
        yield Finding(one.where, one.name, NOT_THERE)
        return
    size, members = theirs
    named = {path: (at, width) for path, at, width in members}
    places = set(named.values())
    if one.grows and one.size > size:
        later = f"{one.size} bytes, {size} on this branch"
        yield Finding(one.where, f"{one.name} (size)", NOT_THERE, later)
    else:
        yield _finding(one.where, f"{one.name} (size)", one.size, size)
    for name, place in one.places.items():
        path = f"{one.name}.{name}"
        if one.grows and place[0] >= size:
            yield Finding(one.where, path, NOT_THERE, "of a later branch")
        elif not members:  # a scalar
            continue
        elif named.get(f"{name}[0]") == place:
            yield Finding(one.where, path, SAME, "the first of several")
        elif name in named:
            yield _finding(one.where, path, place, named[name])
        else:  # a name of ours: there has to be a member at just that place
            same = place in places
            why = "" if same else f"no member of {place[1]} bytes at {place[0]}"
            yield Finding(one.where, path, SAME if same else DIFFERENT, why)


def _methods(facts: Facts) -> Iterator[Finding]:
    newest: dict[str, int | Bits] = {}
    for header in sorted(facts.methods):
        newest |= facts.methods[header]
    for number, methods in tables.method_sets().items():
        for header in _CHANNELS if number == _HOST else (number,):
            there = facts.methods.get(f"NV{header:04X}")
            where = f"methods of {header:#x}"
            if there is None:
                yield Finding(where, methods.name, NOT_THERE)
                continue
            for method in methods.methods:
                yield _finding(where, method.__name__, method.address, there.get(method.__name__))
                yield from _fields(where, method, there, newest)


def _fields(
    where: str,
    method: type[Method],
    there: Mapping[str, int | Bits],
    newest: Mapping[str, int | Bits],
) -> Iterator[Finding]:
    """Fields. Ours are the newest class's, and say so where an older one has others."""
    for field in method.fields.values():
        name = f"{method.__name__}_{field.name}"
        ours, theirs = (field.lo, field.hi - field.lo + 1), there.get(name)
        if theirs not in (None, ours) and newest[name] == ours and "before" in field.doc:
            yield Finding(where, name, SAME, f"in newer classes; {field.doc}")
        else:
            yield _finding(where, name, ours, theirs)
