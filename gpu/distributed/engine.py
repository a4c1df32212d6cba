"""The thread that makes all calls of MPI.

Others hand it `Call`s, which it starts in order and finishes while they compute. Collectives of
the program are one lane, in which they follow each other on all ranks; what a save agrees on in
the background is another one, with a communicator of its own. A call that does
not end within the time that is allowed, or that a rank will not come to, ends with an error that
says which rank it is, on all ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from gpu.core.errors import (
    CollectiveMismatch,
    DistributedError,
    GpuError,
    GpuFault,
    PeerFault,
    PeerLost,
)
from gpu.core.log import get_logger
from gpu.distributed import messages
from gpu.distributed.call import Call, raise_again, refuse_forked
from gpu.distributed.exchange import Steps, Wire
from gpu.distributed.launcher import check_library, check_size, load_mpi, survives_deaths
from gpu.distributed.messages import What

log = get_logger(__name__)

_ANSWER: Final = 1.0  # seconds within which a rank that lives says what it does
_DEATH: Final = 15.0  # seconds within which MPI tells that a process died
_KNOWN: Final = 0.2  # the same of one that was waited for in vain: it would be known by now
_IDLE: Final = 0.02  # seconds between looks at messages while nothing is under way
_LOOKS: Final = 200  # before the thread sleeps between looks
_AT_ONCE: Final = 30  # looks at the messages of one call, before others have their turn
_NAPS: Final = (20e-6, 1e-3)  # seconds between looks then: the first, and the longest


class World(NamedTuple):
    """What MPI tells of the processes, once it runs.

    Attributes:
        rank: the number of this one.
        size: how many there are.
        local_rank: its number among those of this host.
        local_size: how many this host has.
        hosts: the name of each rank's.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    hosts: list[str]


