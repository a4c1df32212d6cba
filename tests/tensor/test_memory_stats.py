"""What tensors take of each device's memory, who holds it, limits, and leaks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

import gpu
from gpu import Context, Device, Tensor
from gpu.compiler.ir.graph import build as G
from gpu.compiler.ir.graph.body import Parameter
from gpu.core.errors import ConfigError, MemoryLeak, OutOfMemory
from gpu.runtime.origins import copy_origin

KIB = 1024


def filled(device: str, kib: int, value: float = 1.0) -> Tensor:
    return Tensor(np.full(kib * KIB // 4, value, np.float32), device=device).realize()


def test_live_peak_and_reserved(device: str) -> None:
    Device[device].allocator.free_cache()
    before = gpu.memory_stats()[device]
    gpu.reset_peak_memory_stats()
    kept = filled(device, 24)
    passing = filled(device, 40)
    del passing
    after = gpu.memory_stats()[device]
    assert after.live - before.live == 24 * KIB
    assert after.peak - before.live == 64 * KIB
    assert after.reserved >= after.live
    gpu.reset_peak_memory_stats()
    assert gpu.memory_stats()[device].peak == after.live
    del kept
    assert gpu.memory_stats()[device].live == before.live


def test_a_replay_needs_no_second_set_of_gradients() -> None:
    """What it does not read is let go of before; what it adds to is not, and others' stay."""
    weight = Tensor(np.ones(KIB * 64, np.float32), requires_grad=True)
    size = weight.numel() * 4

    @gpu.jit
    def anew(x: Tensor) -> Tensor:
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        return loss

    @gpu.jit
    def added(x: Tensor) -> Tensor:
        loss = (weight * x).sum()
        loss.backward()
        return loss

    def peak(step: Callable[[Tensor], Tensor], x: float) -> int:
        gpu.reset_peak_memory_stats()
        before = gpu.memory_stats()["CPU"].live
        step(Tensor(x)).item()
        return gpu.memory_stats()["CPU"].peak - before

    for number in range(4):
        peak(anew, number)
    assert peak(anew, 4.0) < size
    assert weight.grad is not None
    kept = weight.grad
    anew(Tensor(5.0)).item()
    np.testing.assert_array_equal(kept.numpy(), np.full(weight.shape, 4.0, np.float32))
    for _ in range(3):
        added(Tensor(1.0)).item()
    np.testing.assert_array_equal(weight.grad.numpy(), np.full(weight.shape, 8.0, np.float32))


def test_lines_that_hold_memory(device: str) -> None:
    small = [filled(device, 4), filled(device, 4)]
    sum_of_both = (small[0] + small[1]).realize()
    view = sum_of_both.reshape(2, -1)
    mine = [h for h in gpu.memory_stats()[device].holders if h.line and h.line.file == __file__]
    told = {(str(h.line).split(": ", 1)[1], h.nbytes, h.buffers) for h in mine}
    assert ("sum_of_both = (small[0] + small[1]).realize()", 4 * KIB, 1) in told
    assert ("return Tensor(np.full(kib * KIB // 4, value, np.float32), device=device).realize()",
            8 * KIB, 2) in told  # fmt: skip
    assert view.shape == (2, 512)


def test_lines_that_hold_parts_on_several_devices() -> None:
    rows = Tensor(np.ones((4, 1024), np.float32)).shard(("CPU", "CPU:1"), 0).realize()
    doubled = (rows * 2).realize()
    for name in ("CPU", "CPU:1"):
        told = {str(h.line).split(": ", 1)[-1]: h.nbytes for h in gpu.memory_stats()[name].holders}
        assert told["doubled = (rows * 2).realize()"] == 8 * KIB
    assert doubled.shape == (4, 1024)


def test_holders_add_up_and_are_in_order(device: str) -> None:
    tensors = [filled(device, kib) for kib in (4, 8, 12)]
    stats = gpu.memory_stats()[device]
    assert sum(holder.nbytes for holder in stats.holders) == stats.live
    sizes = [holder.nbytes for holder in stats.holders]
    assert sizes == sorted(sizes, reverse=True)
    assert str(stats).startswith(f"{stats.live:,} bytes live")
    assert len(tensors) == 3


