"""Linear IR as a program of NIR, for the GPUs that Mesa compiles for.

The kernel takes the address of each parameter, that of the workspace if it needs one, then the
values of the launch, 8 bytes each, one behind the other. It expects the blocks and threads that
`gpu/compiler/render/launch/grid.py` plans, along x alone, and buffers that begin at multiples of 16
bytes.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.linear.ranges import constant_value, int_factors, int_ranges
from gpu.compiler.nir_text import NirProgram
from gpu.compiler.render.checks import refuse_what_is_lacking
from gpu.compiler.render.launch.grid import Grid
from gpu.compiler.render.launch.locals import ALIGN, Places
from gpu.compiler.render.nir import ops
from gpu.compiler.render.nir.emit import Emitter, Value
from gpu.compiler.render.nir.grid import ThreadPlace
from gpu.compiler.render.nir.vectors import elements_of, is_of_memory, word_bits, words_of
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes
from gpu.core.errors import Unsupported, VerifyError

_SPREAD: Final = ("grid", "thread")
_MATRIX: Final = frozenset({"copy", "commit", "wait", "fragment", "mma"})
_WORD: Final = 8  # bytes of a parameter
_MOST_CONSTANT: Final = (1 << 23) - 1  # bytes, as NVIDIA GPUs add them
_LOWEST: Final = int(dtypes.int32.min)
_HIGHEST: Final = int(dtypes.int32.max)


class _Pointer(NamedTuple):
    """Where elements are: in `global`, `shared` or `scratch` memory, from an address on."""

    space: str
    base: Value
    constant: bool = False


class _Loop(NamedTuple):
    """A serial loop that is open: registers of its counter and its carries."""

    inst: Inst
    counter: Value
    carries: tuple[Value, ...]


def render_nir(
    target: Target, program: Program, grid: Grid, places: Places, *, fuses: bool
) -> NirProgram:
    """A program as NIR, launched as ``grid`` says, with its locals at ``places``.

    ``fuses`` tells whether the machine's `ffma` rounds once. Raises Unsupported for an operation
    that the target does not have and for vectors that are more than neighbours in memory,
    VerifyError for a program that is not well formed in a way that shows.
    """
    return _Printer(target, program, grid, places, Emitter(fuses)).program()


class _Printer:
    """One program on its way; instructions are printed by the method of their name.

    A 64-bit integer that is known to fit 32 bits is a value of 32, and is widened where another
    operand is wide.
    """

    def __init__(
        self, target: Target, program: Program, grid: Grid, places: Places, emitter: Emitter
    ):
        self.target, self.linear, self.grid, self.places = target, program, grid, places
        self.e = emitter
        self.ranges = {
            inst: found
            for inst, found in int_ranges(program).items()
            if found[0] >= _LOWEST and found[1] <= _HIGHEST
        }
        self.place = ThreadPlace(self.e, grid, self.ranges)
        self.factors = int_factors(program)
        self.values: dict[Inst, Value] = {}
        self.pointers: dict[Inst, _Pointer] = {}
        self.vectors: dict[Inst, tuple[Value, ...]] = {}
        self.guarded: set[Inst] = set()
        self.loops: list[_Loop] = []
        self.results: dict[Inst, tuple[Value, ...]] = {}
        self.shared = self.scratch = 0

    def program(self) -> NirProgram:
        """All of it."""
        for inst in self.linear.body:
            refuse_what_is_lacking(self.target, self.linear, inst)
            if inst.op in _MATRIX:
                raise Unsupported(
                    f"{self.linear.name}: {inst}: NIR is printed without matrix instructions; give"
                    " the target no matrices"
                )
            if inst.lanes != 1 and not is_of_memory(inst):
                raise Unsupported(
                    f"{self.linear.name}: {inst} is a vector, and NIR is made of scalars here,"
                    " those in memory aside; give the target no vector_bytes"
                )
            value = getattr(self, f"_{inst.op}")(inst)
            if value is not None:
                self.values[inst] = value
        if self.loops:
            raise VerifyError(f"{self.linear.name}: {self.loops[-1].inst} has no end")
        words = len(self.linear.params) + bool(self.places.workspace) + len(self.linear.vals)
        return self.e.program(
            self.linear.name, self.grid.block, self.shared, self.scratch, _WORD * words
        )

    # Parameters and memory.

    def _parameter(self, position: int) -> Value:
        return self.e.once("param", 8 * _WORD, _WORD * position)

    def _param(self, inst: Inst) -> None:
        position: int = inst.attr[0]
        written = self.linear.params[position].written
        self.pointers[inst] = _Pointer("global", self._parameter(position), not written)

    def _val(self, inst: Inst) -> Value:
        first = len(self.linear.params) + bool(self.places.workspace)
        value = self._parameter(first + inst.attr[0])
        return self.e.resize(value, 32) if inst in self.ranges else value

    def _local(self, inst: Inst) -> None:
        size = -(-inst.attr[0] * inst.dtype.itemsize // ALIGN) * ALIGN
        if inst in self.places.offsets:
            offset = self.e.integer(64, self.places.offsets[inst])
            own = self.e.alu("iadd", self._own_workspace(), offset)
            self.pointers[inst] = _Pointer("global", own)
        elif inst in self.places.shared:
            self.pointers[inst] = _Pointer("shared", self.e.integer(32, self.shared))
            self.shared += size
        else:
            self.pointers[inst] = _Pointer("scratch", self.e.integer(32, self.scratch))
            self.scratch += size

    def _own_workspace(self) -> Value:
        """The address of this thread's part of the workspace."""
        number = self.e.resize(self.place.thread, 64)
        offset = self.e.alu("imul", number, self.e.integer(64, self.places.workspace))
        return self.e.alu("iadd", self._parameter(len(self.linear.params)), offset)

    def _address(self, pointer: Inst, index: Inst, further: int = 0) -> tuple[_Pointer, Value, int]:
        """A pointer, the address or offset of one element behind it, and its alignment.

        It may be of what begins some bytes further.
        """
        known, size = self.pointers[pointer], pointer.dtype.itemsize
        align = math.gcd(min(self.factors.get(index, 1) * size, ALIGN), further)
        index, constant = self._without_constant(index, size)
        at = self.values[index]
        if known.space != "global" and at.bits == 64:
            at = self.e.resize(at, 32)
        if at.bits == 32 and known.space == "global":
            low, high = self.ranges[index]
            if low * size < _LOWEST or high * size > _HIGHEST:
                at = self._widened(index)
        if size > 1:
            at = self.e.shift("ishl", at, self.e.integer(32, size.bit_length() - 1))
        if known.space == "global" and at.bits == 32:
            at = self.e.resize(at, 64, signed=self.ranges[index][0] < 0)
        address = self.e.alu("iadd", known.base, at)
        if behind := constant * size + further:
            address = self.e.alu("iadd", address, self.e.integer(address.bits, behind))
        return known, address, align

    def _without_constant(self, index: Inst, size: int) -> tuple[Inst, int]:
        """An index, and a small number behind it that loads and stores add by themselves.

        Mesa joins accesses to neighbours where it sees that only these numbers differ.
        """
        if index.op == "alu" and index.attr[0] == "add" and self._is_narrow(index):
            first, second = index.args
            near = second.op == "const" and 0 <= second.attr[0] * size <= _MOST_CONSTANT
            if near and self._is_narrow(first) and self.ranges[first][0] >= 0:
                return first, second.attr[0]
        return index, 0

    def _load(self, inst: Inst) -> Value | None:
        pointer, index, *mask = inst.args
        bits = word_bits(inst.dtype, inst.lanes)
        count = 8 * inst.dtype.itemsize * inst.lanes // bits
        if not mask:
            words = self._load_words(pointer, index, bits, count)
        else:
            registers = [self.e.register(self.e.integer(bits, 0)) for _ in range(count)]
            self.e.effect("if", self.values[mask[0]])
            loaded = self._load_words(pointer, index, bits, count)
            for register, word in zip(registers, loaded, strict=True):
                self.e.effect("store_reg", register, word)
            self.e.effect("endif")
            words = [self.e.read(register) for register in registers]
        elements = tuple(elements_of(self.e, words, 8 * inst.dtype.itemsize))
        if inst.dtype is dtypes.bool:
            zero = self.e.integer(8, 0)
            elements = tuple(self.e.alu("ine", element, zero) for element in elements)
        if inst.lanes > 1:
            self.vectors[inst] = elements
        return elements[0] if inst.lanes == 1 else None

    def _load_words(self, pointer: Inst, index: Inst, bits: int, count: int) -> list[Value]:
        words = []
        for number in range(count):
            known, address, align = self._address(pointer, index, number * bits // 8)
            attr = (align, int(known.constant)) if known.space == "global" else (align,)
            words.append(self.e.value(f"load_{known.space}", bits, address, attr=attr))
        return words

    def _store(self, inst: Inst) -> None:
        pointer, index, stored, *mask = inst.args
        if mask:
            self.e.effect("if", self.values[mask[0]])
        elements = self.vectors[stored] if stored.lanes > 1 else (self._wide(stored),)
        if stored.dtype is dtypes.bool:
            elements = tuple(self.e.value("b2i8", 8, element) for element in elements)
        bits = word_bits(stored.dtype, stored.lanes)
        for number, word in enumerate(words_of(self.e, elements, bits)):
            known, address, align = self._address(pointer, index, number * bits // 8)
            self.e.effect(f"store_{known.space}", word, address, attr=(align,))
        if mask:
            self.e.effect("endif")

    # Vectors, of which there is memory alone.

    def _pack(self, inst: Inst) -> None:
        self.vectors[inst] = tuple(self._wide(arg) for arg in inst.args)

    def _extract(self, inst: Inst) -> Value:
        lane: int = inst.attr[0]
        return self.vectors[inst.args[0]][lane]

    def _splat(self, inst: Inst) -> Value:
        return self.values[inst.args[0]]

    # Loops.

    def _loop(self, inst: Inst) -> Value:
        if inst.attr[0] in _SPREAD:
            return self._spread_loop(inst)
        _, start, stop, step = inst.attr
        bits = 64
        if inst in self.ranges and self.ranges[inst][1] + step <= _HIGHEST and start >= _LOWEST:
            bits = 32
        counter = self.e.register(self.e.integer(bits, start))
        carries = tuple(self.e.register(self._wide(arg)) for arg in inst.args)
        limit = self._limit(stop, bits)
        self.e.effect("loop")
        now = self.e.read(counter)
        self.e.effect("if", self.e.alu("ige", now, limit))
        self.e.effect("break")
        self.e.effect("endif")
        self.loops.append(_Loop(inst, counter, carries))
        return now

    def _limit(self, stop: int | Limit, bits: int) -> Value:
        """What a counter of so many bits stays below."""
        if isinstance(stop, int):
            return self.e.integer(bits, max(min(stop, _HIGHEST), _LOWEST) if bits == 32 else stop)
        value = self.values[stop.value]
        return value if value.bits == bits else self.e.resize(value, bits, signed=True)

    def _spread_loop(self, inst: Inst) -> Value:
        """The iteration of a loop that is this thread's; what is inside is skipped without one."""
        grid, counter, checks = self.grid, self.place.counters[inst], list[Value]()
        if inst in grid.inner[:1] and grid.lanes != grid.block * grid.lane_groups:
            checks.append(self.e.alu("ult", self.place.lane, self.e.integer(32, grid.lanes)))
        if isinstance(inst.attr[2], Limit):
            checks.append(self.e.alu("ilt", counter, self._limit(inst.attr[2], counter.bits)))
        if checks:
            holds = checks[0]
            for check in checks[1:]:
                holds = self.e.alu("iand", holds, check)
            self.guarded.add(inst)
            self.e.effect("if", holds)
        return counter

    def _carry(self, inst: Inst) -> Value:
        for loop in self.loops:
            if loop.inst is inst.args[0]:
                return self.e.read(loop.carries[inst.attr[0]])
        raise VerifyError(f"a carry of {inst.args[0]} stands outside of that loop")

    def _end(self, inst: Inst) -> None:
        opened = inst.attr[0]
        if opened.attr[0] in _SPREAD:
            if opened in self.guarded:
                self.e.effect("endif")
            return
        if not self.loops or self.loops[-1].inst is not opened:
            raise VerifyError(f"{inst} of {opened} ends another loop")
        loop = self.loops.pop()
        following = [self._wide(arg) for arg in inst.args]
        for register, value in zip(loop.carries, following, strict=True):
            self.e.effect("store_reg", register, value)
        counter = self.values[opened]
        step = self.e.integer(counter.bits, opened.attr[3])
        self.e.effect("store_reg", loop.counter, self.e.alu("iadd", counter, step))
        self.e.effect("endloop")
        self.results[inst] = tuple(self.e.read(register) for register in loop.carries)

    def _result(self, inst: Inst) -> Value:
        position: int = inst.attr[0]
        return self.results[inst.args[0]][position]

    def _if(self, inst: Inst) -> None:
        self.e.effect("if", self.values[inst.args[0]])

    def _endif(self, inst: Inst) -> None:
        del inst
        self.e.effect("endif")

    def _shuffle_xor(self, inst: Inst) -> Value:
        value = self.values[inst.args[0]]
        return self.e.value("shuffle_xor", value.bits, value, self.e.integer(32, inst.attr[0]))

    def _barrier(self, inst: Inst) -> None:
        del inst
        if self.grid.has_threads:
            self.e.effect("barrier")

    # Values.

    def _wide(self, inst: Inst) -> Value:
        """The value of an instruction with all its bits."""
        return self._widened(inst) if self._is_narrow(inst) else self.values[inst]

    def _widened(self, inst: Inst) -> Value:
        """A 64-bit integer that is kept in 32."""
        return self.e.resize(self.values[inst], 64, signed=self.ranges[inst][0] < 0)

    def _is_narrow(self, inst: Inst) -> bool:
        return inst.dtype is dtypes.int64 and self.values[inst].bits == 32

    def _const(self, inst: Inst) -> Value:
        if inst in self.ranges:
            return self.e.integer(32, inst.attr[0])
        return self.e.constant(inst.dtype, inst.attr[0])

    def _alu(self, inst: Inst) -> Value:
        name, last = inst.attr[0], inst.args[-1]
        known = constant_value(last) if last.dtype.is_int else None
        args = inst.args[1:] if name == "where" else inst.args
        compares = inst.dtype is dtypes.bool and args[0].dtype is dtypes.int64
        if all(map(self._is_narrow, args)) and (inst in self.ranges or compares):
            values = [self.values[arg] for arg in inst.args]
            return ops.alu(self.e, name, dtypes.int32, values, known)
        wide = [self._wide(arg) for arg in inst.args]
        return ops.alu(self.e, name, last.dtype, wide, known)

    def _cast(self, inst: Inst) -> Value:
        source = inst.args[0]
        if self._is_narrow(source):
            return ops.cast(self.e, self.values[source], dtypes.int32, inst.dtype)
        if inst in self.ranges and source.dtype.bits < 64:
            return ops.cast(self.e, self.values[source], source.dtype, dtypes.int32)
        return ops.cast(self.e, self.values[source], source.dtype, inst.dtype)

    def _bitcast(self, inst: Inst) -> Value:
        source = inst.args[0]
        return ops.bitcast(self.e, self._wide(source), source.dtype, inst.dtype)
