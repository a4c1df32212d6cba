"""Linear IR: a straight list of typed instructions in SSA form; what a renderer prints.

Every value is a scalar or a vector of `lanes` equal elements. Loops are marked by `loop` and `end`
in the list; values that change from one iteration to the next are the loop's carries. Values made
inside a loop are not seen after its `end`, except through `result`.

========  ============================  ===========================  ==============================
op        args                          attr                         value
========  ============================  ===========================  ==============================
const                                   (value,)                     the constant in every lane
param                                   (position,)                  pointer to a kernel parameter
val                                     (position,)                  a value of the launch, int64
local                                   (elements, space)            pointer to private/team memory
loop      initial carries               (kind, start, stop, step)    the counter, int64
carry     loop                          (position,)                  a carry inside the loop
end       next carries                  (loop,)
result    end                           (position,)                  a carry after the loop
if        bool                                                       instructions to `endif` run
                                                                     only if true
endif                                   (if,)
load      pointer, index [, mask]                                    elements index, index + 1, ...;
                                                                     0 in lanes the mask excludes
store     pointer, index, value [,mask] (streaming,)                 as load; writes
prefetch  pointer, index                                             hints that an element of a
                                                                     parameter, or behind it, is
                                                                     loaded soon
alu       1 to 3 values                 (op,)                        an operation of the op table
cast      value                                                      converted to the inst's dtype
bitcast   value                                                      same bits; lanes next to each
                                                                     other may become one, the first
                                                                     one lowest
splat     scalar                                                     the scalar in every lane
ramp      scalar int64                  (step,)                      base + step * lane
extract   vector                        (lane,)                      one lane
pack      scalars                                                    a vector of them
fold      vector                        (monoid,)                    the lanes combined
shuffle   vector, vector                (lanes,)                     lanes picked from both, joined
barrier                                                              all threads of the block arrive
copy      team pointer, index,          (elements,)                  starts a copy of elements that
          pointer, index [, mask]                                    follow each other; of zeros
                                                                     where the mask is false
commit                                                               what was started is a group
wait                                    (pending,)                   all groups but so many landed
fragment  team pointer, index           (transposed,)                parts of a matrix, see below
mma       parts of A, of B, sums        (name,)                      sums + A * B
load_     pointer, index                (row,)                       a tile, whose rows begin `row`
tile                                                                 elements of memory apart
store_    pointer, index, tile          (row,)                       as load_tile; writes
tile
shuffle_  scalar                        (distance, warp)             its value on the thread whose
xor                                                                  number is this one's xor
                                                                     `distance`, in the same warp
========  ============================  ===========================  ==============================

`index` of load and store is a scalar (consecutive elements) or an int64 vector (one element a lane,
anywhere). `mask` has as many lanes as the value. Loop kinds are `grid`, `worker`, `thread` and
`serial`; all but the last have independent iterations and no carries. start, stop and step are
ints, step > 0; stop is a `Limit` where it is known at launch only.

**Blocks of threads.** A program for a target with `Target.threads` may have `thread` loops, and is
then one chain: any number of `grid` loops, each directly inside the other, in them one to four
`thread` loops, in those everything else.

    program copy(out: f32[1000] written, in: f32[1000])
      %0 = param f32 out
      %1 = param f32 in
      %2 = const i64 256
      %3 = const i64 999
      %4 = loop grid 0..4
        %5 = mul i64 %4, %2
        %6 = local f32 256 team
        %7 = loop thread 0..256
          %8 = add i64 %5, %7
          %9 = le b1 %8, %3
          %10 = load f32 %1, %8, %9
          store %6, %7, %10
          barrier
          ...
        %20 = end %7
      %21 = end %4

An iteration of the grid loops is a block, one of the thread loops a thread of it. The innermost
loop of either sort counts fastest: with thread loops of 4 and 64 the thread (y, x) is number
64 * y + x, and neighbours in x should reach neighbouring memory. Thread loops go from 0 in steps of
1 to a number known at compile time, so the size of a block is one as well; see `block_size`.

Outside of the thread loops there are, beside the loops, only instructions without effects, loads
of parameters that are never written included (each thread may do them for itself), and the `local`s
of `team` memory, which the threads of a block share; `private` memory is a thread's own and inside.
In programs without thread loops both sorts of `local` belong to the one thread that runs the
iteration, and a barrier has nothing to wait for.

`barrier` stands inside the thread loops, where control flow is uniform: no `if` and no bounds of a
serial loop around it may depend on the thread, nor on data that is written. It orders accesses to
team memory: what threads of the block stored before, all of them load after. Without one in between
two threads must not touch one element of team memory if either of them stores; `interpret_linear`
raises VerifyError where they do. Nothing orders accesses to parameters by different threads, of
which no two may store one element.

`shuffle_xor f32 %1 (4, 32)` exchanges a value between the threads of a warp: each gets %1 as it is
on the thread whose number in the block is its own xor 4. Warps are the 32 threads from a multiple
of 32 on, fewer at the end of a block. Both numbers are powers of two, the first is less, and the
size of the block a multiple of twice the first, so that each thread has a partner. All threads of a
warp take part, so control flow is as uniform as around a barrier; the interpreter checks it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gpu.core.dtype import DType, ImageDType

OPS: Final = (
    "const", "param", "val", "local", "loop", "carry", "end", "result", "if", "endif", "load",
    "store", "alu", "cast", "bitcast", "splat", "ramp", "extract", "pack", "fold", "shuffle",
    "barrier", "shuffle_xor", "copy", "commit", "wait", "fragment", "mma",
    "load_tile", "store_tile", "prefetch",
)  # fmt: skip
LOOP_KINDS: Final = ("grid", "worker", "thread", "serial")
MAX_THREAD_LOOPS: Final = 4


class Inst:
    """One instruction, and the value it makes; compared by identity.

    Attributes:
        op: one of `OPS`.
        dtype: element type of the value; for pointers that of the elements pointed at.
        lanes: 1 for scalars.
        args: operands.
        attr: see the module's table.
    """

    __slots__ = ("args", "attr", "dtype", "lanes", "op")

    def __init__(
        self,
        op: str,
        dtype: DType,
        lanes: int = 1,
        args: tuple[Inst, ...] = (),
        attr: tuple[Any, ...] = (),
    ):
        self.op, self.dtype, self.lanes, self.args, self.attr = op, dtype, lanes, args, attr

    def __repr__(self) -> str:
        suffix = f"x{self.lanes}" if self.lanes > 1 else ""
        return f"<{self.op} {self.dtype.code}{suffix} {self.attr}>"


class Limit(NamedTuple):
    """What a counter stays below: an int64 that was computed before, and the most it can be."""

    value: Inst
    most: int


class Val(NamedTuple):
    """An integer passed at launch, with inclusive bounds."""

    name: str
    lo: int
    hi: int


class Param(NamedTuple):
    """A kernel parameter: a pointer to `elements` elements, only read unless `written`.

    Where it is an `image`, elements are float32. Stores then write whole pixels: four lanes at an
    index that is a multiple of 4, without a mask; and nothing that is written is loaded.
    """

    name: str
    dtype: DType
    elements: int
    written: bool
    image: ImageDType | None = None


class Program(NamedTuple):
    """A kernel in linear form.

    Attributes:
        name: symbol of the compiled function.
        params: in calling order.
        body: instructions in order.
        vals: values of the launch, in calling order.
    """

    name: str
    params: tuple[Param, ...]
    body: tuple[Inst, ...]
    vals: tuple[Val, ...] = ()


def block_size(program: Program) -> tuple[int, ...]:
    """Iterations of each `thread` loop, the innermost last; () where blocks are single threads."""
    loops = (i for i in program.body if i.op == "loop" and i.attr[0] == "thread")
    return tuple(loop.attr[2] for loop in loops)


def team_bytes(program: Program) -> int:
    """Bytes of all `team` memory of a block, one `local` after the other."""
    locals_ = (i for i in program.body if i.op == "local" and i.attr[1] == "team")
    return sum(i.attr[0] * i.dtype.itemsize for i in locals_)
