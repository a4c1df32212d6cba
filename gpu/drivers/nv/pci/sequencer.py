"""Programs that GSP has the driver's CPU run on registers, and what they may do.

A program is hostile until it is shown to be whole: commands that end within it, registers of BAR 0,
and no more time than its step has.

Source: rmgspseq.h, kgspExecuteSequencerBuffer and kgspExecuteSequencerCommand_GA102 of
open-gpu-kernel-modules at tag 570.144. Times of polls are microseconds as RM takes them, which its
header calls milliseconds; 0 is RM's default of 4 s.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from gpu.autogen.nv import gsp
from gpu.core.errors import FirmwareError
from gpu.drivers.boot import BootTimeout
from gpu.drivers.nv.pci.chip import NvCard

_HEAD: Final = ctypes.sizeof(gsp.rpc_run_cpu_sequencer_v17_00)
_DEFAULT_SECONDS: Final = 4.0
_MICROSECOND: Final = 1e-6
# How many words follow each.
_WORDS: Final = {
    gsp.GSP_SEQ_BUF_OPCODE_REG_WRITE: 2,
    gsp.GSP_SEQ_BUF_OPCODE_REG_MODIFY: 3,
    gsp.GSP_SEQ_BUF_OPCODE_REG_POLL: 5,
    gsp.GSP_SEQ_BUF_OPCODE_DELAY_US: 1,
    gsp.GSP_SEQ_BUF_OPCODE_REG_STORE: 2,
    gsp.GSP_SEQ_BUF_OPCODE_CORE_RESET: 0,
    gsp.GSP_SEQ_BUF_OPCODE_CORE_START: 0,
    gsp.GSP_SEQ_BUF_OPCODE_CORE_WAIT_FOR_HALT: 0,
    gsp.GSP_SEQ_BUF_OPCODE_CORE_RESUME: 0,
}
_REGISTERS: Final = {  # whose first word is a register
    gsp.GSP_SEQ_BUF_OPCODE_REG_WRITE,
    gsp.GSP_SEQ_BUF_OPCODE_REG_MODIFY,
    gsp.GSP_SEQ_BUF_OPCODE_REG_POLL,
    gsp.GSP_SEQ_BUF_OPCODE_REG_STORE,
}


class Cores(Protocol):
    """What programs do to the engine on which GSP runs."""

    def reset(self) -> None:
        """As a Falcon."""

    def start(self) -> None:
        """Its Falcon core."""

    def wait_halted(self) -> None:
        """Until that core has stopped."""

    def resume(self) -> None:
        """RM goes on on its RISC-V core."""


class Command(NamedTuple):
    """One command: where its words begin in the program, which it is, and what follows."""

    at: int
    opcode: int
    words: tuple[int, ...]


def parse(payload: bytes, registers: int) -> Iterator[Command]:
    """The commands of a program; ``registers`` is how many bytes of them there are.

    Raises FirmwareError with offset and field: of a program that ends before a command does, names
    no command, or a register outside.
    """
    if len(payload) < _HEAD:
        raise FirmwareError(f"sequencer: {len(payload)} bytes, its head has {_HEAD}")
    head = gsp.rpc_run_cpu_sequencer_v17_00.from_buffer_copy(payload)
    words = struct.unpack_from(f"<{(len(payload) - _HEAD) // 4}I", payload, _HEAD)
    if not head.cmdIndex < head.bufferSizeDWord or head.cmdIndex > len(words):
        raise FirmwareError(
            f"sequencer: cmdIndex at offset 4 is {head.cmdIndex}, of bufferSizeDWord"
            f" {head.bufferSizeDWord} and {len(words)} words that came"
        )
    at = 0
    while at < head.cmdIndex:
        opcode, count = words[at], _WORDS.get(words[at])
        where = f"sequencer: opCode at offset {_HEAD + 4 * at:#x} is {opcode:#x}"
        if count is None:
            raise FirmwareError(f"{where}, which is none")
        if at + 1 + count > head.cmdIndex:
            raise FirmwareError(f"{where}, with {count} words, of a program of {head.cmdIndex}")
        command = Command(at, opcode, words[at + 1 : at + 1 + count])
        if opcode in _REGISTERS and (command.words[0] % 4 or command.words[0] + 4 > registers):
            raise FirmwareError(f"{where}: addr {command.words[0]:#x} is no register of BAR 0")
        if (
            opcode == gsp.GSP_SEQ_BUF_OPCODE_REG_STORE
            and command.words[1] >= gsp.GSP_SEQ_BUF_REG_SAVE_SIZE
        ):
            raise FirmwareError(
                f"{where}: index {command.words[1]} of {gsp.GSP_SEQ_BUF_REG_SAVE_SIZE} places"
            )
        yield command
        at += 1 + count


def run(card: NvCard, payload: bytes, cores: Cores) -> Sequence[int]:
    """Runs a program that is whole; what it stored. Raises as `parse`, BootTimeout.

    Nothing of a program is run that is not whole.
    """
    stored = [0] * gsp.GSP_SEQ_BUF_REG_SAVE_SIZE
    for command in list(parse(payload, card.mmio.size)):
        _run_one(card, command, cores, stored)
    return stored


def _run_one(card: NvCard, command: Command, cores: Cores, stored: list[int]) -> None:
    words = command.words
    match command.opcode:
        case gsp.GSP_SEQ_BUF_OPCODE_REG_WRITE:
            card.mmio.write(words[0], 4, words[1])
        case gsp.GSP_SEQ_BUF_OPCODE_REG_MODIFY:
            value = card.mmio.read(words[0], 4)
            card.mmio.write(words[0], 4, value & ~words[1] | words[2])
        case gsp.GSP_SEQ_BUF_OPCODE_REG_POLL:
            _poll(card, *words)
        case gsp.GSP_SEQ_BUF_OPCODE_DELAY_US:
            _delay(card, words[0] * _MICROSECOND)
        case gsp.GSP_SEQ_BUF_OPCODE_REG_STORE:
            stored[words[1]] = card.mmio.read(words[0], 4)
        case gsp.GSP_SEQ_BUF_OPCODE_CORE_RESET:
            cores.reset()
        case gsp.GSP_SEQ_BUF_OPCODE_CORE_START:
            cores.start()
        case gsp.GSP_SEQ_BUF_OPCODE_CORE_WAIT_FOR_HALT:
            cores.wait_halted()
        case _:
            cores.resume()


def _poll(card: NvCard, offset: int, mask: int, value: int, timeout: int, error: int) -> None:
    card.wait_value(
        lambda: card.mmio.read(offset, 4),
        lambda found: found & mask == value,
        card.register_name(offset) or f"register {offset:#x}",
        f"{value:#x} in bits {mask:#x}: GSP's program polls it, its error {error:#x}",
        timeout * _MICROSECOND or _DEFAULT_SECONDS,
    )


def _delay(card: NvCard, seconds: float) -> None:
    left = card.seconds_left
    if seconds > left:
        last = round(seconds / _MICROSECOND)
        wanted = f"at most {left:g} s, which the step has left"
        raise BootTimeout(card.step, "a delay of GSP's program (us)", last, wanted, seconds)
    card.sleep(seconds)
