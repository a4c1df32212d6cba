"""Suites that exist without this tool, run on the GPU: of command queues and of tensors."""
