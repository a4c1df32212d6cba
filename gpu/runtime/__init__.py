"""Devices, buffers and programs, and how a graph of tensors is executed on them."""
