"""From kernel IR to linear IR.

The lanes of a `vector` loop become vectors, `unroll` loops are written out statement by statement
(so that a serial loop inside runs once and carries an accumulator for each iteration), private
buffers become registers where they can, and operations the target lacks are derived on the way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var
from gpu.compiler.ir.index.rows import flatten
from gpu.compiler.ir.kernel.nontemporal import fills_lines, streamed_outputs
from gpu.compiler.ir.kernel.tree import walk, writes
from gpu.compiler.ir.kernel.verify import count_thread_loops
from gpu.compiler.ir.kernel.words import neighbours
from gpu.compiler.ir.linear import Inst, Limit, Param, Program, Val
from gpu.compiler.ir.optable import DOTS, MONOIDS
from gpu.compiler.lower.address import Addresses, Lane
from gpu.compiler.lower.edges import guard_edges
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.lower.int64.pairs import split64
from gpu.compiler.lower.legalize import Legalizer
from gpu.compiler.lower.matrices import Matrices
from gpu.compiler.lower.register_transpose import transpose
from gpu.compiler.lower.registers import Key, Registers, find_homes
from gpu.compiler.lower.scalarize import scalarize
from gpu.compiler.lower.side_by_side import filling, in_turn
from gpu.compiler.lower.vectorize_access import join
from gpu.compiler.lower.vectorize_access4 import quads
from gpu.compiler.lower.warp_shuffle import Exchanger
from gpu.compiler.targets import Target
from gpu.core.dtype import dtypes
from gpu.core.errors import CompileError


def linearize(kernel: K.Kernel, target: Target) -> Program:
    """The kernel as a list of instructions that `target` has.

    Raises Unsupported for an operation it lacks and that cannot be derived.
    """
    program = _Linearizer(kernel, target).run()
    if target.native.scalar:
        program = scalarize(program, target.native)
    program = split64(program, target.native) if target.native.paired else program
    if target.native.quads:
        program = quads(program)
    if target.access_bytes:
        program = join(program, target.access_bytes)
    return guard_edges(program, target.native)


class _Linearizer:
    def __init__(self, kernel: K.Kernel, target: Target):
        self.kernel = kernel
        self.emitter = Emitter()
        self.builder = Legalizer(self.emitter, target.native)
        self.addresses = Addresses(self.emitter, self.builder)
        self.exchanger = Exchanger(self.emitter, self.builder, target.native)
        self.registers = Registers(find_homes(kernel))
        self.unrolled: dict[Var, int] = {}
        self.fixed: dict[Var, int] = {}  # of written-out loops outside of a condition
        self.tiles: list[Var] = []
        self.pointers: dict[K.Buf, Inst] = {}
        places = self.registers, self.pointers, self.place
        self.matrices = Matrices(self.emitter, self.addresses, *places)
        self.written = {buf for buf, _, _ in writes(kernel.body)}
        self.fused = "fma" in target.native.ops
        self.paired = target.native.paired
        self.near_step = target.near_step
        self.target = target
        self.transposes = False
        self.streamed = streamed_outputs(kernel, self.written)
        self.has_threads = count_thread_loops(kernel.body) > 0
        # What has been emitted of the values of a statement.
        self.memo: dict[K.Value, Inst] = {}
        # Loads of team memory that still hold.
        self.shared: dict[tuple[tuple[Inst, ...], int], Inst] = {}

    def run(self) -> Program:
        params = []
        for position, buf in enumerate(self.kernel.params):
            (size,) = buf.shape
            params.append(Param(buf.name, buf.dtype, size, buf in self.written, buf.image))
            self.pointers[buf] = self.emitter.pure("param", buf.dtype, attr=(position,))
        for position, var in enumerate(self.kernel.vals):
            val = self.emitter.pure("val", dtypes.int64, attr=(position,))
            self.addresses.counters[var] = val
        self.block(self.kernel.body)
        vals = tuple(Val(var.name, var.lo, var.hi) for var in self.kernel.vals)
        return Program(self.kernel.name, tuple(params), self.emitter.body(), vals)

    # Statements.

    def block(self, block: K.Block) -> None:
        waiting = list(block.body)
        while waiting:
            if run := self.filling(waiting):
                for _ in self.iterations():
                    self.store_in_turn(run)
                del waiting[: len(run)]
                continue
            stmt = waiting.pop(0)
            match stmt:
                case K.Block():
                    self.block(stmt)
                case K.Loop():
                    self.loop(stmt)
                case K.Alloc():
                    self.alloc(stmt.buf)
                case K.Update():
                    for _ in self.iterations():
                        self.update(stmt)
                case K.If():
                    self.guarded(stmt)
                case K.Prefetch():
                    for _ in self.iterations():
                        self.prefetch(stmt)
                case K.Barrier():
                    self.shared.clear()
                    self.emitter.effect("barrier", dtypes.bool)
                case _:
                    self.shared.clear()
                    for _ in self.iterations():
                        self.matrices.emit(stmt, self.unrolled)

    def filling(self, stmts: Sequence[K.Stmt]) -> tuple[K.Update, ...]:
        """The first of `stmts`, if their lanes fill the places between each other's."""
        lane = self.addresses.lane
        return filling(stmts, lane.var) if lane is not None and self.near_step > 1 else ()

    def store_in_turn(self, run: Sequence[K.Update]) -> None:
        """Stores whole vectors of what several statements store, each of which has every so many
        elements."""
        lane = self.addresses.lane
        assert lane is not None
        self.memo = {}
        values = [self.emitter.widen(self.value(stmt.value), lane.lanes) for stmt in run]
        buf = run[0].buf
        first = self.addresses.first_lane(self.place(buf, run[0].indices))
        self.shared.clear()
        for number, vector in enumerate(in_turn(self.emitter, values)):
            index = self.addresses.value(first + number * lane.lanes)
            args = (self.pointers[buf], index, vector)
            self.emitter.effect("store", buf.dtype, lane.lanes, args, (self.streams(run[0]),))

    def iterations(self) -> Iterator[None]:
        """Sets `unrolled` to each iteration of the written-out loops in turn."""
        for point in itertools.product(*(range(v.hi + 1) for v in self.tiles)):
            self.unrolled = self.fixed | dict(zip(self.tiles, point, strict=True))
            yield

    def loop(self, loop: K.Loop) -> None:
        if loop.kind == "unroll":
            self.tiles.append(loop.var)
            self.block(loop.body)
            self.tiles.pop()
        elif loop.kind == "vector":
            if self.addresses.lane is not None:
                raise CompileError(f"vector loop {loop.var.name} is inside another vector loop")
            self.addresses.lane = Lane(loop.var)
            self.block(loop.body)
            self.addresses.lane = None
        else:
            self.counted(loop)

    def counted(self, loop: K.Loop) -> None:
        """A loop that stays one; registers its body changes are its carries."""
        own = {s.buf for s in walk(loop.body) if isinstance(s, K.Alloc)}
        changed = {buf for buf, _, _ in writes(loop.body)} - own
        keys = self.registers.held(changed)
        initial = tuple(self.registers.read(key) for key in keys)
        counter, carries = self.emitter.open_loop(loop.kind, self.stop(loop.var), initial)
        self.shared.clear()
        self.addresses.counters[loop.var] = counter
        if loop.kind == "thread":
            self.matrices.threads.append(loop.var)
        self.write_all(keys, carries)
        self.block(loop.body)
        self.shared.clear()
        results = self.emitter.close_loop(tuple(self.registers.read(key) for key in keys))
        self.write_all(keys, results)
        self.forget_unseen(changed | own)

    def forget_unseen(self, changed: set[K.Buf]) -> None:
        """Forgets registers of buffers whose values are those of a loop or condition that ended."""
        for key in self.registers.held(changed):
            if not self.emitter.is_seen(self.registers.read(key)):
                self.registers.forget(key)

    def stop(self, var: Var) -> int | Limit:
        if var.stop is None:
            return var.hi + 1
        return Limit(self.addresses.value(var.stop), var.hi + 1)

    def write_all(self, keys: list[Key], values: list[Inst]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.registers.write(key, value)

    def alloc(self, buf: K.Buf) -> None:
        if buf in self.registers.homes or buf.space == "fragment":
            return
        if self.tiles or self.addresses.lane:
            raise CompileError(f"{buf.name} is in memory, but inside a vector or unrolled loop")
        size = math.prod(buf.shape)
        self.pointers[buf] = self.emitter.effect("local", buf.dtype, attr=(size, buf.space))

    def guarded(self, stmt: K.If) -> None:
        """A condition; one that differs between written-out iterations is asked in each of them."""
        tiles, fixed = self.tiles, self.fixed
        asked = [var for var in tiles if var in stmt.mask.vars]
        self.tiles = [var for var in tiles if var not in stmt.mask.vars]
        for point in itertools.product(*(range(v.hi + 1) for v in asked)):
            self.fixed = fixed | dict(zip(asked, point, strict=True))
            self.under(stmt)
        self.tiles, self.fixed = tiles, fixed

    def under(self, stmt: K.If) -> None:
        condition = self.addresses.mask(stmt.mask.subst(self.fixed))
        if condition is None:
            self.block(stmt.body)
            return
        if condition.lanes > 1:
            raise CompileError(f"a condition differs between lanes, {stmt.mask}")
        previous = self.emitter.open_if(condition)
        self.shared.clear()
        self.block(stmt.body)
        self.shared.clear()
        self.emitter.close_if(previous)
        self.forget_unseen({buf for buf, _, _ in writes(stmt.body)})

    def prefetch(self, stmt: K.Prefetch) -> None:
        index = self.addresses.value(self.place(stmt.buf, stmt.indices))
        if index.lanes > 1:
            raise CompileError(f"a prefetch of {stmt.buf.name} differs between lanes")
        self.emitter.effect("prefetch", dtypes.bool, 1, (self.pointers[stmt.buf], index))

    def update(self, stmt: K.Update) -> None:
        self.memo = {}
        lane = self.addresses.lane
        for let in stmt.lets:
            self.addresses.counters[let.var] = self.bounded(let.var, self.value(let.value))
        if stmt.buf in self.registers.homes:
            self.update_register(stmt)
            return
        where = self.place(stmt.buf, stmt.indices)
        value = self.value(stmt.value)
        if lane is not None and not self.addresses.varies(where.vars):
            if self.addresses.varies(stmt.mask.vars):
                raise CompileError(f"some lanes write {stmt.buf.name} at the same place")
            value = self.fold(stmt, value)
        if stmt.monoid is not None:
            old = self.read_memory(stmt.buf, where, stmt.mask)
            value = self.combine(stmt.monoid, old, value)
        self.write_memory(stmt, where, value)

    def bounded(self, var: Var, value: Inst) -> Inst:
        """An int64 within the bounds of `var`, of which a device without any is told that much."""
        if not self.paired or var.hi > int(dtypes.int32.max):
            return value
        small = self.builder.cast(self.builder.cast(value, dtypes.int32), dtypes.int64)
        at_least = self.builder.op("max", small, self.builder.const(dtypes.int64, var.lo))
        return self.builder.op("min", at_least, self.builder.const(dtypes.int64, var.hi))

    def fold(self, stmt: K.Update, value: Inst) -> Inst:
        """The lanes of `value` combined, where all of them update one element."""
        lane = self.addresses.lane
        assert lane is not None
        if stmt.monoid is None:
            if value.lanes > 1:
                raise CompileError(f"every lane writes {stmt.buf.name} at the same place")
            return value
        wide = self.emitter.widen(value, lane.lanes)
        return self.emitter.pure("fold", value.dtype, 1, (wide,), (stmt.monoid,))

    def update_register(self, stmt: K.Update) -> None:
        home = self.registers.homes[stmt.buf]
        lane = self.addresses.lane
        indices = self.without_lane(stmt.indices)
        key = self.registers.key(stmt.buf, indices, self.unrolled)
        shared = lane is not None and home.lanes == 1
        if stmt.monoid == "add" and self.fused and not shared and _is_product(stmt.value):
            a, b = (self.value(arg) for arg in stmt.value.args)
            value = self.builder.op("fma", a, b, self.registers.read(key))
        elif stmt.monoid == "add" and not shared and _is_dot(stmt.value):
            factors = (self.value(arg) for arg in stmt.value.args[:2])
            value = self.builder.op(stmt.value.attr[0], *factors, self.registers.read(key))
        else:
            value = self.value(stmt.value)
            if shared:
                value = self.fold(stmt, value)
            if stmt.monoid is not None:
                value = self.combine(stmt.monoid, self.registers.read(key), value)
        self.registers.write(key, self.emitter.widen(value, home.lanes))

    def combine(self, monoid: str, old: Inst, value: Inst) -> Inst:
        return self.builder.op(MONOIDS[monoid].combine, old, value)

    # Values.

    def value(self, value: K.Value) -> Inst:
        """Emits a value at the current iteration; each distinct value once per Update."""
        if value not in self.memo:
            self.memo[value] = self.compute(value)
        return self.memo[value]

    def compute(self, value: K.Value) -> Inst:
        match value.kind:
            case "const":
                return self.builder.const(value.dtype, value.attr[0])
            case "index":
                return self.addresses.value(value.attr[0].subst(self.unrolled))
            case "load":
                return self.load(*value.attr)
        if value.attr == ("or",) and (word := self.word(value)) is not None:
            return word
        args = [self.value(arg) for arg in value.args]
        match value.kind:
            case "cast":
                return self.builder.cast(args[0], value.dtype)
            case "bitcast":
                return self.builder.bitcast(args[0], value.dtype)
            case "shuffle_xor":
                return self.exchanger.shuffle(args[0], *value.attr)
        return self.builder.op(value.attr[0], *args)

    def load(self, buf: K.Buf, indices: tuple[Expr, ...], mask: Mask) -> Inst:
        if buf in self.registers.homes:
            key = self.registers.key(buf, self.without_lane(indices), self.unrolled)
            return self.registers.read(key)
        square = self.square(self.position(buf, indices)) if self.is_plain(buf, mask) else None
        if square is not None:

            def row(at: Expr, lanes: int) -> Inst:
                args = (self.pointers[buf], self.addresses.value(at))
                return self.emitter.pure("load", buf.dtype, lanes, args, guarded=True)

            return self.transposed(self.position(buf, indices), square, 1, row)
        return self.read_memory(buf, self.place(buf, indices), mask)

    def word(self, value: K.Value) -> Inst | None:
        """A word of neighbours in memory in one load; None where lanes have to be joined."""
        found = neighbours(value) if self.near_step > 1 else None
        if found is None:
            return None
        buf, indices, mask = found.load.attr
        if not self.is_plain(buf, mask):
            return None

        def words(at: Expr, count: int) -> Inst:
            args = (self.pointers[buf], self.addresses.value(at))
            inst = self.emitter.pure("load", buf.dtype, count * found.together, args, guarded=True)
            for part in found.made:
                to = self.builder.cast if part.kind == "cast" else self.builder.bitcast
                inst = to(inst, part.dtype)
            return self.emitter.pure("bitcast", dtypes.uint32, count, (inst,))

        position, lane = self.position(buf, indices), self.addresses.lane
        step = self.addresses.lane_step(position)
        first = self.addresses.first_lane(position).subst(self.unrolled)
        if lane is None or step == 0:
            return words(first, 1)
        if step in (None, 1, -1):
            return None
        if step == found.together:
            return words(first, lane.lanes)
        if (square := self.square(position, found.together)) is not None:
            return self.transposed(position, square, found.together, words)
        alone = tuple(words(first + number * step, 1) for number in range(lane.lanes))
        return self.emitter.pure("pack", dtypes.uint32, lane.lanes, alone)

    def without_lane(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        lane = self.addresses.lane
        return indices if lane is None else tuple(e.subst({lane.var: 0}) for e in indices)

    # Memory.

    def position(self, buf: K.Buf, indices: tuple[Expr, ...]) -> Expr:
        return indices[0] if len(indices) == 1 else flatten(indices, buf.shape)

    def place(self, buf: K.Buf, indices: tuple[Expr, ...]) -> Expr:
        return self.position(buf, indices).subst(self.unrolled)

    def is_plain(self, buf: K.Buf, mask: Mask) -> bool:
        """Whether what lies together is loaded together, whoever uses it."""
        return mask is ALWAYS and buf not in self.written and not buf.image

    def square(self, position: Expr, apart: int = 1) -> Var | None:
        """The written-out loop that walks memory where the lanes jump, if it has as many steps.

        The two make a square, whose rows are loaded whole and then transposed. Its iterations are
        `apart` elements from each other.
        """
        lane = self.addresses.lane
        if lane is None or abs(self.addresses.lane_step(position) or 0) <= 1:
            return None
        for var in self.tiles:
            alone = var not in (position - var * position.coeff(var)).vars
            if var.extent == lane.lanes and position.coeff(var) == apart and alone:
                return var
        return None

    def transposed(
        self, position: Expr, var: Var, apart: int, row: Callable[[Expr, int], Inst]
    ) -> Inst:
        """A column of a square, whose rows `row` loads from where they begin."""
        lane = self.addresses.lane
        assert lane is not None
        self.transposes = True
        step = position.coeff(lane.var)
        corner = (self.addresses.first_lane(position) - var * apart).subst(self.unrolled)
        rows = [row(corner + number * step, lane.lanes) for number in range(lane.lanes)]
        return transpose(self.emitter, rows)[self.unrolled[var]]

    def access(self, where: Expr, mask: Mask, lanes: int) -> tuple[Inst, Inst | None, bool]:
        """Index and mask of an access by `lanes` lanes, and whether the lanes lie backwards."""
        condition = self.addresses.mask(mask.subst(self.unrolled))
        if lanes == 1:
            return self.addresses.value(where), condition, False
        if condition is not None:
            condition = self.emitter.widen(condition, lanes)
        step = self.addresses.lane_step(where)
        if step is None or abs(step) != 1:
            index = self.emitter.widen(self.addresses.value(where), lanes)
            return index, condition, False
        first = self.addresses.first_lane(where)
        if step == 1:
            return self.addresses.value(first), condition, False
        if condition is not None:
            condition = self.reversed(condition)
        return self.addresses.value(first - (lanes - 1)), condition, True

    def read_memory(self, buf: K.Buf, where: Expr, mask: Mask) -> Inst:
        lanes = self.addresses.lanes(where.vars | mask.subst(self.unrolled).vars)
        step = self.addresses.lane_step(where)
        # What lies between elements of memory that is written may be another thread's.
        is_read = buf not in self.written and not buf.image
        by_lane = step == 1 and mask is not ALWAYS and not self.target.masks(buf.dtype.itemsize)
        if is_read and self.near_step > 1 and (step is None or by_lane):
            picked = self.picked(buf, where, mask.subst(self.unrolled))
            if picked is not None:
                return picked
        index, condition, backwards = self.access(where, mask, lanes)
        if is_read and condition is None and step and 1 < step <= self.near_step:
            return self.stepping(buf, self.addresses.first_lane(where), step, lanes)
        args = (self.pointers[buf], index) + (() if condition is None else (condition,))
        if buf in self.written:
            inst = self.written_memory(buf, lanes, args)
        else:
            inst = self.emitter.pure("load", buf.dtype, lanes, args, guarded=True)
        return self.reversed(inst) if backwards else inst

    def stepping(self, buf: K.Buf, first: Expr, step: int, lanes: int) -> Inst:
        """Every `step`-th element, out of `step` vectors; the last one ends with the last element.

        So nothing is loaded that lies behind it.
        """
        behind = step * (lanes - 1) + 1
        starts = [min(number * lanes, behind - lanes) for number in range(step)]
        places = [(self.pointers[buf], self.addresses.value(first + at)) for at in starts]
        vector, *parts = (
            self.emitter.pure("load", buf.dtype, lanes, args, guarded=True) for args in places
        )
        order = [step * lane for lane in range(lanes)]
        for at, part in zip(starts[1:], parts, strict=True):
            picked = [i if i < lanes else lanes + min(max(i - at, 0), lanes - 1) for i in order]
            vector = self.emitter.pure(
                "shuffle", buf.dtype, lanes, (vector, part), (tuple(picked),)
            )
            # What has its lane now stays there; the others are in vectors that follow.
            order = [lane if i < at + lanes else i for lane, i in enumerate(order)]
        return vector

    def picked(self, buf: K.Buf, where: Expr, mask: Mask) -> Inst | None:
        """Lanes out of two vectors that begin and end with what they need; None if it is far apart.

        So one element for several lanes is loaded once, as rows side by side in a vector need it.
        """
        places = self.addresses.places(where, mask)
        needed = [place for place in places or () if place is not None]
        if places is None or not needed:
            return None
        lane = self.addresses.lane
        assert lane is not None
        first, span = min(needed), max(needed) - min(needed) + 1
        if span > 2 * lane.lanes:
            return None
        width = min(1 << (span.bit_length() - 1), lane.lanes)
        start = where.subst({lane.var: 0}) + first

        def part(at: int) -> Inst:
            args = (self.pointers[buf], self.addresses.value(start + at))
            return self.emitter.pure("load", buf.dtype, width, args, guarded=True)

        low, high = part(0), part(span - width)
        order = [0 if place is None else place - first for place in places]
        lanes = tuple(i if i < width else i - span + 2 * width for i in order)
        vector = low
        if width > 1:
            vector = self.emitter.pure("shuffle", buf.dtype, lane.lanes, (low, high), (lanes,))
        condition = self.addresses.mask(mask)
        if condition is None:
            return self.emitter.widen(vector, lane.lanes)
        return self.builder.where(condition, vector, self.builder.const(buf.dtype, 0))

    def written_memory(self, buf: K.Buf, lanes: int, args: tuple[Inst, ...]) -> Inst:
        """A load of what stores change. Threads load an element of team memory once, and again
        where it may have changed: after stores and barriers, and where control flow parts or joins.
        """
        if not self.has_threads or buf.space != "team":
            return self.emitter.effect("load", buf.dtype, lanes, args)
        if (args, lanes) not in self.shared:
            self.shared[args, lanes] = self.emitter.effect("load", buf.dtype, lanes, args)
        return self.shared[args, lanes]

    def write_memory(self, stmt: K.Update, where: Expr, value: Inst) -> None:
        buf, lanes = stmt.buf, self.addresses.lanes(where.vars)
        index, condition, backwards = self.access(where, stmt.mask, lanes)
        value = self.emitter.widen(value, lanes)
        if self.stored_in_parts(stmt, where, value):
            return
        if backwards:
            value = self.reversed(value)
        args = (self.pointers[buf], index, value) + (() if condition is None else (condition,))
        self.shared.clear()
        self.emitter.effect("store", buf.dtype, lanes, args, (self.streams(stmt),))

    def stored_in_parts(self, stmt: K.Update, where: Expr, value: Inst) -> bool:
        """Stores the first lanes in vectors of a power of two, where a mask that is known excludes
        the others and each lane would be asked."""
        mask, buf = stmt.mask.subst(self.unrolled), stmt.buf
        if value.lanes == 1 or mask is ALWAYS or self.target.masks(buf.dtype.itemsize):
            return False
        places = self.addresses.places(where, mask) or []
        count = len(places) - places.count(None)
        if not count or places[:count] != list(range(count)):
            return False
        first, at = self.addresses.first_lane(where), 0
        while at < count:
            width = 1 << ((count - at).bit_length() - 1)
            lanes = tuple(range(at, at + width))
            args = (self.pointers[buf], self.addresses.value(first + at))
            self.emitter.effect(
                "store", buf.dtype, width, (*args, self.part(value, lanes)), (False,)
            )
            at += width
        self.shared.clear()
        return True

    def part(self, vector: Inst, lanes: tuple[int, ...]) -> Inst:
        """Some lanes of a vector, as a vector or as a scalar."""
        if len(lanes) == 1:
            return self.emitter.pure("extract", vector.dtype, 1, (vector,), lanes)
        return self.emitter.pure("shuffle", vector.dtype, len(lanes), (vector, vector), (lanes,))

    def streams(self, stmt: K.Update) -> bool:
        """Whether an output goes past the caches: a large one, of which lines are written whole.

        Transposed squares are a part of each line; it takes as many side by side as fill it.
        """
        lane = self.addresses.lane
        if stmt.buf not in self.streamed or not self.transposes or lane is None:
            return stmt.buf in self.streamed
        position = self.position(stmt.buf, stmt.indices)
        nbytes = lane.lanes * stmt.buf.dtype.itemsize
        beside = (var.extent for var in self.tiles if position.coeff(var) == lane.lanes)
        return any(fills_lines(nbytes, extent) for extent in beside)

    def reversed(self, vector: Inst) -> Inst:
        order = tuple(reversed(range(vector.lanes)))
        return self.emitter.pure("shuffle", vector.dtype, vector.lanes, (vector, vector), (order,))


def _is_dot(value: K.Value) -> bool:
    """Whether a value is products of neighbours, added to nothing."""
    is_dot = value.kind == "alu" and value.attr[0] in DOTS
    return is_dot and value.args[2].kind == "const" and not value.args[2].attr[0]


def _is_product(value: K.Value) -> bool:
    floats = (dtypes.float32, dtypes.float64)
    return value.kind == "alu" and value.attr[0] == "mul" and value.dtype in floats
