"""Models of torch's through `torch.compile(model, backend="gpu")`, beside torch itself.

    python -m tools.bench.torch_models                     all, forward and a training step
    python -m tools.bench.torch_models resnet18 llama --rounds 20

ResNet-18 is built of torch's layers; the others are of transformers, which has to be installed:
their shapes, with random weights, are made smaller by fewer and narrower layers. A line is the
largest difference from torch, over the largest value if that is above 1, the seconds of the first
call, which compiles, and the milliseconds of a call of either: they take turns of some calls, each
after a rest, and the least of each counts. At the end is the geometric mean of our time over
torch's. It fails where answers or gradients differ by more than 1e-4.

`CPU_THREADS` is for both; with 1 it is processor time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from gpu.torch import backend

CLOSE: Final = 1e-4
WORDS: Final = 500
REST: Final = 0.05  # seconds before each turn, in which the other side's threads go to sleep
CALLS: Final = 5  # of a turn
Inputs = dict[str, Any]
Made = tuple[nn.Module, Inputs]


class Block(nn.Module):
    """Two convolutions beside which the input goes on."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)])
        self.beside: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            beside = nn.Conv2d(inner, outer, 1, stride, bias=False)
            self.beside = nn.Sequential(beside, nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(inner)) + self.beside(x)).relu()


def resnet18() -> Made:
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(width, outer, stride), Block(outer, outer, 1)]
        width = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers), {"input": torch.randn(2, 3, 64, 64)}


def _sizes(**others: Any) -> dict[str, Any]:
    return {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 256, **others}  # fmt: skip


def _words(length: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (2, length))


def bert() -> Made:
    from transformers import BertConfig, BertForMaskedLM

    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    words = _words(32)
    given = {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}
    return BertForMaskedLM(BertConfig(**_sizes(vocab_size=WORDS, **none))), given


def _decoder(config: Any, model: Any) -> Made:
    sizes = _sizes(vocab_size=WORDS, num_key_value_heads=2, head_dim=32)
    words = _words(32)
    return model(config(**sizes)), {"input_ids": words, "labels": words, "use_cache": False}


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _decoder(LlamaConfig, LlamaForCausalLM)


def qwen3() -> Made:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _decoder(Qwen3Config, Qwen3ForCausalLM)


def vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**_sizes(image_size=64, patch_size=8, num_labels=10))
    given = {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.tensor([1, 2])}
    return ViTForImageClassification(config), given


def whisper() -> Made:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sides = ("encoder", "decoder")
    sizes = {f"{side}_{what}": n for side in sides
             for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 256))}  # fmt: skip
    config = WhisperConfig(
        **sizes, vocab_size=WORDS, d_model=128, num_mel_bins=40, max_source_positions=50,
        max_target_positions=40, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, dropout=0.0,
    )  # fmt: skip
    given = {"input_features": torch.randn(2, 40, 100), "labels": _words(20), "use_cache": False}
    return WhisperForConditionalGeneration(config), given


MODELS: Final[dict[str, Callable[[], Made]]] = {
    each.__name__: each for each in (resnet18, bert, llama, qwen3, vit, whisper)
}


def forward(model: Any, given: Inputs) -> list[torch.Tensor]:
    """The results, without gradients."""
    with torch.no_grad():
        found = model(**given)
    return [found] if isinstance(found, torch.Tensor) else [found.logits]


def train(model: Any, given: Inputs, parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    """The loss of one step, and the gradients."""
    for each in parameters:
        each.grad = None
    found = model(**given)
    loss = found.square().mean() if isinstance(found, torch.Tensor) else found.loss
    loss.backward()
    return [loss.detach(), *(each.grad for each in parameters if each.grad is not None)]


def difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest, over the largest value of that result if it is above 1."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((a - b).abs().max() / max(1.0, float(b.abs().max()))) for a, b in pairs)


class Compared(NamedTuple):
    """The difference, and the seconds of our first call, of a later one and of torch's."""

    worst: float
    first: float
    ours: float
    theirs: float


def compare(name: str, is_training: bool, rounds: int) -> Compared:
    """One model through the backend beside torch."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, given = MODELS[name]()
    other = copy.deepcopy(model)
    for each in (model, other):
        each.train(is_training)
    compiled = torch.compile(other, backend=backend, options={"strict": True})

    def call(run: Any, owner: nn.Module) -> list[torch.Tensor]:
        return train(run, given, list(owner.parameters())) if is_training else forward(run, given)

    sides = ((compiled, other), (model, model))
    began = time.perf_counter()
    ours = call(*sides[0])
    first = time.perf_counter() - began
    worst = difference(ours, call(*sides[1]))
    now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    least = [math.inf, math.inf]
    for _ in range(rounds):
        for number, side in enumerate(sides):
            time.sleep(REST)
            for _ in range(CALLS):
                began = now()
                call(*side)
                least[number] = min(least[number], now() - began)
    return Compared(worst, first, *least)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    names = options.models or list(MODELS)
    if unknown := set(names) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    torch.set_num_threads(int(os.environ.get("CPU_THREADS", os.cpu_count() or 1)))
    threads, load = torch.get_num_threads(), os.getloadavg()[0]
    print(f"torch {torch.__version__}, {threads} threads, load {load:.1f}")
    ratios, is_close = [], True
    for name in names:
        for is_training in (False, True):
            found = compare(name, is_training, options.rounds)
            ratios.append(found.ours / found.theirs)
            is_close &= found.worst <= CLOSE
            what = "training step" if is_training else "forward"
            print(f"{name:10} {what:14} differs by {found.worst:.1e}  first {found.first:5.1f} s"
                  f"  ours {found.ours * 1e3:8.2f} ms  torch {found.theirs * 1e3:8.2f} ms"
                  f"  {ratios[-1]:5.2f}", flush=True)  # fmt: skip
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f},"
          f" load {os.getloadavg()[0]:.1f}")  # fmt: skip
    return 0 if is_close else 1


if __name__ == "__main__":
    sys.exit(main())
