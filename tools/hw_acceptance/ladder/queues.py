"""Steps 7 and 8: work for the compute queue without a kernel. Semaphores, objects."""

from __future__ import annotations

from typing import Final

from gpu.drivers.nv.channel.channel import GpfifoChannel
from gpu.drivers.nv.encode import semaphore as semaphores
from gpu.drivers.nv.encode.launch import Target, set_up_compute
from gpu.drivers.nv.encode.methods.host import SemOperation
from gpu.drivers.nv.encode.pushbuf import Pushbuffer
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladder.submit import Bench, opened

PAYLOAD: Final = 0x1122_3344_5566_7788
SLACK_NS: Final = 10_000
"""How far clocks of one GPU may differ in this ladder: how engines round is not documented."""
_ROUNDS: Final = 100
_PATIENCE_NS: Final = 100_000_000


def host_semaphore(context: Context) -> None:
    """Step 7: the host engine fetches an entry and releases a semaphore with a timestamp."""
    with opened(context) as work:
        queue = work.gpu.compute_queue
        release_once(context, work, queue)
        release_often(context, work, queue)
        if name := context.options.get("acquire"):
            _acquire(context, work, SemOperation[name])


def objects(context: Context) -> None:
    """Step 8: the compute class bound to its subchannel, its windows set, then a semaphore."""
    with opened(context) as work:
        done = work.semaphore()
        setup = set_up_compute(Target.of(work.gpu.classes, work.gpu.units))
        setup.write(*semaphores.release(done.address, PAYLOAD, timestamp=True))
        work.submit(work.gpu.compute_queue, setup)
        work.wait(done, PAYLOAD, "the semaphore behind the set-up")
        context.log.check("set-up", done.value == PAYLOAD)


def release_once(context: Context, work: Bench, channel: GpfifoChannel) -> None:
    """A semaphore with a timestamp, which lies between two looks at the GPU's clock."""
    done = work.semaphore()
    push = Pushbuffer().write(*semaphores.release(done.address, PAYLOAD, timestamp=True))
    began = work.gpu.clock()
    work.submit(channel, push)
    work.wait(done, PAYLOAD, f"the first semaphore of the {channel.name}")
    ended = work.gpu.clock()
    times = f"{began} <= {done.timestamp} <= {ended}"
    right = began - SLACK_NS <= done.timestamp <= ended + SLACK_NS
    context.log.check(f"timestamp of the {channel.name}", right, times)
    context.log.fact(f"get of the {channel.name} reaches put after ns", _watch_get(work, channel))


def _watch_get(work: Bench, channel: GpfifoChannel) -> int | None:
    """How long the ring's get pointer lags behind what was done; None if it never came."""
    began = work.gpu.waiter.now_ns()
    while channel.get() != channel.put():
        gone = work.gpu.waiter.now_ns() - began
        if gone > _PATIENCE_NS:
            return None
        work.gpu.waiter.idle(1000)
    return work.gpu.waiter.now_ns() - began


def _acquire(context: Context, work: Bench, operation: SemOperation) -> None:
    """An acquire that is satisfied already, of a value that each operation takes."""
    held, done = work.semaphore(), work.semaphore()
    queue = work.gpu.compute_queue
    push = Pushbuffer().write(*semaphores.release(held.address, 6))
    wanted = {SemOperation.ACQ_AND: 2, SemOperation.ACQ_NOR: 8}.get(operation, 6)
    push.write(*semaphores.acquire(held.address, wanted, operation=operation))
    push.write(*semaphores.release(done.address, PAYLOAD))
    work.submit(queue, push)
    work.wait(done, PAYLOAD, f"the semaphore behind {operation.name}")
    context.log.check(f"{operation.name} passes", done.value == PAYLOAD)


def release_often(context: Context, work: Bench, channel: GpfifoChannel) -> None:
    """Many submissions; the word counts up."""
    done = work.semaphore()
    for value in range(1, _ROUNDS + 1):
        work.submit(channel, Pushbuffer().write(*semaphores.release(done.address, value)))
        work.wait(done, value, f"semaphore {value} of {_ROUNDS}")
    context.log.check(f"{_ROUNDS} submissions to the {channel.name}", done.value == _ROUNDS)
