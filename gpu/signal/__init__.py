"""Signals, by the names of `torch.signal`: the windows that frames of them are weighted with."""

from gpu.signal import windows

__all__ = ["windows"]
