"""Rules of the kernel IR, checked: names, scope, bounds of every access, dtypes, visible races."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from gpu.compiler.ir.index import ALWAYS, NEVER, Expr, Mask, Var, extremes, iterations
from gpu.compiler.ir.kernel import (
    LOOP_KINDS,
    PARALLEL,
    SPACES,
    Alloc,
    AsyncCopy,
    Barrier,
    Block,
    Buf,
    If,
    Kernel,
    Loop,
    Mma,
    Prefetch,
    Stmt,
    StoreTile,
    Update,
    Value,
)
from gpu.compiler.ir.kernel.matrix_verify import check_matrix
from gpu.compiler.ir.kernel.text import RESERVED, print_signature, print_statements
from gpu.compiler.ir.kernel.walk import operands_first
from gpu.compiler.ir.linear import MAX_THREAD_LOOPS
from gpu.compiler.ir.linear.threads import broken_shuffle
from gpu.compiler.ir.linear.verify import holds
from gpu.compiler.ir.optable import MONOIDS, OPS, result_dtype
from gpu.compiler.ir.text import excerpt
from gpu.core.dtype import dtypes
from gpu.core.errors import DTypeError, VerifyError


def verify_kernel(kernel: Kernel) -> None:
    """Raises VerifyError, showing the statement among its neighbours, if a rule is broken.

    Accesses must be inside their buffer by the bounds of the loops, or be under a mask on one of
    the variables they use. A write that combines nothing must name the variable of each parallel
    loop entered since its buffer was declared, or be under a mask on it: else iterations race. The
    rules for blocks of threads are in `gpu/compiler/ir/kernel/__init__.py`.
    """
    _Verifier(kernel).run()


def count_thread_loops(block: Block) -> int:
    """How many loops inside are of the kind `thread`."""
    count = 0
    for stmt in block.body:
        if isinstance(stmt, Block):
            count += count_thread_loops(stmt)
        elif isinstance(stmt, Loop | If):
            own = isinstance(stmt, Loop) and stmt.kind == "thread"
            count += own + count_thread_loops(stmt.body)
    return count


def _written(stmt: Stmt) -> set[Buf]:
    """The buffers that statements inside write."""
    match stmt:
        case Block(body):
            return set[Buf]().union(*map(_written, body))
        case Loop() | If():
            return _written(stmt.body)
        case Update() | AsyncCopy() | Mma() | StoreTile():
            return {stmt.buf}
    return set()


class _Verifier:
    """Walks the tree, keeping the loops and masks around a statement and the buffers it sees."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.position = -1
        self.loops: list[Loop] = []
        self.guards: list[Mask] = []
        self.depths: dict[Buf, int] = {}
        self.names: set[str] = set()
        self.let_vars: set[Var] = set()
        self.threads = count_thread_loops(kernel.body)
        self.chained: set[Var | None] = set()
        self.written = _written(kernel.body)

    def fail(self, rule: str) -> NoReturn:
        """Raises for the current statement."""
        printed = print_statements(self.kernel)
        lines = [print_signature(self.kernel), *(line for stmt in printed for line in stmt)]
        last = sum(len(stmt) for stmt in printed[: self.position + 1])
        raise VerifyError(f"kernel {self.kernel.name}: {rule}\n{excerpt(lines, last)}")

    def require(self, condition: bool, rule: str) -> None:
        """Raises for the current statement unless `condition` holds."""
        if not condition:
            self.fail(rule)

    def run(self) -> None:
        """Checks everything."""
        for param in self.kernel.params:
            self.declare(param)
            self.require(param.space == "global", f"parameter {param.name} must be global")
        names = [val.name for val in self.kernel.vals]
        self.require(len(set(names)) == len(names), "names of values must be distinct")
        self.block(self.kernel.body)

    def declare(self, buf: Buf) -> None:
        """A buffer begins to exist inside the loops that are open."""
        self.require(buf.name not in self.names, f"the name {buf.name} is taken")
        self.require(buf.name not in RESERVED, f"{buf.name} is a word of the text form")
        self.require(buf.space in SPACES, f"{buf.space} is no memory space")
        self.require(all(d >= 0 for d in buf.shape), f"{buf.name} has a negative size")
        self.names.add(buf.name)
        self.depths[buf] = len(self.loops)

    def block(self, block: Block) -> None:
        """Checks statements; buffers declared there are gone afterwards."""
        seen = dict(self.depths)
        for stmt in block.body:
            self.position += 1
            self.statement(stmt)
        self.depths = seen

    def statement(self, stmt: Stmt) -> None:
        """Checks one statement and what is inside it."""
        self.in_its_place(stmt)
        match stmt:
            case Block():
                self.block(stmt)
            case Barrier():
                self.uniform("a barrier", ("grid", "thread", "serial"))
            case Alloc(buf):
                self.require(buf.space != "global", "global memory is a parameter, not allocated")
                self.declare(buf)
            case If(mask, body):
                self.bound(mask.vars)
                self.guards.append(mask)
                self.block(body)
                self.guards.pop()
            case Loop():
                self.loop(stmt)
            case Update():
                self.update(stmt)
            case Prefetch(buf, indices):
                self.names_element(buf, indices)
                self.require(buf.space == "global", "a prefetch is of a parameter")
            case _:
                check_matrix(self, stmt)

    def in_its_place(self, stmt: Stmt) -> None:
        """What stands outside of the thread loops, and what inside, where there are any."""
        if not self.threads or isinstance(stmt, Block):
            return
        kinds = [loop.kind for loop in self.loops]
        inside = kinds.count("thread") == self.threads
        if isinstance(stmt, Alloc):
            wanted = ("private", "fragment") if inside else ("team",)
            where = "inside" if inside else "outside"
            rule = f"memory {where} thread loops must be {' or '.join(wanted)}"
            self.require(stmt.buf.space in wanted, rule)
        elif isinstance(stmt, Loop) and stmt.kind in ("grid", "thread"):
            chain = {"grid"} if stmt.kind == "grid" else {"grid", "thread"}
            self.require(set(kinds) <= chain, f"a {stmt.kind} loop stands inside other loops")
            innermost = self.loops[-1].var if self.loops else None
            self.require(innermost not in self.chained, "grid and thread loops form one chain")
            self.chained.add(innermost)
            counted = stmt.kind == "grid" or (stmt.var.stop is None and stmt.var.lo == 0)
            self.require(counted, "a thread loop goes from 0 to a number of threads")
            few = kinds.count("thread") < MAX_THREAD_LOOPS or stmt.kind == "grid"
            self.require(few, f"a block has at most {MAX_THREAD_LOOPS} thread loops")
        else:
            self.require(inside, "beside thread loops there is team memory only")

    def uniform(self, what: str, kinds: Sequence[str]) -> None:
        """All threads of a block get here, or none, through loops of these kinds alone."""
        own = {loop.var for loop in self.loops if loop.kind == "thread"}
        self.require(bool(own), f"{what} stands inside thread loops")
        uniform = all(own.isdisjoint(guard.vars) for guard in self.guards)
        self.require(uniform, f"{what} under a condition that differs between threads")
        together = all(loop.kind in kinds for loop in self.loops)
        self.require(together, f"{what} is in no loop of lanes, or that is written out")

    def is_written(self, buf: Buf) -> bool:
        """Whether some statement of the kernel writes a buffer."""
        return buf in self.written

    def shuffle(self, value: Value, update: Update) -> None:
        """All threads of a block take part in an exchange between those of a warp, or none."""
        threads = [loop.var for loop in self.loops if loop.kind == "thread"]
        count = math.prod(var.extent for var in threads)
        distance, warp = value.attr
        if broken := broken_shuffle(distance, warp, count):
            self.fail(broken)
        masks = [*self.guards, update.mask]
        uniform = all(mask.vars.isdisjoint(threads) for mask in masks)
        self.require(uniform, "a shuffle_xor under a condition that differs between threads")
        lanes = any(loop.kind == "vector" for loop in self.loops)
        self.require(not lanes, "a shuffle_xor is in no loop of lanes")

    def loop(self, loop: Loop) -> None:
        """A loop binds a variable that no loop around it binds, by object or by name."""
        kinds = f"the kind of a loop is one of {' '.join(LOOP_KINDS)}"
        self.require(loop.kind in LOOP_KINDS, kinds)
        outer = {around.var.name for around in self.loops} | {v.name for v in self.kernel.vals}
        self.require(loop.var.name not in outer, f"a loop around this binds {loop.var.name} too")
        count = iterations(loop.var)
        known = count.vars <= set(self.kernel.vals) and loop.var.lo == 0
        least, most = extremes(count, self.kernel.vals)
        never_negative = count.lo >= 0 or least >= 0
        self.require(
            count.is_const or (known and never_negative and loop.var.hi + 1 == most),
            f"how often {loop.var.name} runs, {count}, must follow from values of the launch",
        )
        counted = loop.kind not in ("vector", "unroll") or loop.var.stop is None
        self.require(counted, f"a loop of kind {loop.kind} needs a number of iterations")
        self.loops.append(loop)
        self.block(loop.body)
        self.loops.pop()

    def update(self, update: Update) -> None:
        """Lets, target, value and mask of an update."""
        for let in update.lets:
            for value in operands_first(let.value):
                self.require(value.kind != "shuffle_xor", "a let holds no shuffle_xor")
                self.value(value)
            self.require(let.value.dtype is dtypes.int64, f"{let.var.name} must be an int64")
            self.let_vars.add(let.var)
        self.bound(update.mask.vars)
        self.access(update.buf, update.indices, update.mask)
        self.require(update.buf.space != "fragment", "only a fragment statement writes fragments")
        for value in operands_first(update.value):
            if value.kind == "shuffle_xor":
                self.shuffle(value, update)
            self.value(value)
        fits = update.value.dtype is update.buf.dtype
        self.require(fits, f"the value is {update.value.dtype.code}, not {update.buf.dtype.code}")
        self.let_vars = set()
        if update.monoid is None:
            if not update.distinct:
                self.race(update, self.loops[self.depths[update.buf] :])
            return
        self.require(not update.distinct, "what is combined is not distinct")
        # Lanes and blocks may fold into one element, threads cannot.
        between = self.loops[self.depths[update.buf] :]
        self.race(update, [loop for loop in between if loop.kind == "thread"])
        monoid = MONOIDS.get(update.monoid)
        defined = monoid is not None and update.buf.dtype.kind in monoid.domain
        self.require(defined, f"{update.monoid} is no monoid of {update.buf.dtype.code}")

    def race(self, update: Update, between: Iterable[Loop]) -> None:
        """Iterations of a parallel loop must not write one element of memory outside it."""
        named = update.mask.vars.union(
            *(i.vars for i in update.indices), *(g.vars for g in self.guards)
        )
        for loop in between:
            apart = loop.kind not in PARALLEL or loop.var.extent == 1 or loop.var in named
            self.require(
                apart,
                f"iterations of the {loop.kind} loop over {loop.var.name} all write this element;"
                f" index {update.buf.name} by {loop.var.name}, or combine with a monoid",
            )

    def value(self, value: Value) -> None:
        """One part of a value."""
        match value.kind:
            case "const":
                fits = holds(value.dtype, value.attr[0])
                self.require(fits, f"{value.attr[0]!r} is no {value.dtype.name}")
            case "index":
                self.bound(value.attr[0].vars)
                self.require(value.dtype is dtypes.int64, "an index is an int64")
            case "load":
                buf, indices, mask = value.attr
                self.bound(mask.vars)
                self.access(buf, indices, mask)
                self.require(value.dtype is buf.dtype, f"{buf.name} holds {buf.dtype.code}")
                self.require(buf.space != "fragment", "only a mma reads fragments")
            case "alu":
                self.operation(value)
            case "bitcast":
                source = value.args[0].dtype
                same = source.bits == value.dtype.bits
                self.require(same, f"bitcast keeps the width; {source} to {value.dtype} does not")
            case "shuffle_xor":
                self.require(value.dtype is value.args[0].dtype, "an exchange keeps the dtype")
            case kind:
                self.require(kind == "cast", f"{kind} is no kind of value")

    def operation(self, value: Value) -> None:
        """A scalar operation against the op table."""
        name = value.attr[0]
        self.require(name in OPS, f"{name} is no scalar operation")
        try:
            expected = result_dtype(name, tuple(a.dtype for a in value.args))
        except DTypeError as error:
            self.fail(error.message)
        self.require(expected is value.dtype, f"{name} gives {expected.code} here")

    def bound(self, used: frozenset[Var]) -> None:
        """Every variable used belongs to a loop around the statement, or to its lets."""
        known = {loop.var for loop in self.loops} | self.let_vars | set(self.kernel.vals)
        for var in sorted(used - known, key=str):
            self.fail(f"no loop around this binds the variable {var.name}")

    def names_element(self, buf: Buf, indices: tuple[Expr, ...]) -> None:
        """A buffer that exists, with as many indices as dimensions, of variables that do."""
        self.require(buf in self.depths, f"the buffer {buf.name} does not exist here")
        rank = len(buf.shape)
        self.require(len(indices) == rank, f"{buf.name} takes {rank} indices, got {len(indices)}")
        for index in indices:
            self.bound(index.vars)

    def access(self, buf: Buf, indices: tuple[Expr, ...], mask: Mask) -> None:
        """A buffer that exists, with as many indices as dimensions, all inside it."""
        self.names_element(buf, indices)
        guards = tuple(self._guards(mask))
        for axis, (index, size) in enumerate(zip(indices, buf.shape, strict=True)):
            lo, hi = index.lo, index.hi
            if lo < 0 or hi >= size:
                lo, hi = extremes(index, self.kernel.vals, [loop.var for loop in self.loops])
            inside = lo >= 0 and hi < size
            guarded = any(guard is NEVER or guard.vars & index.vars for guard in guards)
            self.require(
                inside or guarded,
                f"index {axis} of {buf.name}, {index}, is {lo}..{hi}; the size is"
                f" {size} and no mask restricts it",
            )

    def _guards(self, mask: Mask) -> Iterator[Mask]:
        yield from self.guards
        if mask is not ALWAYS:
            yield mask
