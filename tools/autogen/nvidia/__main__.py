"""`python -m tools.autogen.nvidia`: our tables for NVIDIA against Debian's package.

Each number of ours is the same in the package, DIFFERENT, or not there. Exit status: 0 if none is
different, 1 if one is or the comparison failed, 2 for a wrong command line, 3 if none is different
but a branch's package was to be had nowhere. What driver and GSP firmware 570.144 say to each other
is not compared, as no package has that branch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from ..__main__ import DIFFERS, NOT_CHECKED
from ..debian import Archive, extract
from ..recipe import AutogenError, Package, UnreachableError
from . import tables
from .compare import DIFFERENT, NOT_THERE, SAME, Finding, compare
from .package import PACKAGES, WANTED, read


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.autogen.nvidia",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debs", type=Path, help="an existing folder for downloaded packages")
    parser.add_argument("--all", action="store_true", help="name what is the same, too")
    options = parser.parse_args(arguments)
    failed = skipped = False
    with tempfile.TemporaryDirectory(prefix="autogen-") as scratch:
        archive = Archive(options.debs or Path(scratch))
        for branch, package in PACKAGES.items():
            print(f"{package.name} {package.version}")
            try:
                findings = check(branch, package, archive)
            except UnreachableError as error:
                skipped = True
                print(f"  NOT CHECKED: {error}")
                continue
            failed |= any(one.verdict == DIFFERENT for one in findings)
            print(report(findings, options.all))
    return DIFFERS if failed else NOT_CHECKED if skipped else 0


def check(branch: int, package: Package, archive: Archive) -> list[Finding]:
    """What a branch's package says of all our numbers."""
    structs = {one.name for one in tables.structs(branch)}
    with tempfile.TemporaryDirectory(prefix="autogen-") as name:
        folder = Path(name)
        extract(archive.fetch(package), package, WANTED, folder)
        facts = read(folder, structs, tables.numbers())
    return list(compare(branch, facts))


def report(findings: Iterable[Finding], with_same: bool) -> str:
    """A paragraph for each table, with how many there are of each verdict, and which."""
    by_table: dict[str, list[Finding]] = defaultdict(list)
    for one in findings:
        by_table[one.where].append(one)
    lines = []
    for where, ones in by_table.items():
        counts = Counter(one.verdict for one in ones)
        told = ", ".join(f"{counts[v]} {v}" for v in (SAME, DIFFERENT, NOT_THERE) if counts[v])
        lines.append(f"  {where}: {told}")
        for verdict in (DIFFERENT, NOT_THERE, *([SAME] if with_same else [])):
            texts = [f"{o.name}{f' ({o.why})' * bool(o.why)}" for o in ones if o.verdict == verdict]
            lines += textwrap.wrap(
                f"{verdict}: {', '.join(texts)}" if texts else "",
                width=100,
                initial_indent="    ",
                subsequent_indent="      ",
            )
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AutogenError as error:
        sys.exit(f"tools.autogen.nvidia: {error}")
