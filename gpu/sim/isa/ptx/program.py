"""A kernel as an array of records that the engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from gpu.sim.isa import layout
from gpu.sim.isa.native import Library
from gpu.sim.isa.ptx import (
    calls,
    matrix,
    translate_bits,
    translate_float,
    translate_flow,
    translate_int,
    translate_memory,
    translate_move,
    translate_video,
)
from gpu.sim.isa.ptx.context import Context, Handler, Scope
from gpu.sim.isa.ptx.data import LoadedModule
from gpu.sim.isa.ptx.syntax import (
    BranchTargets,
    Function,
    Instruction,
    Label,
    Operand,
    Pack,
    PtxError,
    Register,
    Symbol,
    Variable,
)
from gpu.sim.isa.waves import aligned_bytes

_HANDLERS: Final[dict[str, Handler]] = {
    **translate_int.HANDLERS,
    **translate_bits.HANDLERS,
    **translate_float.HANDLERS,
    **translate_move.HANDLERS,
    **translate_memory.HANDLERS,
    **translate_video.HANDLERS,
    **translate_flow.HANDLERS,
}
_TOGETHER: Final = {**translate_flow.TOGETHER, **matrix.HANDLERS}
_WRITES: Final = ("st", "red", "atom", "cp", "mbarrier", "multimem", "tensormap", "wgmma")
_MAX_DEPTH: Final = 32  # calls within calls that are written out
_MAX_LOCAL: Final = 512 << 10  # CUDA C++ Programming Guide, "Compute Capabilities"
_MAX_RECORDS: Final = 1 << 22


class Program:
    """A kernel, translated.

    Attributes:
        name: of the kernel.
        memory: its records.
        end: bytes of a warp.
        constants, specials, windows: rows that hold something when a warp starts.
        local_bytes, shared_bytes: of a thread, of a block without what a launch adds.
        parameter_bytes: of all parameters.
    """

    def __init__(self, engine: Library, loaded: LoadedModule, name: str):
        """Raises PtxError, also for a kernel that is not there."""
        function = loaded.module.functions.get(name)
        if function is None or function.body is None or not function.is_kernel:
            kernels = [f.name for f in loaded.module.functions.values() if f.is_kernel]
            raise PtxError(f"there is no kernel {name!r}", 1, f"kernels: {' '.join(kernels)}")
        self.name = name
        self.parameter_bytes = function.parameter_bytes()
        translation = _Translation(engine, loaded, function)
        context = translation.context
        self.shared_bytes = translation.shared
        self.local_bytes = -(-translation.local // 16) * 16
        if self.local_bytes > _MAX_LOCAL:
            raise PtxError(
                f"{self.local_bytes} bytes of local memory, a thread has at most {_MAX_LOCAL}",
                *(function.line, name),
            )
        self.end = context.rows.end
        self.constants = context.rows.constants
        self.specials = context.specials
        self.windows = context.windows
        self._sources = context.instructions
        self._has_frames = bool(context.frame)
        self._source_of = [record.source for record in context.records]
        self._join = join = engine.address(
            "join"
        )  # at labels, behind the instruction that records name
        self._places = [
            max(0, record.source + (record.function == join)) for record in context.records
        ]
        self._assemble(context)
        self._jumps = [
            None if r.target is None else context.labels[r.target] for r in context.records
        ]
        self._leave = {engine.address(name) for name in ("exit", "trap")}
        self._go = engine.address("bra")
        self._functions = [record.function for record in context.records]

    def _assemble(self, context: Context) -> None:
        size = layout.RECORD.size
        self.memory = aligned_bytes(len(context.records) * size, size)
        self.address = start = self.memory.ctypes.data
        pack = layout.RECORD.pack
        packed = bytearray()
        for r, done in zip(context.records, self._places, strict=True):
            target, aux = 0, r.aux
            if r.target is not None:
                place = context.labels[r.target]
                assert place is not None
                aux = place * size
                target = start + aux
            fields = (r.function, r.d, r.a, r.b, r.c, r.e, r.f, r.immediate, target)
            packed += pack(*fields, done, aux, 0)
        self.memory[:] = np.frombuffer(packed, np.uint8)

    def following(self, place: int) -> list[int] | None:
        """The records behind one, by number; None where lanes end."""
        function = self._functions[place]
        if function in self._leave:
            return None
        jump = self._jumps[place]
        behind = [] if function == self._go else [place + 1]
        return behind if jump is None else [*behind, jump]

    def is_plain(self, place: int) -> bool:
        """Whether a record does what registers and memory say, and writes no memory."""
        source = self._source_of[place]
        if source < 0:
            return True
        instruction = self._sources[source]
        if self._has_frames and instruction.name == "call":
            return False
        return not (instruction.name.startswith(_WRITES) or "clock" in instruction.text)

    def place_of(self, record: int) -> int:
        """The number of a record, by its address."""
        return (record - self.address) // layout.RECORD.size

    def before(self, record: int) -> int:
        """How many instructions of the program are done where a record, by its address, begins."""
        return self._places[self.place_of(record)]

    def instruction_at(self, record: int) -> tuple[int, Instruction | None]:
        """(number of the instruction, it) of a record's address; of a label what follows it."""
        place = self.place_of(record)
        while self._functions[place] == self._join:
            place += 1
        source = self._source_of[place]
        return source, self._sources[source] if source >= 0 else None


