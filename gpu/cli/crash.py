"""`gpu crash`: the reports of GPUs that failed, and what one of them says."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpu.core.crashfiles import CrashFolder, crash_folder
from gpu.core.errors import InvalidValue, TransportError
from gpu.core.files import read_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("file", nargs="?", help="a report, as an error names it; without, a list")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs to read")


def run(arguments: argparse.Namespace) -> int:
    """Prints a report, or the files of all that are kept, oldest first."""
    if arguments.file is not None:
        print(_report(Path(arguments.file), arguments.json), end="")
        return 0
    folder = crash_folder()
    if folder is None:
        raise InvalidValue("CRASH_FILES=0: no reports are kept; leave it out to have some")
    _list(folder)
    return 0


def _list(folder: CrashFolder) -> None:
    found = folder.reports()
    for path in found:
        print(path.with_suffix(".txt"))
    if not found:
        print(f"no reports are in {folder.path}: no GPU has failed since it was emptied")


def _report(path: Path, as_json: bool) -> str:
    """A report's content. Raises FormatError for what is none, TransportError."""
    from gpu.drivers.crash import parse_crash

    path = path.with_suffix(".json")
    try:
        data = read_bytes(path)
    except OSError as error:
        raise TransportError(f"reading {path}: {error.strerror}", error.errno) from error
    crash = parse_crash(str(path), data)
    return crash.as_json() if as_json else crash.as_text()
