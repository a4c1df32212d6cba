"""Counts the names of torch's that give what torch gives.

    python -m tools.torch_names [--family FAMILY ...] [--draws 2] [NAME ...]

Each call is tried in four dtypes and, where torch has them, with gradients; arguments, shapes and
numbers are drawn. A name passes where all of its calls do. It prints what fails, and the share.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tools.torch_names.compare import compare, compare_gradients, dtypes_of
from tools.torch_names.rows import ROWS, Row

# What is known to differ, and why.
EXPECTED: Final = {
    "all": "of uint8 torch gives uint8; here it is bool, as the array API standard has it",
    "any": "the same",
}


def failures(row: Row, draws: int) -> list[str]:
    """What is wrong with a row, a line each."""
    found, taken = [], 0
    for number in range(draws):
        for dtype in dtypes_of(row):
            try:
                taken += compare(row, dtype, number)
            except Exception as error:
                found.append(
                    f"{dtype}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                )
        try:
            compare_gradients(row, number)
        except Exception as error:
            found.append(f"gradients: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return found if taken or found else ["torch refuses it in every dtype"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what fails and how many names pass; 1 where those are less than 95 of a hundred."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--family", nargs="+", choices=sorted({r.family for r in ROWS}))
    parser.add_argument(
        "--draws", type=int, default=2, help="of arguments and shapes, for each dtype"
    )
    given = parser.parse_args(arguments)
    wanted = [
        row for row in ROWS
        if row.name in (given.names or [row.name])
        and row.family in (given.family or [row.family])
    ]  # fmt: skip
    names: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for row in wanted:
        told = failures(row, given.draws)
        names[row.family, row.name] += told
        if told:
            print(row.family, "|", row.call, *told[:2], sep="\n    ", flush=True)
    print("\n| family | names | pass |\n|---|---|---|")
    for family in dict.fromkeys(row.family for row in wanted):
        of_family = [told for (each, _), told in names.items() if each == family]
        print(f"| {family} | {len(of_family)} | {sum(not told for told in of_family)} |")
    passed = sum(not told for told in names.values())
    print(f"| all | {len(names)} | {passed} ({passed / len(names):.1%}) |")
    return 0 if passed >= 0.95 * len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
