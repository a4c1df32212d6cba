"""What `gpu bench` prints and keeps: a few lines for each workload, and all figures as JSON."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpu import __version__
from gpu.cli.bench.libraries import OURS, Libraries
from gpu.cli.bench.measure import Result
from gpu.cli.bench.workloads import WORKLOADS, Scale
from gpu.core.config import config
from gpu.core.errors import InvalidValue
from gpu.core.files import atomic_file

SCHEMA: Final = 1
_MIB: Final = 1 << 20
_UNITS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


def list_workloads() -> None:
    """Prints the table of workloads."""
    width = max(map(len, WORKLOADS))
    for name, entry in WORKLOADS.items():
        print(f"{name:<{width}}  {entry.about}")


class Report:
    """Lines on stdout, and a bar where stderr is a terminal; a context manager, which removes it.

    Attributes:
        results: all so far.
    """

    def __init__(self, scale: Scale, workloads: int):
        from tqdm import tqdm

        self.results: list[Result] = []
        self._scale = scale
        self._versions: dict[str, str] = {}
        self._bar = tqdm(
            total=workloads, unit="workload", leave=False, disable=not sys.stderr.isatty()
        )

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def introduce(self, libraries: Libraries) -> None:
        """Says which libraries there are, and what is missing."""
        self._versions = libraries.versions()
        lines = [f"{name:<10}{version}" for name, version in self._versions.items()]
        lines += [f"{name:<10}missing: {reason}" for name, reason in libraries.missing.items()]
        self._tell([*lines, ""])

    def add(self, results: Sequence[Result]) -> None:
        """Tells the results of one workload."""
        self.results += results
        ours = next((r for r in results if r.library == OURS and not r.problem), None)
        self._tell([_line(result, ours) for result in results])
        self._bar.update()

    def save(self, path: Path) -> None:
        """Writes all figures. Raises InvalidValue where that fails."""
        try:
            with atomic_file(path) as file:
                file.write(json.dumps(self.as_json(), indent=2).encode() + b"\n")
        except OSError as error:
            raise InvalidValue(f"--json={path}: cannot be written, {error.strerror}") from error

    def as_json(self) -> dict[str, Any]:
        """All figures: seconds, bytes and operations a second."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "system": platform.platform(),
            "threads": config.CPU_THREADS,
            "scale": self._scale,
            "libraries": self._versions,
            "results": [_as_json(result) for result in self.results],
        }

    def _tell(self, lines: Sequence[str]) -> None:
        with self._bar.external_write_mode(file=sys.stdout):
            for line in lines:
                print(line, flush=True)


def _line(result: Result, ours: Result | None) -> str:
    head = result.workload if result.library == OURS else f"  {result.library}"
    if result.problem:
        return f"{head:<12}{result.problem}"
    low, high = result.quartiles
    parts = [f"{head:<12}{time_text(result.median):>9}", f"({time_text(low)} to {time_text(high)})"]
    if rate := _rate(result):
        parts.append(rate)
    if result.memory:
        grown = result.memory.peak - result.memory.before
        parts.append(f"peak {result.memory.peak // _MIB} MiB, +{grown // _MIB} MiB")
    if ours is not None and result is not ours:
        parts.append(f"gpu takes {ours.median / result.median:.2f} x as long")
    elif ours is result:
        parts.append(f"first call {time_text(result.first)}")
    return "  ".join(parts)


def time_text(seconds: float) -> str:
    """Three digits and the unit that fits."""
    unit, size = next((row for row in _UNITS if seconds >= row[1]), _UNITS[-1])
    amount = seconds / size
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}"


def _rate(result: Result) -> str:
    if result.nbytes:
        return f"{result.nbytes / result.median / 1e9:.1f} GB/s"
    return f"{result.flops / result.median / 1e9:.1f} GFLOP/s" if result.flops else ""


def _as_json(result: Result) -> dict[str, Any]:
    fields: dict[str, Any] = {"workload": result.workload, "library": result.library}
    if result.problem:
        return {**fields, "problem": result.problem}
    low, high = result.quartiles
    fields |= {
        "problem": "",
        "median": result.median,
        "quartiles": [low, high],
        "best": min(result.samples),
        "samples": len(result.samples),
        "first": result.first,
        "deviation": result.deviation,
        "flops_per_second": result.flops / result.median,
        "bytes_per_second": result.nbytes / result.median,
    }
    if result.memory:
        fields |= {"peak_bytes": result.memory.peak, "imported_bytes": result.memory.before}
    return fields
