"""examples/embed.py, against the same model written with torch in float64."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "embed.py"
# More than a batch, of many lengths.
TEXTS = [
    "Hello.",
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "¿Dónde está la biblioteca? 図書館はどこですか。",
    "",
    "Stock prices fell sharply on Monday.",
    "2 + 2 = 4, or so they say; see https://example.com/sum?a=2&b=2#result for the proof.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife.",
    "The quick brown fox jumps over the lazy dog. " * 5,
]


@pytest.fixture(scope="module")
def embed(need: Callable[[str], None]) -> ModuleType:
    for name in ("minilm", "tokenizers"):
        need(name)
    spec = importlib.util.spec_from_file_location("embed", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def embedder(embed: ModuleType) -> Any:
    return embed.Embedder(embed.model_folder())


def reference(weights: dict[str, Any], tokens: list[int]) -> np.ndarray[Any, Any]:
    """The unit vector of one text, without padding, by plain operations in float64."""
    import torch

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-12)
        return scaled * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]

    words = weights["embeddings.word_embeddings.weight"][tokens]
    positions = weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(
        words + positions + weights["embeddings.token_type_embeddings.weight"][0], "embeddings"
    )
    for number in range(6):
        layer = f"encoder.layer.{number}"
        query, key, value = (
            linear(x, f"{layer}.attention.self.{role}").reshape(-1, 12, 32).transpose(0, 1)
            for role in ("query", "key", "value")
        )
        shares = torch.softmax(query @ key.transpose(1, 2) / math.sqrt(32), -1)
        heads = (shares @ value).transpose(0, 1).reshape(-1, 384)
        x = norm(x + linear(heads, f"{layer}.attention.output.dense"), f"{layer}.attention.output")
        wide = linear(x, f"{layer}.intermediate.dense")
        wide = wide * (1 + torch.erf(wide / math.sqrt(2))) / 2
        x = norm(x + linear(wide, f"{layer}.output.dense"), f"{layer}.output")
    mean = x.mean(0)
    return (mean / mean.norm()).numpy()  # type: ignore[no-any-return]


def test_against_torch(embedder: Any, embed: ModuleType, need: Callable[[str], None]) -> None:
    need("torch")
    from safetensors.torch import load_file

    stored = load_file(embed.model_folder() / "model.safetensors")
    weights = {name: w.double() if w.is_floating_point() else w for name, w in stored.items()}
    got = embedder(TEXTS).astype(np.float64)
    want = np.array([reference(weights, embedder.tokenizer.encode(text).ids) for text in TEXTS])
    assert np.abs(got - want).max() <= 2e-6
    cosines = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    assert cosines.min() > 0.99999


def test_replays_give_what_first_calls_gave(embedder: Any) -> None:
    texts = TEXTS[:3]
    first = [embedder(texts) for _ in range(3)]
    assert (first[0] == first[1]).all() and (first[0] == first[2]).all()
    # Padding and neighbours do not matter.
    assert np.abs(embedder(TEXTS)[:3] - first[0]).max() < 1e-6


def test_long_texts_are_cut_off(embedder: Any) -> None:
    tokens = embedder.tokenizer.encode("word " * 400).ids
    assert len(tokens) == 256
    assert embedder.pad([tokens])[0].shape == (8, 256)


def test_padding(embedder: Any) -> None:
    numbers, mask = embedder.pad([[5] * 17, [7]])
    assert numbers.shape == mask.shape == (8, 32)
    assert mask.sum(1).tolist() == [17, 1] + [17] * 6
    assert (numbers[1, :2] == [7, 0]).all()


def test_command_line(embed: ModuleType) -> None:
    """Queries from the command line and from standard input."""
    sentences = ["A dog barks.", "Interest rates rise."]
    done = subprocess.run(
        [sys.executable, SCRIPT, *sentences, "--query", "a loud puppy", "--interactive"],
        input="\nthe central bank\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(gpu.__file__).parents[1])},
    )
    assert (done.returncode, done.stderr) == (0, "")
    matrix, puppy, bank = done.stdout.split("\n\n")
    assert [line.split()[-1] for line in matrix.splitlines()[1:]] == ["barks.", "rise."]
    assert puppy.splitlines()[1].endswith(sentences[0])
    assert bank.splitlines()[1].endswith(sentences[1])
