"""`gpu regs`: registers of a card without a kernel driver, by name: read, write, watch, compare.

The card's table of blocks is read first, and nothing else of it is touched. A register of which
reading or writing does something is left out of patterns, and wants --force by name.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gpu.cli.cards import take_amd
from gpu.core.errors import FormatError, InvalidIndex, InvalidValue
from gpu.core.files import read_bytes
from gpu.drivers.am.pci.chip import Chip
from gpu.drivers.am.pci.registers import Block

# Of which a read takes something (semaphores), or a write starts something.
_ACTS_ON_READ: Final = re.compile(r"_SEM$|_DATA2?$")
_ACTS_ON_WRITE: Final = re.compile(
    r"_SEM$|_REQ$|_DATA2?$|_INDEX2?$|C2PMSG|RESET|DOORBELL|DEQUEUE|ACTIVE|_WPTR|_RPTR|HALT|F32_CNTL"
    r"|MCU_CNTL|CP_ME_CNTL|MEC_RS64_CNTL|L2_CNTL2|INITIATOR"
)
_LINE: Final = re.compile(r"(\S+) = (0x[0-9a-f]+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu regs`."""
    parser.add_argument("device", help="as in PCI+AMD, or PCI+AMD:1 for the second card")
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
    taken = take_amd(arguments.device)
    chip = taken.card
    try:
        for _ in taken.walk("discovery"):
            pass
        match arguments.action:
            case "get":
                for block, name in _chosen(chip, arguments.name, arguments.force):
                    print(_line(block, name, block.get(name)))
            case "set":
                _set(chip, arguments.name, arguments.value, arguments.force)
            case "watch":
                _watch(chip, arguments.name, arguments.seconds)
            case _:
                return _diff(chip, read_bytes(arguments.file).decode())
    finally:
        taken.close()
    return 0


def _chosen(chip: Chip, names: list[str], force: bool) -> Iterator[tuple[Block, str]]:
    """Registers that are named, or that fit a pattern."""
    for text in names:
        if not set(text) & set("*?["):
            block, name = chip.registers.find(text)
            if _ACTS_ON_READ.search(name) and not force:
                raise InvalidValue(f"reading {name} does something: say --force if you mean it")
            yield block, name
            continue
        fitting = [
            (block, name)
            for block in chip.registers.blocks
            for name in block.registers
            if fnmatchcase(f"{block.ip.name}.{name}", text.upper())
            or fnmatchcase(name, text.upper())
        ]
        if not fitting:
            raise InvalidIndex(f"no register fits {text!r}")
        yield from (each for each in fitting if not _ACTS_ON_READ.search(each[1]))


def _line(block: Block, name: str, value: int) -> str:
    register = block.registers[name][1]
    fields = [f"{each} {field.extract(value):#x}" for each, field in register.fields.items()]
    head = f"{block.ip.name}.{name} = {value:#010x}"
    return f"{head}  {', '.join(fields)}" if fields else head


def _set(chip: Chip, text: str, value: int, force: bool) -> None:
    block, name = chip.registers.find(text)
    if _ACTS_ON_WRITE.search(name) and not force:
        raise InvalidValue(f"writing {name} does something: say --force if you mean it")
    if not 0 <= value < 1 << 32:
        raise InvalidValue(f"{name} = {value:#x}: 32 bits are there")
    block.set(name, value)
    print(_line(block, name, block.get(name)))


def _watch(chip: Chip, names: list[str], seconds: float) -> None:
    chosen = list(_chosen(chip, names, False))
    before: dict[tuple[str, str], int] = {}
    end = chip.waiter.now_ns() + round(seconds * 1e9)
    while True:
        for block, name in chosen:
            value = block.get(name)
            if before.get((block.ip.name, name)) != value:
                before[block.ip.name, name] = value
                print(f"{time.strftime('%H:%M:%S')} {_line(block, name, value)}")
        if chip.waiter.now_ns() >= end:
            return
        chip.sleep(0.1)


def _diff(chip: Chip, text: str) -> int:
    """1 where something differs."""
    differ = 0
    for number, line in enumerate(text.splitlines(), 1):
        parts = _LINE.match(line)
        if parts is None:
            raise FormatError(f"line {number}: {line!r} is none that `gpu regs get` writes")
        block, name = chip.registers.find(parts[1])
        before, now = int(parts[2], 16), block.get(name)
        if now != before:
            differ = 1
            print(f"{block.ip.name}.{name}: {before:#010x} -> {now:#010x}")
    return differ
