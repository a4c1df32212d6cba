"""Models of `tools/bench/torch_models.py` through the backend: within 1e-4 of torch.

`--require=transformers` runs them: each takes a minute to compile. A layer of a
transformer runs always.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from torch_compile.drawn import torch

# isort: split
from torch import nn

from gpu.torch import backend
from tools.bench.torch_models import CLOSE, MODELS, compare, difference, train


@pytest.mark.slow
@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, is_training: bool, need: Callable[[str], None]) -> None:
    need("transformers")
    assert compare(name, is_training, rounds=0).worst <= CLOSE


def test_a_training_step_of_a_transformer() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, activation="gelu", batch_first=True)
    made = nn.Sequential(nn.Embedding(30, 16), layer, nn.Linear(16, 30))
    given = {"input": torch.randint(0, 30, (2, 6))}
    other = copy.deepcopy(made)
    compiled = torch.compile(other, backend=backend, options={"strict": True})
    ours = train(compiled, given, list(other.parameters()))
    assert difference(ours, train(made, given, list(made.parameters()))) <= CLOSE
