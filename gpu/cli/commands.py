"""The subcommands of `gpu`, and the parser of its command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple

from gpu import __version__
from gpu.cli import (
    boot,
    crash,
    decode,
    demo,
    distributed,
    doctor,
    fw,
    info,
    pagetable,
    pci,
    profile,
    regs,
    smi,
    trace,
    tune,
)
from gpu.cli.bench import command as bench
from gpu.cli.export import command as export


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        help: one line on what it does.
        add_arguments: declares its options.
        run: does it; gives the exit code.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS: Final[dict[str, Command]] = {
    "bench": Command(
        "time workloads, alone or beside other libraries", bench.add_arguments, bench.run
    ),
    "boot": Command(
        "bring a card up without its kernel driver, step by step", boot.add_arguments, boot.run
    ),
    "crash": Command("reports of GPUs that failed", crash.add_arguments, crash.run),
    "decode": Command(
        "what bytes of a command queue or a kernel's descriptor mean",
        decode.add_arguments,
        decode.run,
    ),
    "demo": Command("train a network to read digits", demo.add_arguments, demo.run),
    "distributed": Command(
        "under mpiexec or srun: compare and measure all ranks",
        distributed.add_arguments,
        distributed.run,
    ),
    "doctor": Command(
        "what each device has, or what is missing and how to get it",
        doctor.add_arguments,
        doctor.run,
    ),
    "export": Command("write a model as a web page that runs it", export.add_arguments, export.run),
    "fw": Command("firmware that drivers may ask for", fw.add_arguments, fw.run),
    "info": Command("what is installed, found and set", info.add_arguments, info.run),
    "pagetable": Command(
        "how a card without a kernel driver translates an address",
        pagetable.add_arguments,
        pagetable.run,
    ),
    "pci": Command(
        "PCI functions: take one from its kernel driver, give it back", pci.add_arguments, pci.run
    ),
    "profile": Command(
        "run a program, and tell which kernels took its time, for which of its lines",
        profile.add_arguments,
        profile.run,
    ),
    "regs": Command(
        "registers of a card without a kernel driver, by name", regs.add_arguments, regs.run
    ),
    "smi": Command(
        "GPUs, their memory, clocks and temperatures, and who uses them",
        smi.add_arguments,
        smi.run,
    ),
    "tune": Command(
        "the best schedules that BEAM found: show, export, merge", tune.add_arguments, tune.run
    ),
    "trace": Command("record and compare calls of drivers", trace.add_arguments, trace.run),
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, made from `COMMANDS`."""
    parser = argparse.ArgumentParser(
        prog="gpu", description="GPU drivers in pure Python with a tensor library on top."
    )
    parser.add_argument("--version", action="version", version=f"gpu {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(
            subparsers.add_parser(name, help=command.help, description=command.help)
        )
    return parser
