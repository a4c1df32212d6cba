"""PCI functions of another process: `serve` there, `RemoteFunction` here, over a Unix socket.

The messages are those of other people's drivers too (tinygrad's `RemotePCIDevice`): a request of 33
bytes ``<BIIQQQ`` is command, device, BAR and three arguments, perhaps with bytes behind it; a reply
of 17 bytes ``<BQQ`` is a status and two values, again with bytes behind it. A status other than 0
is an error, whose text has as many bytes as the first value says. Writes to BARs and memory have no
reply: what failed there is told with the next reply.

| command | arguments | reply |
|---|---|---|
| 0 PROBE | | the BARs there are, a bit for each; the address |
| 1 MAP_BAR | BAR | 0, as the place on the bus is not told; its size |
| 2 MAP_SYSMEM_FD | bytes | bytes mapped, with a descriptor of that memory |
| 3 CFG_READ, 4 CFG_WRITE | offset, width, value | the value |
| 5 RESET | | |
| 6 MMIO_READ, 7 MMIO_WRITE | BAR; offset, bytes | the bytes; a write brings them |
| 8 MAP_SYSMEM | bytes | bytes mapped, the number of that memory |
| 9 SYSMEM_READ, 10 SYSMEM_WRITE | number; offset, bytes | as of BARs |
| 11 RESIZE_BAR, 12 PING | BAR; bytes | |

Memory begins with pairs of 8 bytes, address on the bus and size, of which the last are 0: the
client reads them before it uses the memory. An access of 1, 2, 4 or 8 bytes at a multiple of that
is one access of the bus. Memory is given back when the connection ends, and bus mastering with it.

The socket lies in a folder of its user's alone, and whoever connects must be that user: who has it
has the card, and without an IOMMU all memory.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from gpu.core import hostmem
from gpu.core.bits import align_up
from gpu.core.errors import (
    DeviceError,
    DeviceLost,
    GpuError,
    InvalidIndex,
    InvalidValue,
    TransportError,
    Unsupported,
)
from gpu.core.pci import Bar, BusAddr, DmaPiece, PciAddress, PciIds
from gpu.core.window import MemoryWindow, TrappedWindow, Window
from gpu.transport.pci.config import COMMAND, MASTER, set_master
from gpu.transport.pci.function import DmaMemory, Interrupt, PciFunction

_REQUEST: Final = struct.Struct("<BIIQQQ")
_REPLY: Final = struct.Struct("<BQQ")
_PROBE, _MAP_BAR, _MAP_SYSMEM_FD, _CFG_READ, _CFG_WRITE, _RESET = range(6)
_MMIO_READ, _MMIO_WRITE, _MAP_SYSMEM, _SYSMEM_READ, _SYSMEM_WRITE = range(6, 11)
_RESIZE_BAR, _PING = 11, 12
_POSTED: Final = (_MMIO_WRITE, _SYSMEM_WRITE)
_MOST: Final = 64 << 20  # bytes of one message
_PAIR: Final = 16
_ERRORS: Final[tuple[type[GpuError], ...]] = (
    *(TransportError, DeviceLost, Unsupported, InvalidValue, InvalidIndex),
)
_TIMEOUT_S: Final = 30.0
_BAR_0: Final = 0x10


class _Shared:
    """Memory that the function and both processes have."""

    def __init__(self, function: PciFunction, size: int):
        self.size = align_up(size, hostmem.page_size)
        self.fd = hostmem.memfd("gpu-remote-dma", self.size)
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        self._address = hostmem.map_file(self.fd, 0, self.size, protection, hostmem.MAP_SHARED)
        try:
            self._memory: DmaMemory = function.share(self._address, self.size)
        except BaseException:
            hostmem.unmap(self._address, self.size)
            os.close(self.fd)
            raise
        self.window = self._memory.window
        pairs = b"".join(struct.pack("<QQ", *piece) for piece in self._memory.pieces)
        if len(pairs) + _PAIR > self.size:
            self.close()
            raise TransportError(f"{len(pairs) // _PAIR} pieces do not fit {self.size:#x} bytes")
        self.window.store(0, pairs + bytes(_PAIR))

    def close(self) -> None:
        self._memory.close()
        hostmem.unmap(self._address, self.size)
        os.close(self.fd)


class Session:
    """One connection's use of a function: does what requests ask, until `close`."""

    def __init__(self, function: PciFunction):
        self._function = function
        self._memory: list[_Shared] = []
        self._windows: dict[int, Window] = {}
        self._failed: GpuError | None = None

    def attend(self, connection: socket.socket) -> None:
        """Answers requests until the other end is gone or sends what is no request."""
        connection.settimeout(None)
        while head := _receive(connection, _REQUEST.size):
            command, _, bar, first, second, third = _REQUEST.unpack(head)
            if command in _POSTED:
                if second > _MOST or (data := _receive(connection, second)) is None:
                    return
                self._post(command, bar, first, data)
                continue
            fds: list[int] = []
            try:
                self._raise_failed()
                values, data = self._do(command, bar, first, second, third, fds)
                answer = _REPLY.pack(0, *values) + data
            except GpuError as error:
                text = error.message.encode()
                answer = _REPLY.pack(_status(error), len(text), 0) + text
            if fds:
                socket.send_fds(connection, [answer], fds)
            else:
                connection.sendall(answer)

    def close(self) -> None:
        """Ends bus mastering, and takes all memory away."""
        with contextlib.suppress(DeviceError):  # a function that is gone reaches nothing
            self._function.set_bus_master(False)
        while self._memory:
            self._memory.pop().close()

    def _post(self, command: int, bar: int, offset: int, data: bytes) -> None:
        if self._failed is not None:
            return
        try:
            window = self._window(bar) if command == _MMIO_WRITE else self._shared(bar).window
            _write(window, offset, data)
        except GpuError as error:
            self._failed = error

    def _raise_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _do(
        self, command: int, bar: int, first: int, second: int, third: int, fds: list[int]
    ) -> tuple[tuple[int, int], bytes]:
        """The two values of a reply and its bytes; `fds` gets descriptors that go along."""
        function = self._function
        match command:
            case 0:  # PROBE
                domain, bus, device, number = function.address
                place = domain << 16 | bus << 8 | device << 3 | number
                return (sum(1 << index for index in function.bars), place), b""
            case 1:  # MAP_BAR
                return (0, self._bar(bar).size), b""
            case 2 | 8:  # MAP_SYSMEM_FD, MAP_SYSMEM
                if not 0 < first <= 1 << 40:
                    raise InvalidValue(f"{first:#x} bytes of memory cannot be")
                memory = _Shared(function, first)
                self._memory.append(memory)
                if command == _MAP_SYSMEM_FD:
                    fds.append(memory.fd)
                return (memory.size, len(self._memory) - 1), b""
            case 3:  # CFG_READ
                return (function.config.read(first, second), 0), b""
            case 4:  # CFG_WRITE
                self._write_config(first, second, third)
                return (0, 0), b""
            case 5:  # RESET
                function.reset()
                return (0, 0), b""
            case 6:  # MMIO_READ
                return (0, 0), _read(self._window(bar), first, second)
            case 9:  # SYSMEM_READ
                return (0, 0), _read(self._shared(bar).window, first, second)
            case 11:  # RESIZE_BAR
                function.resize(bar, first)
                self._windows.clear()
                return (0, 0), b""
            case 12:  # PING
                return (0, 0), b""
        raise Unsupported(f"command {command} of a remote PCI function: 0 to {_PING} are known")

    def _write_config(self, offset: int, width: int, value: int) -> None:
        if offset == COMMAND and width >= 2:
            # A function without an IOMMU has its guard before it is a bus master.
            self._function.set_bus_master(bool(value & MASTER))
        self._function.config.write(offset, width, value)

    def _bar(self, bar: int) -> Bar:
        if bar not in self._function.bars:
            known = ", ".join(map(str, self._function.bars)) or "none"
            raise InvalidIndex(f"{self._function.address} has no BAR {bar}, but {known}")
        return self._function.bars[bar]

    def _window(self, bar: int) -> Window:
        if bar not in self._windows:
            self._bar(bar)
            self._windows[bar] = self._function.window(bar)
        return self._windows[bar]

    def _shared(self, number: int) -> _Shared:
        if number >= len(self._memory):
            raise InvalidIndex(f"memory {number} of {len(self._memory)}")
        return self._memory[number]


