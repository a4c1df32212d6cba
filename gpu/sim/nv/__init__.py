"""NVIDIA GPUs behind their kernel driver: RM, UVM, channels and engines, as a strict model."""
