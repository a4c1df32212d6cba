#!/usr/bin/env python3
"""`all_reduce` of tensors beside mpi4py's Allreduce on numpy arrays, in turn, in one run.

    mpiexec -n 2 --bind-to none python tools/bench/distributed.py [--rounds 9]

Prints a row for each size: microseconds of a call whose result is read, the median of the best
round, of both; medians of a run that others disturb differ by far more than what is measured.
Values are compared first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from gpu import Tensor, distributed

SIZES: Final = ((1 << 10, 200), (1 << 20, 40), (64 << 20, 5))  # bytes, and calls of a round


def main() -> None:
    """Measures all sizes; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    group = distributed.init()
    if group.size == 1:
        parser.error("start it with mpiexec")
    from mpi4py import MPI

    def median(call: Callable[[], object], count: int) -> float:
        call()
        group.barrier()
        times = []
        for _ in range(count):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        group.barrier()
        return statistics.median(times) * 1e6

    for nbytes, count in SIZES:
        array = np.full(nbytes // 4, group.rank + 1, np.float32)
        result = np.empty_like(array)
        tensor = Tensor(array).realize()

        def ours(tensor: Tensor = tensor) -> object:
            return np.asarray(group.all_reduce(tensor))

        def theirs(array: np.ndarray = array, result: np.ndarray = result) -> object:
            return MPI.COMM_WORLD.Allreduce(array, result)

        theirs()
        np.testing.assert_array_equal(ours(), result)
        pairs = [(median(ours, count), median(theirs, count)) for _ in range(rounds)]
        best, other = (min(times) for times in zip(*pairs, strict=True))
        if group.rank == 0:
            print(f"{nbytes:>9} bytes: {best:9.1f} us, mpi4py {other:9.1f} us", flush=True)


if __name__ == "__main__":
    main()
