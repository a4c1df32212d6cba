"""UVM, NVIDIA's unified memory driver: calls, the file, ranges of addresses, peers."""
