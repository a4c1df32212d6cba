"""What the backend of `torch.compile` makes of graphs: beside torch itself."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from torch_compile.drawn import Draw, torch

# isort: split
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._pytree import tree_leaves

from gpu import Device
from gpu.core.errors import InvalidType, InvalidValue, Unsupported
from gpu.torch import Options, backend
from gpu.torch.memory import Inputs, layout_of, packed

Model = Callable[..., Any]


@pytest.fixture(autouse=True)
def _forget() -> None:
    torch._dynamo.reset()


def tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def check(model: Model, inputs: Sequence[Any], **options: Any) -> None:
    """Results, what happens to inputs, and gradients are torch's."""
    ours, theirs = copy.deepcopy(tuple(inputs)), copy.deepcopy(tuple(inputs))
    want, got = model(*theirs), torch.compile(model, backend=backend, **options)(*ours)
    pairs = list(zip(tensors(want), tensors(got), strict=True))
    for one, other in (*pairs, *zip(tensors(theirs), tensors(ours), strict=True)):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        assert one.requires_grad == other.requires_grad
        torch.testing.assert_close(other, one, rtol=1e-2 if one.dtype.itemsize < 4 else 1e-4,
                                   atol=1e-5, equal_nan=True)  # fmt: skip
    if any(one.requires_grad for one, _ in pairs):
        for values in zip(*pairs, strict=True):
            sum(each.abs().sum() for each in values if each.requires_grad).backward()
        for one, other in zip(tensors(theirs), tensors(ours), strict=True):
            if one.grad is not None:
                torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


def _adds_in_place(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.t()


FUNCTIONS: dict[str, Model] = {
    "written to, and a view of that": _adds_in_place,
    "a view of a part": lambda x: x.reshape(-1)[2:5],
    "the input itself": lambda x: (x, x * 2),
    "two results that are alike": lambda x: (x + 1, x + 1),
    "numbers first": lambda x: (1 - x, torch.rsub(x, 2, alpha=3), 2 / x, 2.5 * x, 2**x),
    "a copy": lambda x: x.clone(),
    "turned": lambda x: x.t() * 2,
    "without elements": lambda x: (x[:0] * 2, x[:0].sum()),
    "one number": lambda x: x[0, 0] * 2.5 + 3,
    "other dtypes": lambda x: (
        x > 0,
        x.to(torch.bfloat16) * 3,
        (x * 4).int() // 3,
        x.double().cos(),
    ),
    "complex numbers": lambda x: (torch.complex(x, x).conj() * 1j, torch.complex(x, -x).abs()),
    "a random choice of places": lambda x: x[:, torch.tensor([1, 0, 1])].index_fill(
        0, torch.tensor(0), 2
    ),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_results_are_torchs(what: str) -> None:
    draw = Draw(what)
    shape = draw.random.randint(2, 6), draw.random.randint(3, 6)
    check(FUNCTIONS[what], [draw.tensor(shape).contiguous()])


def test_gradients_of_inputs_that_lie_in_any_way() -> None:
    draw = Draw("gradients")
    x = draw.tensor((4, 6)).t().requires_grad_()
    y = draw.tensor((6, 1)).expand(6, 4)
    check(lambda x, y: ((x * y).tanh().sum(0), x[::2]), [x, y])


def test_attention_and_its_gradient() -> None:
    draw = Draw("attention")
    q = draw.tensor((2, 3, 7, 4)).contiguous().requires_grad_()
    check(
        lambda q: nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3),
        [q],
        options={"strict": True},
    )


def step(model: nn.Module, run: Model, x: torch.Tensor) -> list[torch.Tensor]:
    """Results of one training step, with buffers and gradients."""
    model.zero_grad()
    result = run(x)
    result.square().mean().backward()
    return [result.detach(), *model.buffers(), *(p.grad for p in model.parameters())]


def test_training_steps_with_statistics_and_dropout() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(*layers, nn.Dropout(0.3), nn.LazyLinear(4))
    model(torch.randn(2, 3, 8, 8))
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend=backend, options={"strict": True})
    for number in range(3):
        x = torch.randn(4, 3, 8, 8)
        torch.manual_seed(number)  # torch's generator draws what is dropped out
        want = step(model, model, x)
        torch.manual_seed(number)
        for got, one in zip(step(other, compiled, x), want, strict=True):
            torch.testing.assert_close(got, one, rtol=1e-4, atol=1e-5)
    compiled.eval()
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_random_operations_draw_from_torchs_generator_in_order() -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(3) + x * torch.randn(3) + nn.functional.dropout(x * 2, 0.5)

    x = torch.randn(3)
    torch.manual_seed(3)
    want = drawn(x)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.compile(drawn, backend=backend)(x), want)


