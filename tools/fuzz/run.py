"""Running inputs: what is a finding, which inputs are worth keeping."""

from __future__ import annotations

import hashlib
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from gpu.core.errors import GpuError
from gpu.core.files import atomic_write, read_bytes
from tools.fuzz.mutate import mutated
from tools.fuzz.targets import Target

CORPUS: Final = Path(__file__).resolve().parents[2] / "tests/fuzz/corpus"
LIMIT: Final = 5.0
"""Seconds of processor time that an input may take."""
_DETAILS: Final = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")
_EVERY: Final = 5000
_READ: Final = "read"


class Stuck(Exception):
    """An input took longer than `LIMIT`."""


@dataclass
class Ran:
    """What became of a run.

    Attributes:
        count: inputs that were read.
        refused: how many of them all readers refused.
        ways: how they ended, without details: kinds of errors, or read whole.
        findings: inputs that ended otherwise, and how.
        kept: inputs that ended in a way that was new.
    """

    count: int = 0
    refused: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[bytes, str]] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)


def corpus(target: Target, folder: Path = CORPUS) -> list[bytes]:
    """The inputs that mutation begins with. Raises FileNotFoundError where there are none."""
    files = sorted((folder / target.name).glob("*"))
    if not files:
        raise FileNotFoundError(f"{folder / target.name} holds no inputs")
    return [read_bytes(path) for path in files]


def fuzz(
    target: Target,
    pool: list[bytes],
    count: int,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Ran:
    """Reads the pool and then ``count`` inputs that are made of it.

    What ends in a new way joins the pool: errors with the same words but other numbers are one way.
    """
    rng, ran, pool = random.Random(seed), Ran(), list(pool)
    for data in pool:
        try_one(target, data, ran)
    ran.kept.clear()
    with bounded():
        for number in range(1, count + 1):
            data = mutated(rng, pool, text=target.text)
            if try_one(target, data, ran):
                pool.append(data)
            if not number % _EVERY:
                say(f"{number} of {count}, {len(ran.ways)} ways to end, {len(ran.findings)} found")
    return ran


def try_one(target: Target, data: bytes, ran: Ran) -> bool:
    """Has all readers read an input; whether that ended in a new way."""
    ran.count += 1
    ways = [_end(reader, data) for reader in target.readers]
    way = " | ".join(told for told, _ in ways)
    is_new = way not in ran.ways
    ran.ways[way] += 1
    ran.refused += all(told != _READ for told, _ in ways)
    wrong = [found for _, found in ways if found]
    if is_new and wrong:
        ran.findings.append((data, "; ".join(wrong)))
    elif is_new:
        ran.kept.append(data)
    return is_new and not wrong


def _end(reader: Callable[[bytes], object], data: bytes) -> tuple[str, str]:
    """How a reader ended, without details; with them, if that is a finding."""
    try:
        reader(data)
    except GpuError as error:
        return f"{type(error).__name__}: {_DETAILS.sub('#', error.message)}", ""
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        return f"FINDING {_DETAILS.sub('#', found)}", found
    return _READ, ""


def keep(target: Target, inputs: list[bytes], folder: Path = CORPUS) -> list[Path]:
    """Writes inputs beside those that they were made of; a name is a hash."""
    place = folder / target.name
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for data in inputs:
        path = place / hashlib.sha256(data).hexdigest()[:16]
        atomic_write(path, data)
        written.append(path)
    return written


@contextmanager
def bounded(limit: float = LIMIT) -> Iterator[None]:
    """Has whatever takes ``limit`` seconds of processor time within it end by `Stuck`.

    The clock goes on from input to input, and is wound again each time it runs out: what is ended
    took between one and two limits.
    """
    last: list[object] = [None]

    def ring(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not try_one.__code__:
            frame = frame.f_back
        now = frame.f_locals.get("data") if frame is not None else None
        if now is not None and now is last[0]:
            raise Stuck(f"an input took {limit} s or more")
        last[0] = now

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
