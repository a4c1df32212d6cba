"""Runs torch's own table of operations, with its own sample arguments, against this package.

    python -m tools.torch_ops [NAME ...] [--dtype float32 int64] [--device CPU] [--gradients]

Of each operation that torch tests with a dtype: what has its name here is called with the same
arguments, and has to give the same values, dtypes and shapes; with --gradients the same gradients
too. Differences have to stand in tests/tensor/torch_ops.txt below a line that tells their reason;
what stands there and does not differ is an error too, where all names are run. Torch's table is
part of torch (torch/testing/_internal); it needs the package expecttest.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

import gpu

from .calls import Arguments, counterpart
from .judge import UNDETERMINED, difference, gradient_difference

KNOWN: Final = Path(__file__).resolve().parents[2] / "tests/tensor/torch_ops.txt"
DTYPES: Final = ("float32", "int64")
MISSING: Final = "nothing has its name"


@dataclass(frozen=True)
class Found:
    """How an operation went: samples that were equal, and the differences of the others."""

    name: str
    equal: int
    differences: tuple[str, ...]


def table() -> list[Any]:
    """Torch's operations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def full_name(op: Any) -> str:
    """An operation's name, with that of the variant that torch tests apart."""
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


def run(op: Any, dtype: str, device: str, samples: int, gradients: bool) -> Found:
    """Runs an operation on some of its samples, evenly drawn."""
    call = counterpart(op.name, full_name(op))
    if call is None:
        return Found(full_name(op), 0, (MISSING,))
    torch.manual_seed(0)
    wants = gradients and op.supports_autograd and op.name not in UNDETERMINED
    every = list(op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=wants))
    step = -(-len(every) // samples)
    outcomes = list(filter(None, (_one(op, call, s, device, wants) for s in every[::step])))
    told = tuple(one for one in outcomes if one != "equal")
    return Found(full_name(op), len(outcomes) - len(told), told)


def _one(op: Any, call: Any, sample: Any, device: str, wants: bool) -> str:
    """`equal`, or what differs; empty where torch itself refuses the arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return ""
        arguments = Arguments(device)
        input_, args = arguments.of(sample.input), arguments.of(sample.args)
        try:
            ours = call(input_, *args, **arguments.of(sample.kwargs))
            found = difference(op.name, ours, theirs)
            if wants and not found:
                found = gradient_difference(arguments, ours, theirs)
        except (gpu.GpuError, TypeError) as error:  # refused by us
            found = f"{type(error).__name__}: {error}"
    return found.replace("\n", " ") or "equal"


def known() -> dict[str, list[str]]:
    """By name of an operation, what its differences may be: each holds one of these texts."""
    allowed: dict[str, list[str]] = {}
    for line in KNOWN.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, text = line.partition(": ")
            allowed.setdefault(name, []).append(text)
    return allowed


def surprises(found: Found, allowed: dict[str, list[str]]) -> Iterator[str]:
    """The differences that are not known."""
    texts = allowed.get(found.name, ())
    for one in found.differences:
        if not any(text in one for text in texts):
            yield one


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; 1 if something differs that is not known."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.torch_ops",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="operations; all if none is named")
    parser.add_argument("--dtype", nargs="+", default=DTYPES, help=" ".join(DTYPES))
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--samples", type=int, default=4, help="of each operation at most (4)")
    parser.add_argument("--gradients", action="store_true", help="compare them too (float64)")
    parser.add_argument("--all", action="store_true", help="print what is known, too")
    asked = parser.parse_args(arguments)
    dtypes = ("float64",) if asked.gradients else asked.dtype
    allowed, failed, differing = known(), False, set()
    counts: Counter[str] = Counter()
    ops = [op for op in table() if not asked.names or op.name in asked.names]
    for op in ops:
        mine = [d for d in dtypes if op.supports_dtype(getattr(torch, d), "cpu")]
        ran = [(d, run(op, d, asked.device, asked.samples, asked.gradients)) for d in mine]
        for dtype, found in ran:
            counts["samples"] += found.equal + len(found.differences)
            counts["equal samples"] += found.equal
            new = list(surprises(found, allowed))
            failed |= bool(new)
            if found.differences:
                differing.add(found.name)
            for text in list(found.differences if asked.all else new)[:1]:
                print(f"{found.name}: {text[:300]}  [{dtype}, {len(found.differences)} of"
                      f" {found.equal + len(found.differences)}]", flush=True)  # fmt: skip
        counts["names"] += bool(ran)
        counts["names here"] += bool(ran) and all(MISSING not in f.differences for _, f in ran)
        counts["equal names"] += bool(ran) and not any(f.differences for _, f in ran)
    print(", ".join(f"{number} {what}" for what, number in counts.items()))
    stale = sorted(set(allowed) - differing) if not asked.names and not asked.gradients else []
    for name in stale:
        print(f"{name} is in {KNOWN.name} and does not differ")
    return int(failed or bool(stale))


if __name__ == "__main__":
    sys.exit(main())
