"""Attention that is large enough for its scores to have no memory, where a device has blocks."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from gpu import Device, Tensor
from gpu.compiler.fusion.plan import Plan
from gpu.runtime.execute import is_computed, without_reshapes
from gpu.runtime.pipeline import plan_graph
from tensor.reference import Tolerance, assert_gradients, fitted, rng_for, torch

F = torch.nn.functional

KINDS = ("none", "causal", "bool", "float", "heads", "dropped rows")


def sizes(device: str, rng: np.random.Generator) -> tuple[int, int]:
    """Numbers of queries and of keys, with a megabyte of scores of two heads where that helps."""
    if not Device[device].renderer.target.has_blocks:
        return int(rng.integers(3, 9)), int(rng.integers(3, 9))
    queries = int(rng.integers(370, 540))
    return queries, -(-(1 << 17) // queries) + int(rng.integers(1, 64))


def keywords(kind: str, queries: int, keys: int, rng: np.random.Generator) -> dict[str, Any]:
    """What is asked for, with a mask as an array."""
    mask = rng.uniform(size=(queries, keys)) > 0.4
    match kind:
        case "causal":
            return {"is_causal": True}
        case "bool":
            return {"attn_mask": mask}
        case "float":
            return {"attn_mask": np.where(mask, rng.normal(size=mask.shape), -np.inf)}
        case "heads":
            return {"enable_gqa": True}
        case "dropped rows":
            mask[rng.integers(queries, size=3)] = False
            return {"attn_mask": mask}
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind: str, device: str) -> None:
    rng = rng_for(kind, 2)
    queries, keys = sizes(device, rng)
    shared = 1 if kind == "heads" else 2
    shapes = ((2, queries, 9), (shared, keys, 9), (shared, keys, 11))
    q, k, v = (rng.normal(size=(1, *shape)) for shape in shapes)
    asked = keywords(kind, queries, keys, rng)
    mask = asked.get("attn_mask")
    ours, theirs = dict(asked), dict(asked)
    if mask is not None:
        mask = fitted(device, mask)
        ours["attn_mask"], theirs["attn_mask"] = Tensor(mask, device=device), torch.tensor(mask)
    assert_gradients(
        device,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, **ours),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **theirs),
        [q, k, v],
        Tolerance(1e-4, 1e-5) if fitted(device, q).dtype == np.float32 else None,
    )


def exactly(x: Tensor) -> Any:
    """A tensor of narrow floats as numpy's widest."""
    return x.cast("float32").numpy().astype(np.float64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype: str, device: str) -> None:
    rng = rng_for(dtype)
    queries, keys = sizes(device, rng)
    shapes = ((1, 2, queries, 8), (1, 2, keys, 8), (1, 2, keys, 8))
    narrow = [Tensor(rng.normal(size=s).astype(np.float32)).cast(dtype).realize() for s in shapes]
    wide = [torch.tensor(exactly(x), requires_grad=True) for x in narrow]
    xs = [x.to(device) for x in narrow]
    expected = F.scaled_dot_product_attention(*wide)
    seed = Tensor(rng.uniform(-1, 1, expected.shape).astype(np.float32)).cast(dtype)
    expected.backward(torch.tensor(exactly(seed)))
    value = xs[0].scaled_dot_product_attention(xs[1], xs[2])
    grads = value.gradient(*xs, gradient=seed.to(device))
    one = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    Tensor.realize(value, *grads)
    for found, exact in zip((value, *grads), (expected, *(t.grad for t in wide)), strict=True):
        assert exact is not None
        wanted = exact.detach().numpy()
        assert np.abs(exactly(found) - wanted).max() <= 4 * one * max(1, np.abs(wanted).max())


def test_scores_that_are_huge_or_infinite(device: str) -> None:
    rng = rng_for("huge")
    queries, keys = sizes(device, rng)
    q, k, v = (rng.normal(size=(1, 2, n, 4)).astype(np.float32) for n in (queries, keys, keys))
    q[0, 0, 0] *= 1e4
    q[0, 0, 1], k[0, 0, :, 0] = (-np.inf, 0, 0, 0), np.abs(k[0, 0, :, 0])
    q[0, 1, 2, 1] = np.inf
    theirs = F.scaled_dot_product_attention(*map(torch.tensor, (q, k, v))).numpy()
    q, k, v = (Tensor(x, device=device) for x in (q, k, v))
    ours = q.scaled_dot_product_attention(k, v).numpy()
    assert (ours[0, 0, 1] == 0).all() and np.isnan(ours[0, 1, 2]).all()
    np.testing.assert_allclose(ours, theirs, 1e-4, 1e-5)


