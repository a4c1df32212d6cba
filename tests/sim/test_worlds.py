"""Which chips `SIM` may name: those whose kernels run, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gpu.core.errors import ConfigError
from gpu.runtime.default import FINDERS
from gpu.sim.amd.chips import CHIPS
from gpu.sim.isa.rdna.chip import CHIPS as RUN
from gpu.sim.worlds import MODELS, Model, find_model, simulate

ADD = "from gpu import Tensor; print((Tensor([1.0, 2.0]) + 1).tolist())"


def run(chip: str) -> subprocess.CompletedProcess[str]:
    """`a + 1` where SIM names a chip."""
    environment = {k: v for k, v in os.environ.items() if k not in ("DEV", "SIM", "TRACE")}
    command = [sys.executable, "-c", ADD]
    return subprocess.run(
        command, env={**environment, "SIM": chip}, capture_output=True, text=True, check=False
    )


def test_a_chip_without_kernels_is_refused_by_those_that_have_them() -> None:
    told = run("gfx90a").stderr.splitlines()[-1]
    assert "SIM=gfx90a: no device has a model of 'gfx90a' that runs kernels" in told
    offered = {word.strip(",;.") for word in told.partition("there are:")[2].split()}
    every = {chip for model in MODELS if model.device in FINDERS for chip in model.chips}
    assert offered & (every | set(CHIPS)) == every
    assert not every & (set(CHIPS) - set(RUN))


@pytest.mark.parametrize("chip", [*find_model("AMD").chips, "a630", "a660"])
def test_what_is_offered_runs(chip: str, need: Callable[[str], None]) -> None:
    need("tinymesa" if chip.startswith("a") else "llvmlite")
    result = run(chip)
    assert result.stdout == "[2.0, 3.0]\n", result.stderr


def test_all_models_over_kfd_run_kernels() -> None:
    assert set(CHIPS) == set(RUN)
    with pytest.raises(ConfigError, match="SIM=gfx1100,gfx90a: AMD has no model of 'gfx90a'"):
        simulate("gfx1100,gfx90a", "AMD")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.interface}+{model.device}")
def test_every_row_makes_machines(model: Model) -> None:
    chips = model.chips[:1] if model.interface == "KGSL" else model.chips  # which has one GPU
    machine, _ = simulate(",".join(chips).upper(), model.device, model.interface)
    assert len(machine.gpus) == len(chips)
    machine.close()
    assert find_model(model.device, model.interface) == model


def test_an_interface_without_a_row() -> None:
    with pytest.raises(ConfigError, match=r"no model of USB\+NV, but of KFD\+AMD"):
        find_model("NV", "USB")
