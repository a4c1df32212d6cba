"""AMX for machines that lack it: its instructions trap there, and are done here instead.

What an instruction does is written down from "Intel 64 and IA-32 Architectures Software
Developer's Manual", volume 2, how a signal's frame looks from glibc
(`sysdeps/unix/sysv/linux/x86/sys/ucontext.h`). Only what stands in generated code is known:
three-byte VEX prefixes and addresses without segments.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_SA_SIGINFO = 4
_REGISTERS_AT = 40  # of `ucontext_t`: behind flags, link and stack
_RIP = 16
# Where the register of an instruction's number is among those of a signal's frame.
_REGISTERS = (13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7)
_NP, _66, _F3, _F2 = range(4)
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
Array = np.ndarray[Any, Any]


class _Action(ctypes.Structure):
    """`struct sigaction` of glibc."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class Amx:
    """The state of one thread's tiles; `done` counts what was executed."""

    def __init__(self, done: Counter[str]) -> None:
        self.done = done
        self._rows, self._bytes = [0] * 8, [0] * 8
        self._tiles = np.zeros((8, 16, 64), np.uint8)

    def step(self, registers: Any) -> None:
        """Does the instruction at the instruction pointer, and moves that behind it."""
        at = registers[_RIP]
        code = ctypes.string_at(at, 16)
        if code[0] != 0xC4 or code[1] & 0x1F != 2:
            raise ValueError(f"no instruction of AMX: {code.hex(' ')}")
        inverted, last = code[1] >> 5, code[2]
        prefix, third = last & 3, ~last >> 3 & 15
        opcode, modrm = code[3], code[4]
        mode, reg, low = modrm >> 6, modrm >> 3 & 7, modrm & 7
        base = step = length = 0
        if mode != 3:
            base, step, length = _address(registers, code, inverted)
        self._execute((opcode, prefix, mode == 3), (reg, low, third), base, step)
        registers[_RIP] = at + 5 + length

    def _execute(
        self, kind: tuple[int, int, bool], tiles: tuple[int, int, int], base: int, step: int
    ) -> None:
        reg, low, third = tiles
        match kind:
            case (0x49, 0, False):
                self._configure(ctypes.string_at(base, 64))
            case (0x49, 0, True):
                self.done["tilerelease"] += 1
                self._configure(bytes(64), counted=False)
            case (0x49, 3, True):
                self.done["tilezero"] += 1
                self._tiles[reg] = 0
            case (0x4B, 3, False):
                self._load(reg, base, step)
            case (0x4B, 2, False):
                self._store(reg, base, step)
            case (0x5C, 2, True):
                self._tdpbf16ps(reg, low, third)
            case (0x5E, prefix, True):
                self._tdpb(prefix, reg, low, third)
            case _:
                raise ValueError(f"this instruction of AMX is not known here: {kind}")

    def _configure(self, config: bytes, counted: bool = True) -> None:
        if counted:
            self.done["ldtilecfg"] += 1
            assert config[0] == 1 and not any(config[2:16]), "palette 1"
        self._bytes = [int.from_bytes(config[16 + 2 * t : 18 + 2 * t], "little") for t in range(8)]
        self._rows = list(config[48:56])
        self._tiles[:] = 0

    def _load(self, tile: int, base: int, step: int) -> None:
        self.done["tileloadd"] += 1
        width = self._bytes[tile]
        assert width and self._rows[tile], "the tile is configured"
        self._tiles[tile] = 0
        for row in range(self._rows[tile]):
            line = ctypes.string_at(base + row * step, width)
            self._tiles[tile, row, :width] = np.frombuffer(line, np.uint8)

    def _store(self, tile: int, base: int, step: int) -> None:
        self.done["tilestored"] += 1
        for row in range(self._rows[tile]):
            line = self._tiles[tile, row, : self._bytes[tile]].tobytes()
            ctypes.memmove(base + row * step, line, len(line))

    def _tdpbf16ps(self, c: int, a: int, b: int) -> None:
        self.done["tdpbf16ps"] += 1
        assert len({a, b, c}) == 3, "three tiles"
        steps, rows = self._bytes[a] // 4, self._rows[a]
        assert steps == self._rows[b] and rows == self._rows[c], "shapes fit"
        assert self._bytes[b] == self._bytes[c] == 64, "shapes fit"
        left, right = _floats(self._tiles[a]), _floats(self._tiles[b])
        pairs = np.zeros((16, 32), np.float32)
        for step in range(steps):
            # The product of two bfloat16 is exact, so that this rounds as a fused operation does.
            twice = np.tile(left[:, 2 * step : 2 * step + 2], 16)
            pairs = _flushed(pairs + _flushed(twice * right[step]))
        sums = self._tiles[c].view(np.float32)
        added = _flushed(_flushed(sums) + _flushed(pairs[:, 0::2] + pairs[:, 1::2]))
        self._tiles[c] = added.view(np.uint8)

    def _tdpb(self, prefix: int, c: int, a: int, b: int) -> None:
        """TDPBSSD and its like, by whether bytes of A and of B are signed."""
        name, left, right = {
            _F2: ("tdpbssd", np.int8, np.int8),
            _F3: ("tdpbsud", np.int8, np.uint8),
            _66: ("tdpbusd", np.uint8, np.int8),
            _NP: ("tdpbuud", np.uint8, np.uint8),
        }[prefix]
        self.done[name] += 1
        assert len({a, b, c}) == 3, "three tiles"
        assert all(self._bytes[t] == 64 and self._rows[t] == 16 for t in (a, b, c)), "whole tiles"
        sums = self._tiles[c].view(np.int32)
        columns = self._tiles[b].view(right).reshape(16, 16, 4)
        for step in range(16):
            four = self._tiles[a].view(left)[:, 4 * step : 4 * step + 4].astype(np.int32)
            sums += four @ columns[step].astype(np.int32).T