class _Translation:
    """A kernel on its way to records."""

    def __init__(self, engine: Library, loaded: LoadedModule, kernel: Function):
        self.context = Context(engine)
        self._loaded = loaded
        self._functions = loaded.module.functions
        self.local = 0
        self.shared = 0
        self._pointed = calls.pointed_to(loaded.module)
        self._recursive = calls.recursive(loaded.module, self._pointed)
        self._module_symbols = self._place_shared(kernel)
        self._frames = calls.Frames(self.context, self._module_symbols)
        scope = Scope(kernel, symbols=dict(self._module_symbols))
        offsets = kernel.parameter_offsets()
        scope.symbols |= {name: ("param", offset) for name, offset in offsets.items()}
        self.context.parameter_bytes = kernel.parameter_bytes()
        self._depth = 0
        self._function(scope)
        self.context.place(self.context.exit)
        self.context.emit("join")
        self.context.emit("exit")
        self._functions_that_recurse()

    def _place_shared(self, kernel: Function) -> dict[str, tuple[str, int]]:
        """Addresses of the module's variables; of shared ones only those that are used."""
        seen: set[str] = set()
        used = {
            name
            for function in (kernel, *self._pointed.values())
            for name in _names_used(function, self._functions, seen)
        }
        symbols: dict[str, tuple[str, int]] = dict(self._loaded.symbols)
        module = self._loaded.module.variables.values()
        own = [*(v for v in module if v.space == "shared" and v.name in used)]
        own += [v for v in kernel.variables if v.space == "shared"]
        for variable in sorted(own, key=_is_unsized):  # arrays without a size lie behind all
            at = -(-self.shared // variable.align) * variable.align
            symbols[variable.name] = ("shared", at)
            self.shared = at + variable.size if variable.size else self.shared
        return symbols

    def _functions_that_recurse(self) -> None:
        """What was called and is not written out there; each may call more."""
        context, frames = self.context, self._frames
        done: list[calls.Frame] = []
        while len(done) < len(frames.made):
            frame = list(frames.made.values())[len(done)]
            done.append(frame)
            context.place(frame.entry)
            context.emit("join")
            frames.current, self._depth = frame, 1
            self._function(frame.scope)
            context.emit("bra", target=frame.scope.end)
        for frame in done:
            frames.returns(frame)
        if done:
            self.local = -(-self.local // 16) * 16
            calls.stack_row(context, self.local)
            self.local += calls.STACK

    def _function(self, scope: Scope) -> None:
        """Everything of one function, in the scope that is given."""
        context = self.context
        outer = getattr(context, "scope", None)
        context.scope = scope
        function = scope.function
        known = (*self._loaded.module.variables.values(), *function.variables)
        scope.elements = {variable.name: variable.element for variable in known}
        for variable in function.variables:
            if scope.symbols.get(variable.name, ("",))[0] == "frame":
                continue
            if variable.space in ("local", "param"):
                self.local = -(-self.local // variable.align) * variable.align
                scope.symbols[variable.name] = ("local", self.local)
                self.local += variable.size
            elif variable.name not in scope.symbols:
                raise PtxError(
                    f".{variable.space} variables of functions are not known",
                    function.line,
                    variable.name,
                )
        assert function.body is not None
        for item in function.body:
            if isinstance(item, Label):
                scope.labels[item.name] = context.new_label()
        for item in function.body:
            if isinstance(item, Label):
                context.place(scope.labels[item.name])
                context.emit("join")
            elif not isinstance(item, BranchTargets):
                self._instruction(item)
        if outer is not None:
            context.scope = outer

    def _instruction(self, instruction: Instruction) -> None:
        context = self.context
        context.begin(instruction)
        name = instruction.name
        if len(context.records) > _MAX_RECORDS:
            raise context.error("the kernel is too long with its calls written out")
        if name == "ret" and self._depth:
            translate_flow.branch(context, context.scope.end)
        elif name == "ret":
            translate_flow.ends(context)
        elif name in translate_flow.BRANCHES:
            translate_flow.BRANCHES[name](context)
        elif name == "call":
            translate_flow.around(context, self._call)
        elif name in _TOGETHER:
            translate_flow.around(context, _TOGETHER[name])
        elif name in _HANDLERS:
            _guarded(context, _HANDLERS[name])
        else:
            raise context.error(f"{name} has no semantics here")

    def _call(self, context: Context) -> None:
        """CALL of a function by its name, or by its address."""
        context.parts("uni")
        operands = list(context.instruction.operands)
        results = _taken(operands)
        target = operands.pop(0) if operands else None
        passed = [*results, *_taken(operands)]
        sizes = len(results), len(passed) - len(results)
        if isinstance(target, Register | Symbol) and context.register(target):
            given = [self._passed(context, each) for each in passed]
            row, symbols = context.source(target, "i64"), self._loaded.symbols
            known = calls.candidates(context.scope.function, operands, self._pointed)
            fitting = [each for each in known.values() if _takes(each) == sizes]
            choices = [(symbols[f.name][1], partial(self._enter, f, given)) for f in fitting]
            calls.branch_by_address(context, row, choices)
            return
        function = self._functions.get(target.name) if isinstance(target, Symbol) else None
        if operands or function is None or function.body is None:
            raise context.error("only functions of the same text can be called")
        if _takes(function) != sizes:
            raise context.error(f"{function.name} takes {_takes(function)} results and parameters")
        given = [self._passed(context, each) for each in passed]
        self._enter(function, given)

    def _enter(self, function: Function, given: list[tuple[str, int]]) -> None:
        """A body, written out here, or once for all calls where it recurses."""
        context, calling = self.context, self.context.instruction
        if function.name in self._recursive:
            self._frames.enter(function, given)
            return
        if self._depth >= _MAX_DEPTH:
            raise context.error(f"calls are nested more than {_MAX_DEPTH} deep")
        scope = Scope(function, symbols=dict(self._module_symbols), end=context.new_label())
        formals = [*function.results, *function.parameters]
        for formal, place in zip(formals, given, strict=True):
            scope.symbols[formal.name] = place
        self._depth += 1
        self._function(scope)
        self._depth -= 1
        context.instruction = calling
        context.place(scope.end)
        context.emit("join")

    def _passed(self, context: Context, actual: Operand) -> tuple[str, int]:
        """Where an argument or a result of a call lies."""
        if not isinstance(actual, Symbol) or actual.offset:
            raise context.error("arguments are .param variables")
        space, at = context.symbol(actual.name)
        if space not in ("local", "frame"):
            raise context.error(f"{actual.name} is no .param variable of the function")
        return space, at


def _takes(function: Function) -> tuple[int, int]:
    """How many results and parameters a function has."""
    return len(function.results), len(function.parameters)


def _taken(operands: list[Operand]) -> tuple[Operand, ...]:
    """Takes what is in parentheses from the front."""
    if operands and isinstance(operands[0], Pack):
        pack = operands.pop(0)
        assert isinstance(pack, Pack)
        return pack.items
    return ()


def _guarded(context: Context, handler: Handler) -> None:
    """An instruction under its guard: EXEC is narrowed around it."""
    guard = context.instruction.guard
    if guard is None:
        handler(context)
        return
    behind = context.new_label()
    row = context.source(Register(guard.name), "p")
    context.emit("guard_not" if guard.negated else "guard", a=row, target=behind)
    handler(context)
    context.emit("unguard")
    context.place(behind)


def _is_unsized(variable: Variable) -> bool:
    return not variable.size


def _names_used(
    function: Function, functions: dict[str, Function], seen: set[str]
) -> Iterator[str]:
    """Names of symbols in a function, and in what it calls."""
    seen.add(function.name)
    for symbol in (part for item in calls.instructions(function) for part in calls.named(item)):
        yield symbol.name
        called = functions.get(symbol.name)
        if called and called.name not in seen:
            yield from _names_used(called, functions, seen)
