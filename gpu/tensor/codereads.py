"""What a code object says it reads: attributes and items, and where it has the objects from.

Bytecode is looked at for loads that follow each other, as of ``self.opt.lr`` or ``CONFIG["rate"]``.
An attribute of what has no name, as of an element of ``self.layers``, is `free`: it may be one of
any object. Nothing is followed through the stack, so this does not depend on the version of Python
beyond the names of a few instructions.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

# ATTR: an attribute is read; STORE: it is written, and may not be there before; MAYBE: it is asked
# for with getattr() or hasattr(); SUPER: read in code that names super(); ITEM: a subscript;
# EVERY: any attribute, by a name that is computed.
ATTR, STORE, MAYBE, SUPER, ITEM, EVERY = "attr", "store", "maybe", "super", "item", "every"

IMPORTED: Final = "import "  # before the name of a module, in the place of a global's

Step: TypeAlias = "tuple[str, Any]"
Steps: TypeAlias = "tuple[Step, ...]"


class CodeReads(NamedTuple):
    """What a code object reads.

    Attributes:
        names: from the globals, or from a module imported inside: (name, steps from there).
        variables: from arguments, variables assigned once, and the closure, likewise.
        free: steps from objects that have no name.
        inner: code of functions that are made inside.
        has_closure: whether it has variables of a function around it.
    """

    names: tuple[tuple[str, Steps], ...]
    variables: tuple[tuple[str, Steps], ...]
    free: tuple[Steps, ...]
    inner: frozenset[CodeType]
    has_closure: bool


# Instructions between those that belong together.
_TRANSPARENT: Final = ("PUSH_NULL", "NOP", "RESUME", "EXTENDED_ARG", "CACHE", "NOT_TAKEN")
_SUBSCRIPTS: Final = ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR")
_VARIABLES: Final = (  # these and others that begin so
    *("LOAD_FAST", "STORE_FAST_LOAD", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"),
)
_CALLS: Final = ("PRECALL", "CALL")
_IN_A_CALL: Final = ("LOAD_", *_CALLS)
_BY_NAME: Final = ("getattr", "hasattr", "setattr", "delattr")
_ALL_NAMES: Final = ("vars", "dir", "attrgetter")


@lru_cache(8192)
def reads_of(code: CodeType) -> CodeReads:
    """What `code` reads; see the module's text."""
    reader = _Reader(code)
    instructions: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.is_jump_target:
            reader.joins.add(len(instructions))
        if instruction.opname not in _TRANSPARENT:
            instructions.append(instruction)
    for number in range(len(instructions)):
        reader.see(instructions, number)
    reader.end([])
    return CodeReads(
        tuple(reader.names), tuple(reader.variables), tuple(reader.free),
        frozenset(_inner(code)), bool(set(code.co_freevars) - {"__class__"}),
    )  # fmt: skip


