"""`gpu bench`: times workloads, each after its answer has been compared with numpy's.

What takes long to import is imported when a benchmark runs, not with the other commands.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from gpu.cli.options import positive
from gpu.core.config import Context
from gpu.core.devspec import did_you_mean
from gpu.core.errors import InvalidValue
from gpu.core.files import why_unwritable

DEFAULT_REPEATS: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu bench`."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("kernels", "compile"),
        help="instead of times of workloads: their kernels, each with its time, share of the "
        "roofline and schedule; or where the time of compiling them went",
    )
    parser.add_argument(
        "script", nargs="*", help="after kernels or compile: a program, instead of workloads"
    )
    parser.add_argument("--list", action="store_true", help="show the workloads and stop")
    parser.add_argument(
        "--workloads", metavar="NAMES", help="which to run, as in gemm1024,softmax (default: all)"
    )
    parser.add_argument(
        "--against",
        metavar="NAMES",
        default="",
        help="libraries to compare with, of torch, jax and tinygrad; each runs in a process of "
        "its own, in turn with this package",
    )
    parser.add_argument(
        "--peer-python",
        metavar="PATH",
        default=sys.executable,
        help="the interpreter that has these libraries (default: this one)",
    )
    parser.add_argument(
        "--repeats",
        type=positive,
        default=DEFAULT_REPEATS,
        metavar="N",
        help="timed samples of each (default: %(default)s)",
    )
    parser.add_argument(
        "--scale",
        choices=("full", "small"),
        default="full",
        help="small: tiny sizes, to see whether everything works (default: %(default)s)",
    )
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="run each workload in a new process, and tell how much memory it needed",
    )
    parser.add_argument(
        "--device", metavar="NAME", default="", help="where to compute, as in DEV=, as CPU:CLANG"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all figures in a file")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; 1 where this package failed or gave a wrong answer, else 0.

    Raises InvalidValue for an unknown workload or library, or a file that cannot be written.
    """
    from gpu.cli.bench.libraries import OURS, Libraries
    from gpu.cli.bench.measure import measure
    from gpu.cli.bench.peers import PEERS
    from gpu.cli.bench.report import Report, list_workloads
    from gpu.cli.bench.workloads import WORKLOADS

    if arguments.list:
        list_workloads()
        return 0
    everything = ",".join(WORKLOADS)
    names = _chosen("--workloads", arguments.workloads or everything, list(WORKLOADS))
    if arguments.what:
        _inspect(arguments, names)
        return 0
    peers = _chosen("--against", arguments.against, list(PEERS))
    _check_output(arguments.json)
    with (
        Context(DEV=arguments.device) if arguments.device else nullcontext(),
        Libraries(peers, arguments.peer_python, arguments.device, arguments.isolate) as libraries,
        Report(arguments.scale, len(names)) as report,
    ):
        report.introduce(libraries)
        for name in names:
            report.add(measure(libraries, name, arguments.scale, arguments.repeats))
    if arguments.json:
        report.save(arguments.json)
    return int(any(r.library == OURS and r.problem for r in report.results))


def _inspect(arguments: argparse.Namespace, names: list[str]) -> None:
    """`gpu bench kernels` and `gpu bench compile`."""
    from gpu.cli.bench.inspection import inspected, show_compiling, show_kernels

    if arguments.script and arguments.workloads:
        raise InvalidValue("a script is looked into, or --workloads, not both")
    programs = inspected(names, arguments.script, arguments.scale)
    with Context(DEV=arguments.device) if arguments.device else nullcontext():
        (show_kernels if arguments.what == "kernels" else show_compiling)(programs)


def _chosen(option: str, text: str, known: list[str]) -> list[str]:
    """The names in a comma list, each once. Raises InvalidValue for one that is not known."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidValue(f"{option}={text}: there is no {name!r}{hint}")
    return names


def _check_output(path: Path | None) -> None:
    """Before all the work, what is known to fail after it."""
    if path is not None and (why := why_unwritable(path)):
        raise InvalidValue(f"--json={path}: {why}")
