"""Unified virtual memory (UVM): ranges of addresses, and what GPUs see of them."""
