"""Copies from one GPU to another without the host, where one can reach the memory of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu.backends.cuda.codes import Result
from gpu.backends.cuda.library import Words
from gpu.core.log import get_logger

if TYPE_CHECKING:
    from gpu.backends.cuda.context import CudaContext
    from gpu.backends.cuda.memory import CudaMemory
    from gpu.backends.cuda.streams import Streams

log = get_logger(__name__)
_REFUSALS = (Result.PEER_ACCESS_UNSUPPORTED, Result.TOO_MANY_PEERS)


class Peers:
    """The contexts whose memory one context can reach."""

    def __init__(self, context: CudaContext):
        self._context = context
        # By their streams, which are others where a context was made anew.
        self._reached: dict[Streams, bool] = {}
        context.note(self)

    def lose(self) -> None:
        """The context was made anew, and reaches nothing yet."""
        self._reached.clear()

    def close(self) -> None:
        """It ends with the context."""

    def copy(self, target: CudaMemory, source: CudaMemory, nbytes: int, there: CudaContext) -> bool:
        """Copies bytes from another context, behind what was launched there and here before.

        What is launched there from now on comes behind the copy. Returns at once, and False where
        the two are no peers. Raises GpuFault, DeviceLost and the error of a code.
        """
        here = self._context
        first, second = sorted((here, there), key=lambda context: context.info.handle)
        with first.lock, second.lock:
            here.enter()
            to, of = target.place(), source.place()
            if not self._reach(there):
                return False
            there.enter()
            made = there.streams.mark()
            here.enter()
            here.check(here.streams.follow_event(made), "wait for another GPU")
            target.ticket = here.streams.next_ticket()
            copied = here.library.cuMemcpyDtoDAsync_v2(to, of, nbytes, here.streams.launches)
            here.check(copied, f"copy {nbytes:,} bytes from {there.info.name}")
            done = here.streams.mark()
            there.enter()
            there.check(there.streams.follow_event(done), "wait for another GPU")
            source.ticket = there.streams.next_ticket()
        return True

    def _reach(self, other: CudaContext) -> bool:
        """Whether its memory can be reached, after this at least; this context is current."""
        if (known := self._reached.get(other.streams)) is None:
            known = self._reached[other.streams] = self._enable(other)
        return known

    def _enable(self, other: CudaContext) -> bool:
        context, can = self._context, Words()
        library, devices = context.library, (context.info.handle, other.info.handle)
        told = library.cuDeviceCanAccessPeer(can.address, *devices)
        context.check(told, f"tell whether CUDA:{devices[0]} reaches CUDA:{devices[1]}")
        code = library.cuCtxEnablePeerAccess(other.handle, 0) if can[0] else _REFUSALS[0]
        if code in _REFUSALS:
            why = "are no peers" if not can[0] else library.error_name(code)
            log.info("copies from CUDA:%d to CUDA:%d go through the host: %s", *devices[::-1], why)
            return False
        if code != Result.PEER_ACCESS_ALREADY_ENABLED:  # by another library
            context.check(code, f"let CUDA:{devices[0]} reach CUDA:{devices[1]}")
        return True
