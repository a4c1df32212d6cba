"""NVIDIA's kernel driver, RM and UVM: files, ioctls, ranges of addresses, peers, and opening."""
