"""A program without integers of 64 bits, for devices that have none.

Values of int64 and uint64 become two of uint32 (`gpu/compiler/lower/int64/words.py`), memory of
them twice as many elements, the lower word first. What stays int64 are loop counters, values of the
launch and places in memory, all of which fit an int32: such a device prints them as one.
"""

from __future__ import annotations

from typing import Final

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.lower.int64 import division as conversions
from gpu.compiler.lower.int64.words import Wide, Words, fits_int32
from gpu.compiler.lower.legalize import Legalizer
from gpu.compiler.targets import Native
from gpu.core.dtype import DType, dtypes
from gpu.core.errors import Unsupported

WIDE: Final = (dtypes.int64, dtypes.uint64)
_COMPARISONS: Final = frozenset({"lt", "le", "eq", "ne"})
_DIVISIONS: Final = frozenset({"tdiv", "tmod"})

Value = Inst | Wide


def split64(program: Program, native: Native) -> Program:
    """The same program with 64-bit integers as pairs; `params` of them have twice the elements.

    Raises Unsupported for what cannot be done without: vectors, loops of more than 2**31 - 1
    iterations, and values of the launch beyond that.
    """
    return _Splitter(program, native).run()


class _Splitter:
    def __init__(self, program: Program, native: Native):
        self.program = program
        self.emitter = Emitter()
        self.words = Words(self.emitter, Legalizer(self.emitter, native))
        self.values: dict[Inst, Value] = {}
        self.pointers: dict[Inst, Inst] = {}
        self.carried: dict[Inst, list[Value]] = {}
        self.guards: list[int] = []
        self.written = {p.name for p in program.params if p.written}

    def run(self) -> Program:
        threads = [i for i in self.program.body if i.op == "loop" and i.attr[0] == "thread"]
        outside = bool(threads)
        late: dict[Inst, None] = {}  # what has to wait until the innermost thread loop is open
        for inst in self.program.body:
            if outside and (self.takes_a_loop(inst) or any(arg in late for arg in inst.args)):
                late[inst] = None
                continue
            self.inst(inst)
            if outside and inst is threads[-1]:
                outside = False
                for waiting in late:
                    self.inst(waiting)
        params = tuple(
            p._replace(dtype=dtypes.uint32, elements=p.elements * 2) if p.dtype in WIDE else p
            for p in self.program.params
        )
        return self.program._replace(params=params, body=self.emitter.body())

    def inst(self, inst: Inst) -> None:
        """Emits what stands for an instruction."""
        if inst.lanes > 1:
            raise Unsupported(f"{self.program.name}: {inst}: vectors have no 64-bit integers")
        getattr(self, f"_{inst.op}", self._foreign)(inst)

    def takes_a_loop(self, inst: Inst) -> bool:
        """Whether it is a division in a loop, which must not stand outside of thread loops."""
        if inst.op != "alu" or inst.attr[0] not in _DIVISIONS or inst.dtype not in WIDE:
            return False
        values = [self.values.get(arg) for arg in inst.args]
        known = [value for value in values if isinstance(value, Wide)]
        return len(known) < 2 or conversions.takes_a_loop(inst.attr[0], known[0], known[1])

    def _foreign(self, inst: Inst) -> None:
        raise Unsupported(f"{self.program.name}: {inst.op} needs a device with vectors")

    # Values.

    def one(self, inst: Inst) -> Inst:
        """The value of an operand that is no 64-bit integer."""
        value = self.values[inst]
        assert isinstance(value, Inst), inst
        return value

    def wide(self, inst: Inst) -> Wide:
        """The value of an operand that is one."""
        value = self.values[inst]
        assert isinstance(value, Wide), inst
        return value

    def place(self, inst: Inst) -> Inst:
        """An index as an int64 that fits 32 bits; the upper words of one never matter."""
        return self.emitter.cast(self.words.signed(self.wide(inst).low), dtypes.int64)

    def places(self, inst: Inst) -> list[Inst]:
        """Where both words of the element at an index are."""
        op, word = self.words.b.op, self.words.word
        low = op("mul", self.wide(inst).low, word(2))
        return [
            self.emitter.cast(self.words.signed(at), dtypes.int64)
            for at in (low, op("add", low, word(1)))
        ]

    def flat(self, values: list[Value]) -> tuple[Inst, ...]:
        """The words of values one after another."""
        parts: list[Inst] = []
        for value in values:
            parts += self.pair(value) if isinstance(value, Wide) else (value,)
        return tuple(parts)

    def pair(self, value: Wide) -> tuple[Inst, Inst]:
        return value.low, self.words.high(value)

    def joined(self, likes: tuple[Inst, ...], parts: list[Inst]) -> list[Value]:
        """Values of the dtypes of `likes` from their words: what `flat` took apart."""
        waiting = iter(parts)
        return [
            self.words.unknown(like.dtype, next(waiting), next(waiting))
            if like.dtype in WIDE
            else next(waiting)
            for like in likes
        ]

    # Instructions.

    def _const(self, inst: Inst) -> None:
        if inst.dtype in WIDE:
            self.values[inst] = self.words.const(inst.dtype, inst.attr[0])
        else:
            self.values[inst] = self.emitter.pure("const", inst.dtype, 1, (), inst.attr)

    def _param(self, inst: Inst) -> None:
        dtype = self.memory_dtype(inst)
        self.pointers[inst] = self.emitter.pure("param", dtype, attr=inst.attr)

    def _local(self, inst: Inst) -> None:
        elements, space = inst.attr
        size = elements * 2 if inst.dtype in WIDE else elements
        self.pointers[inst] = self.emitter.effect(
            "local", self.memory_dtype(inst), attr=(size, space)
        )

    def memory_dtype(self, inst: Inst) -> DType:
        return dtypes.uint32 if inst.dtype in WIDE else inst.dtype

    def _val(self, inst: Inst) -> None:
        val = self.program.vals[inst.attr[0]]
        if not fits_int32((val.lo, val.hi)):
            raise Unsupported(f"{self.program.name}: {val.name} may be {val.hi}, over 2**31 - 1")
        given = self.emitter.pure("val", dtypes.int64, attr=inst.attr)
        self.values[inst] = self.counter(given, val.lo, val.hi)

    def counter(self, inst: Inst, lo: int, hi: int) -> Wide:
        """An int64 that fits 32 bits, as a Wide."""
        word = self.words.retype(self.emitter.cast(inst, dtypes.int32), dtypes.uint32)
        return Wide(dtypes.int64, word, None, lo, hi)

    def _loop(self, inst: Inst) -> None:
        kind, start, stop, step = inst.attr
        most = stop.most if isinstance(stop, Limit) else stop
        if start != 0 or step != 1 or not fits_int32((0, most)):
            raise Unsupported(
                f"{self.program.name}: a loop from {start} to {most} in steps of {step}; loops go "
                "from 0 in steps of 1 to 2**31 - 1 at most"
            )
        if isinstance(stop, Limit):
            stop = Limit(self.place(stop.value), stop.most)
        initial = [self.values[arg] for arg in inst.args]
        counter, carries = self.emitter.open_loop(kind, stop, self.flat(initial))
        self.values[inst] = self.counter(counter, 0, max(most - 1, 0))
        self.carried[inst] = self.joined(inst.args, carries)

    def _carry(self, inst: Inst) -> None:
        self.values[inst] = self.carried[inst.args[0]][inst.attr[0]]

    def _end(self, inst: Inst) -> None:
        results = self.emitter.close_loop(self.flat([self.values[arg] for arg in inst.args]))
        self.carried[inst] = self.joined(inst.args, results)

    def _result(self, inst: Inst) -> None:
        self.values[inst] = self.carried[inst.args[0]][inst.attr[0]]

    def _if(self, inst: Inst) -> None:
        self.guards.append(self.emitter.open_if(self.one(inst.args[0])))

    def _endif(self, inst: Inst) -> None:
        self.emitter.close_if(self.guards.pop())

    def _barrier(self, inst: Inst) -> None:
        self.emitter.effect("barrier", inst.dtype)

    def _shuffle_xor(self, inst: Inst) -> None:
        value = self.values[inst.args[0]]
        if isinstance(value, Wide):
            words = (self.exchange(word, inst) for word in self.pair(value))
            self.values[inst] = self.words.unknown(inst.dtype, *words)
        else:
            self.values[inst] = self.exchange(value, inst)

    def exchange(self, value: Inst, inst: Inst) -> Inst:
        return self.emitter.effect(inst.op, value.dtype, 1, (value,), inst.attr)

    def _load(self, inst: Inst) -> None:
        _, index, *masks = inst.args
        mask = tuple(self.one(m) for m in masks)
        if inst.dtype in WIDE:
            words = [self.load(inst, dtypes.uint32, at, mask) for at in self.places(index)]
            self.values[inst] = self.words.unknown(inst.dtype, *words)
        else:
            self.values[inst] = self.load(inst, inst.dtype, self.place(index), mask)

    def load(self, inst: Inst, dtype: DType, at: Inst, mask: tuple[Inst, ...]) -> Inst:
        old = inst.args[0]
        args = (self.pointers[old], at, *mask)
        if old.op == "param" and not self.program.params[old.attr[0]].written:
            return self.emitter.pure("load", dtype, 1, args, guarded=True)
        return self.emitter.effect("load", dtype, 1, args)

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *masks = inst.args
        mask = tuple(self.one(m) for m in masks)
        if value.dtype not in WIDE:
            args = (self.pointers[pointer], self.place(index), self.one(value), *mask)
            self.emitter.effect("store", value.dtype, 1, args, inst.attr)
            return
        for at, word in zip(self.places(index), self.pair(self.wide(value)), strict=True):
            args = (self.pointers[pointer], at, word, *mask)
            self.emitter.effect("store", dtypes.uint32, 1, args, inst.attr)

    def _alu(self, inst: Inst) -> None:
        (name,) = inst.attr
        if inst.args[-1].dtype not in WIDE:
            args = [self.one(a) for a in inst.args]
            self.values[inst] = self.emitter.op(name, *args)
        elif name in _COMPARISONS:
            self.values[inst] = self.words.compare(name, *(self.wide(a) for a in inst.args))
        elif name == "where":
            chosen = (self.wide(a) for a in inst.args[1:])
            self.values[inst] = self.words.where(self.one(inst.args[0]), *chosen)
        elif name in _DIVISIONS:
            a, b = (self.wide(arg) for arg in inst.args)
            self.values[inst] = conversions.divide(self.words, name, a, b)
        else:
            self.values[inst] = self.words.op(name, [self.wide(a) for a in inst.args])

    def _cast(self, inst: Inst) -> None:
        (source,) = inst.args
        value = self.values[source]
        if inst.dtype in WIDE:
            if isinstance(value, Wide):
                self.values[inst] = self.words.retyped(value, inst.dtype)
            elif source.dtype.is_float:
                self.values[inst] = conversions.from_float32(self.words, value, inst.dtype)
            else:
                self.values[inst] = conversions.from_narrower(self.words, value, inst.dtype)
        elif isinstance(value, Inst):
            self.values[inst] = self.emitter.cast(value, inst.dtype)
        elif inst.dtype.is_float:
            self.values[inst] = conversions.to_float32(self.words, value)
        else:
            self.values[inst] = conversions.to_narrower(self.words, value, inst.dtype)

    def _bitcast(self, inst: Inst) -> None:
        value = self.values[inst.args[0]]
        if isinstance(value, Wide):
            self.values[inst] = self.words.retyped(value, inst.dtype)
        else:
            self.values[inst] = self.emitter.bitcast(value, inst.dtype)
