"""The guide's blocks make a device, which passes what every device has to pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nested
from docs.documents import tool
from gpu import Tensor
from gpu.compiler.fusion.build import build_kernel
from gpu.compiler.fusion.placement import plan_fusion
from gpu.compiler.ir import linear
from gpu.compiler.ir.optable import OPS
from gpu.compiler.lower.legalize import DERIVATIONS
from gpu.compiler.lower.linearize import linearize
from gpu.compiler.opt.policy.choose import schedule
from gpu.core.errors import CompileError, ConfigError, Unsupported
from gpu.runtime.device import Device, register
from gpu.runtime.execute import realize, storage
from prop.graphs import computed, on
from prop.judge import check, expect
from prop.programs import random_graph
from registered import registered


@pytest.fixture(scope="module")
def toy() -> dict[str, Any]:
    """The names that the guide defines; its last block compares results with numpy."""
    names: dict[str, Any] = tool().guide_device()
    return names


def test_the_guide_gives_a_device(toy: dict[str, Any]) -> None:
    assert Device["toy:1"].device == "TOY:1"
    assert Tensor([1.0], device="TOY").to("CPU").item() == 1.0


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 4)])
def test_results(toy: dict[str, Any], shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[1])
    a = rng.normal(0, 3, shape).astype(np.float32)
    x = Tensor(a, device="TOY")
    exp = np.exp(a.astype(np.float64) - a.max(axis=0))
    np.testing.assert_allclose(x.softmax(0).numpy(), exp / exp.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose((x @ x.permute(1, 0)).numpy(), a @ a.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal((x * 100).cast("int8").sum(1).numpy(), _int8(a * 100).sum(axis=1))
    np.testing.assert_array_equal(x.cast("float16").numpy(), a.astype(np.float16))


def _int8(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.clip(np.trunc(a), -128, 127).astype(np.int32)


@pytest.mark.parametrize("batch", range(2))
def test_random_programs(toy: dict[str, Any], batch: int) -> None:
    for seed in range(3000 + batch * 20, 3020 + batch * 20):
        rng = np.random.default_rng(seed)
        roots, inputs = random_graph(rng, depth=int(rng.integers(3, 25)), max_size=120)
        if wanted := computed(roots):
            done = realize(on("TOY", wanted, inputs))
            got = [storage(node).copy_out().reshape(node.shape) for node in done]
            check(got, expect(wanted, inputs, rng), wanted)


def test_the_suite_for_new_devices_takes_it(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    (tmp_path / "toy_device.py").write_text(tool().guide_code())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "toy_device", "--device=TOY"]
    chosen = ["test_memory.py", "test_programs.py", "test_replay.py"]
    done = subprocess.run(
        [*command, *(str(tests / "backend" / name) for name in chosen)],
        env={**nested.environment(), "PYTHONPATH": str(tmp_path)},
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "TOY: " in done.stdout and " passed" in done.stdout


def test_core_operations_are_those_without_a_derivation() -> None:
    assert {name for name, op in OPS.items() if not op.core} == set(DERIVATIONS)


def test_a_device_is_given_no_operation_it_lacks(toy: dict[str, Any]) -> None:
    target = toy["TARGET"]
    for seed in range(12):
        roots, _ = random_graph(np.random.default_rng(seed), depth=15, max_size=200)
        plan = plan_fusion(computed(roots), lambda node: node.kind == "buffer")
        for number in range(len(plan.kernels)):
            kernel, _ = schedule(build_kernel("k", number, plan).kernel, target)
            body = linearize(kernel, target).body
            assert {i.attr[0] for i in body if i.op == "alu"} <= toy["CORE"]
            assert all(i.lanes == 1 for i in body)


def test_every_instruction_is_in_the_table() -> None:
    text = tool().GUIDE.read_text()
    table = text[text.index("| group |") : text.index("`alu` carries the name")]
    assert sorted(re.findall(r"`(\w+)`", table.replace("`Target`", ""))) == sorted(linear.OPS)


def test_what_the_device_refuses(toy: dict[str, Any]) -> None:
    with pytest.raises(CompileError, match="Python refuses"):
        toy["ToyCompiler"]().compile("def k(:")
    vector = linear.Inst("splat", toy["dtypes"].int32, 4)
    with pytest.raises(Unsupported, match="TOY has no lanes"):
        toy["ToyRenderer"]().render(linear.Program("k", (), (vector,)))


def test_kernels_of_one_text_differ_by_their_launch_data(toy: dict[str, Any]) -> None:
    whole, real = Tensor([1, -2, 3], device="TOY"), Tensor([1.5, -2.5, 3.5], device="TOY")
    a, b = whole.flip(0), real.flip(0)
    a.realize(b)
    assert (a.tolist(), b.tolist()) == ([3, -2, 1], [3.5, -2.5, 1.5])


def test_names_that_cannot_be_registered(toy: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="TOY exists already"):
        register("TOY", toy["open_device"])
    with pytest.raises(ConfigError, match="'my device' cannot name a device"):
        register("my device", toy["open_device"])


def test_a_backend_may_be_a_module(toy: dict[str, Any]) -> None:
    with registered("TOY2", "gpu.backends.python.device") as device:
        assert device.device == "TOY2"
