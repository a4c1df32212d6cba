"""A machine that another process serves (`gpu.sim.server`), as drivers are given one.

world = RemoteWorld("/tmp/gpu.socket")
device = open_it(World(world.os, world.waiter))     # gpu.transport.world.World
...
world.close()
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any

from gpu.core import hostmem
from gpu.core.errors import TransportError
from gpu.core.ref import Argument, Ref, argument_memory
from gpu.core.window import TrappedWindow, Window
from gpu.sim.caller import admit
from gpu.sim.mapping import map_pieces
from gpu.sim.wire import ERRORS, Message, connect

_Answer = tuple[Message, list[int]]


class RemoteWorld:
    """A connection to a served machine: this process is one of its processes until `close`.

    Attributes:
        os, waiter: what a driver is given.
    """

    def __init__(self, path: str):
        """`path` is where it is served. Raises TransportError."""
        self._wire = connect(path)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._number = 0
        # Of the calls under way: finalizers may make one within another.
        self._answers: dict[int, _Answer | None] = {}
        admit(self._wire.peer())
        self.os = RemoteOs(self)
        self.waiter = RemoteWaiter(self)

    def close(self) -> None:
        """Ends the connection; the machine frees what is left."""
        self._wire.close()

    def call(self, name: str, *arguments: object) -> _Answer:
        """Has the machine do something; the answer and its descriptors.

        Raises what the call of the system raises there, TransportError where nobody serves any
        more or this process is a child of the one that connected.
        """
        if os.getpid() != self._pid:
            raise TransportError("a forked process must connect by itself", errno.EBADF)
        with self._lock:
            self._number += 1
            number = self._number
            self._answers[number] = None
            try:
                self._wire.send({"number": number, "call": name, "arguments": arguments})
                while (found := self._answers[number]) is None:
                    self._receive()
            finally:
                del self._answers[number]
        return found

    def _receive(self) -> None:
        """Takes the next answer, for whichever call it is."""
        received = self._wire.receive()
        if received is None:
            raise TransportError("the simulated machine is not served any more")
        answer, fds = received
        if answer["number"] in self._answers:
            self._answers[answer["number"]] = received
            return
        for fd in fds:  # an exception interrupted the call
            os.close(fd)

    def result(self, name: str, *arguments: object) -> Any:
        """What a call returns. Raises what `call` raises."""
        answer, _ = self.call(name, *arguments)
        _raise_error(answer)
        return answer["result"]


class RemoteOs:
    """Files, ioctls and mappings of a process of a served machine: a `gpu.transport.os.Os`."""

    def __init__(self, world: RemoteWorld):
        self._world = world
        self._windows: dict[int, tuple[Window, int]] = {}  # by id

    def open(self, path: str, flags: int) -> int:
        """Opens a device of the machine; the descriptor is the machine's, not this system's."""
        fd: int = self._world.result("open", path, flags)
        return fd

    def close(self, fd: int) -> None:
        """Closes a descriptor that `open` or an ioctl gave."""
        self._world.result("close", fd)

    def ioctl(self, fd: int, request: int, argument: Argument, refs: Sequence[Ref] = ()) -> int:
        """Makes a request; `refs` are not needed, as the machine reads this process's memory."""
        memory = argument_memory(argument)
        answer, _ = self._world.call("ioctl", fd, request, bytes(memory).hex())
        if "argument" in answer:
            memory.raw = bytes.fromhex(answer["argument"])
        _raise_error(answer)
        result: int = answer["result"]
        return result

    def ioctl_value(self, fd: int, request: int, value: int = 0) -> int:
        """Makes a request of a device of the machine with a number."""
        result: int = self._world.result("ioctl_value", fd, request, value)
        return result

    def mmap(
        self, fd: int, size: int, prot: int, flags: int, offset: int = 0, address: int = 0
    ) -> int:
        """Maps a device of the machine, or with fd -1 anonymous memory."""
        if fd == -1:
            return hostmem.map_file(-1, 0, size, prot, flags, address)
        answer, fds = self._world.call("mmap", fd, size, prot, flags, offset, address)
        _raise_error(answer)
        (file,) = fds
        try:
            return map_pieces(file, **answer["mapping"])
        finally:
            os.close(file)

    def munmap(self, address: int, size: int) -> None:
        """Unmaps whole pages."""
        hostmem.unmap(address, size)

    def read_file(self, path: str) -> bytes:
        """All that a file of the machine's tree holds."""
        return bytes.fromhex(self._world.result("read_file", path))

    def write_file(self, path: str, data: bytes) -> None:
        """Writes a file that something in the machine takes."""
        self._world.result("write_file", path, data.hex())

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder of the machine's tree."""
        names: list[str] = self._world.result("list_dir", path)
        return names

    def exists(self, path: str) -> bool:
        """Whether the machine has a file, folder or device of this path."""
        found: bool = self._world.result("exists", path)
        return found

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Bytes of an open device of the machine."""
        return bytes.fromhex(self._world.result("pread", fd, size, offset))

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        """Writes to an open device of the machine."""
        self._world.result("pwrite", fd, bytes(data).hex(), offset)

    def window(self, fd: int, size: int, offset: int) -> Window:
        """Registers of an open device, of which each access goes over the connection."""
        number = self._world.result("window", fd, size, offset)

        def read(at: int, width: int) -> int:
            value: int = self._world.result("read", number, at, width)
            return value

        def write(at: int, width: int, value: int) -> None:
            self._world.result("write", number, at, width, value)

        window = TrappedWindow(size, read, write)
        self._windows[id(window)] = window, number
        return window

    def close_window(self, window: Window) -> None:
        """Ends what `window` gave."""
        _, number = self._windows.pop(id(window))
        self._world.result("close_window", number)

    def eventfd(self) -> int:
        """A counter of events, of the machine's."""
        fd: int = self._world.result("eventfd")
        return fd

    def take_events(self, fd: int) -> int:
        """What a counter of events has counted."""
        taken: int = self._world.result("take_events", fd)
        return taken

    def wait(self, fds: Sequence[int], timeout_ns: int) -> list[int]:
        """Those of some descriptors that can be read; the machine's time goes on until one can."""
        ready: list[int] = self._world.result("wait", list(fds), timeout_ns)
        return ready

    def lock(self, fd: int) -> None:
        """Takes the lock of an open file."""
        self._world.result("lock", fd)


class RemoteWaiter:
    """The clock of a served machine; idling lets its engines work. See `gpu.core.wait.Waiter`."""

    spin_ns: int = 0

    def __init__(self, world: RemoteWorld):
        self._world = world

    def now_ns(self) -> int:
        """The machine's time."""
        now: int = self._world.result("now_ns")
        return now

    def idle(self, timeout_ns: int) -> None:
        """Lets engines work, or other processes go on, for a while."""
        self._world.result("idle", timeout_ns)


def _raise_error(answer: Message) -> None:
    error = answer.get("error")
    if error is not None:
        raise ERRORS[error["kind"]][0](*error["arguments"])
