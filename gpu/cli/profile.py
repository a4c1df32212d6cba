"""`gpu profile PROGRAM`: which kernels a program spends its time in, for which of its lines.

What takes long to import is imported when a program runs, not with the other commands.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu.cli.options import positive
from gpu.core.config import SETTINGS, TABLE, process_settings
from gpu.core.errors import InvalidValue
from gpu.core.files import why_unwritable

if TYPE_CHECKING:
    from gpu.cli.kernels import Figures, Peaks

_TOP: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu profile`."""
    parser.add_argument(
        "--top",
        type=positive,
        metavar="N",
        help=f"how many kernels are told, those that took most time (default: {_TOP}, as JSON all)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="tell kernels as JSON; what the program prints goes to the error output",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write a timeline too, FILE.json, which Perfetto opens"
    )
    parser.add_argument(
        "--counters",
        metavar="NAMES",
        default="0",
        help="performance counters of an AMD GPU to tell too, such as SQ_WAVES,SQ_INSTS_VALU",
    )
    parser.add_argument("program", metavar="PROGRAM", help="a Python program")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the program"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the program, then prints its kernels; gives its exit code.

    Raises InvalidValue for a program that cannot be read and a timeline that cannot be written.
    """
    from gpu.cli.script import read_script

    text = read_script(arguments.program)
    SETTINGS["GPU_COUNTERS"].convert(arguments.counters, "--counters")
    setting = TABLE
    if arguments.trace is not None:
        setting = SETTINGS["GPU_PROFILE"].convert(arguments.trace, "--trace")
        if why := why_unwritable(Path(setting)):
            raise InvalidValue(f"--trace={arguments.trace}: {why}")
    try:
        with (
            process_settings(GPU_PROFILE=setting, GPU_COUNTERS=arguments.counters),
            redirect_stdout(sys.stderr) if arguments.json else nullcontext(),
        ):
            return _run_program([arguments.program, *arguments.arguments], text)
    finally:
        _tell(arguments)


def _tell(arguments: argparse.Namespace) -> None:
    """Prints what was timed, and writes the timeline."""
    from gpu.cli.kernels import reached_peaks, timed_kernels
    from gpu.runtime.profile import PROFILE

    try:
        PROFILE.save()
    except OSError as error:
        raise InvalidValue(f"--trace={arguments.trace}: {error.strerror}") from error
    peaks = reached_peaks()
    kernels = timed_kernels(peaks)
    PROFILE.clear()
    print((_as_json if arguments.json else _as_text)(kernels, peaks, arguments.top))


def _run_program(script: Sequence[str], text: bytes) -> int:
    """The exit code of a program, whose error is told as Python tells it."""
    from gpu.cli.script import run_script

    try:
        run_script(script, text)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception as error:
        traceback.print_exception(error)
        return 1
    return 0


def _as_text(kernels: Sequence[Figures], peaks: dict[str, Peaks | None], top: int | None) -> str:
    seconds = sum(each.total.seconds for each in kernels)
    runs = sum(each.total.runs for each in kernels)
    lines = [f"{seconds * 1e3:.3f} ms in {runs} runs of {len(kernels)} kernels"]
    for device, best in peaks.items():
        lines.append(f"{device} reaches {best}" if best else f"{device} has no roofline: a model")
    if any(peaks.values()):
        lines.append("roof: the least time by that, as a share of a kernel's fastest run")
    lines += [each.text() for each in kernels[: top or _TOP]]
    rest = kernels[top or _TOP :]
    if rest:
        lines.append(f"  {sum(each.share for each in rest):6.1%}  in {len(rest)} more")
    return "\n".join(lines)


def _as_json(kernels: Sequence[Figures], peaks: dict[str, Peaks | None], top: int | None) -> str:
    data: dict[str, Any] = {
        "seconds": sum(each.total.seconds for each in kernels),
        "peaks": {
            device: best
            and {"gflop_per_s": best.operations / 1e9, "gb_per_s": best.bandwidth / 1e9}
            for device, best in peaks.items()
        },
        "kernels": [each.data for each in kernels[:top]],
    }
    return json.dumps(data, indent=1)
