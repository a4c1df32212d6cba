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
alu       1 to 3 values                 (op,)                        an operation of the op table
cast      value                                                      converted to the inst's dtype
bitcast   value                                                      same bits
splat     scalar                                                     the scalar in every lane
ramp      scalar int64                  (step,)                      base + step * lane
extract   vector                        (lane,)                      one lane
pack      scalars                                                    a vector of them
fold      vector                        (monoid,)                    the lanes combined
shuffle   vector, vector                (lanes,)                     lanes picked from both, joined
barrier                                                              all lanes of the block arrive
========  ============================  ===========================  ==============================

`index` of load and store is a scalar (consecutive elements) or an int64 vector (one element a lane,
anywhere). `mask` has as many lanes as the value. Loop kinds are `grid`, `worker` and `serial`; the
first two have independent iterations and no carries. start, stop and step are ints, step > 0; stop
is a `Limit` where it is known at launch only.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gpu.core.dtype import DType

OPS: Final = (
    "const", "param", "val", "local", "loop", "carry", "end", "result", "if", "endif", "load",
    "store", "alu", "cast", "bitcast", "splat", "ramp", "extract", "pack", "fold", "shuffle",
    "barrier",
)  # fmt: skip
LOOP_KINDS: Final = ("grid", "worker", "serial")


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
    """A kernel parameter: a pointer to `elements` elements, only read unless `written`."""

    name: str
    dtype: DType
    elements: int
    written: bool


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
