"""``python -m tools.fuzz TARGET --count N``: 0 where nothing was found, 1 otherwise."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from functools import partial
from typing import Final

from tools.fuzz.run import CORPUS, corpus, fuzz, keep
from tools.fuzz.targets import TARGETS

_MEMORY: Final = 8 << 30  # bytes of addresses: a size that an input names must not be believed


def main(arguments: list[str]) -> int:
    """Runs a target, or all of them, and says what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--count", type=int, default=10_000, help="inputs, of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep inputs that end in a new way")
    options = parser.parse_args(arguments)
    names = list(TARGETS) if options.target == "all" else [options.target]
    for name in names:
        TARGETS[name].prepare()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    found = 0
    for name in names:
        target, began = TARGETS[name], time.monotonic()
        say = partial(print, f"{name}:", file=sys.stderr, flush=True)
        ran = fuzz(target, corpus(target), options.count, options.seed, say)
        seconds = time.monotonic() - began
        print(
            f"{name}: {ran.count} inputs in {seconds:.0f} s, {ran.refused} refused,"
            f" {len(ran.ways)} ways to end, {len(ran.findings)} findings",
            flush=True,
        )
        for path, (_, how) in zip(
            keep(target, [data for data, _ in ran.findings]), ran.findings, strict=True
        ):
            print(f"  {path.relative_to(CORPUS)}: {how}")
        if options.keep:
            print(f"  {len(keep(target, ran.kept))} kept")
        found += len(ran.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
