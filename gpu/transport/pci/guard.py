"""The process that outlives a driver without an IOMMU until the card has stopped writing to memory.

It is run as a program of its own (`python -I -S guard.py SOCKET`), by no other module than
`gpu.transport.pci.pinned`, and imports nothing of the package: so it is small, and there when a
driver is killed. Its socket brings descriptors: first those of config space and of the locked
`resource0`, then those of memory, which it maps, so that the pages stay where they are. When the
socket ends, it clears the bit of bus mastering in the command register and waits until the card has
no transaction under way; only then do memory and lock go.
"""

import array
import mmap
import os
import socket
import sys
import time

_COMMAND = 0x04
_MASTER = 1 << 2
_CAPABILITIES = 0x34
_PCI_EXPRESS = 0x10
_DEVICE_STATUS = 0x0A
_PENDING = 1 << 5
_WAIT_S = 0.1  # PCI Express Base 4.0, 7.5.3.5: completions time out after 50 ms at most
_MAP_LOCKED, _MAP_POPULATE = 0x2000, 0x8000


def _stop(config: int) -> None:
    """Ends bus mastering, and waits for what the card has begun. OSError: the card is gone."""
    command = int.from_bytes(os.pread(config, 2, _COMMAND), "little")
    os.pwrite(config, (command & ~_MASTER).to_bytes(2, "little"), _COMMAND)
    deadline = time.monotonic() + _WAIT_S
    at = os.pread(config, 1, _CAPABILITIES)[0] & ~3
    for _ in range(48):  # no list of capabilities has more
        if not at:
            break
        number, following = os.pread(config, 2, at)
        if number == _PCI_EXPRESS:
            break
        at = following & ~3
    while time.monotonic() < deadline:
        status = os.pread(config, 2, at + _DEVICE_STATUS) if at else b"\xff\xff"
        if at and not int.from_bytes(status, "little") & _PENDING:
            return
        time.sleep(0.001)


def _main(connection: socket.socket) -> None:
    config, lock, *_ = _receive(connection)
    held: list[mmap.mmap] = []
    try:
        connection.send(b"+")
        while fds := _receive(connection):
            for fd in fds:
                size = os.fstat(fd).st_size
                held.append(mmap.mmap(fd, size, mmap.MAP_SHARED | _MAP_LOCKED | _MAP_POPULATE))
                os.close(fd)
            connection.send(b"+")
    finally:
        _stop(config)
        os.close(lock)


def _receive(connection: socket.socket) -> list[int]:
    """The descriptors of the next message; none at the end."""
    fds = array.array("i")
    try:
        data, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(2 * fds.itemsize))
    except OSError:
        return []
    for _, _, part in ancillary if data else ():
        fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    return list(fds)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