class Engine:
    """The thread, and what others do with it."""

    def __init__(self, told: int, timeout: float, version: str):
        """Starts MPI. Raises DistributedError where that fails or ranks do not fit together."""
        self.timeout, self._process = timeout, os.getpid()
        self._told, self._version = told, version
        self._inbox: SimpleQueue[Call | Callable[[], object] | None] = SimpleQueue()
        self._lanes: tuple[deque[Call], ...] = (deque(), deque())
        self._direct: list[Call] = []
        self._abandoned: list[Call] = []  # whose memory MPI may still use
        self._started = 0
        self._failure: Exception | None = None
        self._ending_error: Exception | None = None
        self._is_ending = self._has_said_so = self._is_smaller = self._is_late = False
        self._outgoing: list[Any] = []
        self._answers: dict[int, dict[str, Any] | None] = {}
        self._ended: set[int] = set()
        self._begun: SimpleQueue[Exception | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="gpu-mpi", daemon=True)
        self._thread.start()
        if (error := self._begun.get()) is not None:
            raise_again(error)

    # For other threads.

    def start(self, call: Call) -> Call:
        """Starts a call. Raises what ended the work with other ranks before, if something did."""
        refuse_forked(self._process)
        if self._failure is not None:
            raise_again(self._failure)
        if not self._thread.is_alive():
            raise DistributedError(f"{call.what} after MPI has ended, as it does with the program")
        self._inbox.put(call)
        return call

    def fail(self, error: BaseException) -> None:
        """Tells all ranks that an error ends this one's part; of a GPU's fault they get one too."""
        if self._thread.is_alive():
            rank, host = self.world.rank, self.world.hosts[self.world.rank]
            text = f"rank {rank} on {host} ended with {type(error).__name__}: {error}"
            where = text, rank, host, self._started, ""
            self._ending_error = (
                PeerFault(*where, error.address)
                if isinstance(error, GpuFault)
                else PeerLost(*where)
            )
            self.close()

    def close(self) -> None:
        """Ends MPI when all ranks do; at once, without its Finalize, where one of them failed."""
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    @property
    def is_whole(self) -> bool:
        """Whether no failure has ended the work with the others."""
        return self._failure is None

    def recover(self) -> None:
        """Goes on with the processes that live, after one was lost: `world` is another one then.

        All of them call it, with nothing under way. Raises DistributedError where this MPI cannot,
        and where the one that was lost is not dead, at most the time that is allowed later.
        """
        if not survives_deaths():
            raise DistributedError(
                "MPI was not started as one that goes on without a process: `mpiexec --with-ft"
                " ulfm` of Open MPI 5 does that"
            )
        found: SimpleQueue[Exception | None] = SimpleQueue()
        self._inbox.put(lambda: found.put(self._reopened()))
        try:
            error = found.get(timeout=_DEATH + self.timeout)
        except Empty:
            raise DistributedError("a process that lives does not go on with the others") from None
        if error is not None:
            raise_again(error)

    def abort(self, code: int) -> NoReturn:
        """Ends all processes, this one too, with an exit code."""
        self._inbox.put(lambda: self._mpi.COMM_WORLD.Abort(code))
        self._thread.join(_DEATH)
        os._exit(code)  # the thread waits in MPI for those that do not come

    # In the thread of MPI.

    def _run(self) -> None:
        try:
            self._begin()
        except Exception as error:  # all of it is for who waits in `__init__`
            self._begun.put(error)
            return
        self._begun.put(None)
        while True:
            try:
                self._serve()
                return
            except Exception as error:  # it goes on, or who waits would wait for ever
                log.exception("the thread of MPI failed")
                self._fail(error)

    def _begin(self) -> None:
        self._mpi = MPI = load_mpi()
        library = MPI.Get_library_version().splitlines()[0]
        check_library(library)
        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_FUNNELED)  # for MPI this is the main thread
        elif MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise DistributedError(
                "MPI was initialized before distributed.init(), for one thread alone: call"
                " distributed.init() first, or initialize MPI with THREAD_MULTIPLE"
            )
        check_size(self._told, MPI.COMM_WORLD.Get_size(), library)
        self._open(MPI.COMM_WORLD, library)

    def _open(self, world: Any, library: str) -> None:
        """Takes up the work with the processes of a communicator."""
        MPI = self._mpi
        self._comms = comms = [world.Dup() for _ in range(4)]
        self._control, data, saving, direct = comms
        for comm in comms:
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.wires, self.direct = (Wire(data), Wire(saving)), Wire(direct)
        self.wire = self.wires[0]
        here = world.Split_type(MPI.COMM_TYPE_SHARED)
        local = here.Get_rank(), here.Get_size()
        here.Free()
        hosts = self._introduced(MPI.Get_processor_name(), library)
        self.world = World(self.wire.rank, self.wire.size, *local, hosts)
        self._header = np.empty(messages.DIGEST, np.uint8)
        self._headers = np.empty((self.wire.size, messages.DIGEST), np.uint8)
        self._letter = np.empty(messages.LARGEST, np.uint8)
        self._listening = self._control.Irecv(self._letter, MPI.ANY_SOURCE)

    def _introduced(self, host: str, library: str) -> list[str]:
        """The hosts of all ranks. Raises DistributedError where ranks run other software."""
        own = {"host": host[:200], "gpu": self._version, "mpi": library[:200]}
        letters: list[dict[str, Any]] = []
        for requests in self.tell_all(own, letters):
            self._mpi.Request.Waitall(requests)
        for name in ("gpu", "mpi"):
            ranks: dict[str, list[int]] = {}
            for rank, message in enumerate(letters):
                ranks.setdefault(messages.field(message, name, str, rank), []).append(rank)
            if len(ranks) > 1:
                told = "; ".join(f"{value} on ranks {of}" for value, of in ranks.items())
                raise DistributedError(
                    f"all ranks need the same version of {name}, and have: {told}"
                )
        return [messages.field(m, "host", str, rank) for rank, m in enumerate(letters)]

    def tell_all(self, own: dict[str, Any], letters: list[dict[str, Any]], lane: int = 0) -> Steps:
        """Steps after which `letters` has a message of each rank."""
        wire, data = self.wires[lane], messages.pack(own)
        sizes = np.empty(wire.size, np.int64)
        yield [wire.comm.Iallgather(np.array([data.size], np.int64), sizes)]
        for rank, size in enumerate(sizes.tolist()):
            if not 0 < size <= messages.LARGEST:
                raise DistributedError(f"rank {rank} announces a message of {size} bytes")
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: data.size] = data
        everything = np.empty((wire.size, padded.size), np.uint8)
        yield [wire.comm.Iallgather(padded, everything)]
        pairs = zip(everything, sizes.tolist(), strict=True)
        letters[:] = [messages.unpack(row[:size], r) for r, (row, size) in enumerate(pairs)]

    def agree(self, call: Call) -> Steps:
        """Steps after which all ranks are known to call the same.

        Raises CollectiveMismatch on all of them where they do not; then nothing else was done.
        """
        digest = call.what.digest
        self._header[:] = np.frombuffer(digest, np.uint8)
        yield [self.wire.comm.Iallgather(self._header, self._headers)]
        if self._headers.tobytes() == digest * self.wire.size:
            return
        letters: list[dict[str, Any]] = []
        yield from self.tell_all(call.told(), letters)
        said = (self._said(rank, message) for rank, message in enumerate(letters))
        raise CollectiveMismatch("ranks call different things: " + "; ".join(said))

    @staticmethod
    def _said(rank: int, message: dict[str, Any]) -> str:
        what, line = (messages.field(message, name, str, rank) for name in ("what", "line"))
        return f"rank {rank} calls {what} at {line}"

    def _serve(self) -> None:
        """Until the program ends: takes calls, goes on with them, and listens to others."""
        looks = 0
        while not self._is_over():
            is_waiting = any((*self._lanes, self._direct)) or self._is_ending
            progress = self._take(0.0 if is_waiting else _IDLE)
            progress |= self._advance() | self._listen()
            if progress or not is_waiting:
                looks = 0
                continue
            self._look_at_clock()
            looks += 1
            time.sleep(0 if looks < _LOOKS else min(_NAPS[0] * (looks - _LOOKS), _NAPS[1]))
        self._finalize()

    def _is_over(self) -> bool:
        """Whether this rank has ended, and so have all others, or one has failed."""
        if not self._is_ending or any((*self._lanes, self._direct)):
            return False
        if self._ending_error is not None:
            self._fail(self._ending_error)
        elif self._failure is None and not self._has_said_so:
            self._has_said_so = True
            for rank in self._others():
                self._tell(rank, {"kind": "ended"})
        return self._failure is not None or len(self._ended) == self.wire.size - 1

    def _take(self, seconds: float) -> bool:
        """Takes what was handed over; whether something was."""
        try:
            call = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
        except Empty:
            return False
        if call is None:
            self._is_ending = True
            return True
        if not isinstance(call, Call):
            call()
            return True
        self._started += 1
        call.number = self._started
        if self._failure is not None:
            call.finish(self._failure)
        elif call.peer is None:
            self._lanes[call.lane].append(call)
        else:
            self._direct.append(call)
        return True

    def _advance(self) -> bool:
        """Goes on with what can: one collective a lane, and all calls that are with one rank."""
        moved = False
        for lane in self._lanes:
            while lane and self._goes_on(lane[0]):
                moved = True
                if lane and lane[0].steps is None:
                    lane.popleft()
        for call in [*self._direct]:
            while call in self._direct and self._goes_on(call):
                moved = True
                if call.steps is None and call in self._direct:
                    self._direct.remove(call)
        return moved

    def _goes_on(self, call: Call) -> bool:
        """Takes a step of a call, where the last is done; a call that is over has no steps."""
        try:
            if call.requests and not self._are_done(call.requests):
                return False
            if call.steps is None:
                assert call.make is not None, "a call that is over is no more gone on with"
                call.began = time.monotonic()
                call.deadline = call.began + self.timeout
                call.steps = call.make(self, call)
            call.requests = next(call.steps)
        except StopIteration:
            call.finish()
        except CollectiveMismatch as error:
            if call.peer is None:  # all ranks know
                call.finish(error)
            else:
                self._fail(error)
        except self._mpi.Exception as error:
            self._fail(self._lost(error, call))
        except GpuError as error:
            self._fail(error)
        return True

    def _are_done(self, requests: list[Any]) -> bool:
        """Whether messages have come; short ones mostly have within a few looks."""
        test = self._mpi.Request.Testall
        return any(test(requests) for _ in range(_AT_ONCE))

    def _listen(self) -> bool:
        """Reads what a rank told, if one did."""
        self._outgoing = [r for r in self._outgoing if not self._has_left(r)]
        try:
            return self._failure is None and self._hear()
        except self._mpi.Exception as error:
            self._fail(self._lost(error, None))
            return True

    def _hear(self) -> bool:
        status = self._mpi.Status()
        if not self._listening.Test(status):
            return False
        sender = status.Get_source()
        message = messages.unpack(self._letter[: status.Get_count(self._mpi.BYTE)], sender)
        self._listening = self._control.Irecv(self._letter, self._mpi.ANY_SOURCE)
        kind = messages.field(message, "kind", str, sender)
        if kind == "late":
            lane = messages.field(message, "lane", int, sender)
            call = self._current(lane if lane in range(len(self._lanes)) else 0)
            self._tell(sender, {"kind": "at", "call": call.told() if call else None})
        elif kind == "at":
            self._answers[sender] = message.get("call")
        elif kind == "ended":
            self._ended.add(sender)
        elif kind == "failed":
            self._is_late = message.get("late") is True
            self._fail(messages.error_of(message, sender), is_told=False)
        return True

    def _current(self, lane: int = 0) -> Call | None:
        """What ranks wait for in a lane; in the first one also of what is with one rank."""
        return next(iter((*self._lanes[lane], *(() if lane else self._direct))), None)

    def _tell(self, rank: int, message: dict[str, Any]) -> None:
        try:
            self._outgoing.append(self._control.Isend(messages.pack(message), rank))
        except self._mpi.Exception as error:  # whoever died need not be told
            log.info("rank %d is not told %s: %s", rank, message["kind"], error)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.wire.size) if rank != self.wire.rank]

    def _look_at_clock(self) -> None:
        """Asks where the others are when a call takes too long, and ends what cannot end well."""
        now = time.monotonic()
        for call in (*(lane[0] for lane in self._lanes if lane), *self._direct):
            gone = self._ended & {*([call.peer] if call.peer is not None else self._others())}
            if gone and not call.asked:
                # It may have ended in the middle of this call only by an error, which it tells of.
                call.deadline = min(call.deadline, now + _ANSWER)
            if now < call.deadline:
                continue
            if not call.asked:
                call.asked = now
                self._answers.clear()
                for rank in self._others():
                    self._tell(rank, {"kind": "late", "lane": call.lane})
            elif now > call.asked + _ANSWER or len(self._answers) == self.wire.size - 1:
                self._is_late = True
                self._fail(self._why_late(call))
                return

    def _why_late(self, call: Call) -> DistributedError:
        partners = self._others() if call.peer is None else [call.peer]
        for rank in partners:
            if rank in self._ended:
                return self._peer_lost(rank, "has ended its program", call)
        for rank in partners:
            if rank not in self._answers:
                return self._peer_lost(rank, "does not answer: it is dead or stopped", call)
        own = f"rank {self.wire.rank} waits in {call.what} at {messages.place_of(call.site)}"
        for rank in partners:
            other = self._answers[rank]
            if other is None:
                return self._peer_lost(
                    rank, "has not come to it: its program computes, waits or hangs", call
                )
            what, line = (messages.field(other, name, str, rank) for name in ("what", "line"))
            if call.peer is not None or what != str(call.what):
                return CollectiveMismatch(f"{own}; rank {rank} waits in {what} at {line}")
        return self._peer_lost(partners[0], "answers, and its bytes do not come", call)

    def _peer_lost(self, rank: int, why: str, call: Call) -> PeerLost:
        host = self.world.hosts[rank]
        waited = f"rank {self.wire.rank} waited {time.monotonic() - call.began:.1f} s"
        return PeerLost(
            f"rank {rank} on {host} {why}; {waited} in call {call.number}, {call.what} at"
            f" {messages.place_of(call.site)}",
            *(rank, host, call.number, call.what.name),
        )

    def _lost(self, error: Exception, call: Call | None) -> Exception:
        """What an error of MPI means: a process that died, where this MPI can tell."""
        call = call or self._current()
        what, number = (call.what, call.number) if call else (What("no call"), self._started)
        rank = self._first_dead()
        if rank is None:
            return DistributedError(f"MPI failed in {what}, call {number}: {error}")
        self._hear_the_rest()
        host, why = self.world.hosts[rank], "died"
        if rank in self._ended:
            why = "has ended its program"
        text = f"rank {rank} on {host} {why}; this rank was in call {number}, {what}"
        return PeerLost(text, rank, host, number, what.name)

    def _first_dead(self) -> int | None:
        """A rank that died; None where this MPI does not tell, or tells of none."""
        try:
            failed = self._control.Get_failed()
        except (self._mpi.Exception, NotImplementedError):  # one without ULFM, MPI 5's part on it
            return None
        ranks = failed.Translate_ranks(None, self._control.Get_group())
        return int(ranks[0]) if len(ranks) else None

    def _hear_the_rest(self) -> None:
        """Reads what was told before a rank died, which MPI's error has overtaken."""
        try:
            self._control.Ack_failed()  # else nobody is listened to any more
            while self._failure is None and any(self._hear() for _ in range(_AT_ONCE)):
                pass
        except (self._mpi.Exception, NotImplementedError) as error:
            log.info("what was told before a rank died is not read: %s", error)

    def _fail(self, error: Exception, is_told: bool = True) -> None:
        """Ends all calls, and those to come, with an error."""
        if self._failure is not None:
            return
        self._failure = error
        if is_told:
            for rank in self._others():
                self._tell(rank, messages.told(error) | {"late": self._is_late})
            self._flush()
        for calls in (*self._lanes, self._direct):
            self._abandoned += calls
            for call in calls:
                call.abandon(error)
            calls.clear()

    def _reopened(self) -> Exception | None:
        """Goes on with those that live; what went wrong."""
        try:
            self._reopen()
        except GpuError as error:
            return error
        except (self._mpi.Exception, NotImplementedError) as error:
            return DistributedError(f"this MPI cannot go on after a process was lost: {error}")
        return None

    def _reopen(self) -> None:
        until = time.monotonic() + (_KNOWN if self._is_late else _DEATH)
        # Another one that knows of a death revokes the communicators, which tell nothing then.
        while self._first_dead() is None and not self._control.Is_revoked():
            if time.monotonic() > until:
                raise DistributedError(
                    "no process is known to be dead, and one that lives cannot be left behind,"
                    f" after: {self._failure}"
                )
            with suppress(self._mpi.Exception):  # MPI hears of deaths while it does something
                self._control.Iprobe()
            time.sleep(_NAPS[1])
        for comm in self._comms:
            comm.Revoke()
        smaller = self._control.Shrink()
        self._outgoing.clear()
        self._ended.clear()
        self._answers.clear()
        self._open(smaller, self._mpi.Get_library_version().splitlines()[0])
        self._failure, self._has_said_so, self._is_smaller = None, False, True
        self._is_late = False

    def _flush(self) -> None:
        """Gives what was told to others time to leave; who does not take it may be dead."""
        until = time.monotonic() + _ANSWER
        while self._outgoing and time.monotonic() < until:
            self._outgoing = [r for r in self._outgoing if not self._has_left(r)]
            time.sleep(0)

    def _has_left(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self._mpi.Exception:  # to a process that died
            return True

    def _finalize(self) -> None:
        if self._failure is not None or self._is_smaller:
            return  # MPI's Finalize would wait for those that do not come
        self._flush()
        self._listening.Cancel()
        self._listening.Wait()
        self._mpi.Finalize()
