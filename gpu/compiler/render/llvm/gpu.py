"""Linear IR printed as LLVM IR text, for GPUs: what is the same for AMD's and NVIDIA's.

The function printed takes the address of each parameter, that of the workspace if it needs one,
then the values of the launch, 8 bytes each. It expects the workgroups and work-items that
`gpu/compiler/render/launch/grid.py` plans (NVIDIA's words: blocks and threads), and buffers that
begin at multiples of 16 bytes; it needs x ids alone.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from gpu.compiler.ir.linear import Inst, Limit, Program
from gpu.compiler.ir.linear.ranges import int_factors
from gpu.compiler.render.launch.grid import Grid, trips
from gpu.compiler.render.launch.locals import ALIGN, Places
from gpu.compiler.render.llvm import amdgcn_memory
from gpu.compiler.render.llvm.amdgcn_memory import Access
from gpu.compiler.render.llvm.narrow_integers import INT32, NarrowPrinter
from gpu.compiler.render.llvm.text import INT64, Type, Value, integer, memory_element
from gpu.compiler.targets import Target

_GLOBAL: Final = Type("ptr addrspace(1)")
SHARED: Final = Type("ptr addrspace(3)")
_MOST_CONSTANT: Final = 4095  # bytes that a load or store adds by itself
_MOST_PLACES: Final = 1 << 30  # bytes that 32 bits count, and steps beyond
_SPREAD: Final = ("grid", "thread")


class GridPrinter(NarrowPrinter):
    """One program on its way to a kernel.

    Attributes:
        grid: how it is launched.
        places: where its locals are.
        ids: the intrinsics that give the numbers of the workgroup and of the work-item in it.
        globals: lines that declare memory of a workgroup.
    """

    def __init__(
        self, target: Target, program: Program, grid: Grid, places: Places, ids: tuple[str, str]
    ):
        super().__init__(target, program)
        self.grid, self.places, self.ids = grid, places, ids
        self.factors = int_factors(program)
        self.globals: list[str] = []
        self.counters: dict[Inst, Value] = {}
        self.ends_of_grid: dict[Inst, str] = {}

    @abstractmethod
    def _private(self, name: str, array: str) -> Value:
        """An array on the stack of a work-item, of this name and type."""

    def function(self, convention: str, attributes: str) -> list[str]:
        """The lines of the function, with its calling convention and attributes."""
        lines = self.body()
        return [
            *self.globals,
            f"define {convention} void @{self.program.name}({self._parameters()}) {attributes} {{",
            "entry:",
            *self._workspace(),
            *self.emitter.entry,
            "  br label %body",
            "body:",
            *lines,
            "  ret void",
            "}",
            *self.emitter.declarations,
        ]

    def _parameters(self) -> str:
        pointers = [
            f"{_GLOBAL} noalias {'' if param.written else 'readonly '}%p{i}"
            for i, param in enumerate(self.program.params)
        ]
        if self.places.workspace:
            pointers.append(f"{_GLOBAL} noalias %workspace")
        return ", ".join([*pointers, *(f"i64 %v{i}" for i in range(len(self.program.vals)))])

    def _workspace(self) -> list[str]:
        """Lines that find this work-item's part of the workspace."""
        size = self.places.workspace
        if not size:
            return []
        group, item = self.ids
        self.emitter.declarations |= dict.fromkeys(f"declare i32 @{name}()" for name in self.ids)
        return [
            f"  %workspace.group = call i32 @{group}()",
            f"  %workspace.item = call i32 @{item}()",
            f"  %workspace.first = mul nuw i32 %workspace.group, {self.grid.block}",
            "  %workspace.flat = add nuw i32 %workspace.first, %workspace.item",
            "  %workspace.number = zext i32 %workspace.flat to i64",
            f"  %workspace.offset = mul nuw i64 %workspace.number, {size}",
            f"  %workspace.own = getelementptr inbounds i8, {_GLOBAL} %workspace,"
            " i64 %workspace.offset",
        ]

    def _param(self, inst: Inst) -> Value:
        return Value(_GLOBAL, f"%p{inst.attr[0]}")

    def _val(self, inst: Inst) -> Value:
        value = Value(INT64, f"%v{inst.attr[0]}")
        if inst in self.ranges:
            self.narrow[inst] = self.emitter.convert("trunc", value, "i32")
        return value

    def _local(self, inst: Inst) -> Value:
        array = f"[{inst.attr[0]} x {memory_element(inst.dtype)}]"
        if inst in self.places.shared:
            name = f"@{self.program.name}.{self.emitter.fresh('shared')}"
            kind = "internal unnamed_addr addrspace(3) global"
            self.globals.append(f"{name} = {kind} {array} poison, align {ALIGN}")
            return Value(SHARED, name)
        name = self.emitter.fresh("%local")
        if inst in self.places.offsets:
            offset = self.places.offsets[inst]
            self.emitter.entry.append(
                f"  {name} = getelementptr inbounds i8, {_GLOBAL} %workspace.own, i64 {offset}"
            )
            return Value(_GLOBAL, name)
        return self._private(name, array)

    def _loop(self, inst: Inst) -> Value:
        if inst.attr[0] not in _SPREAD:
            return super()._loop(inst)
        if not self.counters:
            self._compute_counters()
        counter, checks = self.counters[inst], list[Value]()
        if inst in self.grid.inner[:1]:
            checks += self._check_lane()
        if isinstance(inst.attr[2], Limit):
            limit = self._limit(inst) if inst not in self.ranges else self._short_limit(inst)
            checks.append(self.emitter.compare("icmp slt", counter, limit))
        if checks:
            self._skip_unless(inst, checks)
        return self.keep(inst, counter) if inst in self.ranges else counter

    def _short_limit(self, inst: Inst) -> Value:
        """The limit of a loop whose counter has 32 bits; it is never more than it can be."""
        return self.emitter.convert("trunc", self._limit(inst), "i32")

    def _end(self, inst: Inst) -> None:
        loop = inst.attr[0]
        if loop.attr[0] not in _SPREAD:
            super()._end(inst)
        elif loop in self.ends_of_grid:
            after = self.ends_of_grid[loop]
            self.emitter.branch(after)
            self.emitter.start_block(after)

    def _skip_unless(self, loop: Inst, checks: list[Value]) -> None:
        """Goes on behind the end of a grid loop unless all checks hold."""
        holds = checks[0]
        for check in checks[1:]:
            holds = self.emitter.binary("and", holds, check)
        inside = self.emitter.fresh("grid")
        self.ends_of_grid[loop] = f"{inside}.after"
        self.emitter.branch_if(holds, inside, f"{inside}.after")
        self.emitter.start_block(inside)

    def _compute_counters(self) -> None:
        """The counters of all grid loops from the ids of the workgroup and the work-item."""
        emitter, grid = self.emitter, self.grid
        group, item = (emitter.intrinsic(name, INT32) for name in self.ids)
        outer, part = self._divide(group, grid.lane_groups)
        first = emitter.binary("mul nuw nsw", part, integer(INT32, grid.block))
        self.lane = emitter.binary("add nuw nsw", first, item)
        self._count(grid.outer, outer)
        self._count(grid.inner, self.lane)

    def _count(self, loops: tuple[Inst, ...], index: Value) -> None:
        """The counters of nested loops from the number of the iteration."""
        rest = index
        for loop in reversed(loops[1:]):
            rest, trip = self._divide(rest, trips(loop))
            self.counters[loop] = self._counter(loop, trip)
        for loop in loops[:1]:
            self.counters[loop] = self._counter(loop, rest)

    def _divide(self, index: Value, by: int) -> tuple[Value, Value]:
        """Quotient and remainder of an index."""
        if by <= 1:
            return index, integer(INT32, 0)
        divisor = integer(INT32, by)
        return (
            self.emitter.binary("udiv", index, divisor),
            self.emitter.binary("urem", index, divisor),
        )

    def _counter(self, loop: Inst, trip: Value) -> Value:
        _, start, _, step = loop.attr
        counter = trip if loop in self.ranges else self.emitter.convert("zext", trip, "i64")
        if step != 1:
            counter = self.emitter.binary("mul nsw", counter, integer(counter.type, step))
        if start:
            counter = self.emitter.binary("add nsw", counter, integer(counter.type, start))
        return counter

    def _check_lane(self) -> list[Value]:
        """Whether this work-item has a place in the inner loops; nothing where all have."""
        lanes = self.grid.lanes
        if lanes == self.grid.block * self.grid.lane_groups:
            return []
        return [self.emitter.compare("icmp ult", self.lane, integer(INT32, lanes))]

    def _load(self, inst: Inst) -> Value:
        source = inst.args[0]
        invariant = source.op == "param" and not self.program.params[source.attr[0]].written
        access = self._access(source, inst.lanes, *inst.args[1:])
        return amdgcn_memory.load(self.emitter, access, invariant)

    def _store(self, inst: Inst) -> None:
        pointer, index, value, *mask = inst.args
        access = self._access(pointer, value.lanes, index, *mask)
        amdgcn_memory.store(self.emitter, access, self.values[value])

    def _access(self, pointer: Inst, lanes: int, at: Inst, mask: Inst | None = None) -> Access:
        """Where a load or store goes, in 32 bits if places in its buffer fit."""
        place, constant, size = self.values[at], 0, pointer.dtype.itemsize
        if at in self.narrow and self._size(pointer) <= _MOST_PLACES:
            place = self.narrow[at]
            if mask is None and at.op == "alu" and at.attr[0] == "add":
                first, second = at.args
                near = second.op == "const" and 0 <= second.attr[0] * size <= _MOST_CONSTANT
                if near and first in self.narrow and self.ranges[first][0] >= 0:
                    place, constant = self.narrow[first], second.attr[0]
        align = min(self.factors.get(at, 1) * size, ALIGN)
        condition = None if mask is None else self.values[mask]
        where = (self.values[pointer], place, condition, constant, align)
        return Access(pointer.dtype, lanes, *where)

    def _size(self, pointer: Inst) -> int:
        """Bytes of a buffer, as far as this program knows."""
        number: int = pointer.attr[0]
        elements = self.program.params[number].elements if pointer.op == "param" else number
        return elements * pointer.dtype.itemsize
