"""ONNX models: the public names of `gpu.tensor.onnx`."""

from gpu.tensor.onnx.model import OnnxModel, load

__all__ = ["OnnxModel", "load"]
