"""Runs the official tests of the array API standard, on a clone that is given.

    git clone https://github.com/data-apis/array-api-tests && cd array-api-tests
    git checkout 55fcc601 && git submodule update --init
    pip install -r requirements.txt
    DEV=CPU python -m tools.array_api path/to/array-api-tests

Dtypes that the namespace says the device lacks are left out, as the suite's own setting has it.
A failure has to stand in tests/array_api/xfails.txt, under the line that tells its reason; one that
stands there and passes is a failure too. The clone stays as it is: a copy of it is run. What
follows `--` is for pytest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpu import array_api

ROOT: Final = Path(__file__).resolve().parents[2]
XFAILS: Final = ROOT / "tests/array_api/xfails.txt"
VERSION: Final = "2025.12"
STANDARD: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)


def main(arguments: list[str]) -> int:
    """Runs the suite; the exit status is pytest's."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("clone", type=Path, help="of data-apis/array-api-tests")
    parser.add_argument("--examples", type=int, default=5, help="drawn for each test (5)")
    parser.add_argument("--no-xfails", action="store_true", help="report every failure")
    given = parser.parse_args(arguments[:split])
    with tempfile.TemporaryDirectory() as folder:
        suite = prepared(given.clone, Path(folder) / "suite")
        command = [
            *(sys.executable, "-m", "pytest", "array_api_tests", "-q", "-p", "no:cacheprovider"),
            *("-p", "tools.array_api.seeded"),
            *(f"--max-examples={given.examples}", "--disable-deadline", "--derandomize"),
            *(() if given.no_xfails else (f"--xfails-file={XFAILS}", "-o", "xfail_strict=true")),
            *arguments[split + 1 :],
        ]
        return subprocess.run(command, cwd=suite, env=environment(), check=False).returncode


def prepared(clone: Path, target: Path) -> Path:
    """A copy of the suite."""
    helpers = Path("array_api_tests/dtype_helpers.py")
    if not (clone / helpers).exists() or not any((clone / "array-api").glob("src/*")):
        raise SystemExit(f"{clone} is no clone of data-apis/array-api-tests with its submodule")
    shutil.copytree(clone, target, ignore=shutil.ignore_patterns(".git", ".hypothesis"))
    return target


def environment() -> dict[str, str]:
    """This process's, with what the suite reads."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {
        "PYTHONPATH": path,
        "ARRAY_API_TESTS_MODULE": "gpu.array_api",
        "ARRAY_API_TESTS_VERSION": VERSION,
        "ARRAY_API_TESTS_SKIP_DTYPES": ",".join(lacking()),
    }


def lacking() -> list[str]:
    """The standard's dtypes that the default device does not compute."""
    info = array_api.__array_namespace_info__()
    return [name for name in STANDARD if name not in info.dtypes()]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