def test_one_program_takes_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu.torch import program

    made = []
    capture = program.Capture
    monkeypatch.setattr(program, "Capture", lambda *a: made.append(a) or capture(*a))
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for count in (4, 13, 30):
        x = torch.randn(count, 5)
        got = step(model, compiled, x)
        for one, other in zip(step(model, model, x), got, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert len(made) == 4  # forward and backward, up to 16 and up to 32


@pytest.mark.parametrize("counts", [(20, 32, 17), (32, 20, 16, 9)], ids=str)
def test_sizes_that_are_as_large_as_their_program_takes(counts: tuple[int, ...]) -> None:
    """A program for up to 32 is none for 32 alone, whichever of its sizes comes first."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.cat([x, x * 2]).softmax(0), x.mean(0) * x.shape[0]

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for count in counts:
        x = torch.randn(count, 5)
        torch.testing.assert_close(compiled(x), function(x))


def test_sizes_that_do_not_fit_a_variable_are_compiled_one_by_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled = torch.compile(lambda x: x.reshape(-1) + 1, backend=backend, dynamic=True)
    for count in (4, 7):
        x = torch.randn(count, count + 1)
        torch.testing.assert_close(compiled(x), x.reshape(-1) + 1)
    assert "compiled for each size by itself" in caplog.text


def _without_row(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(x * 2) + 1


def test_an_operation_without_a_row_runs_in_torch_with_one_warning() -> None:
    from gpu.torch import aot

    aot._warned.clear()
    x = torch.randn(3, 3)
    for _ in range(2):
        torch._dynamo.reset()
        if not aot._warned:
            with pytest.warns(RuntimeWarning, match=r"_linalg_svd.*there is no row"):
                got = torch.compile(_without_row, backend=backend)(x)
        else:
            got = torch.compile(_without_row, backend=backend)(x)
        torch.testing.assert_close(got, _without_row(x))
    assert len(aot._warned) == 1


def test_strict_makes_that_an_error() -> None:
    compiled = torch.compile(_without_row, backend=backend, options={"strict": True})
    with pytest.raises(BackendCompilerFailed, match="_linalg_svd") as caught:
        compiled(torch.randn(3, 3))
    assert isinstance(caught.value.inner_exception, Unsupported)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"devic": "CPU"}, InvalidValue), ({"strict": 1}, InvalidType), ({"device": 3}, InvalidType)],
)
def test_options_that_are_none(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Options.of(options)


def test_programs_run_on_the_device_that_options_name(device: str) -> None:
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().sum(1)

    x, w = torch.randn(4, 6), torch.randn(6, 3)
    got = torch.compile(model, backend=backend, options={"device": device})(x, w)
    torch.testing.assert_close(got, model(x, w), rtol=1e-3, atol=1e-4)


def test_memory_of_torchs_is_used_in_place_on_cpus() -> None:
    x = torch.randn(4, 5)
    assert Inputs("CPU").buffers([x])[0].memory == x.data_ptr()
    turned = x.t()
    layout = layout_of(turned.shape, turned.stride())
    assert layout.is_dense and packed(turned, layout).data_ptr() == x.data_ptr()


def test_other_devices_get_a_copy_until_the_version_counter_moves() -> None:
    inputs, x = Inputs(Device.canonicalize("PYTHON")), torch.randn(6)
    first = inputs.buffers([x])[0]
    assert inputs.buffers([x.detach()])[0] is first
    x.mul_(2)
    second = inputs.buffers([x])[0]
    assert second is not first and second.copy_out().tolist() == x.tolist()
    with torch.inference_mode():
        without = torch.randn(6)
    assert inputs.buffers([x, without])[1] is not inputs.buffers([x, without])[1]


def test_memory_that_is_used_again_is_not_taken_for_what_was_there() -> None:
    inputs = Inputs(Device.canonicalize("PYTHON"))
    for value in range(20):
        x = torch.full((6,), float(value))
        assert inputs.buffers([x])[0].copy_out().tolist() == x.tolist()
        del x


def test_torch_finds_the_backend_by_its_entry_point() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    group = "torch_dynamo_backends"
    ((name, value),) = tomllib.loads(text)["project"]["entry-points"][group].items()
    assert name == "gpu" and EntryPoint(name, value, group).load() is backend


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "torch_compile.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    if "gpu" not in torch._dynamo.list_backends():  # the package is not installed
        torch._dynamo.register_backend(backend, name="gpu")
    exec(compile(code, "torch_compile.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([32, 8])\n"
