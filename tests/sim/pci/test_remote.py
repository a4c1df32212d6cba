"""A function that another process uses over a socket: here a thread serves the model of `edu`."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu.core.errors import DeviceLost, InvalidIndex, InvalidValue, TransportError, Unsupported
from gpu.sim.pci.edu import BUFFER, IDENTITY
from gpu.transport.pci.remote import RemoteFunction, serve
from sim.pci.test_host_world import AT, PAGE, Rig, dma


class Served:
    """A rig whose edu is served, until `close`."""

    def __init__(self, folder: Path):
        self.rig = Rig()
        self.function = self.rig.open()
        self.path = folder / "edu"
        self._stopped = False
        self._thread = threading.Thread(
            target=serve, args=(self.function, self.path, lambda: self._stopped), daemon=True
        )
        self._thread.start()
        while not self.path.exists():
            assert self._thread.is_alive()

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        while True:
            try:
                connection.connect(str(self.path))
                return connection
            except ConnectionRefusedError:  # bound, and not listening yet
                continue

    def close(self) -> None:
        self._stopped = True
        with contextlib.suppress(FileNotFoundError):  # it has ended with the client before
            self.raw().close()
        self._thread.join(10)
        assert not self._thread.is_alive() and not self.path.exists()
        self.function.close()
        self.rig.machine.close()


@pytest.fixture
def served() -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:  # its path is short enough for a socket
        served = Served(Path(folder))
        served.raw().close()
        yield served
        served.close()


def test_a_client_has_the_function(served: Served) -> None:
    rng = np.random.default_rng(5)
    function = RemoteFunction(served.path)
    assert function.address == AT and function.ids == served.function.ids
    assert function.bars == served.function.bars and function.config.size == 4096
    registers = function.window(0)
    assert registers.read(0, 4) == IDENTITY
    registers.write(4, 4, 0x12345678)
    assert registers.read(4, 4) == 0xEDCBA987
    function.set_bus_master(True)
    assert served.rig.function.config.is_master
    for _ in range(5):
        memory = function.allocate(int(rng.integers(1, 4 * PAGE)))
        assert memory.window.load(0, 64) == bytes(64)
        (piece,) = memory.pieces
        data = rng.bytes(600)
        memory.window.store(40, data)
        dma(registers, piece.address + 40, BUFFER, 600, 0)
        dma(registers, BUFFER, piece.address + 1000, 600, 2)
        assert memory.window.load(1000, 600) == data
    function.reset()
    assert registers.read(4, 4) == 0
    function.check()
    function.close()
    function.close()
    again = RemoteFunction(served.path)  # answered once the first session has ended
    assert not served.rig.function.config.is_master
    registers = again.window(0)
    again.set_bus_master(True)
    dma(registers, piece.address, BUFFER, 8, 0)
    assert "not mapped" in served.rig.machine.debug.faults[-1]
    again.close()


def test_the_function_is_told_of_bus_mastering(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(served.function, "set_bus_master", told.append)
    function = RemoteFunction(served.path)
    function.set_bus_master(True)
    function.set_bus_master(False)
    assert told[-2:] == [True, False]  # the end of the fixture's own connection may come before
    function.close()


def test_errors_come_over(served: Served) -> None:
    function = RemoteFunction(served.path)
    with pytest.raises(InvalidIndex, match="no BAR 1, but 0"):
        function.window(1)
    with pytest.raises(InvalidValue, match="cannot be"):
        function.allocate(1 << 50)
    with pytest.raises(Unsupported, match="gpu pci take"):
        function.resize(0, 1 << 21)
    for use in (
        lambda: function.map(0, 0, PAGE),
        lambda: function.share(PAGE, PAGE),
        lambda: function.interrupts(1),
    ):
        with pytest.raises(Unsupported):
            use()
    function.close()
    with pytest.raises(TransportError, match="closed"):
        function.check()


def test_a_posted_write_that_failed_is_told_with_the_next_reply(served: Served) -> None:
    function = RemoteFunction(served.path)
    function._send(struct.pack("<BIIQQQ", 7, 0, 3, 0, 4, 0) + bytes(4))
    with pytest.raises(InvalidIndex, match="no BAR 3"):
        function.check()
    function.check()
    function.close()


def test_other_peoples_requests(served: Served) -> None:
    connection = served.raw()

    def call(*words: int, payload: bytes = b"") -> tuple[int, int, int]:
        connection.sendall(struct.pack("<BIIQQQ", *words, *(0,) * (6 - len(words))) + payload)
        status, one, two = struct.unpack("<BQQ", connection.recv(17, socket.MSG_WAITALL))
        return status, one, two

    assert call(3, 0, 0, 0, 4) == (0, 0x11E81234, 0)
    assert call(1, 0, 0) == (0, 0, 1 << 20)
    assert call(6, 0, 0, 0, 4) == (0, 0, 0)
    assert int.from_bytes(connection.recv(4), "little") == IDENTITY
    status, size, _ = call(77)
    assert status and b"command 77" in connection.recv(size, socket.MSG_WAITALL)
    status, mapped, number = call(8, 0, 0, 100)
    assert (status, mapped, number) == (0, PAGE, 0)
    connection.sendall(struct.pack("<BIIQQQ", 10, 0, 0, 64, 5, 0) + b"hello")
    assert call(9, 0, 0, 62, 9)[0] == 0
    assert connection.recv(9, socket.MSG_WAITALL) == b"\0\0hello\0\0"
    connection.close()


def test_what_is_no_request_ends_the_connection_and_nothing_else(served: Served) -> None:
    rng = np.random.default_rng(6)
    for _ in range(60):
        connection = served.raw()
        connection.settimeout(5)
        data = bytearray(rng.bytes(int(rng.integers(1, 200))))
        data[0] %= 13
        if data[0] in (2, 8):
            data[0] = 3
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it had not read all when it ended this
            while connection.recv(1 << 16):
                pass
        connection.close()
    function = RemoteFunction(served.path)
    assert function.ids.vendor == 0x1234
    function.close()


def test_a_socket_that_others_could_reach_is_not_made(tmp_path: Path) -> None:
    rig = Rig()
    function = rig.open()
    tmp_path.chmod(0o755)
    with pytest.raises(TransportError, match="mkdir -m 700"):
        serve(function, tmp_path / "edu", lambda: True)
    tmp_path.chmod(0o700)
    with pytest.raises(TransportError, match="No such file"):
        serve(function, tmp_path / "none" / "edu", lambda: True)
    with pytest.raises(TransportError, match="connecting to"):
        RemoteFunction(tmp_path / "edu")
    function.close()
    rig.machine.close()
    assert not os.listdir(tmp_path)


def test_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(1)

            def hang_up() -> None:
                listener.accept()[0].close()

            thread = threading.Thread(target=hang_up)
            thread.start()
            with pytest.raises(DeviceLost, match="is gone"):
                RemoteFunction(path)
            thread.join()
