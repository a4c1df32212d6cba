"""`BEAM=n`: the best of n schedules of a kernel, measured, and kept for others.

The policies' own choice is measured first. Beside it come what they had to choose from, in the
order of the numbers by which they choose; then, as long as that gains, neighbours of the best. A
schedule that is illegal, wrong, slow to end or fatal is left out. One that is taken was measured
again, in turn with the policies' choice, and was still faster.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from gpu.compiler.ir import kernel as K
from gpu.compiler.opt.opts import Opt
from gpu.compiler.opt.policy.alternatives import alternatives, cost_of, made, neighbours
from gpu.compiler.opt.policy.choose import schedule
from gpu.compiler.targets import Target
from gpu.core.config import config
from gpu.core.devspec import parse_device_name
from gpu.core.errors import DeviceLost, GpuError, IllegalOpt
from gpu.core.log import get_logger
from gpu.runtime.device import Device
from gpu.runtime.recipe import tuned_file
from gpu.runtime.tune.measure import Subject
from gpu.runtime.tune.record import Entries, Entry, add, key_of, read
from gpu.runtime.tune.worker import Remote

log = get_logger(__name__)

# What a schedule must take of the policies' time to be taken in its place, and how often both are
# measured to know that.
GAIN: Final = 0.97
AGAIN: Final = 2
ROUNDS: Final = 3

Schedule = tuple[Opt, ...]


class Measured(Protocol):
    """What gives a cost to schedules of a kernel: a `Subject`, here or in another process."""

    unit: str

    def cost(self, opts: Sequence[Opt]) -> float:
        """What a schedule costs."""


class Budget:
    """Seconds of this process for searching, of which some are spent."""

    def __init__(self) -> None:
        self.spent = 0.0

    @property
    def left(self) -> float:
        """Seconds."""
        return config.BEAM_SECONDS - self.spent


BUDGET: Final = Budget()
_without_file: Entries = {}


def best_schedule(kernel: K.Kernel, device: str, label: str) -> Schedule | None:
    """The best schedule known of a kernel, which is looked for where none is known.

    None for the policies' own choice. Raises FormatError for a file of schedules that is damaged.
    """
    target = Device[device].renderer.target
    path, key = tuned_file(), key_of(kernel, target)
    entry = (read(path) if path else _without_file).get(key)
    if entry is not None and (entry.opts is None or _is_legal(kernel, entry.opts, target)):
        return entry.opts
    if config.BEAM == 1 or BUDGET.left <= 0:
        return None
    began = time.monotonic()
    try:
        found = _searched(kernel, device, label)
    except GpuError as error:  # of the policies' choice: there is nothing to compare with
        log.info("%s: no search: %s", label, error.message)
        return None
    finally:
        BUDGET.spent += time.monotonic() - began
    _keep(path, key, found)
    return found.opts


def _is_legal(kernel: K.Kernel, opts: Schedule, target: Target) -> bool:
    try:
        made(kernel, opts, target)
    except IllegalOpt as error:
        log.warning("a schedule that was found for this kernel does not fit it: %s", error.message)
        return False
    return True


def _keep(path: Path | None, key: str, entry: Entry) -> None:
    if path is None:
        _without_file[key] = entry
    else:
        add(path, {key: entry})


def _searched(kernel: K.Kernel, device: str, label: str) -> Entry:
    """What a search finds. Raises what the policies' own choice raises."""
    target = Device[device].renderer.target
    apart = parse_device_name(device)[0] == "CPU"
    subject: Subject | Remote = Remote(kernel, device) if apart else Subject(kernel, device)
    try:
        return search(kernel, target, subject, label, config.BEAM)
    finally:
        if isinstance(subject, Remote):
            subject.close()


def search(kernel: K.Kernel, target: Target, subject: Measured, label: str, count: int) -> Entry:
    """The best of about `count` schedules of a kernel, or the policies' own."""
    until = time.monotonic() + BUDGET.left
    default = tuple(schedule(kernel, target)[1])
    costs = {default: subject.cost(default)}
    best, tried = default, {default}
    with _progress(label, count) as bar:
        for number in range(ROUNDS):
            drawn = (
                (a.opts for a in alternatives(kernel, target))
                if not number
                else (_ranked(kernel, neighbours(best), target))
            )
            before, room = best, max(1, (count - 1) // ROUNDS)
            for opts in _legal(kernel, drawn, target, tried):
                if room == 0 or time.monotonic() > until:
                    break
                room -= 1
                bar.update()
                _measure(subject, opts, costs)
            best = min(costs, key=costs.__getitem__)
            if number and best is before:
                break
    best = _confirmed(subject, default, best, costs)
    log.info(
        *("%s: %.3g of the policies' cost, %d schedules", label),
        *(costs[best] / costs[default], len(costs)),
    )
    kept = None if best is default else best
    return Entry(label, kept, costs[best], costs[default], subject.unit)


def _measure(subject: Measured, opts: Schedule, costs: dict[Schedule, float]) -> None:
    """Adds what a schedule costs, if it works. Raises DeviceLost where the device is lost."""
    try:
        costs[opts] = subject.cost(opts)
    except DeviceLost:
        raise
    except GpuError as error:
        log.debug("left out: %s: %s", error.message, opts)


def _confirmed(
    subject: Measured, default: Schedule, best: Schedule, costs: dict[Schedule, float]
) -> Schedule:
    """`best` if it is faster each time that both are measured, else `default`."""
    if best is default or subject.unit != "s":
        return best
    for _ in range(AGAIN):
        for opts in (default, best):
            costs[opts] = min(costs[opts], subject.cost(opts))
    return best if costs[best] <= GAIN * costs[default] else default


def _legal(
    kernel: K.Kernel, drawn: Iterable[Schedule], target: Target, tried: set[Schedule]
) -> Iterator[Schedule]:
    """Those of the schedules that are legal, each once, with the partial sums they need."""
    for opts in drawn:
        try:
            done = tuple(made(kernel, opts, target)[1])
        except IllegalOpt:
            continue
        if done not in tried:
            tried.add(done)
            yield done


def _ranked(kernel: K.Kernel, drawn: Iterable[Schedule], target: Target) -> Iterator[Schedule]:
    """Schedules by what they cost, those without a number last."""
    found: list[tuple[float, Schedule]] = []
    for opts in _legal(kernel, drawn, target, set()):
        cost = cost_of(kernel, opts, target)
        found.append((float("inf") if cost is None else cost, opts))
    yield from (opts for _, opts in sorted(found, key=lambda each: each[0]))


def _progress(label: str, count: int) -> Any:
    """A bar on a terminal."""
    import sys

    from tqdm import tqdm

    shown = sys.stderr.isatty()
    return tqdm(total=count, desc=label, unit="schedule", leave=False, disable=not shown)
