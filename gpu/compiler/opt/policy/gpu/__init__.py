"""Choices for GPUs: blocks and threads, shared memory, matrix instructions, scans."""
