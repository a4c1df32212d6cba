"""Exported pages, and a browser that runs them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from export.chromium import Chromium
from gpu.cli.export.modelfile import Model, load_model
from gpu.cli.export.page import make_page, write_page

Arrays = dict[str, npt.NDArray[Any]]

# Runs the model of a folder on its example inputs; outputs as dtype and bytes in base64.
_RUN = """
const { loadModel, readSafetensors, ARRAYS } = await import(`${folder}model.js`);
const model = await loadModel(new URL(folder, location));
const file = await (await fetch(`${folder}example.safetensors`)).arrayBuffer();
const inputs = {};
for (const [name, { bytes }] of Object.entries(readSafetensors(file))) {
  const key = name.replace(/^inputs[.]/, "");
  if (key in model.inputs && key !== name) {
    const array = new ARRAYS[model.inputs[key].dtype](bytes.slice().buffer);
    inputs[key] = model.inputs[key].range ? array[0] : array;
  }
}
const answers = [];
for (let i = 0; i < runs; i++) {
  const outputs = await model.run(inputs);
  answers.push(Object.fromEntries(Object.entries(outputs).map(([name, array]) => {
    const bytes = new Uint8Array(array.buffer);
    return [name, btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))];
  })));
}
return answers;
"""


class Site:
    """A folder of exported pages in front of a browser."""

    def __init__(self, root: Path, browser: Chromium):
        self.root, self.browser = root, browser
        self._count = 0

    def load(self, source: str) -> Model:
        """The model of a file with this text."""
        self._count += 1
        path = self.root / f"model{self._count}.py"
        path.write_text(source)
        return load_model(path)

    def export(self, model: Model | str, f16: bool = False) -> str:
        """Exports a model or the text of its file; its folder as the browser names it."""
        made = self.load(model) if isinstance(model, str) else model
        self._count += 1
        folder = f"page{self._count}"
        write_page(make_page(made, f16), self.root / folder)
        return f"/{folder}/"

    def description(self, folder: str) -> dict[str, Any]:
        """The content of a folder's `model.json`."""
        found: dict[str, Any] = json.loads(
            (self.root / folder.strip("/") / "model.json").read_text()
        )
        return found

    def outputs(self, folder: str, runs: int = 1) -> list[Arrays]:
        """What the browser computes of the example inputs in each of several runs."""
        about = self.description(folder)["outputs"]
        script = f"const folder = {json.dumps(folder)}, runs = {runs};\n{_RUN}"
        return [
            {
                name: np.frombuffer(base64.b64decode(data), about[name]["dtype"]).reshape(
                    about[name]["shape"]
                )
                for name, data in outputs.items()
            }
            for outputs in self.browser.run(script)
        ]
