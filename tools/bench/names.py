"""Every name of torch's that this package has, at 10^6 elements beside torch.

    python -m tools.bench.names [--family FAMILY ...] [--above 2] [--json FILE] [NAME ...]
    CPU_THREADS=1 python -m tools.bench.names --clock processor

A line is a call of `tools/torch_names/rows.py` on operands of a million float32 numbers: torch's
microseconds, and how many times as long ours takes. Both are whole calls, eager and without
gradients; calls take turns in one process, and the least of each counts. What torch gives as a view
is multiplied by 1 on both sides. Methods in place are left out: they are those without the
underscore. `--clock processor` counts what the process's threads did, for machines that others use
too; with it both sides should have one thread. At the end are, for each family, the geometric mean
and the names above a bound, of calls that take torch 50 us or more; shorter ones are told apart.
Of those above it `CAUSES` tells why, as far as that is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final, NamedTuple

import torch

from gpu import Device, Tensor
from gpu.core.config import config
from gpu.core.errors import GpuError
from tools.bench.drawn import CLOCKS
from tools.torch_names import compare
from tools.torch_names.operands import first, operands, rng_for
from tools.torch_names.rows import ROWS, Row

ROUNDS: Final = 7
TURN: Final = 1e-3  # seconds of calls in a turn, at least
ENOUGH: Final = 0.6  # seconds for the turns of a name, unless ROUNDS take less
SMALL: Final = 50e-6  # seconds of a call that are little more than being called
REST: Final = 2e-3  # seconds before a turn, in which the other side's threads come to rest
# Why names are slow, as kernels and Python's time on one thread showed it.
CAUSES: Final = {
    "small operands: what is made of many nodes takes Python some 10 us for each": (
        *("nn.MultiLabelSoftMarginLoss", "nn.TripletMarginLoss", "nn.CosineEmbeddingLoss"),
        *("nn.CrossEntropyLoss", "nn.NLLLoss", "nn.MultiMarginLoss", "F.margin_ranking_loss"),
        *("nn.GRUCell", "nn.LSTMCell", "nn.RNNCell", "meshgrid"),
    ),
    "a thousand results, each a tensor that Python makes in 5 us": ("unbind", "split"),
    "a launch for each step of a loop": ("F.ctc_loss",),
    "a kernel for each axis, of which each element chooses among three reads": (
        *(f"nn.{kind}Pad{n}d" for kind in ("Reflection", "Replication") for n in (1, 2, 3)),
        *(f"nn.CircularPad{n}d" for n in (1, 2, 3)),
    ),
    "several polynomials, of which one is taken; or one of a few ulp less error": (
        *("erfc", "S.erfc", "erfinv", "S.erfinv", "erf", "S.erf", "lgamma", "S.gammaln"),
        *("mvlgamma", "S.multigammaln", "F.gelu", "nn.GELU", "tan", "tanh", "F.tanh", "nn.Tanh"),
        *("acos", "arccos", "asin", "arcsin", "atan", "arctan", "atan2", "arctan2"),
    ),
    "a running sum, a scatter and divisions, each over all elements": ("nonzero", "argwhere"),
    "sorts, or looks each element up among edges": (
        *("median", "nanmedian", "histc", "unique_consecutive", "bincount"),
    ),
    "places and weights of four corners are stored, by ten kernels": ("F.grid_sample",),
}


class Times(NamedTuple):
    """Seconds of a call."""

    family: str
    name: str
    call: str
    torch: float
    ours: float

    @property
    def ratio(self) -> float:
        """Ours over torch's."""
        return self.ours / self.torch


def _turn(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Mean seconds of a call."""
    time.sleep(REST)
    call()
    count, start = 0, clock()
    while not count or clock() - start < TURN:
        call()
        count += 1
    return (clock() - start) / count


def measure(row: Row, clock: Callable[[], float]) -> Times:
    """Seconds of a row's call, of either side."""
    call = first(row.call)
    arrays = operands(row.family, rng_for(row.call), "float32", large=True)
    theirs = {name: compare.as_torch(x) for name, x in arrays.items()}
    ours = {name: Tensor(x).realize() for name, x in arrays.items()}
    layer, mine = (
        compare.layers(call, "float32", arrays) if row.family == "layers" else (None, None)
    )
    copied = row.family == "movement"

    def their_call() -> Any:
        with torch.no_grad():
            parts = compare.parts(compare.evaluate(call, theirs, False, layer))
            return [part * 1 for part in parts] if copied else parts

    device = Device[Device.DEFAULT]

    def our_call() -> None:
        with Tensor.no_grad():
            parts = compare.parts(compare.evaluate(call, ours, True, mine))
            tensors = [part * 1 if copied else part for part in parts if isinstance(part, Tensor)]
            if tensors:
                tensors[0].realize(*tensors[1:])
            device.synchronize()

    sides = (their_call, our_call)
    for side in (*sides, *sides):
        side()
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while len(rounds) < 2 or (len(rounds) < ROUNDS and time.perf_counter() - began < ENOUGH):
        rounds.append([_turn(side, clock) for side in sides])
    least = [min(seconds) for seconds in zip(*rounds, strict=True)]
    return Times(row.family, row.name, call, *least)


def _is_slow(times: Times, above: float) -> bool:
    return times.ratio > above and times.torch >= SMALL


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each name, and the families' means."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    families = [f for f in dict.fromkeys(row.family for row in ROWS) if f != "in place"]
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--family", nargs="+", choices=families, default=families)
    parser.add_argument("--above", type=float, default=2, help="ratio from which on a name is told")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, help="a file for all times")
    given = parser.parse_args(arguments)
    torch.set_num_threads(config.CPU_THREADS or torch.get_num_threads())
    wanted: dict[tuple[str, str], Row] = {}
    for row in ROWS:
        if row.family in given.family and (not given.names or row.name in given.names):
            wanted.setdefault((row.family, row.name), row)
    found: list[Times] = []
    for row in wanted.values():
        try:
            times = measure(row, CLOCKS[given.clock])
        except (GpuError, RuntimeError) as error:
            print(f"{row.name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            continue
        found.append(times)
        print(
            f"{times.torch * 1e6:11.1f} us {times.ratio:8.2f}  {row.family:12} {times.call}",
            flush=True,
        )
    print(f"\n| family | names | mean | above {given.above:g} |\n|---|---|---|---|")
    for family in dict.fromkeys(times.family for times in found):
        of_family = [times for times in found if times.family == family]
        mean = geometric_mean(times.ratio for times in of_family)
        slow = sorted((t for t in of_family if _is_slow(t, given.above)), key=lambda t: -t.ratio)
        told = ", ".join(f"`{t.name}` {t.ratio:.1f}" for t in slow) or "none"
        print(f"| {family} | {len(of_family)} | {mean:.2f} | {told} |")
    mean = geometric_mean(times.ratio for times in found)
    print(f"| all | {len(found)} | {mean:.2f} | {sum(_is_slow(t, given.above) for t in found)} |")
    small = [times.name for times in found if times.torch < SMALL and times.ratio > given.above]
    print(f"\nabove {given.above:g}, but less than {SMALL * 1e6:g} us of torch's:", *small)
    slow = list(dict.fromkeys(t.name for t in found if t.ratio > given.above))
    for cause, names in CAUSES.items():
        if told := [name for name in slow if name in names]:
            print(f"\n{cause}:", *told)
    known = {name for names in CAUSES.values() for name in names}
    print("\nno cause is known:", *(n for n in slow if n not in known and n not in small))
    if given.json:
        given.json.write_text(json.dumps([t._asdict() for t in found]))


if __name__ == "__main__":
    main(sys.argv[1:])
