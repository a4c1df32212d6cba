"""Calls: bodies of functions written out where they stand, and frames for those that recurse.

A function that can come back to itself has its records once, behind the kernel's. What it declares
lies in a frame, at a place of local memory that a row has for each lane; so do the parameters it is
given. Whoever calls such a function from such a function keeps its registers in its own frame. A
row tells which of the calls it was: the end of the function compares it with each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpu.sim.isa.ptx import translate_memory, wave
from gpu.sim.isa.ptx.context import Context, Scope
from gpu.sim.isa.ptx.syntax import (
    Address,
    BranchTargets,
    Function,
    Instruction,
    Module,
    Number,
    Operand,
    Pack,
    Register,
    Symbol,
    Variable,
)

STACK: Final = 16 << 10
"""Bytes of a thread for frames; beyond them an access is out of bounds."""
_WORD: Final = re.compile(r"[\w$%]+")
_PLACES: Final = Function("frames", False, [], [], 0)


def named(instruction: Instruction) -> Iterator[Symbol]:
    """Symbols among the operands of an instruction."""
    for operand in instruction.operands:
        base = operand.base if isinstance(operand, Address) else operand
        for part in base.items if isinstance(base, Pack) else (base,):
            if isinstance(part, Symbol):
                yield part


def instructions(function: Function) -> Iterator[Instruction]:
    """Those of a function."""
    return (item for item in function.body or () if isinstance(item, Instruction))


def pointed_to(module: Module) -> dict[str, Function]:
    """Functions whose address is taken: by variables, or by instructions that do not call."""
    if all(function.is_kernel for function in module.functions.values()):
        return {}
    names = {s.name for v in module.variables.values() for _, s in v.pointers}
    for function in module.functions.values():
        moves = (i for i in instructions(function) if i.name != "call")
        names |= {symbol.name for each in moves for symbol in named(each)}
    found = {name: f for name, f in module.functions.items() if name in names}
    return {name: f for name, f in found.items() if f.body is not None and not f.is_kernel}


def called(function: Function, module: Module, pointed: dict[str, Function]) -> set[str]:
    """Functions that a function may call, itself."""
    found: set[str] = set()
    for each in instructions(function):
        if each.name == "call":
            direct = {s.name for s in named(each) if s.name in module.functions}
            found |= direct or set(pointed)
    return found


def recursive(module: Module, pointed: dict[str, Function]) -> set[str]:
    """Functions that can come back to themselves."""
    functions = {name: f for name, f in module.functions.items() if not f.is_kernel}
    reach = {name: called(f, module, pointed) for name, f in functions.items()}
    for middle, further in reach.items():
        for found in reach.values():
            if middle in found:
                found.update(further)
    return {name for name, found in reach.items() if name in found}


@dataclass(eq=False)
class Frame:
    """A function that recurses.

    Attributes:
        scope: of its one translation.
        entry: its label.
        back: the row that tells which call it returns to.
        size: bytes of its frame.
        saved: registers, and where they are kept.
        sites: labels behind calls of it, by number.
    """

    scope: Scope
    entry: int
    back: int
    size: int
    saved: list[tuple[str, int]]
    sites: list[int] = field(default_factory=list)


def _aligned(value: int, align: int) -> int:
    return -(-value // align) * align


class Frames:
    """The functions of a kernel that recurse, and their places."""

    def __init__(self, context: Context, symbols: dict[str, tuple[str, int]]):
        self._context = context
        self._symbols = symbols
        self.made: dict[str, Frame] = {}
        self.current: Frame | None = None

    def of(self, function: Function) -> Frame:
        """The frame of a function."""
        found = self.made.get(function.name)
        if found is None:
            found = self.made[function.name] = self._make(function)
        return found

    def _make(self, function: Function) -> Frame:
        context = self._context
        if not context.frame:
            context.frame = context.rows.take(2)
        scope = Scope(function, symbols=dict(self._symbols), end=context.new_label())
        at = 0
        for variable in (*function.results, *function.parameters, *function.variables):
            if variable.space in ("local", "param"):
                at = _aligned(at, variable.align)
                scope.symbols[variable.name] = ("frame", at)
                at += variable.size
        at, saved = _aligned(at, 8), []
        outer, context.scope = context.scope, scope
        for name in sorted(_registers(function)):
            context.register(Register(name))
            saved.append((name, at))
            at += 8
        context.scope = outer
        back = context.rows.take()
        return Frame(scope, context.new_label(), back, _aligned(at + 8, 16), saved)

    def enter(self, function: Function, given: Sequence[tuple[str, int]]) -> None:
        """A call: `given` is where results and arguments of the caller lie."""
        context, callee, caller = self._context, self.of(function), self.current
        step = caller.size if caller else 0
        keeps = caller if caller is not None and context.scope is caller.scope else None
        formals = [*function.results, *function.parameters]
        held = context.temp(2)
        if keeps:
            self._move_registers(keeps, held, store=True)
        for formal, place in list(zip(formals, given, strict=True))[len(function.results) :]:
            target = ("frame", step + callee.scope.symbols[formal.name][1])
            self._copy(formal, place, target, held)
        self._advance(step)
        site = context.new_label()
        number = context.rows.constant("i32", len(callee.sites))
        callee.sites.append(site)
        context.compute("mov", lambda x: x, [number], ["i32"], [callee.back])
        context.emit("bra", target=callee.entry)
        context.place(site)
        context.emit("join")
        self._advance(-step)
        if keeps:
            self._move_registers(keeps, held, store=False)
        for formal, place in zip(function.results, given, strict=False):
            source = ("frame", step + callee.scope.symbols[formal.name][1])
            self._copy(formal, source, place, held)

    def returns(self, frame: Frame) -> None:
        """The end of a function: back behind the call that it was."""
        context = self._context
        context.place(frame.scope.end)
        context.emit("join")
        hit = context.temp()
        for number, site in enumerate(frame.sites):
            wanted = context.rows.constant("i32", number)
            sources = [frame.back, wanted]
            context.compute("brx.eq", lambda x, y: x.eq(y), sources, ["i32"] * 2, [hit])
            context.emit("bra_if", a=hit, target=site)
            context.emit("join")
        context.emit("trap")

    def _advance(self, step: int) -> None:
        if step:
            context = self._context
            by = context.rows.constant("i64", step)
            rows = [context.frame, by]
            context.compute("add.i64", lambda x, y: x + y, rows, ["i64"] * 2, [context.frame])

    def _move_registers(self, frame: Frame, held: int, store: bool) -> None:
        """Keeps the registers of a function that calls, or gives them back."""
        context = self._context
        places = [(*frame.scope.registers[name], at) for name, at in frame.saved]
        for row, bits, at in [*places, (frame.back, 32, frame.size - 8)]:
            if bits > 1:
                self._access(store, row, bits, ("frame", at))
            elif store:
                build = lambda p, one: p.select(one, 0)  # noqa: E731
                one = context.rows.constant("i32", 1)
                context.compute("frame.flag", build, [row, one], ["p", "i32"], [held])
                self._access(True, held, 32, ("frame", at))
            else:
                self._access(False, held, 32, ("frame", at))
                context.compute("frame.truth", lambda x: x.ne(0), [held], ["i32"], [row])

    def _copy(
        self, variable: Variable, source: tuple[str, int], target: tuple[str, int], held: int
    ) -> None:
        """A parameter from one place of local memory to another."""
        done = 0
        while done < variable.size:
            left = variable.size - done
            size = min(8, variable.align, 1 << left.bit_length() - 1)
            for store, (space, at) in ((False, source), (True, target)):
                self._access(store, held, 8 * size, (space, at + done))
            done += size

    def _access(self, store: bool, row: int, bits: int, place: tuple[str, int]) -> None:
        """LD or ST of a row in local memory."""
        context = self._context
        kept = context.scope, context.instruction
        wide = max(16, bits)
        scope = Scope(_PLACES, registers={"%at": (context.frame, 64), "%v": (row, wide)})
        base: Register | Number = Register("%at") if place[0] == "frame" else Number(0)
        operands: list[Operand] = [Register("%v"), Address(base, place[1])]
        name = "st" if store else "ld"
        parts = ("local", f"u{bits}" if bits == 8 else f"b{bits}")
        ordered = tuple(reversed(operands) if store else operands)
        line, text = kept[1].line, kept[1].text
        context.scope = scope
        context.instruction = Instruction(name, parts, ordered, None, line, text)
        translate_memory.HANDLERS[name](context)
        context.scope, context.instruction = kept


def _registers(function: Function) -> set[str]:
    """Registers that a function uses."""
    found = {each.guard.name for each in instructions(function) if each.guard}
    for each in instructions(function):
        found.update(_WORD.findall(each.text))
    return found & function.registers.keys()


def candidates(
    function: Function, operands: Sequence[Operand], pointed: dict[str, Function]
) -> dict[str, Function]:
    """Functions that a call by address may mean: those that it lists, or all."""
    name = operands[0].name if operands and isinstance(operands[0], Symbol) else ""
    lists = [i for i in function.body or () if isinstance(i, BranchTargets) and i.name == name]
    if lists and lists[0].targets:
        return {each: pointed[each] for each in lists[0].targets if each in pointed}
    return pointed


def branch_by_address(
    context: Context, row: int, choices: Sequence[tuple[int, Callable[[], None]]]
) -> None:
    """Does what belongs to the address in a row; lanes with another one stop."""
    done, hit = context.new_label(), context.temp()
    for address, act in choices:
        behind = context.new_label()
        wanted = context.rows.constant("i64", address)
        context.compute("call.eq", lambda x, y: x.eq(y), [row, wanted], ["i64"] * 2, [hit])
        context.emit("bra_unless", a=hit, target=behind)
        context.emit("join")
        act()
        context.emit("bra", target=done)
        context.place(behind)
        context.emit("join")
    context.emit("trap")
    context.place(done)
    context.emit("join")


def stack_row(context: Context, start: int) -> None:
    """Where frames begin, in all lanes of a warp that starts."""
    context.rows.constants[context.frame] = start.to_bytes(8, "little") * wave.LANES
