"""The command `gpu`: reads the command line, runs a subcommand, turns errors into exit codes.

The exit code is 0 where all went well, 1 after an error of this package (one line on stderr; with
DEBUG=2 the traceback too), 2 for a command line that is not understood, 130 after Ctrl-C, and 141
where the reader of the output went away, as a shell reports SIGPIPE.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpu.cli import info
from gpu.core.config import config
from gpu.core.errors import ConfigError, GpuError

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


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
    "info": Command("what is installed, found and set", info.add_arguments, info.run),
}


class _Version(argparse.Action):
    """`--version`: looks it up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"gpu {info.distribution_version('gpu')}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, made from `COMMANDS`."""
    parser = argparse.ArgumentParser(
        prog="gpu", description="GPU drivers in pure Python with a tensor library on top."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(
            subparsers.add_parser(name, help=command.help, description=command.help)
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, `sys.argv` by default; gives the exit code."""
    try:
        parsed = make_parser().parse_args(arguments)
        code = COMMANDS[parsed.command].run(parsed)
        sys.stdout.flush()
    except GpuError as error:
        return _report(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends, into this.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _report(error: GpuError) -> int:
    if _wants_traceback():
        traceback.print_exception(error)
    else:
        print("gpu: " + " ".join(str(error).split()), file=sys.stderr)
    return EXIT_ERROR


def _wants_traceback() -> bool:
    try:
        return config.DEBUG >= 2
    except ConfigError:  # DEBUG itself may be the error that is being reported
        return False
