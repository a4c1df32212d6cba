"""Emission of linear instructions: common subexpressions once, each as far out as it can go.

An instruction lands in the outermost open loop where its operands exist, so loop-invariant code is
never inside the loop, and the same computation is never there twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from gpu.compiler.ir import optable
from gpu.compiler.ir.builder import Builder
from gpu.compiler.ir.linear import Inst, Limit
from gpu.core.dtype import DType, PyScalar, dtypes

# Bits of the numbers that every renderer has constants of.
_WORDS: Final = (32, 64)


class _Scope:
    """Instructions of one open loop or `if` body, and those already made there."""

    __slots__ = ("insts", "known", "opener")

    def __init__(self, opener: Inst | None):
        self.opener = opener
        self.insts: list[Inst] = []
        self.known: dict[tuple[Any, ...], Inst] = {}


class Emitter(Builder[Inst]):
    """Appends instructions; as a `Builder` it takes scalars and vectors mixed, and splats."""

    def __init__(self) -> None:
        self._scopes = [_Scope(None)]
        self._depth: dict[Inst, int] = {}
        self._guard = 0  # loads must not move out of the innermost `if`, which lies this deep

    def depth(self, inst: Inst) -> int:
        """How many loops and `if`s are around `inst`."""
        return self._depth[inst]

    def is_seen(self, inst: Inst) -> bool:
        """Whether `inst`, from the loop or `if` just closed or from around it, can be used here."""
        return self._depth[inst] < len(self._scopes)

    def body(self) -> tuple[Inst, ...]:
        """Everything emitted, once all loops are closed."""
        (scope,) = self._scopes
        return tuple(scope.insts)

    def pure(
        self,
        op: str,
        dtype: DType,
        lanes: int = 1,
        args: tuple[Inst, ...] = (),
        attr: tuple[Any, ...] = (),
        guarded: bool = False,
    ) -> Inst:
        """An instruction without side effects; `guarded` ones stay inside an enclosing `if`."""
        depth = max((self._depth[a] for a in args), default=0)
        if guarded:
            depth = max(depth, self._guard)
        scope = self._scopes[depth]
        unique = (attr[0].hex(),) if op == "const" and isinstance(attr[0], float) else attr
        key = (op, dtype, lanes, args, unique)
        inst = scope.known.get(key)
        if inst is None:
            inst = Inst(op, dtype, lanes, args, attr)
            scope.known[key] = inst
            scope.insts.append(inst)
            self._depth[inst] = depth
        return inst

    def effect(
        self,
        op: str,
        dtype: DType,
        lanes: int = 1,
        args: tuple[Inst, ...] = (),
        attr: tuple[Any, ...] = (),
    ) -> Inst:
        """An instruction that must stay where it is: a store, or a load of what stores change."""
        inst = Inst(op, dtype, lanes, args, attr)
        self._scopes[-1].insts.append(inst)
        self._depth[inst] = len(self._scopes) - 1
        return inst

    def open_loop(
        self, kind: str, stop: int | Limit, initial: tuple[Inst, ...]
    ) -> tuple[Inst, list[Inst]]:
        """Starts a loop from 0 to `stop`; returns its counter and the carries inside it."""
        loop = Inst("loop", dtypes.int64, 1, initial, (kind, 0, stop, 1))
        self._open(loop)
        carries = [
            self.effect("carry", first.dtype, first.lanes, (loop,), (position,))
            for position, first in enumerate(initial)
        ]
        return loop, carries

    def close_loop(self, carries: tuple[Inst, ...]) -> list[Inst]:
        """Ends the innermost loop; returns the carries' values after it."""
        scope = self._scopes.pop()
        assert scope.opener is not None
        outer = self._scopes[-1].insts
        end = Inst("end", dtypes.int64, 1, carries, (scope.opener,))
        outer += [scope.opener, *scope.insts, end]
        self._depth[end] = len(self._scopes) - 1
        return [
            self.effect("result", carry.dtype, carry.lanes, (end,), (position,))
            for position, carry in enumerate(carries)
        ]

    def open_if(self, condition: Inst) -> int:
        """Starts a block that runs only if `condition`; returns what `close_if` needs."""
        previous = self._guard
        self._open(Inst("if", dtypes.bool, 1, (condition,)))
        self._guard = len(self._scopes) - 1
        return previous

    def close_if(self, previous: int) -> None:
        """Ends the innermost `if`."""
        scope = self._scopes.pop()
        assert scope.opener is not None
        end = Inst("endif", dtypes.bool, 1, (), (scope.opener,))
        self._scopes[-1].insts += [scope.opener, *scope.insts, end]
        self._guard = previous

    def _open(self, opener: Inst) -> None:
        self._scopes.append(_Scope(opener))
        self._depth[opener] = len(self._scopes) - 1

    # The Builder interface.

    def op(self, name: str, *args: Inst) -> Inst:
        """A scalar operation; operands widen to the widest, constant operands fold."""
        last = args[-1].dtype
        dtype = dtypes.bool if optable.OPS[name].result == "bool" else last
        if all(a.op == "const" and a.lanes == 1 for a in args):
            return self.const(
                dtype, optable.fold(name, dtype, last, tuple(a.attr[0] for a in args))
            )
        lanes = max(a.lanes for a in args)
        return self.pure("alu", dtype, lanes, tuple(self.widen(a, lanes) for a in args), (name,))

    def const(self, dtype: DType, value: PyScalar) -> Inst:
        """A scalar constant, rounded or wrapped to `dtype`."""
        return self.pure("const", dtype, 1, (), (optable.rounded(value, dtype),))

    def cast(self, x: Inst, dtype: DType) -> Inst:
        """`x` converted by value."""
        if x.dtype is dtype:
            return x
        if x.op == "const":
            value = optable.fold_cast(x.attr[0], x.dtype, dtype, bits=False)
            return self.pure("const", dtype, x.lanes, (), (value,))
        return self.pure("cast", dtype, x.lanes, (x,))

    def bitcast(self, x: Inst, dtype: DType) -> Inst:
        """The bits of `x` as `dtype`; a constant's are known unless a NaN, which has several."""
        if x.dtype is dtype:
            return x
        if x.op == "const" and dtype.bits in _WORDS:
            value = optable.fold_cast(x.attr[0], x.dtype, dtype, bits=True)
            if not (math.isnan(value) or math.isnan(x.attr[0])):
                return self.pure("const", dtype, x.lanes, (), (value,))
        return self.pure("bitcast", dtype, x.lanes, (x,))

    def dtype(self, x: Inst) -> DType:
        """The element type of `x`."""
        return x.dtype

    def repeat(
        self,
        count: Inst,
        most: int,
        initial: tuple[Inst, ...],
        step: Callable[..., tuple[Inst, ...]],
    ) -> tuple[Inst, ...]:
        """A loop of as many iterations as the lane needs that needs most of them."""
        lanes = max(x.lanes for x in (count, *initial))
        if count.lanes > 1:
            count = self.pure("fold", count.dtype, 1, (count,), ("max",))
        limit = Limit(self.cast(count, dtypes.int64), most)
        carries = self.open_loop("serial", limit, tuple(self.widen(x, lanes) for x in initial))[1]
        return tuple(self.close_loop(tuple(self.widen(x, lanes) for x in step(*carries))))

    def widen(self, x: Inst, lanes: int) -> Inst:
        """`x` in every one of `lanes` lanes, if it is a scalar."""
        if x.lanes == lanes:
            return x
        if x.op == "const":
            return self.pure("const", x.dtype, lanes, (), x.attr)
        return self.pure("splat", x.dtype, lanes, (x,))
