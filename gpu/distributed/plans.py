"""What compiled graphs have ranks do together: the transport of `gpu/runtime/collectives.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.core.callsite import user_call_site
from gpu.distributed import exchange
from gpu.distributed.call import Call, raise_again
from gpu.distributed.engine import Engine
from gpu.distributed.exchange import Among, Bytes, Steps, Wire
from gpu.distributed.messages import What
from gpu.distributed.reducing import reduction
from gpu.runtime.collectives import Waitable

_OPERATIONS: Final = {
    "add": "sum", "mul": "product", "min": "min", "max": "max", "and": "band", "or": "bor",
}  # fmt: skip


class Plans:
    """The collectives of plans, over an engine.

    Attributes:
        rank: of this process.
        size: how many there are.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self.rank, self.size = engine.world.rank, engine.world.size
        self._runs = 0  # in the thread of MPI

    def begin(self, digest: bytes) -> Call:
        """Starts to compare a plan's digest, and how many plans ran before it, among all ranks."""

        def make(engine: Engine, call: Call) -> Steps:
            call.what = What("realize", how=f"plan {digest.hex()}, run {self._runs}")
            yield from engine.agree(call)
            self._runs += 1

        return self._engine.start(Call(What("realize"), user_call_site(), make))

    def start(
        self,
        call: HostCall,
        members: Sequence[int],
        own: Bytes,
        out: Bytes,
        plan: Waitable,
        kept: object,
    ) -> Call:
        """Starts a collective of `members`; nothing is done where ranks run different plans."""
        ((shape, dtype),) = call.inputs
        assert isinstance(plan, Call)

        def make(engine: Engine, _: Call) -> Steps:
            if plan.error is not None:
                raise_again(plan.error)
            wire = Among(engine.wire, members) if len(members) < self.size else engine.wire
            yield from _steps(call, wire, own, out)

        how = f"over ranks {', '.join(map(str, members))}"
        what = What(call.name, dtype.name, tuple(shape), how)
        return self._engine.start(Call(what, plan.site, make, kept=kept))


def _steps(call: HostCall, wire: Wire, own: Bytes, out: Bytes) -> Steps:
    assert call.across is not None
    ((_, dtype),) = call.inputs
    if call.name == "all_gather":
        return exchange.all_gather(wire, own, out)
    if call.name == "all_to_all":
        return exchange.all_to_all(wire, own, out)
    reduce = reduction(_OPERATIONS[call.across.monoid], dtype)
    if call.name == "reduce_scatter":
        return exchange.reduce_scatter(wire, own, out, reduce)
    return exchange.all_reduce(wire, own, out, reduce, dtype.itemsize)
