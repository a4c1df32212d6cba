"""What compiled graphs have ranks do together: the transport of `gpu/runtime/collectives.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu.compiler.ir.graph.hostcall import HostCall
from gpu.core.callsite import user_call_site
from gpu.distributed import exchange
from gpu.distributed.call import Call, raise_again
from gpu.distributed.engine import Engine
from gpu.distributed.exchange import Among, Bytes, Kept, Steps, Wire
from gpu.distributed.messages import What
from gpu.distributed.reducing import reduction
from gpu.runtime.collectives import Waitable

_OPERATIONS: Final = {
    "add": "sum", "mul": "product", "min": "min", "max": "max", "and": "band", "or": "bor",
}  # fmt: skip
# Of what each rank gives, or gets, these have a part for each rank.
_GIVE_PARTS: Final = frozenset({"reduce_scatter", "all_to_all"})
_GET_PARTS: Final = frozenset({"all_gather", "all_to_all"})


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
        self._staging = Kept(), Kept()  # of what goes together: one collective is moved at a time

    def begin(self, digest: bytes) -> Call:
        """Starts to compare a plan's digest, and how many plans ran before it, among all ranks."""

        def make(engine: Engine, call: Call) -> Steps:
            call.what = What("realize", how=f"plan {digest.hex()}, run {self._runs}")
            yield from engine.agree(call)
            self._runs += 1

        return self._engine.start(Call(What("realize"), user_call_site(), make))

    def start(
        self,
        calls: Sequence[HostCall],
        members: Sequence[int],
        pairs: Sequence[tuple[Bytes, Bytes]],
        plan: Waitable,
        kept: object,
    ) -> Call:
        """Starts collectives of `members`; nothing is done where ranks run different plans."""
        (shape, dtype), name = calls[0].inputs[0], calls[0].name
        assert isinstance(plan, Call)

        def make(engine: Engine, _: Call) -> Steps:
            if plan.error is not None:
                raise_again(plan.error)
            wire = Among(engine.wire, members) if len(members) < self.size else engine.wire
            if len(pairs) == 1:
                yield from _steps(calls[0], wire, *pairs[0])
            else:
                yield from self._together(calls[0], wire, pairs)

        how = f"over ranks {', '.join(map(str, members))}"
        if len(calls) > 1:
            how += f", and {len(calls) - 1} more"
        what = What(name, dtype.name, tuple(shape), how)
        nbytes = sum(own.size for own, _ in pairs)
        return self._engine.start(Call(what, plan.site, make, kept=kept, nbytes=nbytes))

    def _together(self, call: HostCall, wire: Wire, pairs: Sequence[tuple[Bytes, Bytes]]) -> Steps:
        """Collectives as one, of all that they move: for each rank what is to go there."""
        # All of what a rank gives or gets, or a part of it for each rank.
        rows = [wire.size if call.name in names else 1 for names in (_GIVE_PARTS, _GET_PARTS)]
        own, out = (
            memory.taken(sum(pair[side].size for pair in pairs)).reshape(rows[side], -1)
            for side, memory in enumerate(self._staging)
        )
        at = 0
        for given, _ in pairs:
            parts = given.reshape(rows[0], -1)
            own[:, at : at + parts.shape[1]] = parts
            at += parts.shape[1]
        yield from _steps(call, wire, own.reshape(-1), out.reshape(-1))
        at = 0
        for _, wanted in pairs:
            parts = wanted.reshape(rows[1], -1)
            parts[:] = out[:, at : at + parts.shape[1]]
            at += parts.shape[1]


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
