"""Kernels that were timed, for people and programs: `gpu profile` and `gpu bench kernels`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from gpu import Device, Tensor, jit
from gpu.cli.bench.report import time_text
from gpu.compiler.opt.policy.alternatives import cost_of
from gpu.core.config import config
from gpu.core.devspec import parse_device_name
from gpu.runtime.profile import PROFILE, Chosen, Row, Total

# Sides of a product, and bytes of a sum of two arrays, from which peaks are taken; runs of each.
_PRODUCTS: Final = (512, 1024)
_COPIED: Final = 1 << 26
_RUNS: Final = 20
_MODELLED: Final = ("AMD", "NV", "CUDA")  # devices that SIM puts models under
_LONG: Final = 36  # columns of a name


class Peaks(NamedTuple):
    """The most that is known to be reached on a device: operations and bytes a second."""

    operations: float
    bandwidth: float

    def seconds(self, operations: int, nbytes: int) -> float:
        """The least that so much work can take: the roofline."""
        return max(operations / self.operations, nbytes / self.bandwidth)

    def __str__(self) -> str:
        return (
            f"{self.operations / 1e9:.1f} GFLOP/s in products of matrices,"
            f" {self.bandwidth / 1e9:.1f} GB/s in a sum of two large arrays"
        )


class Figures(NamedTuple):
    """A kernel that was timed, for one line.

    Attributes:
        row: what it is.
        total: what its runs add up to.
        share: of the time of all kernels.
        roof: the least time by the roofline, as a share of its fastest run; None where that is not
            known.
        chosen: its schedule, where it was compiled here.
    """

    row: Row
    total: Total
    share: float
    roof: float | None
    chosen: Chosen | None

    def text(self, with_schedule: bool = False) -> str:
        """Some lines for people."""
        row, total = self.row, self.total
        seconds = max(total.seconds, 1e-9)
        parts = [
            f"  {self.share:6.1%}  {row.label:<{_LONG}} {total.runs:>5} x"
            f" {time_text(max(total.least, 1e-9)):>9}",
            f"{total.nbytes / seconds / 1e9:8.2f} GB/s"
            f" {total.operations / seconds / 1e9:8.2f} GFLOP/s",
            "roof -" if self.roof is None else f"roof {self.roof:6.1%}",
        ]
        chosen = self.chosen if with_schedule else None
        if chosen is not None:
            cost = cost_of(*chosen)
            parts.append(f"cost {cost:.3g} cycles" if cost else "cost -")
        lines = ["  ".join(parts)]
        if chosen is not None:
            opts = " ".join(map(_short, chosen.opts))
            lines.append(f"          {opts or 'no transformations'}")
        if total.counts:
            found = "  ".join(f"{name} {count}" for name, count in total.counts.items())
            lines.append(f"          {found}")
        if row.scalar:
            lines.append(f"          not vectorised because {row.scalar}")
        if row.line:
            lines.append(f"          for {row.line}")
        return "\n".join(lines)

    @property
    def data(self) -> dict[str, Any]:
        """The same for programs: seconds, bytes, operations and shares of 1."""
        row, total = self.row, self.total
        seconds = max(total.seconds, 1e-9)
        return {
            "device": row.device,
            "kernel": row.label,
            "line": row.line,
            "not_vectorised_because": row.scalar or None,
            "runs": total.runs,
            "seconds": total.seconds,
            "fastest_seconds": total.least,
            "share": self.share,
            "bytes": total.nbytes,
            "operations": total.operations,
            "gb_per_s": total.nbytes / seconds / 1e9,
            "gflop_per_s": total.operations / seconds / 1e9,
            "roofline": self.roof,
            "counters": dict(total.counts),
        }


def timed_kernels(peaks: Mapping[str, Peaks | None]) -> list[Figures]:
    """What the profile has, what took most time first; `peaks` are those of its devices."""
    rows = sorted(PROFILE.rows.items(), key=lambda item: -item[1].seconds)
    whole = sum(total.seconds for _, total in rows) or 1e-9
    found = []
    for row, total in rows:
        best, roof = peaks.get(row.device), None
        if best is not None:
            least = best.seconds(total.operations // total.runs, total.nbytes // total.runs)
            roof = least / max(total.least, 1e-9)
        chosen = PROFILE.schedules.get((row.device, row.label))
        found.append(Figures(row, total, total.seconds / whole, roof, chosen))
    return found


def _short(opt: object) -> str:
    """A transformation without the names of its fields."""
    assert isinstance(opt, tuple)
    return f"{type(opt).__name__}({', '.join(map(_field, opt))})"


def _field(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_field, value))})"
    return str(value)


def measured_peaks(device: str) -> Peaks | None:
    """What products of matrices and a sum of large arrays reach on a device.

    None for models and the interpreter, whose time tells nothing of a machine.
    """
    kind, _ = parse_device_name(device)
    if kind == "PYTHON" or (config.SIM and kind in _MODELLED):
        return None
    operations = 0.0
    for side in _PRODUCTS:
        a, b = _ones(device, side, side), _ones(device, side, side)
        operations = max(operations, 2 * side**3 / _best(lambda x, y: x @ y, a, b))
    a, b = _ones(device, _COPIED // 4), _ones(device, _COPIED // 4)
    return Peaks(operations, 3 * _COPIED / _best(lambda x, y: x + y, a, b))


def reached_peaks() -> dict[str, Peaks | None]:
    """As `measured_peaks`, of each device of the profile.

    At least as many operations as its kernels reached: on a machine that others use too, measuring
    may come to less.
    """
    fastest: dict[str, float] = {}
    for row, total in PROFILE.rows.items():
        rate = total.operations / total.runs / max(total.least, 1e-9)
        fastest[row.device] = max(rate, fastest.get(row.device, 0.0))
    measured = {device: measured_peaks(device) for device in fastest}
    return {
        device: best and best._replace(operations=max(best.operations, fastest[device]))
        for device, best in measured.items()
    }


def _ones(device: str, *shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32), device=device).realize()


def _best(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> float:
    """Seconds of the fastest of a few calls."""
    run, device = jit(lambda x, y: function(x, y).realize()), Device[str(a.device)]
    seconds = []
    for _ in range(2 + _RUNS):
        began = time.perf_counter()
        run(a, b)
        device.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[2:])
