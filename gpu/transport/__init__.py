"""Every way to a device: files and ioctls of the operating system, and buses.

Nothing outside this package opens a device, maps one or speaks to one (tests/test_layers.py).
"""
