"""Measuring one workload: every library's answer is compared with numpy's, then they take turns."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gpu.cli.bench.adapters import Array
from gpu.cli.bench.contest import Contestant, Memory
from gpu.cli.bench.libraries import Libraries
from gpu.cli.bench.workloads import WORKLOADS, Scale, Workload
from gpu.core.errors import GpuError

_ROUNDS: Final = 5  # in each, every library has its turn
# Seconds before each turn, also where there is no other library. Threads look for more work for a
# while before they sleep: those of torch's OpenMP took 4 to 8 ms of a processor in the 50 ms after
# its turn (1 ms with OMP_WAIT_POLICY=PASSIVE, which its users do not set), and a product of 512 x
# 512 here took 1.39 times as long at once after it, 1.11 times 50 ms later, 1.08 after 250 ms.
REST: Final = 0.1


class WrongAnswer(GpuError):
    """A library computed something else than numpy."""


@dataclass
class Result:
    """How one library did in one workload.

    Attributes:
        workload: its name.
        library: its name.
        problem: why there are no figures; empty where there are.
        first: seconds of the first call, which compiles.
        samples: seconds of a run, each measured.
        deviation: the largest difference from numpy's answer, as a share of its largest element.
        flops: floating point operations of a run, 0 where they do not matter.
        nbytes: bytes that a run has to move, 0 where they do not matter.
        memory: of the library's process; None where that ran other workloads too.
    """

    workload: str
    library: str
    problem: str = ""
    first: float = 0.0
    samples: list[float] = field(default_factory=list)
    deviation: float = 0.0
    flops: int = 0
    nbytes: int = 0
    memory: Memory | None = None

    @property
    def median(self) -> float:
        """Seconds of a run: the median of all samples."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Seconds below which a quarter, and three quarters, of the samples lie."""
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, method="inclusive")
        return low, high


def measure(libraries: Libraries, name: str, scale: Scale, repeats: int) -> list[Result]:
    """The results of a workload, of all libraries in order."""
    workload = WORKLOADS[name].at(scale)
    expected = workload.answer()
    results = [
        Result(name, library, flops=workload.flops, nbytes=workload.nbytes)
        for library in libraries.names
    ]
    ready: list[tuple[Result, Contestant]] = []
    for result in results:
        try:
            contestant = libraries.contestant(result.library, workload)
            _prepare(contestant, workload, scale, result, expected)
        except GpuError as error:
            result.problem = " ".join(error.message.split())
        else:
            ready.append((result, contestant))
    for number in range(_ROUNDS):
        # The samples of all rounds together are as many as asked for.
        count = (number + 1) * repeats // _ROUNDS - number * repeats // _ROUNDS
        if count:
            _take_turns(ready, count)
    for result, contestant in ready:
        if libraries.isolated and not result.problem:
            result.memory = contestant.memory()
    for result in results:
        libraries.finish(result.library, failed=bool(result.problem))
    return results


def compare(answer: Array, expected: Array, tolerance: float) -> float:
    """The largest difference, as a share of the largest element. Raises WrongAnswer."""
    if answer.shape != expected.shape:
        raise WrongAnswer(
            f"wrong answer: {answer.size} elements to compare, numpy has {expected.size}"
        )
    scale = float(np.abs(expected).max()) or 1.0
    deviation = float(np.abs(answer - expected).max()) / scale
    if not deviation <= tolerance:  # NaN is wrong too
        raise WrongAnswer(
            f"wrong answer: it differs from numpy's by {deviation:.2g} of the largest element, "
            f"{tolerance:.2g} is allowed; no time is given"
        )
    return deviation


def _prepare(
    contestant: Contestant, workload: Workload, scale: Scale, result: Result, expected: Array
) -> None:
    prepared = contestant.prepare(result.workload, scale)
    result.first = prepared.first
    result.deviation = compare(prepared.answer, expected, workload.tolerance)


def _take_turns(ready: list[tuple[Result, Contestant]], count: int) -> None:
    for result, contestant in ready:
        if result.problem:
            continue
        time.sleep(REST)
        try:
            result.samples += contestant.measure(count)
        except GpuError as error:
            result.problem = " ".join(error.message.split())