def test_a_limit_holds_and_frees_what_is_kept_first(device: str) -> None:
    allocator = Device[device].allocator
    allocator.free_cache()
    with Context(MEMORY_LIMIT=str(allocator.live + 64 * KIB)):
        one = filled(device, 48)
        del one
        two = filled(device, 60)  # fits only if what was kept is given back
        with pytest.raises(OutOfMemory, match="MEMORY_LIMIT") as caught:
            filled(device, 8)
        notes = "\n".join(caught.value.__notes__)
        assert f"in use on {device}: " in notes and f"{60 * KIB:,} bytes made at" in notes
        assert float(two.sum().item()) == 60 * KIB / 4
    assert float(filled(device, 8).sum().item()) == 8 * KIB / 4


def test_an_error_names_the_lines_of_both(device: str) -> None:
    held = filled(device, 16)
    with Context(MEMORY_LIMIT="1"), pytest.raises(OutOfMemory) as caught:
        (held + 1).realize()
    notes = caught.value.__notes__
    assert any(note.startswith(f"in use on {device}") for note in notes)
    assert any(note.startswith("while computing") and "(held + 1)" in note for note in notes)


@pytest.mark.parametrize(
    "text", ["0.5kB", "512", "1KiB", "3 MiB", "2gb", "1T", "1.5GiB", "9007199254740993B"]
)
def test_sizes_that_a_limit_takes(text: str) -> None:
    units = {"0.5kB": 500, "512": 512, "1KiB": 1024, "3 MiB": 3 << 20, "2gb": 2 * 10**9,
             "1T": 10**12, "1.5GiB": 3 << 29,
             "9007199254740993B": 2**53 + 1}  # fmt: skip
    with Context(MEMORY_LIMIT=text):
        assert units[text] == gpu.core.config.config.MEMORY_LIMIT


@pytest.mark.parametrize("text", ["-1", "1e9", "lots", "12X", "5iB", "MiB", "1 2", "nan"])
def test_sizes_that_it_does_not_take(text: str) -> None:
    with pytest.raises(ConfigError, match="512MiB"), Context(MEMORY_LIMIT=text):
        pass


def test_a_block_without_leaks(device: str) -> None:
    weights = filled(device, 4)
    with gpu.assert_no_leaks():
        for _ in range(3):
            weights = (weights * 2).realize()  # the name holds other memory than before
            weights = weights.realize()
            weights += 0
            float((weights + 1).sum().item())
        weights = None


def test_a_leak_is_told_by_its_line(device: str) -> None:
    kept = []
    with pytest.raises(MemoryLeak, match=r"3 tensors made at .*kept\.append"):  # noqa: SIM117
        with gpu.assert_no_leaks():
            for number in range(3):
                kept.append((filled(device, 4) + number).realize())
            (kept[0] * 2).realize()


def test_copies_count(device: str) -> None:
    one = filled(device, 8)
    live = gpu.memory_stats()[device].live
    two = copy.deepcopy(one)
    assert gpu.memory_stats()[device].live - live == 8 * KIB
    assert two.tolist()[:1] == [1.0]


def test_memory_of_others_is_not_counted() -> None:
    array = np.ones(64 * KIB, np.float32)
    live = gpu.memory_stats().get("CPU")
    lent = Tensor.from_blob(array.ctypes.data, (64 * KIB,), dtype="float32", device="CPU")
    assert float(lent.sum().item()) == 64 * KIB
    after = gpu.memory_stats()["CPU"]
    assert after.live - (live.live if live else 0) < array.nbytes


def test_what_stands_for_memory_in_a_loop_has_none() -> None:
    x = filled("PYTHON", 8)
    parameter = G.buffer(Parameter(0), x.shape, x.dtype, "PYTHON")
    copy_origin(x._node, parameter)
    stats = gpu.memory_stats()["PYTHON"]
    assert sum(holder.nbytes for holder in stats.holders) == stats.live