def _floats(tile: Array) -> Array:
    """The bfloat16 of a tile as float32, (16, 32), denormal ones as zero."""
    return _flushed((tile.view(np.uint16).astype(np.uint32) << 16).view(np.float32))


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _address(registers: Any, code: bytes, inverted: int) -> tuple[int, int, int]:
    """Base address and index of an operand in memory, and bytes behind `modrm`.

    For a tile the scaled index is how far its rows are apart, and no part of the address.
    """
    b, x = 8 * (~inverted & 1), 8 * (~inverted >> 1 & 1)
    mode, low = code[4] >> 6, code[4] & 7
    base, step, length = low | b, 0, 0
    if low == 4:
        sib, length = code[5], 1
        base = sib & 7 | b
        index = sib >> 3 & 7 | x
        step = registers[_REGISTERS[index]] << (sib >> 6) if index != 4 else 0
    size = {0: 4 if base & 7 == 5 else 0, 1: 1, 2: 4}[mode]
    at = 5 + length
    offset = int.from_bytes(code[at : at + size], "little", signed=True)
    if mode == 0 and base & 7 == 5:
        assert low == 4, "no address relative to the instruction pointer"
        return offset, step, length + size
    return registers[_REGISTERS[base]] + offset, step, length + size


@contextmanager
def emulated() -> Iterator[Counter[str]]:
    """Code that runs inside has AMX; gives a count of the instructions of it that were executed."""
    done: Counter[str] = Counter()
    states: dict[int, Amx] = {}

    def trapped(number: int, info: int, context: int) -> None:
        try:
            amx = states.setdefault(threading.get_native_id(), Amx(done))
            amx.step((ctypes.c_int64 * 23).from_address(context + _REGISTERS_AT))
        except BaseException:  # nothing to go back to
            traceback.print_exc()
            os.abort()

    handler = _HANDLER(trapped)
    action, old = _Action(), _Action()
    action.handler = ctypes.cast(handler, ctypes.c_void_p).value
    action.flags = _SA_SIGINFO
    library = ctypes.CDLL(None, use_errno=True)
    if library.sigaction(int(signal.SIGILL), ctypes.byref(action), ctypes.byref(old)):
        raise OSError(ctypes.get_errno(), "sigaction")
    try:
        yield done
    finally:
        library.sigaction(int(signal.SIGILL), ctypes.byref(old), None)