def _inner(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


class _Reader:
    """Goes through the instructions of one code object."""

    def __init__(self, code: CodeType):
        self.names: dict[tuple[str, Steps], None] = {}
        self.variables: dict[tuple[str, Steps], None] = {}
        self.free: dict[Steps, None] = {}
        self._changing = _changing(code)
        self._attribute = SUPER if "super" in code.co_names else ATTR
        # The chain so far: where it starts (None: anywhere) and its steps; None between chains.
        self._chain: tuple[str, str | None, Steps] | None = None
        self._constant: tuple[Any] | None = None  # pushed after the chain: a key, or a name
        self._by_name = ""  # the builtin whose first argument comes next
        self._swapped = False
        self._module = ""  # that is being imported from
        self.joins: set[int] = set()  # instructions that are jumped to

    def see(self, instructions: list[dis.Instruction], number: int) -> None:
        """Takes the next instruction."""
        ins, name = instructions[number], instructions[number].opname
        coming = [i.opname for i in instructions[number : number + 2]]
        if number in self.joins:
            self.end([])
        if name == "COPY" and ins.arg == 1 and self._constant is None:
            return
        swapped, self._swapped = self._swapped, name == "SWAP"
        subscript = name in _SUBSCRIPTS or (name == "BINARY_OP" and ins.argrepr == "[]")
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._extend((self._attribute, ins.argval))
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            if not swapped:  # the end of ``a.b += c``, which has read a.b
                self._extend((STORE, ins.argval))
            self.end(coming)
        elif name == "MATCH_CLASS":
            self.end(coming)
            named = instructions[number - 1].argval
            fields: list[Step] = [(ATTR, field) for field in named]
            self.free.update({(step,): None for step in fields or [(EVERY, None)]})
            if ins.arg:  # by position: names that only the class knows
                self.free[((EVERY, None),)] = None
        elif name == "IMPORT_NAME":
            self.end(coming)
            self._module = str(ins.argval)
        elif name == "IMPORT_FROM":
            self.names[f"{IMPORTED}{self._module}", ((ATTR, ins.argval),)] = None
        elif name == "LOAD_SUPER_ATTR":
            self.end(coming)
            self.free[((SUPER, ins.argval),)] = None
        elif subscript and self._chain is not None and self._constant is not None:
            key, self._constant = self._constant[0], None
            self._extend((ITEM, key))
        elif name in ("LOAD_CONST", "LOAD_SMALL_INT") and self._chain and self._constant is None:
            self._constant = (ins.argval,)
        else:
            self.end(coming)
            self._begin(ins, coming)

    def _begin(self, ins: dis.Instruction, coming: list[str]) -> None:
        if ins.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            self._chain = ("name", ins.argval, ())
        elif ins.opname.startswith(_VARIABLES):
            loaded = ins.argval if isinstance(ins.argval, tuple) else (ins.argval,)
            for number, variable in enumerate(loaded):
                if number:
                    self.end(coming)
                where = "any" if variable in self._changing else "variable"
                self._chain = (where, variable, ())

    def _extend(self, step: Step) -> None:
        if self._constant is not None:  # an attribute of a constant
            self.end([])
        where, root, steps = self._chain or ("any", None, ())
        self._chain = (where, root, (*steps, step))

    def end(self, coming: list[str]) -> None:
        """Notes the chain; `coming` names the next two instructions."""
        chain, constant, builtin = self._chain, self._constant, self._by_name
        self._chain, self._constant, self._by_name = None, None, ""
        if builtin:
            if chain is None or not coming or not coming[0].startswith(_IN_A_CALL):
                self.free[((EVERY, None),)] = None  # the first argument is computed
            else:
                # ``getattr(x, "a")`` or with one argument more; what follows else makes the name.
                known = constant is not None and any(n in _CALLS for n in coming)
                step = (MAYBE, constant[0]) if constant and known else (EVERY, None)
                chain = (chain[0], chain[1], (*chain[2], step))
        if chain is None:
            return
        where, root, steps = chain
        if where == "name" and not steps and root in (*_BY_NAME, *_ALL_NAMES):
            self._by_name = str(root)
        elif where == "any":
            # What the first steps are taken from may be made inside, of objects that are not.
            self.free.update({steps[number:]: None for number in range(len(steps))})
        elif where == "name":
            self.names[str(root), steps] = None
        else:
            self.variables[str(root), steps] = None


def _changing(code: CodeType) -> set[str]:
    """The variables that may stand for several objects while the code runs."""
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    stores: dict[str, list[int]] = {name: [-1] for name in code.co_varnames[:arguments]}
    stores |= {name: [-1] for name in code.co_freevars}
    loops: list[tuple[int, int]] = []
    for ins in dis.get_instructions(code):
        if ins.opname.startswith(("STORE_FAST", "DELETE_FAST", "STORE_DEREF", "DELETE_DEREF")):
            stored = ins.argval if isinstance(ins.argval, tuple) else (ins.argval,)
            for name in stored:
                stores.setdefault(name, []).append(ins.offset)
        elif "JUMP_BACKWARD" in ins.opname:
            loops.append((ins.argval, ins.offset))
    return {
        name
        for name, places in stores.items()
        if len(places) > 1 or any(start <= places[0] <= end for start, end in loops)
    }
