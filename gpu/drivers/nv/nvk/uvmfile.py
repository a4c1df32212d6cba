"""UVM's file, which the GPUs of a process share: only within one file GPUs can be peers.

A file knows each GPU once (a second registration is INVALID_DEVICE), so a GPU that is opened again
beside itself gets another file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpu.drivers.cleanup import Undo
from gpu.drivers.nv.nvk.branch import Branch
from gpu.drivers.nv.nvk.kernel import open_node
from gpu.drivers.nv.nvk.uvm import Uvm
from gpu.transport import nvidia as nodes
from gpu.transport.os import Os, RealOs


@dataclass(slots=True)
class _Range:
    """Addresses that UVM keeps, and the GPUs that have memory of their own there."""

    length: int
    users: set[bytes]


class UvmFile:
    """A file of UVM with a second one beside it, and what is once in it for all its GPUs.

    Attributes:
        fd: the file.
        second_fd: what keeps the process's memory known to UVM while it is open.
    """

    def __init__(self, system: Os):
        """Opens both. Raises as `open_node` does."""
        self.system = system
        self.process = os.getpid()
        self.gpus: set[int] = set()
        self._lock = threading.Lock()
        self._done: set[str] = set()
        self._peers: set[frozenset[bytes]] = set()
        self._ranges: dict[int, _Range] = {}
        with Undo() as undo:
            self.fd = _open(system, undo)
            self.second_fd = _open(system, undo)
            self._undo = undo.take()

    def once(self, name: str, action: Callable[[], None]) -> None:
        """Does what is done for the file, not for each GPU, unless that is done already."""
        with self._lock:
            if name not in self._done:
                action()
                self._done.add(name)

    def close(self) -> None:
        """Closes both files."""
        self._undo.close()

    # Ranges of addresses: where host memory is mapped, two GPUs have the same.

    def add_range(self, uvm: Uvm, uuid: bytes, base: int, length: int) -> None:
        """Reserves addresses for memory of a GPU, or joins another GPU that has the same.

        Raises as `Uvm.create_range` does, also for a GPU that has them already.
        """
        with self._lock:
            found = self._ranges.get(base)
            if found is not None and found.length == length and uuid not in found.users:
                found.users.add(uuid)
                return
            uvm.create_range(base, length)
            self._ranges[base] = _Range(length, {uuid})

    def remove_range(self, uvm: Uvm, branch: Branch, uuid: bytes, base: int, length: int) -> None:
        """Takes a GPU's memory out of a range; the last one gives the addresses back."""
        with self._lock:
            users = self._ranges[base].users
            users.discard(uuid)
            if users:
                uvm.unmap_memory(uuid, base, length)
                return
            del self._ranges[base]
            uvm.free_range(branch, base, length)

    # Peers.

    def enable_peers(self, uvm: Uvm, first: bytes, second: bytes) -> None:
        """Lets two GPUs map each other's memory, unless they may already."""
        pair = frozenset((first, second))
        with self._lock:
            if pair not in self._peers:
                uvm.enable_peers(first, second)
                self._peers.add(pair)

    def end_peers(self, uvm: Uvm, uuid: bytes) -> None:
        """Ends all that a GPU has with others; before it is unregistered."""
        with self._lock, Undo() as each:
            for pair in [pair for pair in self._peers if uuid in pair]:
                self._peers.remove(pair)
                first, second = pair
                each.add(uvm.disable_peers, first, second)


_files: Final[list[UvmFile]] = []
_files_lock: Final = threading.Lock()


def join(system: Os, gpu: int) -> UvmFile:
    """The file for a GPU, by its place in `NvSession.cards`: that of others, or a new one.

    All `RealOs` are one system. `leave` it afterwards. Raises as `open_node` does.
    """
    with _files_lock:
        _files[:] = [each for each in _files if each.process == os.getpid()]  # none of a parent's
        for file in _files:
            if _is_same(file.system, system) and gpu not in file.gpus:
                break
        else:
            file = UvmFile(system)
            _files.append(file)
        file.gpus.add(gpu)
        return file


def leave(file: UvmFile, gpu: int) -> None:
    """Ends a GPU's use of its file; the last one closes it."""
    with _files_lock:
        file.gpus.remove(gpu)
        if not file.gpus:
            _files.remove(file)
            file.close()


def _is_same(one: Os, other: Os) -> bool:
    return one is other or (isinstance(one, RealOs) and isinstance(other, RealOs))


def _open(system: Os, undo: Undo) -> int:
    fd = open_node(system, nodes.UVM)
    undo.add(system.close, fd)
    return fd
