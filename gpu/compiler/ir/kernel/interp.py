"""Runs the kernel IR in numpy: what every transformation of a kernel is compared with.

All loops but serial ones run at once, statement by statement; see `gpu/compiler/ir/interp.py` for
points. A value is an array with an element for each point, or with one element where all agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpu.compiler.ir import evaluate, matrix, optable
from gpu.compiler.ir.copies import Copies, Landing
from gpu.compiler.ir.evaluate import Array
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, expr
from gpu.compiler.ir.interp import check_vals, flat_view, goes, owners, poison, repeated
from gpu.compiler.ir.kernel import (
    Alloc,
    AsyncCopy,
    Barrier,
    Block,
    Buf,
    Commit,
    Fragment,
    If,
    Kernel,
    Let,
    LoadTile,
    Loop,
    Mma,
    Prefetch,
    Stmt,
    StoreTile,
    Update,
    Value,
    Wait,
)
from gpu.compiler.ir.kernel.verify import count_thread_loops, verify_kernel
from gpu.compiler.ir.kernel.walk import operands_first
from gpu.compiler.ir.races import TeamLog, check_arrivals, exchanged
from gpu.core.errors import InvalidValue, VerifyError


class Storage(NamedTuple):
    """The memory of a buffer.

    Attributes:
        flat: the elements; those of an alloc follow each other for all points that made it.
        rows: how many points have memory of their own; 1 is shared by all.
        log: who touched it, where the threads of a block share it.
    """

    flat: Array
    rows: int
    log: TeamLog | None = None


def interpret_kernel(
    kernel: Kernel, buffers: Mapping[str, Array], vals: Sequence[int] = ()
) -> None:
    """Runs a kernel on one array for each parameter, by name; outputs are changed in place.

    `vals` are the values of the launch. Raises VerifyError for a kernel that breaks a rule or
    reaches outside a buffer, InvalidValue for arrays that are missing or do not fit the parameters,
    and for values outside of their bounds.
    """
    verify_kernel(kernel)
    check_vals(kernel.name, [(v.name, v.lo, v.hi) for v in kernel.vals], vals)
    storage = {}
    for param in kernel.params:
        if param.name not in buffers or buffers[param.name].shape != param.shape:
            found = buffers[param.name].shape if param.name in buffers else "nothing"
            raise InvalidValue(
                f"buffer {param.name} of {kernel.name} has shape {param.shape}, got {found}"
            )
        what = f"buffer {param.name} of {kernel.name}"
        stored = param.image or param.dtype
        storage[param] = Storage(flat_view(buffers[param.name], what, stored), 1)
    with np.errstate(all="ignore"):
        machine = _Machine(storage, dict(zip(kernel.vals, vals, strict=True)))
        machine.shares = count_thread_loops(kernel.body) > 0
        machine.block(kernel.body)


class _Machine:
    """The state of a run: memory, the variables at each point, and which points are active."""

    def __init__(self, storage: dict[Buf, Storage], vals: Mapping[Var, int]):
        self.storage = storage
        self.points = 1
        self.threads = 1
        self.thread_points = 1
        self.shares = False
        self.active: Array | None = None
        self.vals = vals
        self.vars: dict[Var, int | Array] = dict(vals)
        self.orders: dict[Value, list[Value]] = {}
        self.consts: dict[Value, Array] = {}
        self.copies = Copies()

    def block(self, block: Block) -> None:
        """Runs statements in order."""
        for stmt in block.body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        """Runs one statement."""
        match stmt:
            case Block():
                self.block(stmt)
            case Alloc(buf):
                self.storage[buf] = self._memory(buf)
            case Barrier():
                self._barrier()
            case If():
                self._if(stmt)
            case Loop(var, "serial", body):
                for counter in range(var.lo, var.lo + self._trips(var)):
                    self.vars[var] = counter
                    self.block(body)
            case Loop():
                self._together(stmt)
            case Update():
                self._update(stmt)
            case AsyncCopy():
                self._copy(stmt)
            case Commit():
                self.copies.commit()
            case Wait(pending):
                self.copies.wait(pending)
            case Fragment():
                self._fragment(stmt)
            case Mma():
                self._multiply(stmt)
            case LoadTile() | StoreTile():
                self._move_tile(stmt)
            case Prefetch():
                pass

    def _memory(self, buf: Buf) -> Storage:
        flat = poison((self.points * _size(buf),), buf.dtype)
        shared = self.shares and buf.space == "team"
        log = TeamLog(buf.name, _size(buf), flat.size) if shared else None
        return Storage(flat, self.points, log)

    def _barrier(self) -> None:
        check_arrivals(self.active, self.threads)
        for storage in self.storage.values():
            if storage.log is not None:
                storage.log.barrier()

    def _note(self, buf: Buf, position: Array, reached: Array | None, stores: bool) -> None:
        """Tells the log of team memory which thread of its block touches which element."""
        log = self.storage[buf].log
        if log is None:
            return
        threads = self._threads()
        position = np.broadcast_to(position, (self.points,))
        if reached is not None:
            position, threads = position[reached], threads[reached]
        (log.store if stores else log.load)(position, threads)

    @property
    def _lanes(self) -> int:
        """How many points a thread is."""
        return self.points // self.thread_points

    def _threads(self) -> Array:
        """The number of the thread in its block that each point is of."""
        return np.asarray(np.arange(self.points) // self._lanes % self.threads)

    def _trips(self, var: Var) -> int:
        return var.extent if var.stop is None else var.stop.evaluate(self.vals)

    def _together(self, loop: Loop) -> None:
        points, active, outer = self.points, self.active, self.vars
        trips, threads = self._trips(loop.var), self.threads
        together = loop.kind == "thread"  # a block is never divided
        if together:
            self.threads *= trips
        several = goes(trips, points, _widest(loop.body))
        for first, count in [(0, trips)] if together else several:
            self.points = points * count
            if together:
                self.thread_points = self.points
                self.copies = Copies()
            self.vars = {
                var: value if isinstance(value, int) else repeated(value, count)
                for var, value in outer.items()
            }
            self.active = None if active is None else repeated(active, count)
            counters = np.arange(loop.var.lo + first, loop.var.lo + first + count)
            self.vars[loop.var] = np.tile(counters, points)
            self.block(loop.body)
        self.points, self.active, self.vars = points, active, outer
        self.threads = threads

    def _if(self, stmt: If) -> None:
        active = self.active
        self.active = self._reached(stmt.mask)
        if self.active is None or self.active.any():
            self.block(stmt.body)
        self.active = active

    def _reached(self, mask: Mask) -> Array | None:
        """Points that are active and where a mask holds; None stands for all."""
        if mask is ALWAYS:
            return self.active
        holds = np.broadcast_to(mask.evaluate(self.vars), (self.points,))
        if self.active is not None:
            holds = holds & self.active
        return None if holds.all() else holds

    def _locate(
        self, buf: Buf, indices: tuple[Expr, ...], reached: Array | None, what: str
    ) -> Array:
        """Positions in the memory of `buf` at each point; those not reached may be anywhere."""
        position: Array = np.zeros(1, np.int64)
        for axis, (place, size) in enumerate(zip(indices, buf.shape, strict=True)):
            index = np.atleast_1d(place.evaluate(self.vars))
            outside = (index < 0) | (index >= size)
            if reached is not None:
                outside = outside & reached
            if outside.any():
                wrong = np.broadcast_to(index, outside.shape)[outside][0]
                raise VerifyError(
                    f"{what} of {buf.name} outside it: index {axis}, {place}, is {wrong}"
                    f" and the size {size}"
                )
            position = position * size + index
        rows = self.storage[buf].rows
        return position if rows == 1 else position + owners(self.points, rows) * _size(buf)

    def _load(self, buf: Buf, indices: tuple[Expr, ...], mask: Mask) -> Array:
        reached = self._reached(mask)
        position = self._locate(buf, indices, reached, "a read")
        self._note(buf, position, reached, stores=False)
        flat = self.storage[buf].flat
        if reached is None:
            return np.asarray(flat[position], buf.dtype.np)
        result = np.zeros(self.points, buf.dtype.np)
        result[reached] = flat[np.broadcast_to(position, reached.shape)[reached]]
        return result

    def _update(self, update: Update) -> None:
        for let in update.lets:
            self._bind(let)
        reached = self._reached(update.mask)
        if reached is not None and not reached.any():
            return
        value = self._value(update.value)
        position = self._locate(update.buf, update.indices, reached, "a write")
        self._note(update.buf, position, reached, stores=True)
        shape = (self.points,)
        position, value = np.broadcast_to(position, shape), np.broadcast_to(value, shape)
        if reached is not None:
            position, value = position[reached], value[reached]
        flat = self.storage[update.buf].flat
        if update.distinct and np.unique(position).size < position.size:
            raise VerifyError(
                f"iterations write one element of {update.buf.name}, said to be distinct"
            )
        if update.monoid is None:
            flat[position] = value
        else:
            # Several points may combine into one element, which plain indexing would do once.
            optable.MONOIDS[update.monoid].ufunc.at(flat, position, value)

    def _bind(self, let: Let) -> None:
        """Gives a variable its value at each point."""
        value = self._value(let.value)
        if value.min() < let.var.lo or value.max() > let.var.hi:
            raise VerifyError(
                f"{let.var.name} is {value.min()}..{value.max()}, outside its bounds"
                f" {let.var.lo}..{let.var.hi}"
            )
        self.vars[let.var] = value

    def _copy(self, copy: AsyncCopy) -> None:
        reached, run = self._reached(ALWAYS), np.arange(copy.size)
        included = np.broadcast_to(copy.mask.evaluate(self.vars), (self.points,))
        source = self.storage[copy.source].flat
        read = included if reached is None else included & reached
        start = np.broadcast_to(self._locate(copy.source, copy.places, read, "a copy"), read.shape)
        values = np.zeros((self.points, copy.size), source.dtype)
        values[read] = source[start[read][:, None] + run]
        target, log = self.storage[copy.buf].flat, self.storage[copy.buf].log
        to = self._locate(copy.buf, copy.indices, reached, "a copy")
        positions = np.broadcast_to(to, read.shape)[:, None] + run
        threads = self._threads()[:, None]
        some = np.ones(self.points, np.bool_) if reached is None else reached
        landing = Landing(target, log, positions[some], threads[some], values[some])
        self.copies.start(landing, copy.buf.dtype)

    def _held(self, buf: Buf, indices: tuple[Expr, ...]) -> Array:
        """Where a thread's registers with a row of parts are, (points, parts, elements)."""
        first = self._locate(buf, (*indices, expr(0), expr(0)), self.active, "a fragment")
        own = np.arange(buf.shape[-2] * buf.shape[-1]).reshape(buf.shape[-2:])
        return np.asarray(np.broadcast_to(first, (self.points,))[:, None, None] + own)

    def _warps(self, values: Array, together: int = matrix.WARP) -> Array:
        return matrix.by_warp(values, self.threads, self._lanes, together)

    def _fragment(self, load: Fragment) -> None:
        check_arrivals(self.active, self.threads * self._lanes, "fragment")
        first = self._locate(load.source, load.places, self.active, "a fragment")
        starts = self._warps(np.broadcast_to(first, (self.points,)))
        if (starts != starts[:, :1]).any():
            raise VerifyError(f"threads of a warp load different parts of {load.source.name}")
        offsets = matrix.held_offsets(load.row, load.steps, load.transposed)
        places = starts[:, :, None, None] + offsets
        position = matrix.by_point(places, self.threads, self._lanes)
        for part in range(position.shape[1]):
            for element in range(matrix.HELD):
                self._note(load.source, position[:, part, element], self.active, stores=False)
        first = self._held(load.buf, load.indices)[:, 0, 0]
        parts = np.arange(position[0].size).reshape(position.shape[1:])
        target, source = self.storage[load.buf].flat, self.storage[load.source].flat
        target[first[:, None, None] + parts] = source[position]

    def _move_tile(self, stmt: LoadTile | StoreTile) -> None:
        """A tile from memory into a fragment, or back."""
        loads = isinstance(stmt, LoadTile)
        ends = ((stmt.buf, stmt.indices), (stmt.source, stmt.places))
        (tile, held_at), (buf, indices) = ends if loads else ends[::-1]
        first = np.broadcast_to(self._locate(buf, indices, self.active, "a tile"), (self.points,))
        some = slice(None) if self.active is None else self.active
        inside = first[some, None] + matrix.tile_offsets(stmt.row, buf.dtype)
        held = self._held(tile, held_at)[some].reshape(len(inside), -1)
        memory, fragment = self.storage[buf].flat, self.storage[tile].flat
        if loads:
            fragment[held] = np.ascontiguousarray(memory[inside]).view(tile.dtype.np)
        else:
            memory[inside] = np.ascontiguousarray(fragment[held]).view(buf.dtype.np)

    def _multiply(self, mma: Mma) -> None:
        how = matrix.MATRICES[mma.name]
        if how.threads > 1:
            check_arrivals(self.active, self.threads * self._lanes, "mma")
        at = self._held(mma.buf, mma.indices)
        places = ((mma.a, mma.a_indices), (mma.b, mma.b_indices), (mma.buf, mma.indices))
        held = (self.storage[buf].flat[self._held(buf, i)] for buf, i in places)
        a, b, c = (self._warps(values, how.threads) for values in held)
        total = matrix.multiply(how, a, b, c)
        after = matrix.by_point(total, self.threads, self._lanes, how.threads)
        some = slice(None) if self.active is None else self.active
        self.storage[mma.buf].flat[at[some]] = after[some]

    def _value(self, root: Value) -> Array:
        order = self.orders.get(root)
        if order is None:
            order = self.orders[root] = operands_first(root)
        values: dict[Value, Array] = {}
        for value in order:
            values[value] = self._part(value, tuple(values[a] for a in value.args))
        return values[root]

    def _const(self, value: Value) -> Array:
        found = self.consts.get(value)
        if found is None:
            made = optable.scalar(value.dtype)(value.attr[0])
            found = self.consts[value] = made.reshape(1)
        return found

    def _part(self, value: Value, args: tuple[Array, ...]) -> Array:
        match value.kind:
            case "const":
                return self._const(value)
            case "index":
                return np.atleast_1d(value.attr[0].evaluate(self.vars))
            case "load":
                return self._load(*value.attr)
            case "alu":
                return optable.apply_bare(value.attr[0], value.dtype, args)
            case "shuffle_xor":
                everywhere = np.broadcast_to(args[0], (self.points,))
                shape = (self.threads, self.points // self.thread_points)
                return exchanged(everywhere, self.active, shape, *value.attr)
            case "cast":
                return evaluate.cast(args[0], value.args[0].dtype, value.dtype)
            case _:
                return evaluate.bitcast(args[0], value.dtype)


def _size(buf: Buf) -> int:
    return int(np.prod(buf.shape))


def _widest(block: Block) -> int:
    """Into how many points one point grows inside a block."""
    widest = 1
    for stmt in block.body:
        if isinstance(stmt, Loop):
            own = 1 if stmt.kind == "serial" else stmt.var.extent
            widest = max(widest, own * _widest(stmt.body))
        elif isinstance(stmt, If):
            widest = max(widest, _widest(stmt.body))
        elif isinstance(stmt, Block):
            widest = max(widest, _widest(stmt))
    return widest
