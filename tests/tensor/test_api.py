"""Names, parameters and defaults that programs written for tinygrad 0.14 rely on."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from gpu import Tensor, nn
from gpu.tensor.randomness import Placement

LINES = Path(__file__).with_name("tinygrad_api.txt").read_text().splitlines()
METHODS = [line for line in LINES if line.endswith(")")]
OWNERS = {"Tensor": Tensor, "nn": nn, "nn.optim": nn.optim, "nn.state": nn.state}
# Defaults that are written in another way, and one that is wider here: num_classes can be counted.
SAME = {
    ("one_hot", "num_classes"): "=-1",
    ("size", "dim"): "=None",
    ("nll_loss", "ignore_index"): "=-100",
}
# What `**kwargs` stand for, by what is made; the others take none that mean anything here.
KEYWORDS = {
    "ones": "dtype device buffer", "zeros": "dtype device buffer", "ones_like": "dtype device",
    "zeros_like": "dtype device", "rand_like": "dtype device", "randn": "dtype device",
    "randn_like": "dtype device", "randint": "dtype device", "uniform": "dtype device",
    "normal": "dtype device", "glorot_uniform": "dtype device", "kaiming_normal": "dtype device",
    "kaiming_uniform": "dtype device", "scaled_uniform": "dtype device",
    "from_blob": "dtype device", "randperm": "dtype device", "arange": "device", "eye": "device",
    "linspace": "device",
}  # fmt: skip


def parameters(method: str) -> dict[str, str]:
    """Of ours: name -> ``=default``, or nothing where there is none; stars are kept."""
    found: dict[str, str] = {}
    for parameter in inspect.signature(getattr(Tensor, method)).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            found["*"] = ""
        elif parameter.kind is parameter.VAR_KEYWORD:
            found.update(dict.fromkeys(get_type_hints(Placement), "=None"))
            found["**"] = ""
        elif parameter.name != "self":
            default = parameter.default
            found[parameter.name] = "" if default is parameter.empty else f"={default!r}"
    return found


@pytest.mark.parametrize("line", METHODS, ids=lambda line: line.split("(")[0])
def test_method(line: str) -> None:
    name, _, wanted = line.removesuffix(")").partition("(")
    ours = {"dim": "=None"} if name == "size" else parameters(name)
    order = [p for p in ours if not p.startswith("*")]
    place = 0
    for item in re.split(r", (?![^(]*\))", wanted) if wanted else []:
        parameter, equals, default = item.partition("=")
        if parameter.startswith("**"):
            continue
        if parameter.startswith("*"):
            assert "*" in ours
            continue
        given = SAME.get((name, parameter)) or (equals + default)
        assert parameter in ours, f"{name} has no parameter {parameter}"
        # A default that the list leaves out is a dtype of theirs.
        assert ours[parameter] == given or (parameter, given) == ("dtype", ""), item
        if "**" not in ours and "*" not in ours:
            assert order.index(parameter) == place, f"{parameter} is at another place in {name}"
        place += 1
    for keyword in KEYWORDS.get(name, "").split():
        assert keyword in ours, f"{name} takes no {keyword}"


def test_everything_else_is_there() -> None:
    listed = [line.split(": ") for line in LINES if ": " in line and not line.startswith("#")]
    assert [owner for owner, _ in listed] == list(OWNERS)
    for owner, names in listed:
        assert not [name for name in names.split() if not hasattr(OWNERS[owner], name)]


@pytest.mark.parametrize("buffer", [True, False])
def test_constants_with_and_without_a_buffer(buffer: bool) -> None:
    x = Tensor.full((2, 3), 4.5, buffer=buffer)
    assert x.tolist() == [[4.5] * 3] * 2
    x[0] = 1
    assert x.full_like(7, buffer=buffer).tolist() == [[7] * 3] * 2
    assert x.sum().item() == 16.5
    assert Tensor.zeros(2, buffer=buffer).tolist() == [0, 0]
    assert x.ones_like(buffer=buffer).sum().item() == 6


def test_launches_may_be_left_out_of_the_count() -> None:
    from gpu.runtime.prepared import Counters

    x, launches = Tensor([1.0, 2.0]), Counters.launches
    assert (x + 3.25).realize(do_update_stats=False).tolist() == [4.25, 5.25]
    assert Counters.launches == launches
    (x + 4.25).realize()
    assert Counters.launches == launches + 1
