"""`gpu demo`: trains a small network to read handwritten digits, and draws what it makes of them.

At the end a simulated GPU has to come to the same answers.

What takes long to import is imported when the demo runs, not with the other commands.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpu.cli.options import positive
from gpu.core.config import Context
from gpu.core.errors import InvalidValue, Unsupported
from gpu.core.files import atomic_file
from gpu.runtime.device import Device
from gpu.runtime.prepared import Counters

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpu.cli.demo_training import StepReport, Training

DEFAULT_STEPS: Final = 300
_REPORTS: Final = 6  # lines on how training goes
_SHOWN: Final = 60  # images in the picture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `gpu demo`."""
    parser.add_argument(
        "--seed", type=int, default=0, help="fixes all random numbers (default: %(default)s)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="where to compute, as in DEV=, such as CPU:CLANG"
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=DEFAULT_STEPS,
        help="batches to learn from (default: %(default)s); few for a slow device",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("digits.png"),
        metavar="PATH",
        help="where the picture goes (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Trains, tests and draws.

    Raises ConfigError for an unknown device, InvalidValue where the picture cannot be written.
    """
    _check_output(arguments.output)
    with Context(DEV=arguments.device) if arguments.device else nullcontext():
        _demonstrate(arguments)
    return 0


def _demonstrate(arguments: argparse.Namespace) -> None:
    start = time.perf_counter()
    about = Device[Device.DEFAULT].describe()
    workers = int(about["workers"])
    _tell(
        "device", f"{about['device']} ({about['renderer']}, {workers} worker{'s'[: workers > 1]})"
    )

    from gpu.cli.demo_training import Training

    training = Training(arguments.seed, arguments.steps)
    progress = _train(training)
    before = time.perf_counter()
    predicted = training.test()
    end = time.perf_counter()
    labels = training.testing.labels
    right = int((predicted == labels).sum())
    _tell(
        "accuracy", f"{right / len(labels):.2%}: {right} of {len(labels)} digits never seen before"
    )
    _tell(
        "time",
        f"{end - start:.1f} s: {progress.seconds:.1f} s training at {progress.rate()} steps/s, "
        f"{end - before:.1f} s testing",
    )
    _tell(
        "kernels",
        f"{Counters.kernels} compiled, in {Counters.compiled} graphs; {progress.launches} launched "
        "in a step",
    )
    _draw(training, predicted, arguments.output)
    _simulate(training, predicted)


def _train(training: Training) -> _Progress:
    count = len(training.training.labels)
    _tell("training", f"{training.steps} steps on {count:,} digits; the first one compiles ...")
    progress = _Progress(training.steps)
    try:
        training.run(progress)
    finally:
        progress.close()
    return progress


class _Progress:
    """Shows how training goes: lines on stdout, and a bar where stderr is a terminal.

    Attributes:
        seconds: the time all steps took.
        launches: kernels launched in the last step.
    """

    def __init__(self, steps: int):
        from tqdm import tqdm

        self.seconds, self.launches = 0.0, 0
        self._steps, self._every = steps, -(-steps // _REPORTS)
        self._recent: list[StepReport] = []
        self._times: list[float] = []
        self._bar = tqdm(total=steps, unit="step", leave=False, disable=not sys.stderr.isatty())

    def __call__(self, report: StepReport) -> None:
        """Takes note of a step."""
        self.seconds += report.seconds
        self.launches = report.launches
        self._times.append(report.seconds)
        self._recent.append(report)
        self._bar.update()
        if report.number == 1:
            compiled = f"{Counters.kernels} kernels compiled" if Counters.kernels else "all cached"
            self._tell("", f"first step done after {report.seconds:.2f} s, {compiled}")
        if report.number % self._every == 0 or report.number == self._steps:
            self._summarise()

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()

    def rate(self) -> str:
        """Steps a second in the long run: by the median step, which does not compile."""
        rate = 1 / sorted(self._times)[len(self._times) // 2]
        return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"

    def _summarise(self) -> None:
        loss = sum(report.loss for report in self._recent) / len(self._recent)
        accuracy = sum(report.accuracy for report in self._recent) / len(self._recent)
        number = self._recent[-1].number
        self._recent.clear()
        width = len(str(self._steps))
        self._tell("", f"step {number:{width}}  loss {loss:.3f}  accuracy {accuracy:.1%}")

    def _tell(self, title: str, text: str) -> None:
        with self._bar.external_write_mode(file=sys.stdout):
            _tell(title, text)


def _draw(training: Training, predicted: npt.NDArray[np.int64], path: Path) -> None:
    from gpu.cli.demo_picture import choose, draw
    from gpu.cli.png import encode

    shown = choose(predicted, training.testing.labels, _SHOWN)
    images, labels = training.testing.at(shown)
    data = encode(draw(images, predicted[shown], labels))
    try:
        with atomic_file(path) as file:
            file.write(data)
    except OSError as error:
        raise InvalidValue(
            f"--output={path}: cannot be written, {error.strerror}; name another file"
        ) from error
    _tell("picture", f"{path}: {len(shown)} of these digits with the answers; wrong ones are red")


def _simulate(training: Training, predicted: npt.NDArray[np.int64]) -> None:
    from gpu.cli.demo_simulated import run_simulated

    try:
        found = run_simulated(training)
    except Unsupported as error:
        _tell("simulated", f"left out: {error}")
        return
    same = int((found.predicted == predicted).sum())
    _tell(
        "simulated",
        f"{same} of {len(predicted)} answers are the same on a simulated {found.chip}, "
        f"{found.seconds:.1f} s",
    )
    counts = found.counts
    _tell(
        "",
        f"{counts.ioctls} ioctls, {counts.doorbells} doorbells, {counts.packets} packets, "
        f"{counts.kernels} kernels, {counts.instructions:,} instructions",
    )


def _check_output(path: Path) -> None:
    """Before all the work, what is known to fail after it."""
    if os.path.isdir(path):
        raise InvalidValue(f"--output={path}: is a folder; name a file in it")
    if not os.path.isdir(path.parent):
        raise InvalidValue(f"--output={path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise InvalidValue(
            f"--output={path}: the folder {path.parent} cannot be written to; name another"
        )


def _tell(title: str, text: str) -> None:
    print(f"{title:<10}{text}", flush=True)
