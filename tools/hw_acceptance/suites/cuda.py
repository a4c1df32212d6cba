"""libcuda by the rules of its model, and the device CUDA beside NV in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from gpu.drivers.questions import variants_text
from tools.hw_acceptance.child import Context
from tools.hw_acceptance.ladders import LADDERS
from tools.hw_acceptance.suites.plan import RULES_SECONDS
from tools.hw_acceptance.suites.tensors import (
    need_libcuda,
    need_tests,
    run_tests,
    seconds_for,
    tell,
)

TESTS: Final = ("tests/sim/cuda",)
_PLUGIN: Final = "tools.hw_acceptance.suites.outcomes"
_DEVICES: Final = ("CUDA", "NV")
_SEED: Final = 18
_ROUNDS: Final = 200
_SIMULATED: Final = 3


def rules(context: Context) -> None:
    """The tests of the outcomes that `docs/reference/cuda-rules.md` lists, on this libcuda.

    One that fails is a rule that libcuda does not have. Raises Unavailable, StepFailed.
    """
    need_libcuda(context)
    need_tests()
    library = f"--libcuda=sim:{context.chip}" if context.chip else "--libcuda=libcuda.so.1"
    seconds = seconds_for(context, RULES_SECONDS)
    # The model is made by each test's own process, so that SIM is not for it.
    out = run_tests(context, (library,), TESTS, seconds, plugin=_PLUGIN, settings={"SIM": ""})
    tell(context, out, bare=False)


def beside(context: Context) -> None:
    """The same random programs on both devices, from a thread each, and copies between them.

    Values are small integers, which every order of a sum gives exactly. Raises Unavailable,
    StepFailed.
    """
    from gpu import Context as Settings

    need_libcuda(context)
    ladder = LADDERS[context.ladder]
    settings = {"SIM": context.chip, ladder.setting: variants_text(context.force)}
    count = _SIMULATED if context.chip else _ROUNDS

    def compute(device: str) -> list[str]:
        with Settings(**settings):  # which are a thread's own
            return _compute(device, count)

    with ThreadPoolExecutor(2) as pool:
        for device, wrong in zip(_DEVICES, pool.map(compute, _DEVICES), strict=True):
            context.log.check(device, not wrong, "; ".join(wrong[:5]) or f"{count} programs")
    with Settings(**settings):
        moved = [_move(np.random.default_rng((_SEED, number))) for number in range(count)]
    context.log.check("copies between them", all(moved), f"{sum(moved)} of {count} right")


def _compute(device: str, count: int) -> list[str]:
    """The programs that gave something wrong."""
    from gpu import Tensor

    rng, wrong = np.random.default_rng(_SEED), list[str]()
    for number in range(count):
        n, m, k = (int(each) for each in rng.integers(1, 65, 3))
        a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((n, m), (m, k)))
        found = (Tensor(a, device=device) @ Tensor(b, device=device)).relu().sum(0).numpy()
        if (found != np.maximum(a @ b, 0).sum(0)).any():
            wrong.append(f"program {number} of shape {n}, {m}, {k}")
    return wrong


def _move(rng: np.random.Generator) -> bool:
    """Whether values are right that went from one device to the other and back."""
    from gpu import Tensor

    values = rng.integers(-99, 99, int(rng.integers(1, 5000))).astype(np.int32)
    there = (Tensor(values, device="CUDA") * 3).to("NV") + 1
    return bool(((there.to("CUDA") - 2).numpy() == values * 3 - 1).all())
