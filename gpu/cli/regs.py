"""`gpu regs`: registers of a card without a kernel driver, by name: read, write, watch, compare.

Which card it is is read first, AMD's with its table of blocks, and nothing else of it is touched.
A register of which reading or writing does something is left out of patterns, and wants --force by
name.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from gpu.cli.cards import DEVICE_HELP, NamedBlock, take
from gpu.core.errors import FormatError, InvalidIndex, InvalidValue
from gpu.core.files import read_bytes
from gpu.core.regs import RegArray, Register, RegTable
from gpu.drivers.card import PciCard

# Of which a read takes something (semaphores), or a write starts something.
_ACTS_ON_READ: Final = re.compile(r"_SEM$|_DATA2?$|^EMEMD")
_ACTS_ON_WRITE: Final = re.compile(
    r"_SEM$|_REQ$|_DATA2?$|_INDEX2?$|C2PMSG|RESET|DOORBELL|DEQUEUE|ACTIVE|_WPTR|_RPTR|HALT|F32_CNTL"
    r"|MCU_CNTL|CP_ME_CNTL|MEC_RS64_CNTL|L2_CNTL2|INITIATOR"
    r"|^EMEM|^MSGQ_|QUEUE_(HEAD|TAIL)|CPUCTL|ENGINE$|DMATRFCMD|BCR_CTRL|^FLUSH_"
)
_LINE: Final = re.compile(r"(\S+) = (0x[0-9a-f]+)")
_INDEXED: Final = re.compile(r"(\w+)\[(\d+)\]")


class Named(NamedTuple):
    """A register of a card; of an array it has its place there."""

    block: NamedBlock
    name: str
    place: int | None = None

    @property
    def title(self) -> str:
        """As it is named in all that is printed."""
        index = "" if self.place is None else f"[{self.place}]"
        return f"{'.'.join(filter(None, (self.block.name, self.name)))}{index}"

    def get(self) -> Register:
        """One access."""
        return self.block.registers.read(self.name, self.place)

    def set(self, value: int) -> None:
        """One access."""
        register = self.block.registers.registers[self.name][1].parse(value)
        self.block.registers.write(register, self.name, self.place)


def _find(blocks: Sequence[NamedBlock], text: str) -> Named:
    """A register, named as ``GC.CP_STAT`` or ``CP_STAT``. Raises InvalidIndex."""
    owner, dot, name = text.upper().rpartition(".")
    indexed = _INDEXED.fullmatch(name)
    name, index = (indexed[1], int(indexed[2])) if indexed else (name, None)
    for block in blocks:
        if name in block.registers.registers and (not dot or block.name == owner):
            return Named(block, name, index)
    raise InvalidIndex(f"no register {text!r} in {', '.join(block.title for block in blocks)}")


def _all(block: NamedBlock) -> Iterator[Named]:
    registers = block.registers.registers
    for name in registers:
        # A generated table has no arrays, and makes an entry only when it is asked for.
        entry = None if isinstance(registers, RegTable) else registers[name]
        indices = range(entry.length) if isinstance(entry, RegArray) else (None,)
        yield from (Named(block, name, index) for index in indices)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu regs`."""
    parser.add_argument("device", help=DEVICE_HELP)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    get = actions.add_parser("get", help="their values, with fields")
    get.add_argument("name", nargs="+", help="as in GC.CP_STAT, or a pattern as in GC.CP_HQD_*")
    get.add_argument("--force", action="store_true", help="also where reading does something")
    write = actions.add_parser("set", help="write one")
    write.add_argument("name", help="as in GC.SCRATCH_REG0")
    write.add_argument("value", type=lambda text: int(text, 0))
    write.add_argument("--force", action="store_true", help="also where writing does something")
    watch = actions.add_parser("watch", help="what changes")
    watch.add_argument("name", nargs="+")
    watch.add_argument("--seconds", type=float, default=10.0)
    diff = actions.add_parser("diff", help="what is not as a file says that `get` has written")
    diff.add_argument("file", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Does what the action says. Raises InvalidIndex for a name that there is not."""
    taken = take(arguments.device)
    try:
        for _ in taken.walk(taken.known):
            pass
        blocks = taken.named_blocks()
        match arguments.action:
            case "get":
                for register in _chosen(blocks, arguments.name, arguments.force):
                    print(_line(register, register.get()))
            case "set":
                _set(_find(blocks, arguments.name), arguments.value, arguments.force)
            case "watch":
                chosen = list(_chosen(blocks, arguments.name, False))
                _watch(taken.card, chosen, arguments.seconds)
            case _:
                return _diff(blocks, read_bytes(arguments.file).decode())
    finally:
        taken.close()
    return 0


def _chosen(blocks: Sequence[NamedBlock], names: list[str], force: bool) -> Iterator[Named]:
    """Registers that are named, or that fit a pattern."""
    for text in names:
        if not set(text) & set("*?"):
            register = _find(blocks, text)
            if _ACTS_ON_READ.search(register.name) and not force:
                raise InvalidValue(
                    f"reading {register.name} does something: say --force if you mean it"
                )
            yield register
            continue
        fitting = [
            register
            for block in blocks
            for register in _all(block)
            if fnmatchcase(register.title, text.upper()) or fnmatchcase(register.name, text.upper())
        ]
        if not fitting:
            raise InvalidIndex(f"no register fits {text!r}")
        yield from (each for each in fitting if not _ACTS_ON_READ.search(each.name))


def _line(register: Named, found: Register) -> str:
    fields = [
        f"{name} {field.extract(found.value):#x}" for name, field in type(found).fields.items()
    ]
    head = f"{register.title} = {found.value:#010x}"
    return f"{head}  {', '.join(fields)}" if fields else head


def _set(register: Named, value: int, force: bool) -> None:
    if _ACTS_ON_WRITE.search(register.name) and not force:
        raise InvalidValue(f"writing {register.name} does something: say --force if you mean it")
    if not 0 <= value < 1 << 32:
        raise InvalidValue(f"{register.name} = {value:#x}: 32 bits are there")
    register.set(value)
    print(_line(register, register.get()))


def _watch(card: PciCard, chosen: list[Named], seconds: float) -> None:
    before: dict[Named, int] = {}
    end = card.waiter.now_ns() + round(seconds * 1e9)
    while True:
        for register in chosen:
            found = register.get()
            if before.get(register) != found.value:
                before[register] = found.value
                print(f"{time.strftime('%H:%M:%S')} {_line(register, found)}")
        if card.waiter.now_ns() >= end:
            return
        card.sleep(0.1)


def _diff(blocks: Sequence[NamedBlock], text: str) -> int:
    """1 where something differs."""
    differ = 0
    for number, line in enumerate(text.splitlines(), 1):
        parts = _LINE.match(line)
        if parts is None:
            raise FormatError(f"line {number}: {line!r} is none that `gpu regs get` writes")
        register = _find(blocks, parts[1])
        before, now = int(parts[2], 16), register.get().value
        if now != before:
            differ = 1
            print(f"{register.title}: {before:#010x} -> {now:#010x}")
    return differ
