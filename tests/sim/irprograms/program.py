"""Random programs: phases between barriers, with branches, loops and switches in each."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from sim.irprograms import memory, scalars, vectors
from sim.irprograms.body import FLOATS, INTEGERS, SCALARS, VECTORS, Body, count, element, width

OUTPUTS: Final = 10
"""64-bit words that each lane stores at the end."""
MIXED: Final = 3
"""Values that each of them depends on."""


@dataclass(frozen=True)
class Phase:
    """What all lanes do between two barriers.

    Attributes:
        entry: allocas.
        lines: LLVM IR with words for the address spaces, see `Dialect`; begins in the block
            ``phase<number>``.
        live: (type, name) of the values that dominate its end.
    """

    entry: tuple[str, ...]
    lines: tuple[str, ...]
    live: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Program:
    """A random program, the same for every target.

    Attributes:
        seed: that it was made of.
        phases: in their order; all but the last end at a barrier.
        shared: types of the shared arrays ``%shared0`` and on, of `memory.LANES` elements.
        declared: declarations of the intrinsics that it calls.
    """

    seed: int
    phases: tuple[Phase, ...]
    shared: tuple[str, ...]
    declared: frozenset[str]


def make_program(seed: int, avoid: Set[str] = frozenset()) -> Program:
    """The program of a seed, without the operations that are to be avoided."""
    return _Writer(seed, avoid).write()


class _Writer:
    """Writes one program.

    Attributes:
        ready: shared arrays that may be read in this phase.
        meeting: the shared array that lanes change together in this phase, and by what operation.
    """

    def __init__(self, seed: int, avoid: Set[str]):
        self.seed = seed
        self.body = Body(seed, avoid)
        self.random = self.body.random
        self.shared: list[str] = []
        self.ready: list[int] = []
        self.meeting: tuple[int, str] | None = None
        self.sites = 0

    def write(self) -> Program:
        """The whole program."""
        body = self.body
        phases: list[Phase] = []
        total = self.random.choice((1, 1, 2, 3))
        for number in range(total):
            body.lines, body.entry, body.arrays = [], [], []
            body.block = f"phase{number}"
            if number == 0:
                self._read_inputs()
            self.grow(self.random.randrange(8, 26), 2)
            if number + 1 < total:
                self._before_barrier(last=number + 2 == total)
            else:
                self._store_outputs()
            live = tuple((kind, name) for kind, names in body.pool.items() for name in names)
            phases.append(Phase(tuple(body.entry), tuple(body.lines), live))
        declared = frozenset(body.declared)
        return Program(self.seed, tuple(phases), tuple(self.shared), declared)

    def _read_inputs(self) -> None:
        """Values of every type: of the lane, of its group, and of the whole grid."""
        body = self.body
        body.pool["i32"] = ["%lane", "%group", "%i"]
        body.emit("i64", "add i64 %scalar, 0")
        for kind, name in (("i64", "words"), ("double", "doubles"), ("float", "floats")):
            for index in ("%group", "%i", str(self.random.randrange(100))):
                place = f"%a{body.number()}"
                body.line(f"{place} = getelementptr {kind}, INPUT %{name}, i32 {index}")
                body.emit(kind, f"load {kind}, INPUT {place}")
        body.emit("i32", f"trunc i64 {body.value('i64')} to i32")
        for kind in ("i32", "i16", "i8", "i24", "i48"):
            body.emit(kind, f"trunc i64 {body.value('i64')} to {kind}")
        body.emit("half", f"bitcast i16 {body.value('i16')} to half")
        body.emit("half", f"fptrunc float {body.value('float')} to half")
        body.emit("i1", f"icmp slt i64 {body.value('i64')}, {body.value('i64')}")

    def _new_shared(self, kind: str) -> int:
        self.shared.append(kind)
        memory.spread(self.body, f"%shared{len(self.shared) - 1}", kind)
        return len(self.shared) - 1

    def _before_barrier(self, last: bool) -> None:
        """Fills the shared arrays that are read, or changed together, behind the barrier."""
        if self.meeting:
            self.ready.append(self.meeting[0])
            self.meeting = None
        elif not last:
            kind = self.random.choice(("i32", "i64"))
            self.meeting = (self._new_shared(kind), memory.meeting(self.body))
        self.ready.append(self._new_shared(self.random.choice(memory.SHARED_KINDS)))

    def grow(self, steps: int, depth: int) -> None:
        """Adds operations, and control flow nested up to a depth."""
        for _ in range(steps):
            chance = self.random.random()
            if depth > 0 and chance < 0.14:
                self.random.choice((self._branch, self._branch, self._loop, self._switch))(depth)
            else:
                self._step()

    def _step(self) -> None:
        """Adds an operation."""
        chance, body = self.random.random(), self.body
        if chance < 0.18:
            self._memory()
        elif chance < 0.32:
            vectors.step(body)
        elif chance < 0.36:
            vectors.flags(body)
        elif chance < 0.42:
            scalars.select(body, body.scalar())
        elif chance < 0.7:
            families = (scalars.integer, scalars.bit_trick, scalars.to_integer, scalars.overflow)
            more = (scalars.integer, scalars.bit_trick, scalars.compare)
            self.random.choice((*families, *more))(body, body.integer())
        else:
            usual = (scalars.arithmetic, scalars.arithmetic, scalars.unary)
            family = self.random.choice(
                (*usual, scalars.to_float, scalars.compare, scalars.classify)
            )
            family(body, self.random.choice(FLOATS))

    def _memory(self) -> None:
        """Adds an access to memory."""
        body, chance = self.body, self.random.random()
        if self.meeting and chance < 0.3:
            index, name = self.meeting
            memory.meet(body, f"%shared{index}", self.shared[index], name)
        elif self.ready and chance < 0.5:
            index = self.random.choice(self.ready)
            memory.gather(body, f"%shared{index}", self.shared[index])
        elif chance < 0.6:
            memory.load(body)
        elif chance < 0.8:
            memory.private(body)
        elif chance < 0.9 and self.sites < memory.SITES:
            memory.count_globally(body, self.sites)
            self.sites += 1
        else:
            kind = self.random.choice(memory.OWN_KINDS)
            self.shared.append(kind)
            memory.own_atomic(body, f"%shared{len(self.shared) - 1}", kind)

    def _arm(self, label: str, target: str, kind: str, depth: int) -> tuple[str, str]:
        """A block that goes on at another; (its value of a type, its last block)."""
        body = self.body
        saved, arrays = self._scope()
        body.line(f"{label}:")
        body.block = label
        self.grow(self.random.randrange(1, 6), depth)
        value, block = body.pick(kind), body.block
        if depth == 0 and "phi.uniform" in body.avoid:
            value = self._of_lane(kind, value)
        body.line(f"br label %{target}")
        body.pool, body.arrays = saved, arrays
        return value, block

    def _of_lane(self, kind: str, value: str) -> str:
        """The value in some lanes and another in the others."""
        flag = self.body.emit("i1", f"icmp ult i32 %lane, {self.random.randrange(1, 63)}")
        other = self.body.pick(kind)
        return self.body.emit(kind, f"select i1 {flag}, {kind} {value}, {kind} {other}")

    def _scope(self) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
        body = self.body
        return {kind: list(names) for kind, names in body.pool.items()}, list(body.arrays)

    def _join(self, label: str, kind: str, arms: list[tuple[str, str]]) -> None:
        body = self.body
        body.line(f"{label}:")
        body.block = label
        text = ", ".join(f"[ {value}, %{block} ]" for value, block in arms)
        body.emit(kind, f"phi {kind} {text}")

    def _branch(self, depth: int) -> None:
        """An if with two arms, and a phi of a type behind it."""
        body, tag = self.body, self.body.number()
        kind = self.random.choice((*SCALARS, *VECTORS))
        flag = body.value("i1")
        body.line(f"br i1 {flag}, label %then{tag}, label %else{tag}")
        arms = [self._arm(f"{a}{tag}", f"join{tag}", kind, depth - 1) for a in ("then", "else")]
        self._join(f"join{tag}", kind, arms)

    def _switch(self, depth: int) -> None:
        """A switch over up to 5 cases and a default."""
        body, tag = self.body, self.body.number()
        kind = self.random.choice((*INTEGERS, *FLOATS))
        on = body.emit("i32", f"and i32 {body.value('i32')}, 7")
        cases = self.random.sample(range(8), self.random.randrange(2, 6))
        text = " ".join(f"i32 {case}, label %case{tag}.{case}" for case in cases)
        body.line(f"switch i32 {on}, label %other{tag} [ {text} ]")
        labels = [*(f"case{tag}.{case}" for case in cases), f"other{tag}"]
        arms = [self._arm(label, f"join{tag}", kind, 0) for label in labels]
        self._join(f"join{tag}", kind, arms)

    def _loop(self, depth: int) -> None:
        """A loop of up to 7 rounds, as many as a value says, that changes a value and may end
        early.
        """
        body, tag = self.body, self.body.number()
        kind = self.random.choice((*INTEGERS, *FLOATS, *VECTORS[:6]))
        rounds = body.emit("i32", f"and i32 {body.value('i32')}, 7")
        start, before = body.pick(kind), body.block
        body.line(f"br label %head{tag}")
        body.line(f"head{tag}:")
        place = len(body.lines)
        saved, arrays = self._scope()
        body.pool.setdefault(kind, []).append(f"%x{tag}")
        body.pool["i32"].append(f"%n{tag}")
        body.block = f"head{tag}"
        self.grow(self.random.randrange(1, 6), depth - 1)
        end = body.pick(kind)
        body.line(f"%next{tag} = add i32 %n{tag}, 1")
        body.line(f"%more{tag} = icmp ult i32 %next{tag}, {rounds}")
        go_on = f"%more{tag}"
        if self.random.random() < 0.3:
            go_on = f"%go{tag}"
            body.line(f"{go_on} = and i1 %more{tag}, {body.value('i1')}")
        body.line(f"br i1 {go_on}, label %head{tag}, label %after{tag}")
        last = body.block
        body.lines.insert(
            place,
            f"  %n{tag} = phi i32 [ 0, %{before} ], [ %next{tag}, %{last} ]\n"
            f"  %x{tag} = phi {kind} [ {start}, %{before} ], [ {end}, %{last} ]",
        )
        body.pool, body.arrays = saved, arrays
        self._join(f"after{tag}", kind, [(end, last)])

    def _store_outputs(self) -> None:
        """Stores words that depend on many values; a NaN counts as one pattern."""
        body = self.body
        values = [(kind, name) for kind, names in body.pool.items() for name in names]
        body.line(f"%slot = mul i32 %i, {OUTPUTS}")
        for number in range(OUTPUTS):
            words = [self._word(*self.random.choice(values)) for _ in range(MIXED)]
            body.line(f"%index{number} = add i32 %slot, {number}")
            body.line(f"%o{number} = getelementptr i64, GLOBAL %out, i32 %index{number}")
            body.line(f"store i64 {self._mixed(words)}, GLOBAL %o{number}")

    def _mixed(self, words: list[str]) -> str:
        """64 bits that depend on all of some."""
        total = words[0]
        for word in words[1:]:
            turn = (("i64", total), ("i64", total), ("i64", "17"))
            turned = self.body.call("i64", "fshl.i64", *turn)
            total = self.body.emit("i64", f"xor i64 {turned}, {word}")
        return total

    def _word(self, kind: str, value: str) -> str:
        """64 bits that depend on all of a value."""
        body, inner = self.body, element(kind)
        if count(kind) > 1:
            places = range(count(kind))
            items = [body.emit(inner, f"extractelement {kind} {value}, i32 {n}") for n in places]
            return self._mixed([self._word(inner, item) for item in items])
        if kind in FLOATS:
            bits = f"i{width(kind)}"
            raw = body.emit(bits, f"bitcast {kind} {value} to {bits}")
            unknown = body.emit("i1", f"fcmp uno {kind} {value}, {value}")
            value = body.emit(bits, f"select i1 {unknown}, {bits} 77, {bits} {raw}")
            kind = bits
        return value if kind == "i64" else body.emit("i64", f"zext {kind} {value} to i64")
