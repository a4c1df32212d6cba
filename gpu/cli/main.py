"""The command `gpu`: reads the command line, runs a subcommand, turns errors into exit codes.

The exit code is 0 where all went well, 1 after an error of this package (one line on stderr; with
DEBUG=2 the traceback too), 2 for a command line that is not understood, 130 after Ctrl-C, and 141
where the reader of the output went away, as a shell reports SIGPIPE.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from gpu.core.config import config
from gpu.core.errors import ConfigError, GpuError

EXIT_ERROR: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, `sys.argv` by default; gives the exit code."""
    try:
        # Imported here: modules read DEBUG on import, and an error in it is told like any other.
        from gpu.cli.commands import COMMANDS, make_parser

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
        print("gpu: " + " ".join(error.message.split()), file=sys.stderr)
    return EXIT_ERROR


def _wants_traceback() -> bool:
    try:
        return config.DEBUG >= 2
    except ConfigError:  # DEBUG itself may be the error that is being reported
        return False
