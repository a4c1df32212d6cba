"""`gpu tune`: the file of the best schedules that searches (`BEAM=n`) found."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpu.core.errors import InvalidValue
from gpu.runtime.recipe import tuned_file
from gpu.runtime.tune.record import Entries, add, merged, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what can be done with schedules."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="each kernel, and what its schedule gained")
    show.add_argument("file", type=Path, nargs="?", help="instead of the file in use")
    export = actions.add_parser("export", help="write what is known to a file, to be shipped")
    export.add_argument("out", type=Path)
    merge = actions.add_parser("merge", help="add files of others to the file in use")
    merge.add_argument("files", type=Path, nargs="+")


def run(arguments: argparse.Namespace) -> int:
    """Does it. Raises FormatError for a file that is damaged, or is something else."""
    if arguments.action == "show":
        _show(read(_present(arguments.file)) if arguments.file else read(_in_use()))
    elif arguments.action == "export":
        known = read(_in_use())
        if not known:
            raise InvalidValue(f"no schedules are known in {_in_use()}; run a program with BEAM=8")
        entries = add(arguments.out, known)
        print(f"{arguments.out}: {len(entries)} kernels")
    else:
        files = [read(_present(file)) for file in arguments.files]
        entries = add(_in_use(), merged(files))
        print(f"{_in_use()}: {len(entries)} kernels")
    return 0


def _in_use() -> Path:
    path = tuned_file()
    if path is None:
        raise InvalidValue("there is no cache folder to keep schedules in; set TUNED to a file")
    return path


def _present(file: Path) -> Path:
    if not file.is_file():
        raise InvalidValue(f"there is no file {file}")
    return file


def _show(entries: Entries) -> None:
    for key, entry in sorted(entries.items(), key=lambda item: item[1].cost / item[1].default):
        share = f"{entry.cost / entry.default:5.2f}"
        cost = f"{entry.cost * 1e6:10.1f} us" if entry.unit == "s" else f"{entry.cost:10.0f} work"
        what = "as the policies choose" if entry.opts is None else f"{len(entry.opts)} steps"
        print(f"{share} x {cost}  {entry.label:<40} {what:<24} {key}")
