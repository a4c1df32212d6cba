"""The chip: memory, caches, channels, compute and copy engines, and who runs kernels."""