def serve(function: PciFunction, path: Path, stop: Callable[[], bool]) -> None:
    """Lets one client after another use a function, by a socket at a path that does not exist yet.

    Asks `stop` whether to go on after each client. Raises TransportError where others could reach
    the socket or the path cannot be used.
    """
    _check_private(path.parent)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
        except OSError as error:
            raise TransportError(f"a socket at {path}: {error.strerror}", error.errno) from error
        try:
            listener.listen(1)
            while not stop():
                connection, _ = listener.accept()
                with connection:
                    _attend(function, connection)
        finally:
            path.unlink(missing_ok=True)


def _attend(function: PciFunction, connection: socket.socket) -> None:
    session = Session(function)
    try:
        # struct ucred: pid, uid, gid
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("<iII", peer)[1] == os.geteuid():
            session.attend(connection)
    except OSError:  # the client went away
        pass
    finally:
        session.close()


def _check_private(folder: Path) -> None:
    try:
        status = folder.stat()
    except OSError as error:
        raise TransportError(f"the folder {folder}: {error.strerror}", error.errno) from error
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise TransportError(
            f"a socket in {folder} would be open to others, and so the card: take a folder of your"
            f" own that nobody else may enter, `mkdir -m 700 {folder}/gpu`"
        )


class RemoteDma:
    """Memory of both. See `gpu.transport.pci.function.DmaMemory`."""

    def __init__(self, fd: int, size: int):
        """Owns the descriptor. Raises TransportError for pairs that do not cover the memory."""
        self._size = size
        protection = hostmem.PROT_READ | hostmem.PROT_WRITE
        try:
            address = hostmem.map_file(fd, 0, size, protection, hostmem.MAP_SHARED)
        finally:
            os.close(fd)
        self.window = MemoryWindow(address, size)
        self.pieces: Sequence[DmaPiece] = []
        self._is_open = True
        try:
            self.pieces = _pairs(self.window)
        except BaseException:
            self.close()
            raise
        self.window.store(0, bytes(_PAIR * (len(self.pieces) + 1)))

    def close(self) -> None:
        """Unmaps it here; the function may reach it until the connection ends."""
        if self._is_open:
            self._is_open = False
            hostmem.unmap(self.window.address, self._size)


