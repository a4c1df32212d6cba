"""The tests of tensor operations on the GPU: NV by each of its compilers, and CUDA.

They are the tests of the tree, which pytest runs in several processes where it can: most of their
time goes into compiling.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpu.backends.cuda import find
from gpu.compiler.toolchain.llvm import llvmlite_version
from gpu.compiler.toolchain.mesalib import find_mesa
from gpu.compiler.toolchain.nvlibs import find_library
from gpu.core.errors import Unsupported
from gpu.core.files import read_bytes
from gpu.drivers.questions import variants_text
from gpu.runtime.default import Found
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladders import LADDERS
from tools.hw_acceptance.runner import ROOT
from tools.hw_acceptance.steplog import StepFailed, Unavailable
from tools.hw_acceptance.suites.plan import TENSOR_SECONDS

TESTS: Final = ("tests/backend", "tests/tensor")
_PLUGIN: Final = "tools.hw_acceptance.suites.plugin"
_SEED: Final = 20260101
_SHUTDOWN: Final = 25.0  # seconds from the last test's begin to the end of all processes
_MOST_WORKERS: Final = 8
_ABSENT: Final = re.compile(r"NVIDIA GPU \d+: this process can reach|AMD GPU \d+: there are \d+:")
_MOST_ROWS: Final = 60  # failures that are told one by one


def by_nvrtc(context: Context) -> None:
    """CUDA C. Raises Unavailable where this machine lacks a tool, StepFailed."""
    _need("nvrtc", "nvrtc")
    _run(context, "NV")


def by_ptx(context: Context) -> None:
    """Our own PTX, through LLVM. Raises Unavailable where this machine lacks a tool, StepFailed."""
    _need("nvJitLink", "nvJitLink")
    if importlib.util.find_spec("llvmlite") is None:
        raise Unavailable("llvmlite is not installed, which makes PTX")
    _run(context, "NV:PTX")


def by_nak(context: Context) -> None:
    """Mesa's NAK. Raises Unavailable where this machine lacks its library, StepFailed."""
    try:
        find_mesa()
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
    _run(context, "NV:NAK")


def by_llvm(context: Context) -> None:
    """Code of AMD's GPUs by LLVM. Raises Unavailable without llvmlite, StepFailed."""
    try:
        llvmlite_version()
    except Unsupported as missing:
        raise Unavailable(missing.message) from missing
    _run(context, "AMD")


def by_libcuda(context: Context) -> None:
    """CUDA C on the device CUDA. Raises Unavailable where this machine lacks a tool, StepFailed."""
    _need("nvrtc", "nvrtc")
    look = find.look()
    if look.found is not Found.USABLE:
        raise Unavailable(f"DEV=CUDA has nothing to run on: {look}")
    _run(context, "CUDA")


def run_tests(context: Context, device: str, tests: Sequence[str], seconds: float) -> Path:
    """Runs tests of the tree for about so many seconds; returns the file that the plugin wrote.

    Raises StepFailed where pytest itself fails.
    """
    out, output = context.log.folder / "tests.jsonl", context.log.folder / "pytest.txt"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", _PLUGIN, "-p", "no:cacheprovider"),
        *("--device", device, "--suite-out", str(out), "--suite-seconds", f"{seconds:.0f}"),
        "--continue-on-collection-errors",  # a package that one module lacks costs that module
        *("--suite-seed", str(_SEED), *_workers(context), *tests),
    ]
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
        "SIM": context.chip,
        LADDERS[context.ladder].setting: variants_text(context.force),
    }
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(seconds + _SHUTDOWN)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
            context.log.fact("pytest was killed after", f"{seconds + _SHUTDOWN:.0f} s")
    if not out.exists() or code not in (0, 1, 5, -9):
        tail = output.read_text(encoding="utf-8", errors="replace").strip()[-600:]
        raise StepFailed(f"pytest ended with status {code}: {tail}")
    return out


def tell(context: Context, out: Path, bare: bool = True) -> None:
    """Tells what a file of the plugin says: how many of how many, and each failure.

    A device that is `bare` needs none of the vendor's run-time libraries.
    """
    *whole, _cut = read_bytes(out).split(b"\n")
    lines: list[dict[str, Any]] = [json.loads(line) for line in whole]
    tests = {line["test"]: line for line in lines if "test" in line}
    total = max((line["total"] for line in lines if "total" in line), default=0)
    for line in tests.values():
        if _ABSENT.search(line["error"]):
            line["outcome"] = "without a second GPU"
    counts = Counter(line["outcome"] for line in tests.values())
    context.log.fact("tests", {"all": total, "ran": len(tests), **counts})
    broken = {line["module"]: line["error"] for line in lines if "module" in line}
    if broken:
        context.log.fact("modules that could not be imported", broken)
    failed = [line for line in tests.values() if line["outcome"] == "failed"]
    for line in failed[:_MOST_ROWS]:
        context.log.check(line["test"], False, line["error"])
    ran = f"{len(tests)} of {total} ran, {counts['failed']} failed, {counts['skipped']} skipped"
    context.log.check("tests", bool(tests) and not failed, ran)
    for line in lines:
        if bare and line.get("mapped"):
            words = f"{', '.join(line['mapped'])} (torch imported: {line['torch']})"
            context.log.check("no run-time library of the vendor's", line["torch"], words)


def _run(context: Context, device: str) -> None:
    if importlib.util.find_spec("pytest") is None:
        raise Unavailable("pytest is not installed")
    if not (ROOT / TESTS[0]).exists():
        raise Unavailable(f"{TESTS[0]} is not beside this tool")
    limit = min(context.limit, TENSOR_SECONDS[device])
    context.log.fact("seconds", seconds := max(limit - _SHUTDOWN - 5.0, 5.0))
    tell(context, run_tests(context, device, TESTS, seconds), bare=device != "CUDA")


def _need(library: str, name: str) -> None:
    try:
        find_library(library)
    except Unsupported as missing:
        raise Unavailable(f"{name} is not here: {missing.message}") from missing


def _workers(context: Context) -> list[str]:
    """Processes for xdist; models are slow enough for one."""
    count = min(_MOST_WORKERS, (os.cpu_count() or 1) // 2)
    if context.chip or count < 2 or importlib.util.find_spec("xdist") is None:
        return []
    return ["-n", str(count)]
