"""Runs a program of anyone's on the simulated libcuda, which it finds as `libcuda.so.1`.

    python -m gpu.sim.cuda [--chips gh100,gh100] [--seed 1] program.py [arguments]
    python -m gpu.sim.cuda -m pytest [arguments]

What the program did that libcuda leaves undefined is told at its end; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
import threading
from typing import Final

from gpu.core.errors import GpuError
from gpu.sim.cuda.library import VERSION, Library, load
from gpu.sim.cuda.sharedfile import SONAME, load_file

_PAUSE_S: Final = 0.002


def main() -> int:
    """Reads the command line, and runs the program; gives the exit status."""
    asked = _parser().parse_args()
    try:
        library = load(asked.chips, seed=asked.seed, version=asked.cuda)
    except GpuError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        load_file(library.functions, asked.library or f"{folder}/{SONAME}")
        ended = threading.Event()
        threading.Thread(target=_go_on, args=(library, ended), daemon=True).start()
        try:
            status = _run(asked.module, asked.program)
        finally:
            ended.set()
    return _told(library, asked.leaks) or status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m gpu.sim.cuda", description=__doc__.split("\n")[0])
    parser.add_argument("--chips", default="gh100", help="its GPUs, by chips and commas")
    parser.add_argument("--seed", type=int, default=0, help="draws the order of work")
    parser.add_argument("--cuda", type=int, default=VERSION, help="its version, as 13000 for 13.0")
    parser.add_argument("--leaks", action="store_true", help="what was left behind counts as well")
    parser.add_argument("--library", help="where the file goes, for who looks for it by a path")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a file, and its arguments")
    return parser


def _run(is_module: bool, program: list[str]) -> int:
    """Runs a program as Python itself would; gives its exit status."""
    if not program:
        _parser().error("name a program")
    sys.argv = program
    if not sys.flags.safe_path:
        sys.path.insert(0, "" if is_module else program[0].rpartition("/")[0])
    try:
        if is_module:
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0


def _go_on(library: Library, ended: threading.Event) -> None:
    """Lets work run where the program waits for something else than libcuda, as for a callback."""
    while not ended.wait(_PAUSE_S):
        with library.driver.lock:
            library.driver.work.go_on()


def _told(library: Library, leaks: bool) -> int:
    """Tells what was wrong; gives the exit status for that."""
    found = [*library.violations, *(library.left() if leaks else ())]
    for line in (*library.faults, *found):
        sys.stderr.write(f"libcuda: {line}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
