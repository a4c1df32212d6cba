"""The PCI Express link behind a bridge: training, and accesses of which each is answered or raised.

A read of 8 bytes is two requests, the low dword first. Long copies are streams of dwords, which
tell nobody whether they arrived: a single read behind each says whether the card still answers.
Behind a short one that writes it may be a later one, of whoever waits for the card. Before the
first stream into a range one read there must have been answered (`Link.load`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from gpu.core.bits import align_down
from gpu.core.errors import DeviceLost, HwTimeout, TransportError
from gpu.core.pci import PciAddress
from gpu.core.wait import Waiter, wait_until
from gpu.transport.asm24.bridge import Bridge
from gpu.transport.asm24.tlp import (
    DWORD,
    CompletionError,
    Kind,
    Request,
    RequestFailed,
    Status,
    config_address,
    config_kind,
)

LINK_STATE: Final = 0xB450
_TRIES: Final = 10
_RETRIES: Final = 1_000  # a millisecond each: a function may take a second (PCIe 4.0, 6.6.1)
_MILLISECOND: Final = 1_000_000
_TRAIN_SECONDS: Final = 2.0
_STREAM: Final = 64 << 10  # bytes at most of one: 40 ms
_POSTED: Final = 4 << 10  # bytes of a stream that a later read may answer for: 1 ms
_MOST_UNREAD: Final = 16
_SHORT: Final = 8  # bytes up to which single requests take no more transfers than a stream
S = TypeVar("S")
T = TypeVar("T")


class Link:
    """The link of one bridge. `train` comes first."""

    def __init__(self, bridge: Bridge, waiter: Waiter):
        self.bridge = bridge
        self._waiter = waiter
        self.lock = threading.RLock()  # of what takes several transfers
        self._lost = ""
        self._unread = 0  # streams since the card last answered

    @property
    def name(self) -> str:
        """For messages."""
        return f"USB bridge {self.bridge.device.id}"

    def train(self) -> None:
        """Brings the link up, to a card that is as after power-on where the bridge can do that.

        So nothing of who had it before is left, however that ended. Raises DeviceLost.
        """
        if self.bridge.has_power:
            self.bridge.set_power(True)
        try:
            wait_until(
                *(self._waiter, self._state, self.bridge.link_up),
                what=f"the PCI Express link behind {self.name}",
                timeout=_TRAIN_SECONDS,
                wanted=f"{self.bridge.link_up:#x} (L0)",
            )
        except HwTimeout as error:
            raise DeviceLost(
                f"{error.message}: is a card in it, with all its power cables, and is it switched"
                " on?"
            ) from error

    def _state(self) -> int:
        with self.lock:
            return self.bridge.read(LINK_STATE, 1)[0]

    def check(self) -> None:
        """Raises DeviceLost where the link is down, or was found to be."""
        if not self._lost and (state := self._state()) != self.bridge.link_up:
            self._lost = (
                f"{self.name}: the PCI Express link is down (state {state:#x}, wanted"
                f" {self.bridge.link_up:#x}); the card has to be opened anew"
            )
        if self._lost:
            raise DeviceLost(self._lost)

    # Single requests

    def read(self, address: int, width: int) -> int:
        """Memory of the bus: 1, 2, 4 or 8 bytes at a multiple of that. Raises as `_request`."""
        if width > DWORD:
            low = self.read(address, DWORD)
            return self.read(address + DWORD, DWORD) << 32 | low
        value = self._request(_part(Kind.MEMORY_READ, address, width))
        return _bytes_of(value, address, width)

    def write(self, address: int, width: int, value: int) -> None:
        """Posted: a read of the same function comes back after it.

        8 bytes are a stream where there are any, so that a doorbell has both dwords at once; then
        something there was read before.
        """
        if width > DWORD and self.bridge.has_streams:
            self._streamed(self.bridge.stream_out, address, value.to_bytes(width, "little"))
        elif width > DWORD:
            self.write(address, DWORD, value & 0xFFFF_FFFF)
            self.write(address + DWORD, DWORD, value >> 32)
        else:
            self._request(_part(Kind.MEMORY_WRITE, address, width, value))

    def read_config(self, function: PciAddress, offset: int, width: int) -> int:
        """Config space, at most 4 bytes; a function that is still starting is waited for."""
        kind, address = config_kind(function, write=False), config_address(function, offset)
        return _bytes_of(self._config(_part(kind, address, width)), address, width)

    def write_config(self, function: PciAddress, offset: int, width: int, value: int) -> None:
        """The same; it is answered, so it has happened then."""
        kind, address = config_kind(function, write=True), config_address(function, offset)
        self._config(_part(kind, address, width, value))

    def _config(self, request: Request) -> int:
        for _ in range(_RETRIES):
            try:
                return self._request(request)
            except CompletionError as error:
                if error.status != Status.RETRY:
                    raise
            self._pause()
        return self._request(request)

    def _pause(self) -> None:
        """A millisecond; a model that has nothing to do is not waited for."""
        with contextlib.suppress(HwTimeout):
            self._waiter.idle(_MILLISECOND)

    def _request(self, request: Request) -> int:
        """The dword that came.

        One that the bridge could not make is tried again. Raises CompletionError for another status
        than success, RequestFailed, HwTimeout, DeviceLost once the link is down.
        """
        if self._lost:
            raise DeviceLost(self._lost)
        for _ in range(_TRIES):
            with self.lock:
                done = self.bridge.request(request)
            if not done.failed:
                break
            self._pause()
        else:
            self.check()
            raise RequestFailed(request, f"the bridge could not make it, tried {_TRIES} times")
        if done.timed_out:
            self.check()
            raise RequestFailed(request, "nobody answers")
        if done.status:
            raise CompletionError(request, done.status)
        if not request.kind.is_posted:
            self._unread = 0
        return done.value

    # Long copies, of memory that is known to be there

    def load(self, address: int, size: int) -> bytes:
        """Any bytes of memory of the bus; a read of the last of them follows. Raises as `read`."""
        start, end = align_down(address, DWORD), address + size
        whole = -(-(end - start) // DWORD) * DWORD
        if whole <= _SHORT or not self.bridge.has_streams:
            places = range(start, start + whole, DWORD)
            data = b"".join(self.read(at, DWORD).to_bytes(DWORD, "little") for at in places)
        else:
            data = self._stream_in(start, whole)
        return data[address - start : address - start + size]

    def _stream_in(self, start: int, size: int) -> bytes:
        parts = []
        for at in range(start, start + size, _STREAM):
            count = min(_STREAM, start + size - at)
            parts.append(self._streamed(self.bridge.stream_in, at, count))
            self.read(at + count - DWORD, DWORD)
        return b"".join(parts)

    def store(self, address: int, data: memoryview) -> None:
        """The same. What is as short as `_POSTED` is on its way when it returns, as writes are."""
        head = min(-address % DWORD, len(data))
        tail = (len(data) - head) % DWORD
        body = data[head : len(data) - tail]
        self._store_bytes(address, data[:head])
        if len(body) <= _SHORT or not self.bridge.has_streams:
            for at in range(0, len(body), DWORD):
                word = int.from_bytes(body[at : at + DWORD], "little")
                self.write(address + head + at, DWORD, word)
        else:
            self._stream_out(address + head, body)
        self._store_bytes(address + len(data) - tail, data[len(data) - tail :])

    def _stream_out(self, start: int, data: memoryview) -> None:
        for at in range(0, len(data), _STREAM):
            part = bytes(data[at : at + _STREAM])
            self._streamed(self.bridge.stream_out, start + at, part)
            if len(part) > _POSTED or self._unread > _MOST_UNREAD:
                self.read(start + at + len(part) - DWORD, DWORD)

    def _store_bytes(self, address: int, data: memoryview) -> None:
        for at, value in enumerate(data, address):
            self.write(at, 1, value)

    def _streamed(self, stream: Callable[[int, S], T], address: int, what: S) -> T:
        if self._lost:
            raise DeviceLost(self._lost)
        self._unread += 1
        try:
            with self.lock:
                return stream(address, what)
        except DeviceLost as error:
            self._lost = error.message
            raise


def _part(kind: Kind, address: int, width: int, value: int = 0) -> Request:
    """A request for some bytes of a dword."""
    place = align_down(address, DWORD)
    shift = address - place
    if shift + width > DWORD:
        raise TransportError(f"{width} bytes at {address:#x} are not of one dword")
    return Request(kind, place, (1 << width) - 1 << shift, value << 8 * shift)


def _bytes_of(value: int, address: int, width: int) -> int:
    """Those bytes of a dword that came."""
    return value >> 8 * (address % DWORD) & (1 << 8 * width) - 1