class RemoteFunction:
    """A function that another process serves. See `gpu.transport.pci.function.PciFunction`."""

    def __init__(self, path: Path):
        """Connects. Raises TransportError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_TIMEOUT_S)
        self._is_open = True
        self._memory: list[RemoteDma] = []
        try:
            self._socket.connect(str(path))
            present, place, _, _ = self._call(_PROBE)
            self._config = TrappedWindow(
                4096 if self._reads(256) else 256, self._read_config, self._write_config, widest=4
            )
            self._bars = {n: self._about(n) for n in range(6) if present >> n & 1}
        except OSError as error:
            self._socket.close()
            reason = error.strerror or str(error)
            raise TransportError(f"connecting to {path}: {reason}", error.errno) from error
        except BaseException:
            self._socket.close()
            raise
        bus, rest = place >> 8 & 0xFF, place & 0xFF
        self._address = PciAddress(place >> 16, bus, rest >> 3, rest & 7)

    @property
    def address(self) -> PciAddress:
        """Where it is, on the machine of who serves it."""
        return self._address

    @property
    def ids(self) -> PciIds:
        """What it is, by its config space."""
        read = self._config.read
        kind = read(8, 4)
        ids = (read(0, 2), read(2, 2), read(0x2C, 2), read(0x2E, 2))
        return PciIds(*ids, kind & 0xFF, kind >> 8)

    @property
    def config(self) -> Window:
        """Config space, a message for each access."""
        return self._config

    @property
    def bars(self) -> Mapping[int, Bar]:
        """Its ranges."""
        return self._bars

    def window(self, bar: int) -> TrappedWindow:
        """A BAR, a message for each access; writes are posted. Raises InvalidIndex."""
        if bar not in self._bars:
            known = ", ".join(map(str, self._bars)) or "none"
            raise InvalidIndex(f"{self._address} has no BAR {bar}, but {known}")

        def read(offset: int, width: int) -> int:
            data = self._call(_MMIO_READ, offset, width, bar=bar, size=width)[2]
            return int.from_bytes(data, "little")

        def write(offset: int, width: int, value: int) -> None:
            data = value.to_bytes(width, "little")
            self._send(_REQUEST.pack(_MMIO_WRITE, 0, bar, offset, width, 0) + data)

        return TrappedWindow(self._bars[bar].size, read, write)

    def map(self, bar: int, offset: int, size: int) -> MemoryWindow:
        """Raises Unsupported."""
        raise Unsupported(f"BAR {bar} of {self._address} is another process's: use its window")

    def set_bus_master(self, allowed: bool) -> None:
        """Changes the command register."""
        set_master(self._config, allowed)

    def allocate(self, size: int) -> RemoteDma:
        """Memory that is kept until the connection ends. Raises TransportError."""
        mapped, _, _, fd = self._call(_MAP_SYSMEM_FD, size, wants_fd=True)
        memory = RemoteDma(fd, mapped)
        self._memory.append(memory)
        return memory

    def share(self, address: int, size: int) -> RemoteDma:
        """Raises Unsupported."""
        raise Unsupported(f"{self._address} is another process's, and reaches its memory alone")

    def interrupts(self, count: int) -> Sequence[Interrupt]:
        """Raises Unsupported: the messages of this protocol tell of none."""
        raise Unsupported(f"interrupts of {self._address} do not come over a socket: poll")

    def check(self) -> None:
        """Raises DeviceLost where the other process does not answer, and what a write has met."""
        self._call(_PING)

    def resize(self, bar: int, size: int) -> None:
        """As who serves it may. Raises what it raises."""
        self._call(_RESIZE_BAR, size, bar=bar)
        self._bars = {number: self._about(number) for number in self._bars}

    def reset(self) -> None:
        """As who serves it may. Raises what it raises."""
        self._call(_RESET)

    def close(self) -> None:
        """Ends the connection, and with it bus mastering."""
        if self._is_open:
            self._is_open = False
            self._socket.close()
            for memory in self._memory:
                memory.close()

    def _reads(self, offset: int) -> bool:
        """Whether config space goes on at an offset."""
        try:
            self._read_config(offset, 4)
        except (InvalidIndex, TransportError):
            return False
        return True

    def _about(self, bar: int) -> Bar:
        size = self._call(_MAP_BAR, bar=bar)[1]
        low = self._read_config(_BAR_0 + 4 * bar, 4)
        return Bar(
            size, bool(low & 1), not low & 1 and bool(low & 4), not low & 1 and bool(low & 8)
        )

    def _read_config(self, offset: int, width: int) -> int:
        return self._call(_CFG_READ, offset, width)[0]

    def _write_config(self, offset: int, width: int, value: int) -> None:
        self._call(_CFG_WRITE, offset, width, value)

    def _call(
        self, command: int, *arguments: int, bar: int = 0, size: int = 0, wants_fd: bool = False
    ) -> tuple[int, int, bytes, int]:
        """The values of a reply, its `size` bytes, and the descriptor where one is wanted."""
        first, second, third = (*arguments, 0, 0, 0)[:3]
        self._send(_REQUEST.pack(command, 0, bar, first, second, third))
        fds: list[int] = []
        try:
            if wants_fd:
                head, fds, _, _ = socket.recv_fds(self._socket, _REPLY.size, 1)
                head += _receive(self._socket, _REPLY.size - len(head)) or b""
            else:
                head = _receive(self._socket, _REPLY.size) or b""
            if len(head) != _REPLY.size:
                self._lost("the connection ended")
            status, one, two = _REPLY.unpack(head)
            if status or (data := _receive(self._socket, size)) is None:
                self._fail(status, one)
        except OSError as error:
            self._lost(error.strerror or str(error))
        if wants_fd and not fds:
            raise TransportError(f"{self._address}: memory came without a descriptor")
        return one, two, data, fds[0] if fds else -1

    def _send(self, data: bytes) -> None:
        if not self._is_open:
            raise TransportError("the remote PCI function was closed")
        try:
            self._socket.sendall(data)
        except OSError as error:
            self._lost(error.strerror or str(error))

    def _fail(self, status: int, size: int) -> NoReturn:
        if not status or size > _MOST or (text := _receive(self._socket, size)) is None:
            self._lost("the connection ended within an answer")
        kind = _ERRORS[status - 1] if status <= len(_ERRORS) else TransportError
        raise kind(text.decode(errors="replace") or "the remote PCI function failed")

    def _lost(self, reason: str) -> NoReturn:
        raise DeviceLost(f"the remote PCI function is gone: {reason}")


def _status(error: GpuError) -> int:
    kinds = [number for number, kind in enumerate(_ERRORS, 1) if isinstance(error, kind)]
    return kinds[0] if kinds else 1


def _receive(connection: socket.socket, size: int) -> bytes | None:
    """So many bytes; None where the connection ends before."""
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _read(window: Window, offset: int, size: int) -> bytes:
    if size > _MOST:
        raise InvalidValue(f"{size:#x} bytes in one message: at most {_MOST:#x}")
    if size in (1, 2, 4, 8) and not offset % size:
        return window.read(offset, size).to_bytes(size, "little")
    return window.load(offset, size)


def _write(window: Window, offset: int, data: bytes) -> None:
    if len(data) in (1, 2, 4, 8) and not offset % len(data):
        window.write(offset, len(data), int.from_bytes(data, "little"))
    else:
        window.store(offset, data)


def _pairs(window: MemoryWindow) -> list[DmaPiece]:
    found = list[DmaPiece]()
    for at in range(0, window.size - _PAIR + 1, _PAIR):
        bus, size = window.read(at, 8), window.read(at + 8, 8)
        if not size:
            break
        found.append(DmaPiece(BusAddr(bus), size))
    if sum(piece.size for piece in found) != window.size:
        raise TransportError(f"the pieces of memory do not make {window.size:#x} bytes together")
    return found
