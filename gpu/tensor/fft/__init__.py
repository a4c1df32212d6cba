"""Fourier transforms of tensors: the functions of `gpu.fft`.

A transform along an axis is a `fft` node of the graph, whose passes are kernels
(`gpu/compiler/fusion/transforms.py`). All else here is made of such nodes and of tensor methods.
"""
