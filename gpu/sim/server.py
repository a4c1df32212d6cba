"""Lets other real processes use a machine of this one: `serve` here, `RemoteWorld` there.

    with serve(KfdWorld(executor=LaneExecutor()), "/tmp/gpu.socket"):
        subprocess.run([...])            # opens RemoteWorld("/tmp/gpu.socket")

A process that connects is a process of the machine, with an address space of its own, from then on
until it ends, by itself or by a signal: then the model frees what it had. Its calls come over the
socket; what it maps are the very pages that the model uses, passed as descriptors; pointers in its
arguments are followed into its memory, as a kernel does.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from typing import Any, Final

from gpu.core.errors import GpuError, TransportError
from gpu.core.window import Window
from gpu.sim.caller import ProcessMemory
from gpu.sim.machine import Machine
from gpu.sim.mapping import Pieces
from gpu.sim.process import SimProcess
from gpu.sim.wire import ERRORS, Listener, Message, Wire


class RemoteProcess(SimProcess):
    """A process of a machine that is another real one."""

    def __init__(self, world: Machine, pid: int):
        super().__init__(world, pid)
        self.user = ProcessMemory(pid)
        self.mapper = self._tell
        self._told: tuple[int, Message] | None = None
        self._windows: dict[int, Window] = {}

    def open_window(self, fd: int, size: int, offset: int) -> int:
        """Registers, which the other process knows by this number."""
        window = self.os.window(fd, size, offset)
        number = max(self._windows, default=0) + 1
        self._windows[number] = window
        return number

    def window(self, number: int) -> Window:
        """The registers of a number. Raises TransportError."""
        if number not in self._windows:
            raise TransportError(f"window {number} is not open", errno.EBADF)
        return self._windows[number]

    def close_window(self, number: int) -> None:
        """The other process needs them no more. Raises TransportError."""
        self.os.close_window(self.window(number))
        del self._windows[number]

    def take_mapping(self) -> tuple[int, Message]:
        """The descriptor and the words of the mapping that a call of mmap has asked for."""
        assert self._told is not None, "a device maps by the mapper"
        told, self._told = self._told, None
        return told

    def _tell(self, fd: int, pieces: Pieces, size: int, prot: int, flags: int, address: int) -> int:
        wanted = {"size": size, "prot": prot, "flags": flags, "address": address}
        self._told = fd, {"pieces": [list(piece) for piece in pieces], **wanted}
        return 0


class Server:
    """A machine at a path, until `close`; made by `serve`."""

    def __init__(self, world: Machine, path: str):
        self._world = world
        self._listener = Listener(path)
        self._wires: set[Wire] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        world.is_served = True
        self._acceptor = threading.Thread(
            target=self._accept, name="simulated machine", daemon=True
        )
        self._acceptor.start()

    def close(self) -> None:
        """Ends all connections, and on the machine what was behind them. Again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        self._acceptor.join()
        with self._world.lock:
            self._world.is_served = False
            wires = list(self._wires)
        for wire in wires:
            wire.shut()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while (wire := self._listener.accept()) is not None:
            with self._world.lock:
                self._wires.add(wire)
            thread = threading.Thread(target=self._attend, args=(wire,), daemon=True)
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]
            thread.start()

    def _attend(self, wire: Wire) -> None:
        """Does what a process asks for, until it is gone."""
        world = self._world
        with world.lock:
            process = RemoteProcess(world, wire.peer())
            world.add_process(process)
        try:
            while (received := wire.receive()) is not None:
                answer, fds = _answer(process, received[0])
                wire.send(answer, fds)
        except TransportError:
            world.debug.note(f"process {process.pid} ended while it was answered")
        finally:
            with world.lock:
                left = process.exit()
                self._wires.remove(wire)
                world.debug.note(f"process {process.pid} is gone, with {len(left)} things left")
            wire.close()


def serve(world: Machine, path: str) -> Server:
    """Takes connections at a path, which must not exist, from now on.

    While it does, a wait that nothing can end lasts as long as on hardware: another process may
    bring what is waited for. Close the server before the machine. Raises TransportError.
    """
    return Server(world, path)


def _answer(process: RemoteProcess, request: Message) -> tuple[Message, tuple[int, ...]]:
    """What a request gives, with the descriptors that go with it."""
    answer: Message = {"number": request["number"]}
    arguments = request["arguments"]
    try:
        with process.world.lock:
            if request["call"] == "mmap":
                process.os.mmap(*arguments)
                fd, answer["mapping"] = process.take_mapping()
                return answer, (fd,)
            if request["call"] == "ioctl":
                fd, number, data = arguments
                argument = (ctypes.c_char * (len(data) // 2)).from_buffer_copy(bytes.fromhex(data))
                try:
                    answer["result"] = process.os.ioctl(fd, number, argument)
                finally:
                    answer["argument"] = bytes(argument).hex()
                return answer, ()
            result = _CALLS[request["call"]](process, *arguments)
            answer["result"] = result.hex() if isinstance(result, bytes) else result
    except GpuError as error:
        answer["error"] = _described(error)
    return answer, ()


def _described(error: GpuError) -> Message:
    """An error that a system's calls raise, as `gpu.sim.remote` raises it again."""
    for kind, (cls, fields) in enumerate(ERRORS):
        if isinstance(error, cls):
            return {"kind": kind, "arguments": [getattr(error, field) for field in fields]}
    raise error


_CALLS: Final[dict[str, Callable[..., Any]]] = {
    "open": lambda process, path, flags: process.os.open(path, flags),
    "close": lambda process, fd: process.os.close(fd),
    "read_file": lambda process, path: process.os.read_file(path),
    "write_file": lambda process, path, data: process.os.write_file(path, bytes.fromhex(data)),
    "list_dir": lambda process, path: process.os.list_dir(path),
    "exists": lambda process, path: process.os.exists(path),
    "ioctl_value": lambda process, *numbers: process.os.ioctl_value(*numbers),
    "pread": lambda process, fd, size, offset: process.os.pread(fd, size, offset),
    "pwrite": lambda process, fd, data, at: process.os.pwrite(fd, bytes.fromhex(data), at),
    "window": lambda process, fd, size, offset: process.open_window(fd, size, offset),
    "read": lambda process, number, at, width: process.window(number).read(at, width),
    "write": lambda process, number, at, *rest: process.window(number).write(at, *rest),
    "close_window": lambda process, number: process.close_window(number),
    "eventfd": lambda process: process.os.eventfd(),
    "take_events": lambda process, fd: process.os.take_events(fd),
    "wait": lambda process, fds, timeout_ns: process.os.wait(fds, timeout_ns),
    "lock": lambda process, fd: process.os.lock(fd),
    "now_ns": lambda process: process.world.waiter.now_ns(),
    "idle": lambda process, timeout_ns: process.world.waiter.idle(timeout_ns),
}