def test_no_keys_give_zeros(device: str) -> None:
    x = Tensor.ones(1, 2, 3, 4, device=device)
    none = Tensor.ones(1, 2, 0, 4, device=device)
    assert (x.scaled_dot_product_attention(none, none).numpy() == 0).all()


def attention(length: int, **keywords: Any) -> list[Tensor]:
    """A value and its gradients, of 3 heads, of leaves in memory."""
    leaves = [Tensor.randn(1, 3, length, 16, requires_grad=True).realize() for _ in range(3)]
    value = leaves[0].scaled_dot_product_attention(*leaves[1:], **keywords)
    return [value, *value.square().sum().gradient(*leaves)]


def planned(*roots: Tensor) -> Plan:
    """How the CPU would compute what is not in memory."""
    target = Device["CPU"].renderer.target
    return plan_graph(
        [without_reshapes(t._node) for t in roots], is_computed, lambda _: target
    ).plan


@pytest.mark.parametrize("causal", [False, True])
def test_no_kernel_stores_scores(causal: bool) -> None:
    for length in (1024, 1033):
        tensors = attention(length, is_causal=causal)
        for roots in (tensors, tensors[1:], [t.contiguous() for t in tensors]):
            plan = planned(*roots)
            assert max(node.size for made in plan.kernels for node in made) <= 3 * length * 16


@pytest.mark.parametrize("length", [475, 480, 509, 1033])
def test_blocks_hold_no_products_of_elements(length: int) -> None:
    leaves = [Tensor.randn(1, 7, length, 64, requires_grad=True).realize() for _ in range(3)]
    value = leaves[0].scaled_dot_product_attention(*leaves[1:])
    plan = planned(value, *value.square().sum().gradient(*leaves))
    assert max(node.size for node in plan.placement) <= 7 * length * length


def test_scores_that_are_stored_need_no_blocks() -> None:
    leaves = [Tensor.randn(1, 3, 475, 64, requires_grad=True).realize() for _ in range(3)]
    value = leaves[0].scaled_dot_product_attention(*leaves[1:])
    plan = planned(*value.square().sum().gradient(*leaves))
    assert any(node.size == 3 * 475 * 475 for made in plan.kernels for node in made)
    assert not any(plan.blocks.values())


def test_what_a_row_adds_to_a_product_is_computed_before() -> None:
    x, y = (Tensor.randn(200, 64).realize() for _ in range(2))
    plan = planned(x @ y.T - (x * x).sum(1, keepdim=True))
    assert sorted(node.size for made in plan.kernels for node in made) == [200, 200 * 200]


def test_a_softmax_written_by_hand_stores_no_scores_either() -> None:
    q, k, v = (Tensor.randn(2, 600, 16).realize() for _ in range(3))
    plan = planned((q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v)
    assert [node.size for made in plan.kernels for node in made] == [2 * 600 * 16]


def peak(length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most bytes that are in use while a value and its gradients are computed."""
    allocator = Device["CPU"].allocator
    tensors = attention(length)
    gc.collect()
    used, alloc = [allocator.live], allocator.alloc
    before = used[0]

    def counted(nbytes: int) -> Any:
        memory = alloc(nbytes)
        used.append(allocator.live)
        return memory

    with monkeypatch.context() as patched:
        patched.setattr(allocator, "alloc", counted)
        Tensor.realize(*tensors)
    return max(used) - before


def test_memory_is_linear_in_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = peak(600, monkeypatch), peak(2400, monkeypatch)
    assert long <= 4.5 * short
    assert long <= 12 * 3 * 2400 * 16 * 4  # a matrix of scores alone takes twelve times that


def test_the_mask_of_causal_attention_has_no_memory() -> None:
    """Where blocks of scores are computed, which would read it across."""
    q = Tensor(rng_for("mask").normal(size=(4, 400, 8)).astype("float32"), device="CPU").realize()
    assert "b1" not in str(q.scaled_dot_product_attention(q, q, is_causal=True).explain())


def test_shares_that_would_be_subnormal_are_zero(device: str) -> None:
    """The second key's is 6e-42, the third's a normal number."""
    keys = Tensor([[0.0], [-95.0], [-80.0]], device=device)
    values = Tensor([[0.0, 2.0], [3e38, 1.0], [0.0, 2e35]], device=device)
    found = Tensor([[1.0]], device=device).scaled_dot_product_attention(keys, values).tolist()
    np.testing.assert_allclose(found, [[0.0, 2 + 2e35 * np.exp(-80.0)]], 1e-6)
