"""ONNX models: read by the package `onnx`, run as tensor programs.

A table (`table.py`) maps each operator to a function over tensors whose parameters are named as the
operator's inputs and attributes, one module per family of operators. What has no row there but is
defined by ONNX as a function of other operators is run as that function.
"""
