"""The chip: packets, caches, kernels and queues, whoever put these on it."""
