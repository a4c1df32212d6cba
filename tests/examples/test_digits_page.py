"""The example of an exported page can be exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu.cli.demo_training import Training
from gpu.cli.main import main
from gpu.nn.state import safe_load

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_page.py"


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "run", lambda self, report: None)
    assert main(["export", "webgpu", str(EXAMPLE), str(tmp_path / "out")]) == 0
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert about["title"] == "Handwritten digits, read in the browser."
    assert about["text"].endswith("17 shades of grey.")
    assert about["inputs"]["image"]["dtype"] == "uint8"
    weights = safe_load(tmp_path / "out" / "weights.safetensors")
    # As the text of the page says.
    assert sum(weight.numel() for weight in weights.values()) == 7546
    example = safe_load(tmp_path / "out" / "example.safetensors")
    assert example["outputs.probabilities"].sum().item() == pytest.approx(1)
