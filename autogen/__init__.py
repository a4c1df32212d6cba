"""Interfaces of kernels and hardware, generated from C headers unless a module says otherwise."""
