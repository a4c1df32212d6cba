"""Matrix instructions and asynchronous copies, from kernel IR to linear IR.

What a thread of a warp holds of a part is one value of two lanes, and a matrix that one thread
holds is one value; which parts a buffer holds is known while emitting, since the loops around
matrix instructions are written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from gpu.compiler.ir import kernel as K
from gpu.compiler.ir.index import ALWAYS, Expr, Mask, Var, expr
from gpu.compiler.ir.linear import Inst
from gpu.compiler.ir.matrix import HELD, MATRICES, SIDE, TILE_BYTES, TILE_ROWS, WARP
from gpu.compiler.lower.address import Addresses
from gpu.compiler.lower.emit import Emitter
from gpu.compiler.lower.registers import Key, Registers
from gpu.core.dtype import dtypes
from gpu.core.errors import CompileError

Unrolled = Mapping[Var, int]
Place = Callable[[K.Buf, tuple[Expr, ...]], Expr]


class Matrices:
    """Emits what a `K.MatrixStmt` does at one iteration of the loops that are written out.

    Attributes:
        threads: variables of the thread loops around, outermost first.
    """

    def __init__(
        self,
        emitter: Emitter,
        addresses: Addresses,
        registers: Registers,
        pointers: Mapping[K.Buf, Inst],
        place: Place,
    ):
        """`place` gives the position in a buffer of some indices, with what is written out."""
        self.emitter, self.addresses, self.registers = emitter, addresses, registers
        self.pointers, self.place = pointers, place
        self.threads: list[Var] = []
        self._parts: dict[tuple[K.Buf, int], Inst] = {}

    def emit(self, stmt: K.MatrixStmt, unrolled: Unrolled) -> None:
        """One statement, where the loops that are written out are at `unrolled`."""
        match stmt:
            case K.AsyncCopy():
                self._copy(stmt, stmt.mask.subst(dict(unrolled)))
            case K.Commit():
                self.emitter.effect("commit", dtypes.bool)
            case K.Wait(pending):
                self.emitter.effect("wait", dtypes.bool, attr=(pending,))
            case K.Fragment():
                self._fragment(stmt)
            case K.Mma(name) if MATRICES[name].threads == 1:
                self._multiply_tiles(stmt, unrolled)
            case K.Mma():
                self._multiply(stmt, unrolled)
            case K.LoadTile():
                self._load_tile(stmt, unrolled)
            case K.StoreTile():
                self._store_tile(stmt, unrolled)

    def _copy(self, copy: K.AsyncCopy, mask: Mask) -> None:
        to = self.addresses.value(self.place(copy.buf, copy.indices))
        at = self.addresses.value(self.place(copy.source, copy.places))
        condition = None if mask is ALWAYS else self.addresses.mask(mask)
        ends = (self.pointers[copy.buf], to, self.pointers[copy.source], at)
        args = ends if condition is None else (*ends, condition)
        self.emitter.effect("copy", dtypes.bool, args=args, attr=(copy.size,))

    def _lane(self) -> Expr:
        """The number of a thread in its warp."""
        number = expr(0)
        for thread in self.threads:
            number = number * thread.extent + thread
        return number % WARP

    def _fragment(self, load: K.Fragment) -> None:
        lane, count = self._lane(), 1 << len(load.steps)
        row = lane % SIDE * load.row
        for bit, step in enumerate(load.steps):
            row = row + lane // (SIDE << bit) % 2 * step
        index = self.addresses.value(self.place(load.source, load.places) + row)
        whole = self.emitter.effect(
            "fragment",
            load.buf.dtype,
            HELD * count,
            (self.pointers[load.source], index),
            (int(load.transposed),),
        )
        first = self._first(load.buf, load.indices)
        for part in range(count):
            lanes = (HELD * part, HELD * part + 1)
            one = self.emitter.pure("shuffle", whole.dtype, HELD, (whole, whole), (lanes,))
            self._parts[load.buf, first + part] = one

    def _first(self, buf: K.Buf, indices: tuple[Expr, ...]) -> int:
        """The number among all parts of `buf` of the first one at some indices."""
        position = self.place(buf, (*indices, expr(0), expr(0)))
        return position.const // HELD

    def _held(self, buf: K.Buf, indices: tuple[Expr, ...]) -> tuple[Inst, ...]:
        first = self._first(buf, indices)
        try:
            return tuple(self._parts[buf, first + part] for part in range(buf.shape[-2]))
        except KeyError:
            raise CompileError(f"parts of {buf.name} are read before they are loaded") from None

    def _multiply(self, mma: K.Mma, unrolled: Unrolled) -> None:
        parts, held = mma.buf.shape[-2:]
        places = [(expr(part), expr(one)) for part in range(parts) for one in range(held)]
        keys = [self.registers.key(mma.buf, (*mma.indices, *at), unrolled) for at in places]
        before = tuple(self.registers.read(key) for key in keys)
        operands = ((mma.a, mma.a_indices), (mma.b, mma.b_indices))
        loaded = [self._operand(buf, indices, unrolled) for buf, indices in operands]
        args = (*itertools.chain(*loaded), *before)
        total = self.emitter.effect("mma", mma.buf.dtype, len(before), args, (mma.name,))
        for lane, key in enumerate(keys):
            after = self.emitter.pure("extract", mma.buf.dtype, 1, (total,), (lane,))
            self.registers.write(key, after)

    def _operand(
        self, buf: K.Buf, indices: tuple[Expr, ...], unrolled: Unrolled
    ) -> tuple[Inst, ...]:
        """The parts of an operand: those of a fragment, or the register that a thread loaded."""
        if buf.space == "fragment":
            return self._held(buf, indices)
        return (self.registers.read(self._tile(buf, indices, unrolled)),)

    def _tile(self, buf: K.Buf, indices: tuple[Expr, ...], unrolled: Unrolled) -> Key:
        """The register with a part of a matrix that this thread has loaded itself."""
        return self.registers.key(buf, (*indices, expr(0), expr(0)), unrolled)

    def _multiply_tiles(self, mma: K.Mma, unrolled: Unrolled) -> None:
        operands = ((mma.a, mma.a_indices), (mma.b, mma.b_indices), (mma.buf, mma.indices))
        keys = [self._tile(buf, indices, unrolled) for buf, indices in operands]
        args = tuple(self.registers.read(key) for key in keys)
        sums = args[-1]
        total = self.emitter.effect("mma", sums.dtype, sums.lanes, args, (mma.name,))
        self.registers.write(keys[-1], total)

    def _load_tile(self, load: K.LoadTile, unrolled: Unrolled) -> None:
        index = self.addresses.value(self.place(load.source, load.places))
        dtype = load.buf.dtype
        lanes = TILE_ROWS * TILE_BYTES // dtype.itemsize
        args = (self.pointers[load.source], index)
        tile = self.emitter.effect("load_tile", dtype, lanes, args, (load.row,))
        self.registers.write(self._tile(load.buf, load.indices, unrolled), tile)

    def _store_tile(self, store: K.StoreTile, unrolled: Unrolled) -> None:
        index = self.addresses.value(self.place(store.buf, store.indices))
        tile = self.registers.read(self._tile(store.source, store.places, unrolled))
        args = (self.pointers[store.buf], index, tile)
        self.emitter.effect("store_tile", dtypes.bool, args=args, attr=(store.row,))
