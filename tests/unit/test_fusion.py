"""Where a kernel that would cost too much is cut."""

from __future__ import annotations

import numpy as np
import pytest

from gpu import Tensor, nn
from gpu.compiler.fusion.placement import MAX_INLINE, plan_fusion
from gpu.runtime.execute import is_computed, without_reshapes

CHAIN = 9  # sines, of which MAX_INLINE allows about five


def chain(x: Tensor, length: int) -> Tensor:
    for _ in range(length):
        x = (x + 1).sin()
    return x


def stored(*results: Tensor) -> list[int]:
    """The sizes of what the kernels write."""
    plan = plan_fusion([without_reshapes(r._node) for r in results], is_computed)
    return [node.size for kernel in plan.kernels for node in kernel]


@pytest.mark.parametrize("length", range(1, CHAIN))
def test_a_product_of_expanded_tensors_is_never_stored(length: int) -> None:
    """As in the gradient of a convolution, wherever in the chain the limit is reached."""
    x, weight = Tensor.rand(6, 5).realize(), Tensor.rand(5, 7).realize()
    result = (chain(x, length).unsqueeze(2) * weight).sum(1)
    assert max(stored(result)) <= 6 * 7
    numbers = x.numpy().astype(np.float64)
    for _ in range(length):
        numbers = np.sin(numbers + 1)
    np.testing.assert_allclose(result.numpy(), numbers @ weight.numpy(), rtol=1e-5)


def test_the_gradients_of_residual_blocks_store_no_windows() -> None:
    channels, images = 8, Tensor.rand(2, 8, 6, 6).realize()
    weights = [Tensor.rand(channels, channels, 3, 3, requires_grad=True) for _ in range(6)]
    norms = [nn.BatchNorm2d(channels) for _ in weights]
    Tensor.realize(*weights)
    x = images
    with Tensor.train():
        for first, second in ((0, 1), (2, 3), (4, 5)):
            y = norms[first](x.conv2d(weights[first], padding=1)).relu()
            x = (norms[second](y.conv2d(weights[second], padding=1)) + x).relu()
        x.mean().backward()
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    assert len(gradients) == len(weights)
    assert max(stored(*gradients)) <= max(images.numel(), weights[0].numel())


def test_movements_are_not_stored_either() -> None:
    x = Tensor.rand(6, 5).realize()
    padded = chain(x, CHAIN).pad(((3, 3), (3, 3)))
    assert max(stored(chain(padded, 1).sum())) <= 6 * 5
    assert MAX_INLINE < CHAIN * 30


def test_what_is_as_large_as_its_sources_is_cut_itself() -> None:
    x = Tensor.rand(6, 5).realize()
    sizes = stored(chain(x, 2 * CHAIN))
    assert len(sizes) > 2 and set(sizes) == {30}


@pytest.mark.parametrize("count", [2, 3])
def test_of_products_that_are_added_each_has_a_kernel(count: int) -> None:
    """As in the gradient of what several layers read: tiles are of one product."""
    rng = np.random.default_rng(count)
    rows, inner, columns = (int(n) for n in rng.integers(32, 64, 3))

    def total(rows: int, inner: int, columns: int) -> Tensor:
        pairs = [((rows, inner), (inner, columns)) for _ in range(count)]
        made = [[Tensor(rng.standard_normal(s, "f4")).realize() for s in pair] for pair in pairs]
        return sum((a @ b for a, b in made[1:]), made[0][0] @ made[0][1]).relu()

    assert len(stored(total(rows, inner, columns))) == count
    assert len(stored(total(8, 8, 8))) == 1  # a launch would cost more than tiles save


def test_a_row_is_made_where_all_that_read_it_find_it() -> None:
    """The sum reads the plane outside of the loop over its rows, where there is no row of it."""
    x = Tensor.rand(5, 5, 2).realize()
    plane = chain(x, 1)[3]
    numbers = np.sin(x.numpy().astype(np.float64) + 1)[3]
    np.testing.assert_allclose((plane + plane.sum()).numpy(), numbers + numbers.sum(), rtol=1e-5)
