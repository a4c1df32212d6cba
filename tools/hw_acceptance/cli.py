"""The commands: prepare, run, report, and what `run` starts as children."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from gpu.core.errors import GpuError, InvalidValue
from gpu.transport import nvidia as nodes
from tools.hw_acceptance import folder as prepared
from tools.hw_acceptance.amd.environment import describe_tree
from tools.hw_acceptance.child import run_child
from tools.hw_acceptance.children import die_with_parent
from tools.hw_acceptance.kernellog import KernelLog
from tools.hw_acceptance.kernels import ARCHITECTURES
from tools.hw_acceptance.ladders import LADDERS, Ladder, choose_ladder
from tools.hw_acceptance.markdown import write_document
from tools.hw_acceptance.metal import run as metal
from tools.hw_acceptance.model import RISKED, Report, read_report
from tools.hw_acceptance.nvrtc import load_nvrtc
from tools.hw_acceptance.prepare import prepare
from tools.hw_acceptance.runner import ROOT, ChildLauncher, Runner, choose, without_hardware

FOLDER: Final = Path(".hw")
DEADLINE: Final = 540.0  # seconds
_PATIENCE: Final = 4.0  # a model takes so many times as long as a GPU, where others compute too


def main(arguments: list[str]) -> int:
    """Runs a command; 0 if it went well, 1 if not, with the reason on standard error."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
    except GpuError as error:
        print(f"hw_acceptance: {error.message}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.hw_acceptance", description=__doc__)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("prepare", help="make the folder that a run takes along")
    make.add_argument("--folder", type=Path, default=FOLDER)
    make.add_argument("--nvrtc", type=Path, help="the file of libnvrtc, where it is not found")
    make.add_argument(
        "--arch", type=int, nargs="+", default=ARCHITECTURES, help="such as 90 for sm_90"
    )
    make.set_defaults(command=_prepare)
    run = commands.add_parser("run", help="run the steps on this machine's GPU")
    run.add_argument("--vendor", choices=LADDERS, default="", help="by default whose GPU is here")
    run.add_argument("--folder", type=Path, default=FOLDER, help="for NVIDIA: what prepare made")
    run.add_argument("--out", type=Path, required=True, help="where result files go")
    run.add_argument("--deadline", type=float, default=DEADLINE, help="seconds for all of it")
    run.add_argument("--only", default="", help="names, numbers or groups of steps, with commas")
    run.add_argument("--resume", type=Path, help="an earlier report")
    run.add_argument(
        "--risk-display", action="store_true", help="hang a card that lights a screen, too"
    )
    run.add_argument("--sim", default="", metavar="CHIP", help="rehearse on a model, as gh100")
    run.add_argument("--control", type=Path, default=Path(nodes.CONTROL), help=argparse.SUPPRESS)
    run.set_defaults(command=_run)
    mac = commands.add_parser("metal", help="run what a Mac alone can show, into one report")
    metal.add_arguments(mac)
    mac.set_defaults(command=metal.command)
    report = commands.add_parser("report", help="turn a report into a document")
    report.add_argument("report", type=Path)
    report.add_argument("--docs", type=Path, default=ROOT / "docs/hardware")
    report.set_defaults(command=_report)
    child = commands.add_parser("child", help="(what run starts)")
    child.add_argument("--run", required=True)
    child.add_argument("--work", type=Path, required=True)
    child.add_argument("--folder", type=Path, required=True)
    child.add_argument("--force", type=json.loads, default={})
    child.add_argument("--options", type=json.loads, default={})
    child.add_argument("--sim", default="")
    child.add_argument("--ladder", choices=LADDERS, default="nvidia")
    child.add_argument("--limit", type=float, default=math.inf)
    child.set_defaults(command=_child)
    return parser


def _prepare(options: argparse.Namespace) -> int:
    prepare(options.folder, load_nvrtc(options.nvrtc), options.arch)
    return 0


def _run(options: argparse.Namespace) -> int:
    ladder, reasons = choose_ladder(options.vendor, options.sim, options.control)
    if ladder is None:
        print("\n".join(reasons))
        print("Nothing was run, and nothing is claimed.")
        return 0
    began = time.monotonic()
    only = [each for each in options.only.split(",") if each]
    steps = choose(ladder.steps, only)
    folder = options.folder.resolve()
    report = _begun(options, ladder, folder)
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hw-acceptance-")))
        library = _unpack(report, folder, scratch) if ladder.prepared else ROOT
        log = KernelLog()
        stack.callback(log.close)
        if not options.sim and ladder.kept_open:
            stack.callback(_close_all, _keep_open(ladder.kept_open))
        runner = Runner(
            steps=without_hardware(steps) if options.sim else steps,
            last=without_hardware(ladder.last) if options.sim else ladder.last,
            report=report,
            out=options.out,
            work=scratch / "work",
            launch=ChildLauncher(
                *(folder, library, folder / prepared.RECORDER, options.sim, ladder.name)
            ),
            kernel_log=log,
            deadline=options.deadline - (time.monotonic() - began),
            patience=_PATIENCE if options.sim else 1.0,
            check_needs=not only,
            say=partial(print, flush=True),
        )
        return 0 if runner.run() else 1


def _begun(options: argparse.Namespace, ladder: Ladder, folder: Path) -> Report:
    """The report that a run adds to. Raises InvalidValue for an earlier one of another GPU."""
    manifest = prepared.read_manifest(folder) if ladder.prepared else describe_tree()
    report = read_report(options.resume) if options.resume is not None else Report()
    if report.results and (report.vendor, report.simulated) != (ladder.name, options.sim):
        raise InvalidValue(
            f"{options.resume} is a report of {report.simulated or report.vendor}, and this run one"
            f" of {options.sim or ladder.name}: resume it with the same"
        )
    report.manifest, report.vendor, report.simulated = manifest, ladder.name, options.sim
    report.started = datetime.now(UTC).isoformat(timespec="seconds")
    if options.risk_display:
        report.options[RISKED] = "risked"
    return report


def _unpack(report: Report, folder: Path, scratch: Path) -> Path:
    """The wheel of a prepared folder, as a library; which of its files are not as in the tree."""
    library = prepared.unpack_wheel(folder, scratch / "library")
    report.manifest["differs"] = prepared.differing_sources(library, ROOT)
    if names := report.manifest["differs"]:
        print(f"{len(names)} files differ from the wheel, which is what runs: {names[:3]} ...")
    return library


def _keep_open(nodes: str) -> list[int]:
    """Holds the GPUs' nodes: when the last file is closed, the driver shuts a GPU down.

    Without it each child would start the GPU anew, which takes seconds.
    """
    held = []
    for path in sorted(Path("/dev").glob(nodes)):
        try:
            held.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            print(f"{path} cannot be held open: {error.strerror}")
    return held


def _close_all(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)


def _report(options: argparse.Namespace) -> int:
    for path in write_document(read_report(options.report), options.docs):
        print(path)
    return 0


def _child(options: argparse.Namespace) -> int:
    die_with_parent()
    given = (options.run, options.work, options.folder, options.force, options.options)
    return run_child(*given, options.sim, options.limit, options.ladder)
