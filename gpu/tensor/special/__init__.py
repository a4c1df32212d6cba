"""Torch's special functions: one module per family, methods of tensors in `methods.py`."""
