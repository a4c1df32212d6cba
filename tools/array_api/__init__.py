"""Runs the official tests of the Python array API standard on `gpu.array_api`."""
